"""How a federated job stands: who takes part, and what its privacy budget was charged with."""

from typing import Literal

from common.untrusted_text import View
from protocol.ids import Count, NodeAddress
from protocol.job.federated import PrivacyUnit


class FederationOwner(View, frozen=True):
    """An owner who is invited. ``at``: since when they take part; None: not yet. ``rows``: of their data, where they say so."""

    node: NodeAddress
    at: float | None = None
    rows: Count | None = None


class PrivacySpent(View, frozen=True):
    """What all updates together may have told so far.

    Attributes:
        unit: what the promise is about, all that one ``owner`` has or one ``example`` of an owner.
        epsilon, delta: so far, of one such unit. ``epsilon_most``: never more than this.
        releases: rounds that were begun, each of which is charged whatever became of it; ``most``: so many fit the budget.
        noise: standard deviation of the noise on what is seen, in clips; with a bit beside it, that of both together. What is
            seen are single updates, or (``sum`` "secure") their sum, with the noise of ``honest`` owners at least.
        own_noise: that on one owner's update alone.
        clip: L2 norm that the next round's updates are cut to; of an ``example``, that of its gradient.
        accountant: who worked epsilon out.
        sampling: how likely a step takes an example, at most; None where the unit is an owner. ``per_round``: how often there
            is noise in a round, which is once, or in each of its steps.
        loss_error: standard deviation of the noise on each held-out loss, in nats a token, at most; None: no loss is told.
    """

    unit: PrivacyUnit
    epsilon: float
    epsilon_most: float
    delta: float
    releases: Count
    most: Count
    noise: float
    clip: float
    accountant: str
    sum: Literal["open", "secure"] = "open"
    own_noise: float | None = None
    honest: Count = 0
    sampling: float | None = None
    per_round: Count = 1
    loss_error: float | None = None


class FederationState(View, frozen=True):
    """Beside the rest of a job. ``privacy``: None where updates leave as they are."""

    owners: tuple[FederationOwner, ...]
    least_owners: int
    privacy: PrivacySpent | None = None

"""How a federated job stands: who takes part, and what its privacy budget was charged with."""

from typing import Literal

from common.untrusted_text import View
from protocol.ids import Count, NodeAddress


class FederationOwner(View, frozen=True):
    """An owner who is invited. ``at``: since when they take part; None: not yet. ``rows``: of their data, where they say so."""

    node: NodeAddress
    at: float | None = None
    rows: Count | None = None


class PrivacySpent(View, frozen=True):
    """What all updates together may have told so far.

    Attributes:
        epsilon, delta: so far, of what ``unit`` has. ``epsilon_most``: never more than this.
        releases: rounds that were begun, each of which is charged whatever became of it; ``most``: so many fit the budget.
        noise: standard deviation of the noise on what is seen, in clips; with a bit beside it, that of both together. What is
            seen are single updates, or (``sum`` "secure") their sum, with the noise of ``honest`` owners at least.
        own_noise: that on one owner's update alone.
        clip: L2 norm that the next round's updates are cut to.
        accountant: who worked epsilon out.
    """

    unit: str
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


class FederationState(View, frozen=True):
    """Beside the rest of a job. ``privacy``: None where updates leave as they are."""

    owners: tuple[FederationOwner, ...]
    least_owners: int
    privacy: PrivacySpent | None = None

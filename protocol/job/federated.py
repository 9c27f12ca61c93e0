"""What a federated job asks for: data stays at its owners, and what their updates may tell about it has a budget."""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.ids import NodeAddress

MAX_OWNERS = 256  # As many as a job may have replicas.
MAX_ROUNDS = 10_000
MAX_SUMMED = (
    1 << 24
)  # Values of an update in a secure sum: 64 MB that each owner stores with the coordinator once a round.
LEAST_NOISE = 0.3
"""In clips. With less, one round is beyond an epsilon of 20: noise that protects nobody."""


class AdaptiveClipping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clip follows the updates: Andrew et al., arXiv 1905.03871.

    ``quantile``: the share of updates that it is to leave as they are. ``rate``: of its change from round to round.
    ``bit_noise``: standard deviation of the noise on each owner's word whether its update was clipped.
    """

    quantile: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    rate: Annotated[float, Meta(gt=0, le=1)] = 0.2
    bit_noise: Annotated[float, Meta(gt=0, le=1000)] = 10.0


class PrivacySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How little all updates together may tell: differential privacy, spent round by round, and never beyond ``epsilon``.

    ``unit``: what the promise is about: all that one owner has. ``clip``: an owner's update is scaled down to this L2 norm.
    ``noise_multiplier``: standard deviation of the Gaussian noise on each update, in clips; ``None``: the least with which all
    rounds fit the budget.
    """

    unit: Literal["owner"] = "owner"
    epsilon: Annotated[float, Meta(gt=0, le=10_000)] = 8.0
    delta: Annotated[float, Meta(gt=0, le=0.01)] = 1e-5
    clip: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    noise_multiplier: Annotated[float, Meta(ge=LEAST_NOISE, le=10_000)] | None = None
    adaptive: AdaptiveClipping | None = None
    """``None``: the clip stays as it is."""
    most_rounds: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """So many rounds fit the budget, the failed ones too; the coordinator fills it in, and owners' nodes do the sum anew."""

    @property
    def update_noise(self) -> float:
        """Standard deviation of the noise on an update, in clips: with a bit beside it, as much more as that tells.

        Raises:
            ValueError: ``noise_multiplier`` is not settled.
        """
        if self.noise_multiplier is None:
            raise ValueError(
                "privacy.noise_multiplier is not settled yet: the coordinator does so when the job is quoted"
            )
        if self.adaptive is None:
            return self.noise_multiplier
        return both_noises(self.noise_multiplier, self.adaptive.bit_noise)

    def __post_init__(self) -> None:
        """Refuse a bit that tells more than the update beside it may."""
        if self.noise_multiplier is not None and self.adaptive is not None:
            both_noises(self.noise_multiplier, self.adaptive.bit_noise)


def both_noises(noise: float, bit_noise: float) -> float:
    """Noise on an update that, with a noised bit beside it, tells as much as ``noise`` alone on the update.

    Args:
        bit_noise: standard deviation on a bit that is 0 or 1, and so half from its middle.
    Raises:
        ValueError: the bit alone tells as much, or more.
    Source: arXiv 1905.03871, theorem 1.
    """
    rest = noise**-2 - (2 * bit_noise) ** -2
    if rest <= 0:
        raise ValueError(
            f"a bit with noise {bit_noise:g} tells as much as an update with noise {noise:g}: choose "
            f"privacy.adaptive.bit_noise above {noise / 2:g}"
        )
    return float(rest**-0.5)


class FederatedSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each replica is an owner's machine, which holds the whole model and reads data that stays there.

    ``owners``: the nodes that are invited, by address (``cottage node key``). ``least_owners``: no round begins with fewer, and
    none counts. ``rounds``: after which the job is done; each has ``training.inner_steps`` steps of each owner. ``privacy``:
    ``null`` leaves updates as they are, which may tell much about the data that they are made of. ``sum``: ``secure``: nobody
    sees more of a round's updates than their sum (``protocol.secure_sum``), so owners share its noise; ``open``: each update
    goes to the other owners, with all the noise on it.
    """

    owners: Annotated[tuple[NodeAddress, ...], Meta(min_length=2, max_length=MAX_OWNERS)]
    rounds: Annotated[int, Meta(ge=1, le=MAX_ROUNDS)]
    least_owners: Annotated[int, Meta(ge=2, le=MAX_OWNERS)] = 2
    privacy: PrivacySpec | None = PrivacySpec()
    sum: Literal["open", "secure"] = "open"

    @property
    def in_league(self) -> int:
        """Owners in league with the coordinator that a secure sum hides updates from: fewer than a third of all."""
        return (len(self.owners) - 1) // 3

    @property
    def honest(self) -> int:
        """Owners whose noise is on each sum at least, and is known to nobody who looks: the fewest of a sum, but those in league.

        Every owner sees the sum and knows its own noise, so where none may be in league one is left out as well.
        """
        return self.least_owners - max(1, self.in_league)

    @property
    def own_noise(self) -> float:
        """Standard deviation of the noise on one owner's update, in clips: in a secure sum, its part of what the sum has.

        Raises:
            ValueError: ``privacy.noise_multiplier`` is not settled, or there is no privacy.
        """
        if self.privacy is None:
            raise ValueError("federated.privacy is null: updates have no noise")
        return self.privacy.update_noise / (math.sqrt(self.honest) if self.sum == "secure" else 1.0)

    @property
    def rounds_allowed(self) -> int | None:
        """Rounds that may be begun, whatever becomes of them; None: as many as it takes."""
        return None if self.privacy is None else self.privacy.most_rounds

    def __post_init__(self) -> None:
        """Refuse owners that are named twice, and rounds that would need more than there are."""
        if twice := next((one for one in self.owners if self.owners.count(one) > 1), None):
            raise ValueError(f"federated.owners has {twice} twice: name each owner's node once")
        if self.least_owners > len(self.owners):
            raise ValueError(
                f"federated.least_owners is {self.least_owners}, and {len(self.owners)} owners are named: no round could begin"
            )
        if self.sum == "secure":
            self._check_secure()

    def _check_secure(self) -> None:
        named = len(self.owners)
        if named < 3:
            raise ValueError(
                "federated.sum: secure hides two updates from nobody: name 3 owners or more, or leave it out"
            )
        if self.least_owners < (least := fewest_of(named)):
            raise ValueError(
                f"federated.least_owners is {self.least_owners}: a secure sum is of more than two thirds of all {named} owners. "
                f"Set it to {least} or more; with more, each has less noise, and fewer may be missing"
            )
        if self.privacy is None:
            raise ValueError(
                "federated.sum: secure carries values within the clip, with noise on their sum: give federated.privacy, or leave "
                "sum out"
            )


def fewest_of(owners: int) -> int:
    """Owners without whom there is no secure sum of so many: more than two thirds (``SumTerms.least``)."""
    return 2 * owners // 3 + 1

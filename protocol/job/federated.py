"""What a federated job asks for: data stays at its owners, and what their updates may tell about it has a budget."""

import math
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from protocol.ids import NodeAddress

MAX_OWNERS = 256  # As many as a job may have replicas.
MAX_ROUNDS = 10_000
# Values of an update in a secure sum: 64 MB that each owner stores with the coordinator once a round.
MAX_SUMMED = 1 << 24
LEAST_NOISE = 0.3
"""In clips. With less, one round is beyond an epsilon of 20: noise that protects nobody."""
SHARE = 0.1  # Of the budget, what the held-out loss takes where nothing else is said.
LEAST_HELD = 32
"""Examples that an owner holds back at least; with fewer it tells no loss, which would be lost in its noise."""
PrivacyUnit = Literal["owner", "example"]


class AdaptiveClipping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The clip follows the updates: Andrew et al., arXiv 1905.03871.

    ``quantile``: the share of updates that it is to leave as they are. ``rate``: of its change from round to round.
    ``bit_noise``: standard deviation of the noise on each owner's word whether its update was clipped; on their sum, where that
    is all that anybody sees.
    """

    quantile: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    rate: Annotated[float, Meta(gt=0, le=1)] = 0.2
    bit_noise: Annotated[float, Meta(gt=0, le=1000)] = 10.0


class HeldoutLoss(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each owner tells once a round, with noise, the loss of a part of its data that no step learns from.

    ``one_in``: of so many examples (or pieces of text) one is held back. ``most``: nats a token; an example with more loss counts
    with this. ``share``: of the budget, where an owner is the unit; ``None``: a tenth. With examples as the unit it takes none
    of it: an example is either learnt from or measured with.
    """

    one_in: Annotated[int, Meta(ge=2, le=1000)] = 20
    most: Annotated[float, Meta(gt=0, le=20)] = 6.0
    share: Annotated[float, Meta(gt=0, le=0.9)] | None = None

    def nats(self, told: float) -> float:
        """The loss that a mean of what was told stands for, of -1 (none) to 1 (``most``); noise leads beyond both."""
        return self.most / 2 * (1 + max(-1.0, min(1.0, told)))


class PrivacySpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How little all updates together may tell: differential privacy, spent round by round, and never beyond ``epsilon``.

    ``unit``: what the promise is about: all that one ``owner`` has, or one ``example``, which is a row of a table or a line of a
    text (DP-SGD: Abadi et al., arXiv 1607.00133). ``clip``: an owner's update, or each example's gradient, is scaled down to
    this L2 norm. ``noise_multiplier``: standard deviation of the Gaussian noise on each update, or each step's sum of gradients,
    in clips; ``None``: the least with which all rounds fit the budget. ``sampling``: how likely a step takes an example, at most;
    each is drawn by itself, at its owner.
    """

    unit: PrivacyUnit = "owner"
    epsilon: Annotated[float, Meta(gt=0, le=10_000)] = 8.0
    delta: Annotated[float, Meta(gt=0, le=0.01)] = 1e-5
    clip: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    noise_multiplier: Annotated[float, Meta(ge=LEAST_NOISE, le=10_000)] | None = None
    adaptive: AdaptiveClipping | None = None
    """``None``: the clip stays as it is."""
    most_rounds: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    """So many rounds fit the budget, the failed ones too; the coordinator fills it in, and owners' nodes do the sum anew."""
    sampling: Annotated[float, Meta(gt=0, le=0.5)] | None = None
    heldout: HeldoutLoss | None = None
    """``None``: no loss is told."""

    @property
    def per_example(self) -> bool:
        """Whether the promise is about one example, and noise so in every step."""
        return self.unit == "example"

    def releases(self, inner_steps: int) -> int:
        """How often noise is added in a round of so many steps, to what the round tells."""
        return inner_steps if self.per_example else 1

    @property
    def update_noise(self) -> float:
        """Standard deviation of the noise on an update, in clips: with a bit or a loss beside it, as much more as they tell.

        Raises:
            ValueError: ``noise_multiplier`` is not settled.
        """
        rest = self.settled_noise / math.sqrt(1 - self.loss_share)
        return rest if self.adaptive is None else both_noises(rest, self.adaptive.bit_noise)

    @property
    def settled_noise(self) -> float:
        """``noise_multiplier``; raises ValueError where it is not settled."""
        if self.noise_multiplier is None:
            raise ValueError(
                "privacy.noise_multiplier is not settled yet: the coordinator does so when the job is quoted"
            )
        return self.noise_multiplier

    @property
    def loss_share(self) -> float:
        """Of the budget, what the held-out loss takes."""
        if self.heldout is None or self.per_example:
            return 0.0
        return SHARE if self.heldout.share is None else self.heldout.share

    def __post_init__(self) -> None:
        """Refuse a bit that tells more than the update beside it may, and what belongs to the other unit."""
        if self.per_example and self.sampling is None:
            raise ValueError(
                "privacy.sampling is missing: say how likely a step takes an example at most, such as training.batch divided by "
                "the rows of the smallest owner"
            )
        if self.per_example and self.adaptive is not None:
            raise ValueError(
                "privacy.adaptive follows owners' updates, and with unit: example gradients are clipped: leave it out"
            )
        if not self.per_example and self.sampling is not None:
            raise ValueError(
                "privacy.sampling draws examples, and every owner takes part in each round: leave it out, or set unit to example"
            )
        if self.per_example and self.heldout is not None and self.heldout.share is not None:
            raise ValueError(
                "privacy.heldout.share is of the budget, and with unit: example the loss takes none of it: leave it out"
            )
        if self.noise_multiplier is not None:
            self.update_noise  # noqa: B018 - a bit may tell more than it may.


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
    def beside(self) -> dict[str, float]:
        """What a secure sum has beside updates, and how far each value may be from zero, in clips: noise on all is the same.

        ``unclipped``: 1 of an update within the clip, else -1. ``heldout``: of a loss, as ``HeldoutLoss.nats`` has it.
        """
        privacy = self.privacy
        if self.sum == "open" or privacy is None:
            return {}
        found = {}
        if privacy.adaptive is not None:
            found["unclipped"] = privacy.update_noise / (2 * privacy.adaptive.bit_noise)
        if privacy.heldout is not None:
            found["heldout"] = privacy.update_noise * math.sqrt(privacy.loss_share) / privacy.settled_noise
        return found

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

    @property
    def per_example(self) -> bool:
        """Whether an owner's steps have noise, for each of its examples, in place of its updates."""
        return self.privacy is not None and self.privacy.per_example

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
        if self.privacy.per_example:
            raise ValueError(
                "federated.sum: secure shares noise on updates among owners, and with unit: example noise is in each owner's own "
                "steps: leave sum out, or set unit to owner"
            )


def fewest_of(owners: int) -> int:
    """Owners without whom there is no secure sum of so many: more than two thirds (``SumTerms.least``)."""
    return 2 * owners // 3 + 1

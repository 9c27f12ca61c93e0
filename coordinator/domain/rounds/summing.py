"""The part of a round in which owners' updates become a sum that nobody sees into: whose turn it is, and who is missing. Pure.

::

    keys --> shares --> vectors --> adding up --> list --> shown --> taking masks off --> added
                           |            |                                   |
            who has trained, and      the coordinator, beside all else; what it comes to is an event here
            whose update came

Each phase waits for all living members that took part in the one before. Whoever is lost in it has gone for good; what they
said before stays. With fewer than ``least`` answers there is no sum, and the round is void: it is done anew with other masks.
What was said itself is not here: it lies in the memory of the process (``coordinator.services.training.secure_sums``), and a
round whose sum was begun in another process is void, too.
"""

from typing import Literal

import msgspec

from protocol.federated.sum_messages import KeysTold, ListSigned, SharesShown, SharesTold
from protocol.federated.sums import SumAnswer, SumSaid, VectorStored
from protocol.ids import Digest

SumPhase = Literal["keys", "shares", "vectors", "adding", "list", "shown", "unmasking", "added"]
PHASES: tuple[SumPhase, ...] = ("keys", "shares", "vectors", "adding", "list", "shown", "unmasking", "added")
_ANSWERS: dict[SumPhase, type[SumAnswer]] = {
    "keys": KeysTold,
    "shares": SharesTold,
    "vectors": VectorStored,
    "list": ListSigned,
    "shown": SharesShown,
}
BY_COORDINATOR: frozenset[SumPhase] = frozenset({"adding", "unmasking"})


class RoundSum(msgspec.Struct, frozen=True):
    """How the sum of a round stands.

    Attributes:
        length: values of each update, and of what is told with it. least: answers without which there is no sum.
        said: phase -> replicas that have answered in it.
        summands: whose updates were added up. total: digest of what they came to. beside: means of what was told with them.
        lost: why there will be none; empty: there may be.
    """

    length: int
    least: int
    phase: SumPhase = "keys"
    said: dict[str, tuple[int, ...]] = {}
    summands: tuple[int, ...] = ()
    total: Digest | None = None
    beside: dict[str, float] = {}
    lost: str = ""

    def answered(self, phase: SumPhase) -> frozenset[int]:
        """Replicas that took part in a phase."""
        return frozenset(self.said.get(phase, ()))


class SumAdded(msgspec.Struct, frozen=True):
    """Updates of these replicas were whole, and are added up."""

    summands: tuple[int, ...]


class SumMade(msgspec.Struct, frozen=True):
    """The masks are off: the sum is an artifact. ``beside``: as in ``RoundSum``."""

    total: Digest
    beside: dict[str, float] = {}


class SumLost(msgspec.Struct, frozen=True):
    """There will be no sum."""

    why: str


SumEvent = SumAdded | SumMade | SumLost


def due(current: RoundSum, members: frozenset[int]) -> frozenset[int]:
    """Living replicas whose answer a phase takes, whether it has come or not; of ``members``, who are alive."""
    if current.phase in BY_COORDINATOR or current.phase == "added":
        return frozenset()
    before = PHASES[PHASES.index(current.phase) - 1]
    if current.phase == "keys":
        return members
    return members & (frozenset(current.summands) if before == "adding" else current.answered(before))


def noted(current: RoundSum, replica: int, said: SumSaid, members: frozenset[int]) -> RoundSum:
    """With an answer, where it is one to what is asked now."""
    awaited = _ANSWERS.get(current.phase)
    if awaited is None or not isinstance(said.body, awaited) or replica not in due(current, members):
        return current
    if isinstance(said.body, VectorStored) and said.body.artifact is None:
        return current
    answers = tuple(sorted({*current.answered(current.phase), replica}))
    return msgspec.structs.replace(current, said={**current.said, current.phase: answers})


def followed(current: RoundSum, event: SumEvent) -> RoundSum:
    """After what the coordinator has done beside; events that do not fit change nothing."""
    match event:
        case SumAdded(summands=summands) if current.phase == "adding":
            if len(summands) < current.least:
                return _lost(current, f"{len(summands)} whole updates came, and a sum is of {current.least} at least")
            return msgspec.structs.replace(current, phase="list", summands=tuple(sorted(summands)))
        case SumMade(total=total, beside=beside) if current.phase == "unmasking":
            return msgspec.structs.replace(current, phase="added", total=total, beside=beside)
        case SumLost(why=why) if current.phase != "added":
            return _lost(current, why)
    return current


def advanced(current: RoundSum, members: frozenset[int], committed: frozenset[int]) -> RoundSum:
    """In the next phase, where all who can have answered; lost, where too few can.

    Args:
        committed: replicas whose commitment to the round is here: an update counts with it alone.
    """
    if current.lost or current.phase in BY_COORDINATOR or current.phase == "added":
        return current
    answered, awaited = _whole(current, committed), due(current, members)
    able = len(answered | awaited)
    if able < current.least:
        return _lost(current, f"{able} owners are left for its sum, which is of {current.least} at least")
    if not awaited <= answered:
        return current
    said = {**current.said, current.phase: tuple(sorted(answered))}
    return msgspec.structs.replace(current, phase=PHASES[PHASES.index(current.phase) + 1], said=said)


def missing(current: RoundSum, members: frozenset[int], committed: frozenset[int]) -> frozenset[int]:
    """Living replicas that a phase waits for."""
    return due(current, members) - _whole(current, committed)


def _whole(current: RoundSum, committed: frozenset[int]) -> frozenset[int]:
    answered = current.answered(current.phase)
    return answered & committed if current.phase == "vectors" else answered


def _lost(current: RoundSum, why: str) -> RoundSum:
    return msgspec.structs.replace(current, lost=why)

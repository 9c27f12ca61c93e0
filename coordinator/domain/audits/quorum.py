"""The held-out loss, which leaves nothing to re-run, is measured by replicas of several owners; what is reported is what most of
them come to. Pure.

All replicas hold the same bits when a round begins, so inside one environment class honest results are equal bit for bit, and a
digest over weights, sums, tokens and loss compares them. Between classes a loss can only be *near*, as in an audit across
classes. An owner has one voice, however many replicas it has a part in. A vote slashes nobody: see docs/decisions/0029.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence

import msgspec

from protocol.ids import Digest
from protocol.task import PreferenceScore, Validation

MAX_TRIES = 32  # Replicas from which as many as possible without a common owner are looked for; of a thousand, all take a second.
_TINY = 1e-6  # Nats a token: a loss of less has no meaningful distance.
_NUMBERS, _SCORES = struct.Struct("<dQ"), struct.Struct("<dd")


class Measured(msgspec.Struct, frozen=True):
    """What a replica came to: the mean loss, the digest of all it says, when that came, and of pairs how it tells them apart."""

    loss: float
    digest: Digest
    at: float = 0.0
    preference: PreferenceScore | None = None


class MeasuredResult(msgspec.Struct, frozen=True):
    """What is compared.

    Attributes:
        owners: of all the replica's stages: each could have bent what the last one reports.
        env_class: of all its stages.
        excused: it began from a state that others had made, so what differs may be their doing.
    """

    replica: int
    owners: frozenset[str]
    env_class: str
    digest: Digest
    loss: float
    excused: bool = False
    preference: PreferenceScore | None = None


class QuorumOutcome(msgspec.Struct, frozen=True):
    """What a round's results come to.

    Attributes:
        loss: None: there is no quorum.
        same: owners that came to exactly this; ``near``: of other classes, within the tolerance; ``of``: that reported.
        differ: replicas that most owners of their own class contradict.
        preference: as those say it who came to exactly this.
    """

    loss: float | None
    same: int
    near: int
    of: int
    differ: tuple[int, ...] = ()
    preference: PreferenceScore | None = None


def measured(report: Validation, now: float) -> Measured:
    """A report as it is kept. The digest is made here, so nobody can name that of a result which it has not."""
    said = _NUMBERS.pack(report.loss, report.tokens) + f"{report.weights}:{report.sums}".encode()
    score = report.preference
    if score is not None:
        said += _SCORES.pack(score.accuracy, score.margin)
    return Measured(report.loss, hashlib.sha256(b"cottage-heldout-1\0" + said).hexdigest(), now, score)


def ask(owners: Mapping[int, frozenset[str]], most: int, lot: str) -> tuple[int, ...]:
    """Which replicas measure: by lot, no two with an owner in common, as many as there are but ``most``; at least one.

    Args:
        owners: replica -> owners of its stages; not empty.
        lot: names the round: its order of the replicas is another one than the last round's.
    """
    order = sorted(owners, key=lambda p: hashlib.sha256(f"{lot}:{p}".encode()).digest())
    best: list[int] = []
    for first in range(min(len(order), MAX_TRIES)):
        found = _apart(owners, (*order[first:], *order[:first]), max(1, most))
        best = max(best, found, key=len)
        if len(best) >= most:
            break
    return tuple(sorted(best))


def judge(results: Sequence[MeasuredResult], tolerance: float) -> QuorumOutcome:
    """Weigh what has been reported.

    A value has a quorum where more than half of the owners of its environment class came to it, bit for bit, and those with all
    that are near it in other classes are more than half of all. A loss that is no number has none.

    Args:
        tolerance: greatest distance between two classes, relative.
    """
    voices = _voices(results)
    best, outcome = None, QuorumOutcome(None, 0, 0, len(voices))
    for voice in voices:
        own = [other for other in voices if other.env_class == voice.env_class]
        same = sum(other.digest == voice.digest for other in own)
        near = sum(
            other.env_class != voice.env_class and is_near(other.loss, voice.loss, tolerance) for other in voices
        )
        quorum = 2 * same > len(own) and 2 * (same + near) > len(voices)
        if quorum and math.isfinite(voice.loss) and (same + near, same) > (outcome.same + outcome.near, outcome.same):
            best = voice
            outcome = QuorumOutcome(voice.loss, same, near, len(voices), preference=voice.preference)
    if best is None:
        return outcome
    return msgspec.structs.replace(outcome, differ=_differ(results, voices, best, tolerance))


def is_near(one: float, other: float, tolerance: float) -> bool:
    """Whether two losses of different classes are as near as honest machines are; never where one of them is no number."""
    return abs(one - other) <= tolerance * max(abs(one), abs(other), _TINY) < math.inf


def _apart(owners: Mapping[int, frozenset[str]], order: Sequence[int], most: int) -> list[int]:
    """The first replica, and each next one that shares no owner with those before, until there are enough."""
    found: list[int] = []
    heard: frozenset[str] = frozenset()
    for replica in order:
        if len(found) < most and heard.isdisjoint(owners[replica]):
            found.append(replica)
            heard |= owners[replica]
    return found


def _voices(results: Sequence[MeasuredResult]) -> list[MeasuredResult]:
    """One result of each owner: that of the lowest replica which it has a part in."""
    by_replica = {result.replica: result for result in results}
    owners = {replica: result.owners for replica, result in by_replica.items()}
    return [by_replica[replica] for replica in _apart(owners, sorted(by_replica), len(by_replica))]


def _differ(
    results: Sequence[MeasuredResult], voices: Sequence[MeasuredResult], best: MeasuredResult, tolerance: float
) -> tuple[int, ...]:
    """Replicas against which stand two owners of their class, more than half of it, with what is reported or near it."""
    found: list[int] = []
    for result in results:
        own = [voice for voice in voices if voice.env_class == result.env_class]
        most = max(own, key=lambda voice: sum(voice.digest == other.digest for other in own), default=result)
        count = sum(voice.digest == most.digest for voice in own)
        stands = (
            most.digest == best.digest if most.env_class == best.env_class else is_near(most.loss, best.loss, tolerance)
        )
        if count >= 2 and 2 * count > len(own) and stands and result.digest != most.digest and not result.excused:
            found.append(result.replica)
    return tuple(sorted(found))

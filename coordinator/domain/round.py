"""One outer round as a fold over what happens to its members.

::

    training --(all whole replicas committed, and held by everybody alive)--> applying --(all alive applied,
       |                                                                         |    each stage checkpointed)--> complete
       +--------------- no replica is whole / a stage is gone ----------------> void

A replica is *whole* while every one of its stages is alive. Contributors are decided once and never change. Events may come in
any order, twice, or for another round: what does not fit changes nothing.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from transport.wire.ids import Digest, NodeAddress
from transport.wire.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    Layers,
    Member,
    Plan,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    TaskCommand,
    Validation,
)

Phase = Literal["training", "applying", "complete", "void"]


class Commitment(msgspec.Struct, frozen=True):
    """What a member bound itself to. ``carried``: what it takes into the next round if this one's contribution counts."""

    root: Digest
    leaves: int
    pseudo_gradient: Digest
    loss: float | None
    carried: Digest | None = None


class Seat(msgspec.Struct, frozen=True):
    """A member of the round, by its lease.

    Attributes:
        state: the checkpoint that it begins from, where it has not got the anchor.
        local: what it had committed to carry into this round; ``None`` where it begins afresh.
    """

    lease: str
    node: NodeAddress
    stage: int
    replica: int
    state: Digest | None = None
    alive: bool = True
    commit: Commitment | None = None
    held: dict[int, Digest] = {}
    parameters: Digest | None = None
    checkpoint: Digest | None = None
    local: Digest | None = None


class Round(msgspec.Struct, frozen=True):
    """A round in flight. ``steps`` 0: only the validation that ends a job. ``together``: without one, none can go on."""

    epoch: int
    number: int
    first_step: int
    steps: int
    total_steps: int
    validate: bool
    layers: tuple[Layers, ...]
    seats: tuple[Seat, ...]
    started: float
    phase: Phase = "training"
    contributors: tuple[int, ...] | None = None
    validation: float | None = None
    together: bool = False

    @property
    def plan(self) -> Plan:
        """Who does what, as the members are told."""
        return Plan(self.epoch, self.layers, tuple(Member(s.stage, s.replica, s.node) for s in self.seats))

    def seat(self, lease: str) -> Seat | None:
        """The member that holds ``lease``."""
        return next((seat for seat in self.seats if seat.lease == lease), None)

    def stage(self, stage: int) -> tuple[Seat, ...]:
        """Members of a stage that are alive, lowest replica first."""
        living = (seat for seat in self.seats if seat.stage == stage and seat.alive)
        return tuple(sorted(living, key=lambda seat: seat.replica))

    def whole(self) -> tuple[int, ...]:
        """Replicas that have lost nobody, in order."""
        broken = {seat.replica for seat in self.seats if not seat.alive}
        return tuple(sorted({seat.replica for seat in self.seats} - broken))


class Lost(msgspec.Struct, frozen=True):
    """The lease ended: whatever its holder still says does not count."""


RoundEvent = RoundCommit | RoundHolding | RoundApplied | Validation | Lost


def fold(current: Round, lease: str, event: RoundEvent) -> Round:
    """Return the round after ``event`` of the member that holds ``lease``."""
    seat = current.seat(lease)
    if seat is None or not seat.alive or current.phase in ("complete", "void"):
        return current
    if not isinstance(event, Lost) and (event.epoch, event.round) != (current.epoch, current.number):
        return current
    match event:
        case Lost():
            changed = msgspec.structs.replace(seat, alive=False)
        case RoundCommit():
            changed = _committed(current, seat, event)
        case RoundHolding():
            changed = msgspec.structs.replace(seat, held={**seat.held, **event.held})
        case RoundApplied():
            changed = _applied(current, seat, event)
        case Validation():
            return _advance(_validated(current, seat, event))
    seats = tuple(changed if other is seat else other for other in current.seats)
    return _advance(msgspec.structs.replace(current, seats=seats))


def commands(current: Round, lease: str) -> tuple[TaskCommand, ...]:
    """What the member must have been told by now; saying it twice does no harm."""
    seat = current.seat(lease)
    if seat is None or not seat.alive or current.phase in ("complete", "void"):
        return ()
    told: list[TaskCommand] = []
    if seat.commit is None and seat.parameters is None:
        told.append(_begin(current, seat))
        if seat.replica not in current.whole() or _decided_without(current, seat):
            told.append(AbandonRound(current.epoch, current.number))
    if current.contributors is not None and (seat.parameters is None or _must_checkpoint(current, seat)):
        digests = _contributions(current, current.contributors, seat.stage)
        told.append(ApplyRound(current.epoch, current.number, digests, _must_checkpoint(current, seat)))
    return tuple(told)


def culprits(current: Round) -> frozenset[str]:
    """Leases to end when nothing has happened for too long. Ending them always moves the round on."""
    living = [seat for seat in current.seats if seat.alive]
    if current.phase == "applying":
        return frozenset(s.lease for s in living if s.parameters is None or _must_checkpoint(current, s))
    if current.phase != "training":
        return frozenset()
    if current.steps == 0:
        return frozenset(s.lease for s in living)
    committed = {p for p in current.whole() if _is_committed(current, p)}
    idle = frozenset(s.lease for s in living if s.replica in current.whole() and s.replica not in committed)
    if idle or not committed:
        return idle or frozenset(s.lease for s in living)
    kept: list[int] = []
    for replica in sorted(committed):
        if _hold_each_other(current, [*kept, replica]):
            kept.append(replica)
    kept = kept or [min(committed)]
    needed = {s.lease for s in living if s.replica in kept}
    return frozenset(s.lease for s in living if s.lease not in needed and not _holds(current, s, kept)) or frozenset(
        s.lease for s in living if s.replica not in kept or not _holds(current, s, kept)
    )


def agreed(current: Round, stage: int) -> Digest | None:
    """The parameters that most members of a stage came to; a tie goes to the lowest replica. None: nobody applied."""
    reported = [s.parameters for s in sorted(current.seats, key=lambda s: s.replica) if s.stage == stage]
    digests = [digest for digest in reported if digest is not None]
    return max(digests, key=digests.count) if digests else None


def checkpoint(current: Round, stage: int) -> Digest | None:
    """A checkpoint of the stage, from a member that agrees with the most."""
    majority = agreed(current, stage)
    found = [s for s in current.seats if s.stage == stage and s.checkpoint and s.parameters == majority]
    return min(found, key=lambda s: s.replica).checkpoint if found else None


def _committed(current: Round, seat: Seat, event: RoundCommit) -> Seat:
    if current.phase != "training" or seat.commit is not None or event.leaves != current.steps:
        return seat
    commit = Commitment(event.root, event.leaves, event.pseudo_gradient, event.loss, event.carried)
    return msgspec.structs.replace(seat, commit=commit)


def _applied(current: Round, seat: Seat, event: RoundApplied) -> Seat:
    if current.phase != "applying":
        return seat
    given = event.checkpoint or seat.checkpoint
    return msgspec.structs.replace(seat, parameters=seat.parameters or event.parameters, checkpoint=given)


def _validated(current: Round, seat: Seat, event: Validation) -> Round:
    """Only the last stage of the replica that was asked knows the loss."""
    asked = min(other.replica for other in current.seats)
    if not current.validate or seat.replica != asked or seat.stage != len(current.layers) - 1:
        return current
    return msgspec.structs.replace(current, validation=event.loss)


def _advance(current: Round) -> Round:
    if current.phase == "training":
        return _decide(current)
    if any(not current.stage(s) and checkpoint(current, s) is None for s in range(len(current.layers))):
        return msgspec.structs.replace(current, phase="void")
    applied = all(seat.parameters for seat in current.seats if seat.alive)
    if applied and all(checkpoint(current, s) for s in range(len(current.layers))):
        return msgspec.structs.replace(current, phase="complete")
    return current


def _decide(current: Round) -> Round:
    whole = current.whole()
    if not whole or (current.together and any(not seat.alive for seat in current.seats)):
        return msgspec.structs.replace(current, phase="void")
    if current.steps == 0:
        return current if current.validation is None else msgspec.structs.replace(current, phase="complete")
    if not all(_is_committed(current, replica) for replica in whole):
        return current
    if not all(_holds(current, seat, whole) for seat in current.seats if seat.alive):
        return current
    return msgspec.structs.replace(current, phase="applying", contributors=whole)


def _begin(current: Round, seat: Seat) -> BeginRound:
    asked = min(other.replica for other in current.seats)
    return BeginRound(
        plan=current.plan,
        round=current.number,
        first_step=current.first_step,
        steps=current.steps,
        total_steps=current.total_steps,
        validate=current.validate and seat.replica == asked,
        state=seat.state,
    )


def _is_committed(current: Round, replica: int) -> bool:
    return all(seat.commit for seat in current.seats if seat.replica == replica)


def _contributions(current: Round, replicas: Iterable[int], stage: int) -> dict[int, Digest]:
    """Replica -> committed digest, for one stage."""
    wanted = set(replicas)
    return {
        seat.replica: seat.commit.pseudo_gradient
        for seat in current.seats
        if seat.stage == stage and seat.replica in wanted and seat.commit is not None
    }


def _holds(current: Round, seat: Seat, replicas: Sequence[int]) -> bool:
    wanted = _contributions(current, replicas, seat.stage)
    return all(seat.held.get(replica) == digest for replica, digest in wanted.items())


def _hold_each_other(current: Round, replicas: Sequence[int]) -> bool:
    return all(_holds(current, s, replicas) for s in current.seats if s.replica in replicas)


def _decided_without(current: Round, seat: Seat) -> bool:
    return current.contributors is not None and seat.replica not in current.contributors


def _must_checkpoint(current: Round, seat: Seat) -> bool:
    """The lowest living member of each stage that agrees with the most delivers the new state."""
    if checkpoint(current, seat.stage) is not None:
        return False
    majority = agreed(current, seat.stage)
    fitting = [s for s in current.stage(seat.stage) if s.parameters in (None, majority)]
    return bool(fitting) and fitting[0].lease == seat.lease

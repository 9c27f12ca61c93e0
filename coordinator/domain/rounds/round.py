"""One outer round as a fold over what happens to its members.

::

    training --(contributors fixed: see ``contributors``)--> applying --(applied, and each stage's state is safe)--> complete
       |  |                                                   |  ^
       |  +--(chosen)--> reducing, by shards: ``reduction`` --|--+
       |  +--(all masked)--> reducing, to a sum: ``summing`` -|--+
       +------------ no replica is whole / a stage is gone ---+--> void

A replica is *whole* while every one of its stages is alive. Contributors are decided once and never change; by shards they are
decided once all results are held. Events may come in
any order, twice, or for another round: what does not fit changes nothing. The time is passed in with each event; ``look`` moves
a round on that nothing but time stands against.
"""

import statistics

import msgspec

from coordinator.domain.audits.quorum import MeasuredResult, measured
from coordinator.domain.rounds.contributors import (
    after_deadline,
    all_safe,
    candidates,
    enough_applied,
    everybody_applied,
    unanimous,
)
from coordinator.domain.rounds.reduction import (
    advanced,
    authored,
    held_up_by,
    noted,
    passed_on,
    reducers_of,
    results_of,
    started,
)
from coordinator.domain.rounds.seat import (
    Commitment,
    Phase,
    Round,
    Seat,
    agreed,
    checkpoint,
    contributions,
    holds,
    is_gone,
    is_safe,
    kept_state,
    must_store,
    weights,
)
from coordinator.domain.rounds.straggler_deadline import quorum
from coordinator.domain.rounds.summing import SumEvent, followed
from coordinator.domain.rounds.summing import advanced as sum_advanced
from coordinator.domain.rounds.summing import missing as sum_missing
from coordinator.domain.rounds.summing import noted as sum_noted
from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    OuterRecord,
    ReduceRound,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    ShardRecord,
    SumSaid,
    TaskCommand,
    Validation,
)

__all__ = [
    "Commitment",
    "Lost",
    "Phase",
    "Round",
    "RoundEvent",
    "Seat",
    "agreed",
    "checkpoint",
    "commands",
    "culprits",
    "fold",
    "is_news",
    "kept_state",
    "look",
    "results",
    "summed",
]


class Lost(msgspec.Struct, frozen=True):
    """The lease ended: whatever its holder still says does not count."""


PATIENCE = 4.0  # Times the median: so much slower a home machine may be that measures the loss after the last round,
LEAST_PATIENCE_S = 10.0  # or has a state to load first.

RoundEvent = RoundCommit | RoundHolding | RoundApplied | Validation | SumSaid | Lost


def fold(current: Round, lease: str, event: RoundEvent, now: float = 0.0) -> Round:
    """Return the round after ``event`` of the member that holds ``lease``, which came at ``now``."""
    seat = current.seat(lease)
    if seat is None or not seat.alive or current.phase in ("complete", "void"):
        return current
    if not isinstance(event, Lost) and (event.epoch, event.round) != (current.epoch, current.number):
        return current
    match event:
        case Lost():
            changed = msgspec.structs.replace(seat, alive=False)
        case RoundCommit():
            changed = _committed(current, seat, event, now)
        case RoundHolding():
            times = dict.fromkeys(event.held, now) | seat.held_at
            changed = msgspec.structs.replace(seat, held={**seat.held, **event.held}, held_at=times)
            changed = noted(current, changed, event, now)
        case RoundApplied():
            changed = _applied(current, seat, event, now)
        case SumSaid():
            return _advance(_answered(current, seat, event), now)
        case Validation():
            return _advance(_validated(current, seat, event, now), now)
    seats = tuple(changed if other is seat else other for other in current.seats)
    return _advance(msgspec.structs.replace(current, seats=seats), now)


def summed(current: Round, event: SumEvent, now: float = 0.0) -> Round:
    """The round after the coordinator has done its part of a sum, or cannot."""
    if current.sum is None or current.phase in ("applying", "complete", "void"):
        return current
    return _advance(msgspec.structs.replace(current, sum=followed(current.sum, event)), now)


def look(current: Round, now: float) -> Round:
    """The round after nothing but time has passed."""
    return current if current.phase in ("complete", "void") else _advance(current, now)


def is_news(before: Round, after: Round) -> bool:
    """Whether a report has changed what is worth waiting for: not which digest a member says that it holds, again and again."""
    if before is after:
        return False
    if msgspec.structs.replace(before, seats=()) != msgspec.structs.replace(after, seats=()):
        return True
    replicas = {seat.replica for seat in after.seats}
    changed = [pair for pair in zip(before.seats, after.seats, strict=True) if pair[0] is not pair[1]]
    return any(_news(was, replicas) != _news(seat, replicas) for was, seat in changed)


def _news(seat: Seat, replicas: set[int]) -> Seat:
    """A member without what may be said again and again."""
    return msgspec.structs.replace(
        seat,
        held=dict.fromkeys(sorted(replicas & {*seat.held}), ""),
        held_at={},
        taken=dict.fromkeys(sorted(replicas & {*seat.taken}), ()),
        results=dict.fromkeys(sorted(seat.results), ""),
        results_at={},
        reduced=dict.fromkeys(sorted(seat.reduced), ""),
    )


def fits(current: Round, leaves: int) -> bool:
    """Whether a commitment to so many steps can be of this round."""
    return leaves == current.steps if current.seconds is None else 1 <= leaves <= current.steps


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
    if current.phase == "reducing" and current.reduction is not None:
        digests = contributions(current, current.reduction.contributors, seat.stage)
        reducers = reducers_of(current.reduction, seat.stage)
        passed = passed_on(current.reduction, seat.stage)
        weighed = weights(current, current.reduction.contributors)
        told.append(
            ReduceRound(current.epoch, current.number, current.reduction.turn, digests, reducers, passed, weighed)
        )
    if current.contributors is not None and (seat.parameters is None or must_store(current, seat)):
        digests = contributions(current, current.contributors, seat.stage)
        results, weighed = results_of(current, seat.stage), weights(current, current.contributors)
        total = None if current.sum is None else current.sum.total
        store = must_store(current, seat)
        told.append(ApplyRound(current.epoch, current.number, digests, store, results, weighed, total))
    return tuple(told)


def culprits(current: Round) -> frozenset[str]:
    """Leases to end when nothing has happened for too long. Ending them always moves the round on."""
    living = [seat for seat in current.seats if seat.alive]
    if current.phase == "applying":
        waited = frozenset(s.lease for s in living if s.parameters is None or must_store(current, s))
        return waited or frozenset(s.lease for s in living if not is_safe(current, s.stage))
    if current.sum is not None:
        waited_for = sum_missing(current.sum, frozenset(current.whole()), current.committed)
        return frozenset(s.lease for s in living if s.replica in waited_for)
    if current.phase == "reducing":
        return held_up_by(current)
    if current.phase != "training":
        return frozenset()
    if current.steps == 0:
        awaited = frozenset(s.lease for s in living if s.replica not in current.measured)
        return awaited or frozenset(s.lease for s in living)
    able = candidates(current)
    committed = {replica for replica in able if current.steps_of(replica)}
    idle = frozenset(s.lease for s in living if s.replica in able and s.replica not in committed)
    if idle or not committed:
        return idle or frozenset(s.lease for s in living)
    kept: list[int] = []
    for replica in sorted(committed):
        if _hold_each_other(current, [*kept, replica]):
            kept.append(replica)
    kept = kept or [min(committed)]
    needed = {s.lease for s in living if s.replica in kept}
    return frozenset(s.lease for s in living if s.lease not in needed and not holds(current, s, kept)) or frozenset(
        s.lease for s in living if s.replica not in kept or not holds(current, s, kept)
    )


def results(current: Round) -> tuple[MeasuredResult, ...]:
    """What replicas came to that have measured the held-out loss."""
    found: list[MeasuredResult] = []
    for replica, said in sorted(current.measured.items()):
        seats = sorted((s for s in current.seats if s.replica == replica), key=lambda s: s.stage)
        owners = frozenset(s.owner or s.node for s in seats)
        kinds, taken = "\n".join(s.env_class for s in seats), any(s.state or s.kept for s in seats)
        found.append(MeasuredResult(replica, owners, kinds, said.digest, said.loss, taken, said.preference))
    return tuple(found)


def _committed(current: Round, seat: Seat, event: RoundCommit, now: float) -> Seat:
    if current.phase != "training" or seat.commit is not None or not fits(current, event.leaves):
        return seat
    commit = Commitment(
        event.root,
        event.leaves,
        event.pseudo_gradient,
        event.loss,
        event.carried,
        now,
        event.left_out,
        event.unclipped,
        event.heldout,
    )
    return msgspec.structs.replace(seat, commit=commit)


def _applied(current: Round, seat: Seat, event: RoundApplied, now: float) -> Seat:
    if current.phase != "applying":
        return seat
    given = event.checkpoint or seat.checkpoint
    at = seat.applied_at if seat.parameters else now
    return msgspec.structs.replace(
        seat,
        parameters=seat.parameters or event.parameters,
        checkpoint=given,
        manifest=seat.manifest or event.kept,
        own=seat.own or event.moments,
        applied_at=at,
        outer=seat.outer or _outer(current, seat, event.outer),
    )


def _outer(current: Round, seat: Seat, said: OuterRecord | None) -> OuterRecord | None:
    """What a member says of its outer step, held to the results that were agreed on and to what it had said of its shards."""
    if said is None or current.reduction is None:
        return said
    reduced = []
    residues = {record.shard: record.after for record in said.reduced}
    for task in authored(current, seat):
        assert task.result is not None
        before = seat.residue if task.shard == seat.replica else None
        reduced.append(ShardRecord(task.shard, task.result, before, residues.get(task.shard)))
    results = results_of(current, seat.stage)
    return msgspec.structs.replace(said, results=results, reduced=tuple(reduced))


def _validated(current: Round, seat: Seat, event: Validation, now: float) -> Round:
    """Only the last stages of replicas that were asked know the loss, and what one has said it cannot take back."""
    known = seat.replica in current.measured or current.weighed
    if known or seat.replica not in current.evaluators or seat.stage != len(current.layers) - 1:
        return current
    return msgspec.structs.replace(current, measured={**current.measured, seat.replica: measured(event, now)})


def _answered(current: Round, seat: Seat, event: SumSaid) -> Round:
    if current.sum is None or event.body.owner != seat.node:
        return current
    said = sum_noted(current.sum, seat.replica, event, frozenset(current.whole()))
    return msgspec.structs.replace(current, sum=said)


def _to_sum(current: Round, now: float) -> Round:
    """Where its sum stands: it trains until all updates are there, and ends with the sum."""
    assert current.sum is not None
    after = sum_advanced(current.sum, frozenset(current.whole()), current.committed)
    current = msgspec.structs.replace(current, sum=after)
    if after.lost:
        return msgspec.structs.replace(current, phase="void")
    if after.phase == "added":
        return msgspec.structs.replace(current, phase="applying", contributors=after.summands, decided=now)
    waits = after.phase in ("keys", "shares", "vectors")
    return msgspec.structs.replace(current, phase="training" if waits else "reducing")


def _advance(current: Round, now: float) -> Round:
    if current.sum is not None and current.phase in ("training", "reducing"):
        current = _to_sum(current, now)
    elif current.phase == "training":
        current = _decide(current, now)
    if current.phase == "reducing" and current.sum is None:
        return advanced(current, now)
    if current.phase != "applying":
        return current
    if any(is_gone(current, stage) for stage in range(len(current.layers))):
        return msgspec.structs.replace(current, phase="void")
    if not current.overdue and enough_applied(current, now):
        current = msgspec.structs.replace(current, overdue=True)
    if all_safe(current) and (current.overdue or everybody_applied(current)):
        return msgspec.structs.replace(current, phase="complete")
    return current


def _decide(current: Round, now: float) -> Round:
    if current.steps == 0 and (current.heard or _heard_enough(current, now)):
        return msgspec.structs.replace(current, phase="complete")
    too_few = current.steps > 0 and len(candidates(current)) < current.least
    if too_few or not candidates(current) or (current.together and any(not seat.alive for seat in current.seats)):
        return msgspec.structs.replace(current, phase="void")
    if current.steps == 0:
        return current
    chosen = unanimous(current) or after_deadline(current, now)
    if chosen is None:
        return current
    if current.sharded:
        return started(current, chosen, now)
    return msgspec.structs.replace(current, phase="applying", contributors=chosen, decided=now)


def _heard_enough(current: Round, now: float) -> bool:
    """Whether half have measured the loss, and the others take far longer than they did."""
    taken = [report.at - current.started for report in current.measured.values()]
    if len(taken) < quorum(len(current.evaluators)):
        return False
    return now - current.started >= max(LEAST_PATIENCE_S, PATIENCE * statistics.median(taken))


def _begin(current: Round, seat: Seat) -> BeginRound:
    return BeginRound(
        plan=current.plan,
        round=current.number,
        first_step=current.first_step,
        steps=current.steps,
        total_steps=current.total_steps,
        validate=seat.replica in current.evaluators,
        state=seat.state,
        kept=seat.kept,
        seconds=current.seconds,
        rate_step=current.rate_step,
        moments=seat.moments,
        residue=seat.residue,
        clip=current.clip,
    )


def _hold_each_other(current: Round, replicas: list[int]) -> bool:
    return all(holds(current, s, replicas) for s in current.seats if s.replica in replicas)


def _decided_without(current: Round, seat: Seat) -> bool:
    chosen = current.contributors if current.reduction is None else current.reduction.contributors
    return chosen is not None and seat.replica not in chosen

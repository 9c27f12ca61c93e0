"""The part of a round in which shards are reduced: who reduces which, what came of it, and who steps in. Pure.

::

    contributors chosen --> each shard's reducer says what its result is --> every living member holds all results --> applying
            |                        |
            |                        +-- it left, or is late: another one reduces, or passes on what it holds already
            +-- nobody alive has a part that is wanted: chosen anew without its contributor (``turn`` grows)

Nobody applies anything before all results are held, so contributors may change until then. What a reducer has said of a turn it
cannot take back, and the one who said it answers for it, whoever passes it on.
"""

import math
from collections.abc import Sequence
from functools import cached_property

import msgspec

from coordinator.domain.rounds.seat import Reduction, Round, Seat, ShardTask
from coordinator.domain.rounds.straggler_deadline import LATENESS, deadline, quorum
from protocol.ids import Digest
from protocol.task import RoundHolding

# Times the median that a result may take: a reducer on a slow line sends as much as the others, and is no worse for it.
PATIENCE = 3.0
WITHHOLDING_S = 10.0  # Beyond that, until a contributor is left out that could send its part of a shard and does not.
MOST_REDUCERS = 4  # Of a shard in one turn; after that the round waits until it stalls, which ends whoever holds it up.


def started(current: Round, contributors: tuple[int, ...], now: float) -> Round:
    """The round once its contributors were chosen, for the first time or anew."""
    turn = 1 if current.reduction is None else current.reduction.turn + 1
    tasks = tuple(
        ShardTask(stage, shard, shard, now) for stage in range(len(current.layers)) for shard in current.plan.replicas()
    )
    reduction = Reduction(turn, contributors, tasks, now)
    seats = tuple(msgspec.structs.replace(s, results={}, results_at={}, reduced={}) for s in current.seats)
    return msgspec.structs.replace(current, phase="reducing", reduction=reduction, seats=seats)


def noted(current: Round, seat: Seat, event: RoundHolding, now: float) -> Seat:
    """What a member holds of other shards, and of results."""
    taken = {shard: tuple(sorted({*seat.taken.get(shard, ()), *more})) for shard, more in event.taken.items()}
    seat = msgspec.structs.replace(seat, taken={**seat.taken, **taken})
    if current.reduction is None or event.turn != current.reduction.turn or current.phase != "reducing":
        return seat
    replicas = set(current.plan.replicas())
    results = {shard: digest for shard, digest in event.results.items() if shard in replicas}
    reduced = {shard: digest for shard, digest in event.reduced.items() if shard in replicas}
    times = {shard: now for shard, digest in results.items() if seat.results.get(shard) != digest}
    return msgspec.structs.replace(
        seat,
        results={**seat.results, **results},
        results_at={**seat.results_at, **times},
        reduced={**reduced, **seat.reduced},
    )


def advanced(current: Round, now: float) -> Round:
    """The round with claims noted, reducers replaced and contributors that cannot be had left out; perhaps ``applying``."""
    reduction = current.reduction
    assert reduction is not None
    if any(not current.stage(stage) for stage in range(len(current.layers))):
        return msgspec.structs.replace(current, phase="void")
    for _ in range(len(current.seats) + 2):  # Each pass leaves somebody out, or is the last.
        members = _Members(current)
        reduction = msgspec.structs.replace(reduction, tasks=tuple(_claimed(members, t) for t in reduction.tasks))
        patience = _Patience(members, reduction)
        tasks = tuple(_in_hand(members, reduction, task, patience, now) for task in reduction.tasks)
        reduction = msgspec.structs.replace(reduction, tasks=tasks)
        lost = _unobtainable(members, reduction, patience, now)
        if not lost:
            break
        left = tuple(replica for replica in reduction.contributors if replica not in lost)
        if not left:
            return msgspec.structs.replace(current, phase="void")
        current = started(current, left, now)
        assert current.reduction is not None
        reduction = current.reduction
    current = msgspec.structs.replace(current, reduction=reduction)
    if not _may_end(current, reduction, now):
        return current
    return msgspec.structs.replace(current, phase="applying", contributors=reduction.contributors, decided=now)


def reducers_of(reduction: Reduction, stage: int) -> dict[int, int]:
    """Shard -> replica, as the members of a stage are told."""
    return {task.shard: task.reducer for task in reduction.tasks if task.stage == stage}


def passed_on(reduction: Reduction, stage: int) -> dict[int, Digest]:
    """Shard -> digest of the result that another one than who came to it hands out."""
    return {
        task.shard: task.result
        for task in reduction.tasks
        if task.stage == stage and task.result is not None and task.author != task.reducer
    }


def results_of(current: Round, stage: int) -> dict[int, Digest]:
    """Shard -> digest of what its reducer came to; none in a mesh."""
    tasks = () if current.reduction is None else current.reduction.tasks
    return {task.shard: task.result for task in tasks if task.stage == stage and task.result is not None}


def authored(current: Round, seat: Seat) -> tuple[ShardTask, ...]:
    """The shards whose results a member answers for."""
    tasks = () if current.reduction is None else current.reduction.tasks
    return tuple(task for task in tasks if (task.stage, task.author) == (seat.stage, seat.replica))


def holds_results(current: Round, seat: Seat) -> bool:
    """Whether a member holds what the reducers of all shards of its stage came to."""
    assert current.reduction is not None
    tasks = [task for task in current.reduction.tasks if task.stage == seat.stage]
    return all(task.result is not None and seat.results.get(task.shard) == task.result for task in tasks)


def held_up_by(current: Round) -> frozenset[str]:
    """Leases that the reduction waits for: contributors that do not send, else reducers, else who has not got the results."""
    assert current.reduction is not None
    waiting = [task for task in current.reduction.tasks if task.result is None]
    members = _Members(current)
    silent = {
        (task.stage, replica)
        for task in waiting
        for replica in _lacking(members, current.reduction, task)
        if members.of(task.stage, replica) is not None
    }
    seats = silent or {(task.stage, task.reducer) for task in waiting}
    found = frozenset(s.lease for s in current.seats if s.alive and (s.stage, s.replica) in seats)
    return found or frozenset(s.lease for s in current.seats if s.alive and not holds_results(current, s))


class _Members:
    """The living members of a round, found at once: one of many replicas has thousands of reports."""

    def __init__(self, current: Round) -> None:
        self.stages = [current.stage(stage) for stage in range(len(current.layers))]
        self._seats = {(s.stage, s.replica): s for s in current.seats if s.alive}

    def of(self, stage: int, replica: int) -> Seat | None:
        return self._seats.get((stage, replica))


class _Patience:
    """How long a shard may take, from those that most members hold; forever while fewer than half of the shards are."""

    def __init__(self, members: _Members, reduction: Reduction) -> None:
        self._members = members
        self._reduction = reduction

    @cached_property
    def _seconds(self) -> float:
        since, tasks = self._reduction.since, self._reduction.tasks
        taken = sorted(at - since for task in tasks if (at := _spread(self._members, task)) is not None)
        ends = deadline(taken, len(tasks), LATENESS)
        return math.inf if ends is None else max(ends, PATIENCE * taken[len(taken) // 2])

    def ends(self, task: ShardTask, now: float) -> bool:
        """Whether a shard is late: its reducer does not send, or not to all."""
        if len(task.tried) >= MOST_REDUCERS - 1:
            return False
        # Somebody who lacks what most have may be slow itself, so that is given twice the time.
        return now - task.since >= self._seconds * (2.0 if _spread(self._members, task) is not None else 1.0)


# --- one shard ------------------------------------------------------------------------------------------------------------


def _claimed(members: _Members, task: ShardTask) -> ShardTask:
    """With what its reducer says of the result; its first word stands."""
    if task.result is not None:
        return task
    reducer = members.of(task.stage, task.reducer)
    said = None if reducer is None else reducer.reduced.get(task.shard)
    return task if said is None else msgspec.structs.replace(task, result=said, author=task.reducer)


def _in_hand(members: _Members, reduction: Reduction, task: ShardTask, patience: _Patience, now: float) -> ShardTask:
    """With another reducer, where the one that it has left, or is late."""
    living = members.stages[task.stage]
    if task.result is not None and all(s.results.get(task.shard) == task.result for s in living):
        return task
    gone = members.of(task.stage, task.reducer) is None
    if not gone and (not patience.ends(task, now) or _withheld(members, reduction, task)):
        return task
    tried = (*task.tried, task.reducer)
    able = [s for s in living if s.replica not in tried] or (list(living) if gone else [])
    having = [s for s in able if task.result is not None and s.results.get(task.shard) == task.result]
    if not gone and (not able or (_spread(members, task) is not None and not having)):
        return task  # What most have is not made anew for those who do not say that they have it.
    busy = [other.reducer for other in reduction.tasks if other.stage == task.stage]
    order = sorted(having or able, key=lambda s: (busy.count(s.replica), (s.replica - task.shard) % (1 << 20)))
    after = msgspec.structs.replace(task, reducer=order[0].replica, since=now, tried=tried)
    return after if having else msgspec.structs.replace(after, result=None, author=None)


def _spread(members: _Members, task: ShardTask) -> float | None:
    """When half of a stage's living members had a shard's result; None: not yet."""
    living = members.stages[task.stage]
    if task.result is None:
        return None
    times = sorted(s.results_at[task.shard] for s in living if s.results.get(task.shard) == task.result)
    needed = quorum(len(living))
    return times[needed - 1] if len(times) >= needed else None


def _lacking(members: _Members, reduction: Reduction, task: ShardTask) -> tuple[int, ...]:
    """Contributors whose parts a shard's reducer does not hold."""
    reducer = members.of(task.stage, task.reducer)
    if reducer is None:
        return ()
    having = reducer.held.keys() if task.reducer == task.shard else set(reducer.taken.get(task.shard, ()))
    return tuple(p for p in reduction.contributors if p not in having and p != task.reducer)


def _withheld(members: _Members, reduction: Reduction, task: ShardTask) -> bool:
    """Whether the one that was replaced does not send its own part either."""
    return bool(task.tried) and task.result is None and task.shard in _lacking(members, reduction, task)


def _unobtainable(members: _Members, reduction: Reduction, patience: _Patience, now: float) -> set[int]:
    """Contributors of whom a part is wanted that neither they nor its reducer can show any more, or that is withheld."""
    gone = {
        replica
        for task in reduction.tasks
        if task.result is None
        for replica in _lacking(members, reduction, task)
        if members.of(task.stage, replica) is None
    }
    # Of others it is the reducer alone who says that they do not send.
    return gone | {
        task.shard
        for task in reduction.tasks
        if _withheld(members, reduction, task) and patience.ends(task, now - WITHHOLDING_S)
    }


def _may_end(current: Round, reduction: Reduction, now: float) -> bool:
    """Whether every living member holds all results; or, where some are late, half of each stage."""
    if any(task.result is None for task in reduction.tasks):
        return False
    living = [seat for seat in current.seats if seat.alive]
    having = [seat for seat in living if holds_results(current, seat)]
    if len(having) == len(living):
        return True
    if current.lateness is None:
        return False
    ends = deadline([_had_all(seat) - reduction.since for seat in having], len(living), current.lateness)
    if ends is None or now < reduction.since + ends:
        return False
    stages = range(len(current.layers))
    return all(_of(having, stage) >= quorum(len(current.stage(stage))) for stage in stages)


def _had_all(seat: Seat) -> float:
    return max(seat.results_at.values())


def _of(seats: Sequence[Seat], stage: int) -> int:
    return sum(seat.stage == stage for seat in seats)

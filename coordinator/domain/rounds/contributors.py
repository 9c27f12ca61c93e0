"""Whose pseudo-gradients count in a round, and when nobody is waited for any more. Pure: the time is passed in.

Without ``Round.lateness`` the answer is: all whole replicas, once everybody alive holds theirs. With it the round also goes on
when a deadline has passed that follows from how long the quicker half took. Then

* a replica counts whose pseudo-gradients at least half of the living members of each stage hold, and as many count as leave, on
  every stage, at least half of the living members with all of them (or one, where half cannot be had);
* a member that does not hold them all yet applies them when they come, or takes the next state from those who did.
"""

from collections.abc import Sequence

from coordinator.domain.rounds.seat import Round, Seat, agreed, contributions, holds, is_safe
from coordinator.domain.rounds.straggler_deadline import deadline, quorum


def candidates(current: Round) -> tuple[int, ...]:
    """Whole replicas that may still count: one whose stages committed to different numbers of steps may not."""
    return tuple(replica for replica in current.whole() if not _is_torn(current, replica))


def unanimous(current: Round) -> tuple[int, ...] | None:
    """All candidates, where all have committed and everybody alive holds theirs."""
    able = candidates(current)
    if not all(current.steps_of(replica) for replica in able):
        return None
    return able if all(holds(current, seat, able) for seat in current.seats if seat.alive) else None


def after_deadline(current: Round, now: float) -> tuple[int, ...] | None:
    """Who counts when the others are late; None before the deadline, or where no deadline is set."""
    if current.lateness is None:
        return None
    arrived = {replica: at for replica in candidates(current) if (at := _arrival(current, replica)) is not None}
    if not arrived:
        return None
    ends = deadline([at - current.started for at in arrived.values()], len(candidates(current)), current.lateness)
    if ends is None or now < current.started + ends:
        return None
    return _most_that_fit(current, arrived)


def everybody_applied(current: Round) -> bool:
    """Whether nobody is waited for after the decision."""
    return all(seat.parameters for seat in current.seats if seat.alive)


def enough_applied(current: Round, now: float) -> bool:
    """Whether those that have not applied are late."""
    living = [seat for seat in current.seats if seat.alive]
    taken = [seat.applied_at - current.decided for seat in living if seat.parameters]
    ends = None if current.lateness is None else deadline(taken, len(living), current.lateness)
    return ends is not None and now >= current.decided + ends


def all_safe(current: Round) -> bool:
    """Whether every stage's new state will outlive the round."""
    return all(agreed(current, stage) and is_safe(current, stage) for stage in range(len(current.layers)))


def _is_torn(current: Round, replica: int) -> bool:
    seats = [seat for seat in current.seats if seat.replica == replica]
    return all(seat.commit for seat in seats) and current.steps_of(replica) == 0


def _arrival(current: Round, replica: int) -> float | None:
    """When a replica's contributions had reached half of the living members of each stage."""
    if not current.steps_of(replica):
        return None
    last = max(seat.commit.at for seat in current.seats if seat.replica == replica and seat.commit is not None)
    for stage in range(len(current.layers)):
        living = current.stage(stage)
        wanted = contributions(current, (replica,), stage).get(replica)
        times = sorted(seat.held_at[replica] for seat in living if wanted and seat.held.get(replica) == wanted)
        needed = quorum(len(living))
        if len(times) < needed:
            return None
        last = max(last, times[needed - 1])
    return last


def _most_that_fit(current: Round, arrived: dict[int, float]) -> tuple[int, ...]:
    """Leave out the replica that the fewest hold, until enough members hold all of the rest."""
    for least_half in (True, False):
        kept = sorted(arrived, key=lambda replica: (-_holders(current, replica), arrived[replica], replica))
        while kept:
            if all(_enough_hold(current.stage(s), current, kept, least_half) for s in range(len(current.layers))):
                return tuple(sorted(kept))
            kept.pop()
    raise AssertionError("a replica that has committed holds its own")


def _enough_hold(living: Sequence[Seat], current: Round, replicas: Sequence[int], least_half: bool) -> bool:
    able = sum(holds(current, seat, replicas) for seat in living)
    return able >= (quorum(len(living)) if least_half else 1)


def _holders(current: Round, replica: int) -> int:
    return sum(holds(current, seat, (replica,)) for seat in current.seats if seat.alive)

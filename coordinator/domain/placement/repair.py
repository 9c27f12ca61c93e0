"""Seats that became empty: who takes them, and which replica gives its members to another."""

from collections.abc import Mapping, Sequence

from coordinator.domain.placement.node import Candidate, Needed
from protocol.ids import NodeAddress


def fill(
    missing: Sequence[tuple[int, int]],
    holders: Mapping[tuple[int, int], Candidate],
    free: Sequence[Candidate],
    memory_needed: Needed,
) -> dict[tuple[int, int], NodeAddress]:
    """Give missing seats to free nodes: lowest replicas first, quickest nodes first, owners that the stage has not yet.

    Args:
        missing: seats (stage, replica) that nobody holds.
        holders: who holds the other seats.
        free: nodes without a seat.
        memory_needed: what a stage takes.
    Returns:
        seat -> node for those that could be filled.
    """
    left = sorted(free, key=lambda c: (-c.flops, c.node))
    owners: dict[int, set[str]] = {}
    for (stage, _), holder in holders.items():
        owners.setdefault(stage, set()).add(holder.owner)
    filled: dict[tuple[int, int], NodeAddress] = {}
    for stage, replica in sorted(missing, key=lambda seat: (seat[1], seat[0])):
        fitting = [c for c in left if c.holds(memory_needed, stage)]
        if not fitting:
            continue
        taken = owners.setdefault(stage, set())
        chosen = next((c for c in fitting if c.owner not in taken), fitting[0])
        taken.add(chosen.owner)
        left.remove(chosen)
        filled[stage, replica] = chosen.node
    return filled


def moves(
    missing: Sequence[tuple[int, int]], held: Sequence[tuple[int, int]], fits: Mapping[int, frozenset[tuple[int, int]]]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Complete lower broken replicas with members of higher broken ones, where no free node is left.

    Args:
        missing: seats that stay empty.
        held: seats that are taken.
        fits: stage -> held seats whose node has the memory for it.
    Returns:
        empty seat -> the seat whose holder moves there; only such moves as make a replica whole.
    """
    broken = sorted({replica for _, replica in missing})
    spent: set[tuple[int, int]] = set()
    moved: dict[tuple[int, int], tuple[int, int]] = {}
    for replica in broken:
        if any(seat[1] == replica for seat in spent):
            continue
        trial: dict[tuple[int, int], tuple[int, int]] = {}
        for seat in (s for s in missing if s[1] == replica):
            donors = [
                d
                for d in held
                if d[1] > replica
                and d[1] in broken
                and d in fits[seat[0]]
                and d not in spent
                and d not in trial.values()
            ]
            if not donors:
                break
            trial[seat] = max(donors, key=lambda d: (d[1], d[0] == seat[0]))
        else:
            moved |= trial
            spent |= set(trial.values())
    return moved

"""Which seats may go to other nodes between two rounds, and workers that begin anew."""

from collections.abc import Collection, Mapping

from coordinator.domain.audits import trust
from coordinator.domain.audits.trust import Audit
from coordinator.services.core.unit_of_work import UnitOfWork


def awaits_openings(work: UnitOfWork) -> bool:
    """Whether somebody still has to open a step, or may have to once its round is drawn."""
    undrawn = work.run is not None and work.run.undrawn
    return bool(undrawn) or any(_is_asked(work, audit) for audit in work.audits.values())


def _is_asked(work: UnitOfWork, audit: Audit) -> bool:
    """Whether somebody who has a seat still has to open a step; who has lost it may come back, and needs none for that."""
    return audit.state in ("drawn", "opening", "showing") and audit.lease in work.leases


def movable(
    work: UnitOfWork, holders: Mapping[tuple[int, int], str], moves: Mapping[tuple[int, int], str]
) -> dict[tuple[int, int], str]:
    """The moves without those that must wait.

    Who still has to open a step is paid for it only if it does. And of each stage somebody stays, who has its newest state,
    unless that is stored.
    """
    own = {node: seat for seat, node in holders.items()}
    asked = {(audit.stage, audit.replica) for audit in work.audits.values() if _is_asked(work, audit)}
    stay = set(moves) if work.run is not None and work.run.undrawn else asked & set(moves)
    stored = work.run is not None and work.run.done == work.run.base.done  # Then whoever comes takes it from here.
    for stage in set() if stored else {stage for stage, _ in moves}:
        members = {seat for seat in holders if seat[0] == stage}
        if members <= set(moves) - stay:
            stay.add(min(members))
    changed = True
    while changed:  # Who cannot leave keeps his seat, so who would take it keeps his.
        before = len(stay)
        for seat, node in moves.items():
            if own.get(node) in moves and (seat in stay) != (own[node] in stay):
                stay |= {seat, own[node]}
        changed = len(stay) > before
    return {seat: node for seat, node in moves.items() if seat not in stay}


def begin_anew(work: UnitOfWork, leases: Collection[str]) -> None:
    """Have workers start again. What they were to open is gone with them, which is not their doing."""
    for audit in [audit for audit in work.audits.values() if audit.lease in leases]:
        work.audits[audit.id] = trust.sent_away(audit)
    for lease in leases:
        work.end(lease, "replaced", "begins anew")

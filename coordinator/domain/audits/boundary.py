"""At an audit, what the audited member says crossed its boundaries is held against what its neighbours say.

::

    sides asked --> all have shown their leaves, or time is up --> neighbours that say otherwise, or show nothing, are audited too

A leaf stands under a root that was committed to before anything was drawn, so nobody can fit what it says to what the other
says. A difference alone names two: re-running both steps tells which of them differs from its own leaf. Where neither does,
one of them says that other bytes came or went than did, and nobody can tell which.
"""

from collections.abc import Collection

import msgspec

from coordinator.domain.audits.trust import Audit, Side
from protocol.audit import MAX_LEAF_BYTES, LeafShown, StepLeaf
from protocol.boundary import Position, crossings, differences, fits, position_of
from protocol.codec import MessageError, decode
from protocol.job.job import TrainingSpec
from protocol.merkle import MerkleProof, verify_proof
from protocol.plan import Plan


def exchanges(plan: Plan, training: TrainingSpec, one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether the members on two seats (stage, replica) exchange payloads within a step."""
    here, there = (position_of(plan, *seat, training) for seat in (one, other))
    return bool(here.hands(there, crossings(training)))


def shown(audit: Audit, lease: str, report: LeafShown) -> Audit:
    """A side answered: its leaf is kept where it stands at the step under what the side had committed to."""
    sides = tuple(_shown(audit.step, side, report) if side.lease == lease else side for side in audit.sides)
    return msgspec.structs.replace(audit, sides=sides) if audit.state == "opening" else audit


def _shown(step: int, side: Side, report: LeafShown) -> Side:
    if not side.awaited:
        return side
    proof = MerkleProof(step, side.leaves, report.path)
    stands = report.leaf is not None and verify_proof(bytes.fromhex(side.root), report.leaf, proof)
    return msgspec.structs.replace(side, leaf=report.leaf if stands else None, silent=not stands)


def present(audit: Audit, leases: Collection[str]) -> Audit:
    """Without sides that can no longer answer: nobody is to blame for having left."""
    here = tuple(side for side in audit.sides if not side.awaited or side.lease in leases)
    return audit if here == audit.sides else msgspec.structs.replace(audit, sides=here)


def overdue(audit: Audit) -> Audit:
    """Time is up: sides that have not answered have nothing to show."""
    sides = tuple(msgspec.structs.replace(side, silent=side.silent or side.awaited) for side in audit.sides)
    return msgspec.structs.replace(audit, sides=sides)


def compared(audit: Audit, training: TrainingSpec) -> tuple[Audit, tuple[Side, ...]]:
    """Hold the sides' leaves against the audited member's.

    Returns:
        the audit, which knows of whom it differs; and the neighbours whose step is to be audited for that, or because they
        have shown no leaf of such a step.
    """
    own = next((side for side in audit.sides if side.seat == audit.seat), None)
    mine = None if own is None else _placed(audit, own, training)
    doubtful, apart = [], []
    for side in audit.sides:
        if side.seat == audit.seat:
            continue
        theirs = _placed(audit, side, training)
        if side.silent or (mine is not None and theirs is None):
            doubtful.append(side)
        elif mine is not None and theirs is not None and differences(mine, theirs, crossings(training)):
            doubtful.append(side)
            apart.append(side.seat)
    return msgspec.structs.replace(audit, apart=tuple(apart)), tuple(doubtful)


def _placed(audit: Audit, side: Side, training: TrainingSpec) -> tuple[Position, StepLeaf] | None:
    """A side's leaf and whose it is; None: it has none that is like one of its place."""
    if side.leaf is None:
        return None
    position = position_of(audit.plan, *side.seat, training)
    try:
        leaf: StepLeaf = decode(side.leaf, StepLeaf, MAX_LEAF_BYTES)
    except MessageError:
        return None
    fitting = fits(position, leaf, crossings(training)) and leaf.step == audit.first_step + audit.step
    return (position, leaf) if fitting else None


def undecided(audit: Audit, others: Collection[Audit]) -> tuple[Audit, ...]:
    """Audits of neighbours that it differs from, where both steps are just what their members had committed to.

    Args:
        others: audits of the same step of the round.
    """
    return tuple(
        other
        for other in others
        if (other.state, audit.state) == ("passed", "passed")
        and other.seat != audit.seat
        and (other.seat in audit.apart or audit.seat in other.apart)
    )

"""What audits cost: what is seen of a node decides over its pay, its place and its stake."""

from collections.abc import Collection
from typing import Literal

from coordinator.domain.audits.trust import LOOKS, Audit, against
from protocol.task import EVASION_AGAIN_S, EVASION_BPS, TAMPER_AGAIN_S, TAMPER_BPS

# Ways out of an audit: no step was opened, or one that nobody can re-run.
EVASIONS = frozenset({"refused", "misstated"})
# An honest machine may hang once, whatever is drawn of it meanwhile; a second time looks like a habit.
MAX_EVASIONS = 2

MAX_GONE = 2  # Rounds of a job that a node may leave before it has shown what was drawn; machines crash.

Cost = Literal["none", "share", "forfeit", "unseat", "expel", "ban"]


def consequence(audit: Audit, before: Collection[Audit]) -> Cost:
    """What a concluded audit costs the prover.

    ``share``: what the round pays it. ``forfeit``: its lease, too. ``unseat``: the share, and every place in this job, the
    second time that a look found its work too far off, or that the operator's machines were lost over what it opened, and the
    third time that it has left when it was drawn.
    ``expel``: everything of the job that is not paid yet, and its place in the network. ``ban``: half of its stake, too, which
    nothing costs but a lie that somebody has seen: neither silence, nor a misstated class (what a repetition of those takes is
    ``evasion_costs``), nor a finding that no second auditor confirmed. What a machine misses under one lease, which ends with
    the first of it, is one evasion.

    Args:
        before: other audits of the same node in this job that are over.
    """
    if audit.blame == "unlooked":
        return "unseat" if deadly(audit) and any(map(deadly, before)) else "share"
    if audit.state != "failed":
        return "none"
    if audit.blame == "wrong":
        return "ban"
    if audit.blame == "blind":
        return "expel"  # Of its auditor: it is no proof of a lie that somebody else could check, so no stake is lost.
    if audit.blame == "vain":
        return "share"  # Somebody else may have given it nothing to compute.
    if found_far(audit):
        others = any(not verdict.own for verdict in against(audit))
        again = any(found_far(other) and _round(other) != _round(audit) for other in before)
        return "unseat" if others or again else "share"
    if audit.blame == "gone":
        left = {_round(other) for other in (*before, audit) if other.blame == "gone"}
        return "unseat" if len(left) > MAX_GONE else "forfeit"
    occasions = {other.lease for other in (*before, audit) if other.blame in EVASIONS}
    return "expel" if audit.blame in EVASIONS and len(occasions) >= MAX_EVASIONS else "forfeit"


def found_far(audit: Audit) -> bool:
    """Whether one of the operator's auditors came to something else, which nobody else has proven."""
    own = any(verdict.own and verdict.verdict != "match" for verdict in audit.verdicts)
    return own and audit.blame in ("distant", "unconfirmed")


def deadly(audit: Audit) -> bool:
    """Whether the operator's machines were lost over what was opened, again and again."""
    return audit.blame == "unlooked" and audit.looks >= LOOKS


def falls(audit: Audit) -> bool:
    """Whether the prover's standing is gone with it: a fault, or a step that it did not show, whatever the reason.

    To have left costs an honest machine no more than being looked at again: work that is found right is paid.
    """
    return audit.state == "failed" or audit.blame in ("distant", "unlooked")


def spoils(audit: Audit) -> bool:
    """Whether nobody knows what others of the pipeline were given to work with: its part was false, or never seen."""
    return falls(audit) and audit.outer is None and audit.blame not in ("vain", "blind")


def tampering_costs(last: float, granted: float, now: float) -> int:
    """What it costs of its stake, in ten-thousandths, that somebody has just reached into a job on a node.

    Nothing the first time, and where several jobs of one occasion are told of: only its own agent tells it at all.

    Args:
        last: when that was told of this node before, in Unix seconds; 0: never.
        granted: when the lease of the job began.
    """
    return TAMPER_BPS if _repeats(last, granted, now, TAMPER_AGAIN_S) else 0


def evasion_costs(last: float, granted: float, now: float) -> int | None:
    """What it costs of its stake, in ten-thousandths, that a node has just evaded an audit; None: it is part of the time before.

    Nothing the first time: machines hang, and who is told what another time costs can see to it first. What is missed under
    leases that began before that was told is the same fault, however late it comes out.

    Args:
        last: when it did so before, and was told, in Unix seconds; 0: never.
        granted: when the lease began under which it did now.
    """
    if last > 0 and granted <= last:
        return None
    return EVASION_BPS if _repeats(last, granted, now, EVASION_AGAIN_S) else 0


def _round(audit: Audit) -> tuple[int, int]:
    return audit.epoch, audit.round


def _repeats(last: float, granted: float, now: float, within: float) -> bool:
    return last > 0 and granted > last and now - last <= within


def bond_goes(audit: Audit) -> Literal["challenger", "accused"] | None:
    """Whose is the bond that was put against the audit's commitment; None: nobody has proven anything, and it expires.

    The accused has it once two auditors of different owners came to what it committed to: one may be its friend. An auditor that
    was proven to accuse falsely has proven nothing of the rest of the step.
    """
    if audit.state == "failed":
        return "challenger" if audit.blame == "wrong" else None
    matches = {verdict.auditor for verdict in audit.verdicts if verdict.verdict == "match"}
    return "accused" if audit.state == "passed" and len(matches) > 1 else None

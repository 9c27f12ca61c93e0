"""Who runs a drawn step again: other owners' nodes by lot, and the operator's own auditors, whom nobody else controls."""

import hashlib
from collections.abc import Mapping, Sequence

from coordinator.domain.audits.rate import TRUST
from coordinator.domain.audits.trust import Audit, AuditorCandidate
from protocol.ids import NodeAddress

# Looks that wait in one job before its rounds wait, too: each keeps an opening, as large as a stage's state.
MOST_LOOKS = 128
# Nodes that are asked before a look that is due: some leave when they are asked, and that must not put it off.
PEERS = 2


def choose_auditor(
    audit: Audit, ready: Sequence[AuditorCandidate], history: Mapping[NodeAddress, int] | None = None
) -> AuditorCandidate | None:
    """Who is asked next; None: nobody who is here.

    Another owner's node of the prover's environment class, of the owner that has audited this prover's least often, spares first,
    the rest by lot: over owners, then over their nodes. An outer step gives the same bits on every processor, so there any class
    will do. Where nobody of the class is here, and nobody of it has found anything, one of another class may look at a step whose
    opening shows its ending. Of a watched audit only proven nodes of the class are asked, before the look that is due.

    Args:
        history: owner -> how often its nodes have audited this prover's owner's in the job.
    """
    if audit.challenger is not None and audit.challenger not in audit.tried:
        # Only then others, to confirm what it found; where it is gone and a look is due, that is not put off for it.
        asked = next((a for a in ready if a.node == audit.challenger), None)
        if asked is not None or not audit.look:
            return asked
    if audit.anchor_in == "auditor":
        ready = [a for a in ready if a.stage == audit.stage]  # Who trains it has what its opening is said from.
    others = [a for a in ready if not a.operator and a.node not in (audit.node, audit.accuser)]
    peer = _peer(audit, others, history or {}) if _wants_peer(audit) else None
    if peer is None and audit.look:
        able = [a for a in ready if a.operator and may_look(a.env_class, audit)]
        return min(able, key=lambda a: (a.env_class != audit.env_class, a.lease), default=None)
    return peer


def _wants_peer(audit: Audit) -> bool:
    """Whether another node is asked before the look that is due, or instead of one, or to confirm what it found."""
    if not audit.look:
        return True
    asked = len(audit.tried) - audit.looks
    return asked < PEERS and all(verdict.own for verdict in audit.verdicts)


def _peer(
    audit: Audit, others: Sequence[AuditorCandidate], history: Mapping[NodeAddress, int]
) -> AuditorCandidate | None:
    out = {audit.payout, audit.accuser, *audit.owners}
    fitting = [a for a in others if a.node not in audit.tried and a.payout not in out]
    near = [a for a in fitting if a.env_class == audit.env_class or audit.outer is not None]
    if audit.watched:
        near = fitting = [a for a in near if a.credit >= TRUST * max(1, audit.share)]
    if near or not audit.ending or not all(verdict.afar for verdict in audit.verdicts):
        fitting = near
    return min(
        fitting,
        key=lambda a: (history.get(a.payout, 0), not a.spare, _lot(audit, a.payout), _lot(audit, a.node)),
        default=None,
    )


def _lot(audit: Audit, whose: str) -> bytes:
    return hashlib.sha256(f"{audit.seed}:{audit.id}:{whose}".encode()).digest()


def shared_history(audits: Sequence[Audit], payout: NodeAddress) -> dict[NodeAddress, int]:
    """Owner -> how often its nodes have said something about the work of ``payout``'s nodes."""
    counted: dict[NodeAddress, int] = {}
    for audit in audits:
        if audit.payout == payout:
            owners = dict(zip(audit.tried, audit.owners, strict=False))
            for verdict in audit.verdicts:
                owner = owners.get(verdict.auditor)
                if owner is not None and not verdict.own:
                    counted[owner] = counted.get(owner, 0) + 1
    return counted


def may_look(env_class: str, audit: Audit) -> bool:
    """Whether a machine of a class could run the step again, bit for bit or from its shown ending."""
    return env_class == audit.env_class or audit.outer is not None or audit.ending


def awaits_look(audit: Audit) -> bool:
    """Whether it is opened and one of the operator's auditors has yet to take it up: its patience does not run meanwhile."""
    return audit.state == "replaying" and audit.look and audit.auditor is None


def awaits_anybody(audit: Audit) -> bool:
    """Whether it is opened, and none of those who could be asked was here so far."""
    return audit.state == "replaying" and audit.auditor is None and not audit.look


def alone(env_class: str, payout: NodeAddress, others: Sequence[AuditorCandidate]) -> bool:
    """Whether there are machines of other owners than ``payout``, and none of them is of the environment class."""
    classes = {auditor.env_class for auditor in others if auditor.payout != payout}
    return bool(classes) and env_class not in classes


def refusal(
    commit_of: NodeAddress, payout: NodeAddress, challenger: AuditorCandidate, env_class: str, stake: int, least: int
) -> str:
    """Why a node may not challenge a commitment; empty where it may.

    Its stake is the bond: half of it is lost with an accusation that a dispute proves false, far more than answering costs.

    Args:
        commit_of, payout, env_class: the prover's. stake: the challenger's; ``least``: what the network asks for.
    """
    if challenger.node == commit_of or challenger.payout == payout:
        return "the work is its own"
    if challenger.env_class != env_class:
        return f"it is of environment class {challenger.env_class}, the step of {env_class}"
    return f"its stake of {stake} is less than {least}" if stake < least else ""

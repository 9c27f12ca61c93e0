"""Who runs a drawn step again: other owners' nodes by lot, and the operator's own auditors."""

import hashlib
from collections.abc import Sequence

from coordinator.domain.trust import Audit, Auditor
from transport.wire.ids import NodeAddress


def choose_auditor(audit: Audit, ready: Sequence[Auditor]) -> Auditor | None:
    """Another node of another owner with the same environment class, spares first, the rest by lot; None: nobody.

    An outer step gives the same bits on every processor, so there any class will do. Where nobody of the class is here, and
    nobody of it has found anything, one of another class may look at a step whose opening shows its ending.
    """
    if audit.challenger is not None and audit.challenger not in audit.tried:
        return next(
            (a for a in ready if a.node == audit.challenger), None
        )  # Only then others, to confirm what it found.
    if audit.look:
        return _looks(audit, ready)
    ready = [a for a in ready if not a.operator]
    owners = {audit.payout, audit.accuser} | {a.payout for a in ready if a.node in audit.tried}
    fitting = [
        a for a in ready
        if a.node not in (audit.node, audit.accuser) and a.node not in audit.tried and a.payout not in owners
    ]  # fmt: skip
    near = [a for a in fitting if a.env_class == audit.env_class or audit.outer is not None]
    if near or not audit.ending or not all(verdict.afar for verdict in audit.verdicts):
        fitting = near
    lot = {a.lease: hashlib.sha256(f"{audit.seed}:{audit.id}:{a.node}".encode()).digest() for a in fitting}
    return min(fitting, key=lambda a: (not a.spare, lot[a.lease])) if fitting else None


def _looks(audit: Audit, ready: Sequence[Auditor]) -> Auditor | None:
    """The operator's auditor that looks: one of the prover's class, else another where the opening shows its ending."""
    able = [a for a in ready if a.operator and may_look(a.env_class, audit)]
    return min(able, key=lambda a: (a.env_class != audit.env_class, a.lease), default=None)


def may_look(env_class: str, audit: Audit) -> bool:
    """Whether a machine of a class could run the step again, bit for bit or from its shown ending."""
    return env_class == audit.env_class or audit.outer is not None or audit.ending


def awaits_look(audit: Audit) -> bool:
    """Whether it is opened and one of the operator's auditors has yet to take it up: its patience does not run meanwhile."""
    return audit.state == "replaying" and audit.look and audit.auditor is None


def alone(env_class: str, payout: NodeAddress, others: Sequence[Auditor]) -> bool:
    """Whether there are machines of other owners than ``payout``, and none of them is of the environment class."""
    classes = {auditor.env_class for auditor in others if auditor.payout != payout}
    return bool(classes) and env_class not in classes


def refusal(
    commit_of: NodeAddress, payout: NodeAddress, challenger: Auditor, env_class: str, stake: int, least: int
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

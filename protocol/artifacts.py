"""How a node says what an artifact answers that it stores: ``PUT artifacts/{digest}?lease=...&answers=...``.

A coordinator takes what it has asked for under a lease, each answer once; so the sender names the question.
"""

import re
from typing import Final

from protocol.ids import AuditId

ANSWERS_PATTERN: Final = "^((audit|anchor|inputs)-[0-9a-f]{32}|(state|sum)-[0-9]{1,19}-[0-9]{1,10}|result-[0-9]{1,16})$"
STATE = "state-"  # How the answers begin that are states of stages,
SUMMAND = "sum-"  # and masked updates.


def audit_answer(audit: AuditId) -> str:
    """The opening that an audit asks for."""
    return f"audit-{audit}"


def anchor_answer(audit: AuditId) -> str:
    """The anchor that an audit found something with."""
    return f"anchor-{audit}"


def state_answer(epoch: int, number: int) -> str:
    """The state of the lease's stage that a round came to."""
    return f"{STATE}{epoch}-{number}"


def summand_answer(epoch: int, number: int) -> str:
    """The masked update of a round with a secure sum."""
    return f"{SUMMAND}{epoch}-{number}"


def result_answer(run: int) -> str:
    """The result of a run of an array's element."""
    return f"result-{run}"


def inputs_answer(dispute: AuditId) -> str:
    """What the operation reads that a dispute came down to."""
    return f"inputs-{dispute}"


def is_answer(text: str) -> bool:
    """Whether ``text`` can name a question."""
    return re.fullmatch(ANSWERS_PATTERN, text) is not None

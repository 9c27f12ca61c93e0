"""Answers that a check has found wrong, until two machines say the same of them, bit for bit, or nobody can any more."""

from collections import defaultdict
from typing import Literal

import msgspec

from common.untrusted_text import Told, Untrusted
from protocol.ids import NodeAddress

LIFE_S = 24 * 3600.0  # For others of its class to come.
WITNESSES = 2  # Owners whose machines come to the same bits.
OPERATOR = ""  # Whose machine is beside the coordinator.

AccusationState = Literal["open", "proven", "cleared", "dropped"]
"""``proven``: no rounding explains the answer. ``cleared``: rounding may. ``dropped``: nobody could say in time."""


class Witness(msgspec.Struct, frozen=True):
    """What a machine found.

    Attributes:
        owner: where it is paid.
        wrong: what no rounding explains, in words; empty: nothing.
        digest: of the bits that it computed.
    """

    owner: str
    node: str
    env_class: str
    wrong: str
    digest: str


class AccusedAnswer(Told, frozen=True):
    """An answer of one node that holds a model whole.

    Attributes:
        owner: where the node is paid.
        env_class: that it computes in.
        evidence: the answer with its request, as JSON of ``CheckCommand``; empty once it is over, for people's words are in it.
        answer: SHA-256 of that, which is a leaf under the root of the answers' period.
        seed: of the lots with which it is drawn again.
        detail: what came of it.
    """

    id: str
    job: str
    node: NodeAddress
    owner: str
    env_class: str
    evidence: bytes
    answer: str
    seed: str
    began: float
    state: AccusationState = "open"
    witnesses: tuple[Witness, ...] = ()
    detail: Untrusted = Untrusted("")
    ended: float | None = None
    version: int = 0

    @property
    def heard(self) -> frozenset[str]:
        """Owners whose machines have said something, and the accused, who is not asked."""
        return frozenset({self.owner, *(one.owner for one in self.witnesses)})


def heard(accused: AccusedAnswer, witness: Witness) -> AccusedAnswer:
    """With what one more machine found; an owner is heard once."""
    if accused.state != "open" or witness.owner in accused.heard:
        return accused
    return decided(msgspec.structs.replace(accused, witnesses=(*accused.witnesses, witness)))


def decided(accused: AccusedAnswer) -> AccusedAnswer:
    """Over, where so many owners' machines of the accused's class came to the same bits; of another class nobody proves anything.

    The operator's machine clears it in any class: what it cannot tell from rounding nobody loses stake for. Nor for what it has
    not found wrong, too: whoever deploys a model may have nodes of two wallets in it, and make it too slow to be looked at here.
    """
    by_bits: dict[tuple[str, str], list[Witness]] = defaultdict(list)
    for one in accused.witnesses:
        if one.owner == OPERATOR and not one.wrong:
            return msgspec.structs.replace(accused, state="cleared", detail="rounding may explain it")
        if one.env_class == accused.env_class:
            by_bits[one.wrong, one.digest].append(one)
    for (wrong, _), agreed in by_bits.items():
        if len(agreed) >= WITNESSES:
            if wrong and OPERATOR not in accused.heard:
                continue
            state: AccusationState = "proven" if wrong else "cleared"
            return msgspec.structs.replace(accused, state=state, detail=wrong or "rounding may explain it")
    return accused


def dropped(accused: AccusedAnswer, why: str) -> AccusedAnswer:
    """Nobody could say in time."""
    return msgspec.structs.replace(accused, state="dropped", detail=why)

"""What the market program tells about stakes and disputes, in words."""

from __future__ import annotations

import struct
from typing import Any

from solders.pubkey import Pubkey

from ledger.errors import LedgerAnswerError
from ledger.program.layout import ProgramEvent, read_dispute

_SLASH = struct.Struct("<Q32sQ32s")
_AMOUNTS = {"BOND": "stake_deposited", "WREQ": "stake_requested", "WDRW": "stake_withdrawn"}
_DISPUTES = {"DISP": "disputed", "VERD": "dispute_decided", "EXPD": "dispute_expired", "DCLS": "dispute_closed"}


def describe(event: ProgramEvent) -> tuple[str, dict[str, Any]]:
    """Kind and fields of an event of a stake or dispute account.

    Raises:
        LedgerAnswerError: the event is of no kind known here.
        struct.error: its payload has another length.
    """
    payload = event.payload
    if event.kind in _AMOUNTS:
        return _AMOUNTS[event.kind], {"amount": struct.unpack("<Q", payload)[0]}
    if event.kind in _DISPUTES:
        return _DISPUTES[event.kind], _dispute(payload)
    match event.kind:
        case "STAK":
            return "stake_opened", {"coordinator": _key(payload)}
        case "MOVE":
            coordinator, move_at = struct.unpack("<32sq", payload)
            return "stake_moved", {"coordinator": _key(coordinator), "move_at": move_at}
        case "SLSH":
            amount, reason, part, challenger = _SLASH.unpack(payload)
            shared = {"part": part, "challenger": _key(challenger)} if any(challenger) else {}
            return "stake_slashed", {"amount": amount, "reason": reason.hex(), **shared}
        case "SCLS":
            deposited, slashed, withdrawn = struct.unpack("<3Q", payload)
            return "stake_closed", {"deposited": deposited, "slashed": slashed, "withdrawn": withdrawn}
    raise LedgerAnswerError(f"event {event.kind!r} of {event.account} is unknown: update this program")


def _dispute(payload: bytes) -> dict[str, Any]:
    dispute = read_dispute(payload)
    return {
        "ruling": dispute.ruling.name.lower(),
        "node": str(dispute.node),
        "challenger": str(dispute.challenger),
        "coordinator": str(dispute.coordinator),
        "bond": dispute.bond,
        "deadline": dispute.deadline,
        "audit": dispute.audit.hex(),
        "evidence": dispute.evidence.hex() if any(dispute.evidence) else "",
    }


def _key(content: bytes) -> str:
    if len(content) != 32:
        raise struct.error(f"an address of {len(content)} bytes")
    return str(Pubkey.from_bytes(content))

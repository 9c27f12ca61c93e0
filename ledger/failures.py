"""Says in words why a transaction failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from solders.pubkey import Pubkey
from solders.transaction_status import InstructionErrorCustom, TransactionErrorInstructionError
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger.program.interface import ERROR_TEXTS, MarketError

_FAILED = re.compile(r"Program (\w+) failed: (.*)")
_TOKEN_ERRORS = {1: "the token account holds less than that", 3: "another token than expected", 4: "not the owner"}


def explain(error: Any, logs: Sequence[str], program: Pubkey) -> tuple[str, int | None]:
    """Words for a transaction error, and the market program's error number where it was the one that refused.

    The innermost program fails first, so the first line that says so names who meant the number.
    """
    culprit = next((match[1] for line in logs if (match := _FAILED.match(line))), None)
    inner = error.err if isinstance(error, TransactionErrorInstructionError) else None
    if not isinstance(inner, InstructionErrorCustom):
        return (f"{error}" if inner is None else f"{inner} in instruction {error.index}"), None
    if culprit == str(program) and inner.code in MarketError.__members__.values():
        return ERROR_TEXTS[MarketError(inner.code)], inner.code
    if culprit == str(TOKEN_PROGRAM_ID) and inner.code in _TOKEN_ERRORS:
        return _TOKEN_ERRORS[inner.code], None
    return f"program {culprit or 'unknown'} refused with its error {inner.code}", None

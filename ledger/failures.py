"""Says in words why a transaction failed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from solders.pubkey import Pubkey
from solders.transaction_status import (
    InstructionErrorCustom,
    TransactionErrorFieldless,
    TransactionErrorInstructionError,
)
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger.program.interface import ERROR_TEXTS, MarketError

_FAILED = re.compile(r"Program (\w+) failed: (.*)")
_TOKEN_ERRORS = {1: "the token account holds less than that", 3: "another token than expected", 4: "not the owner"}
_PAYER_ERRORS = (TransactionErrorFieldless.AccountNotFound, TransactionErrorFieldless.InsufficientFundsForFee)


def culprit(logs: Sequence[str]) -> str | None:
    """Address of the program that refused: the innermost one fails first, so the first line that says so."""
    return next((match[1] for line in logs if (match := _FAILED.match(line))), None)


def explain(error: Any, logs: Sequence[str], program: Pubkey) -> tuple[str, int | None]:
    """Words for a transaction error, and the market program's error number where it was the one that refused."""
    if error in _PAYER_ERRORS:
        return "the signer cannot pay the fee: give it SOL", None
    inner = error.err if isinstance(error, TransactionErrorInstructionError) else None
    if not isinstance(inner, InstructionErrorCustom):
        return (f"{error}" if inner is None else f"{inner} in instruction {error.index}"), None
    who = culprit(logs)
    if who == str(program) and inner.code in ERROR_TEXTS:
        return ERROR_TEXTS[MarketError(inner.code)], inner.code
    if who == str(TOKEN_PROGRAM_ID) and inner.code in _TOKEN_ERRORS:
        return _TOKEN_ERRORS[inner.code], None
    return f"program {who or 'unknown'} refused with its error {inner.code}", None

"""Durable nonces: one-time values on the ledger that keep a signed transaction valid until one of that value is executed.

A transaction that carries a nonce instead of a blockhash does not expire. Of all transactions with one value at most one is
ever executed, so a payment may be signed anew with the same value and still happens once, whatever an endpoint says about time.

Source: https://solana.com/docs/core/transactions (durable nonces); Agave, sdk/nonce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solders.account import Account
from solders.hash import Hash
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import (
    AdvanceNonceAccountParams,
    CreateAccountWithSeedParams,
    InitializeNonceAccountParams,
    advance_nonce_account,
    create_account_with_seed,
    initialize_nonce_account,
)

from ledger.errors import LedgerAnswerError

NONCE_SIZE = 80
MAX_NONCES_A_TRANSACTION = 5  # 193 bytes each beside signature and header: what fits 1,232.
_STATE, _AUTHORITY, _VALUE = slice(4, 8), slice(8, 40), slice(40, 72)
_INITIALISED = (1).to_bytes(4, "little")


@dataclass(frozen=True)
class Nonce:
    """A nonce account as the endpoint knew it at ``slot``, in a block that can never be undone."""

    account: Pubkey
    authority: Pubkey
    value: Hash
    slot: int


def nonce_address(owner: Pubkey, number: int) -> Pubkey:
    """Address of an owner's nonce account; it needs no key of its own."""
    return Pubkey.create_with_seed(owner, _seed(number), SYSTEM_PROGRAM)


def create_nonces(owner: Pubkey, numbers: Sequence[int], lamports: int) -> list[Instruction]:
    """Create nonce accounts that ``owner`` pays for and alone may use."""
    made: list[Instruction] = []
    for number in numbers:
        account = nonce_address(owner, number)
        space = CreateAccountWithSeedParams(
            from_pubkey=owner,
            to_pubkey=account,
            base=owner,
            seed=_seed(number),
            lamports=lamports,
            space=NONCE_SIZE,
            owner=SYSTEM_PROGRAM,
        )
        start = InitializeNonceAccountParams(nonce_pubkey=account, authority=owner)
        made += [create_account_with_seed(space), initialize_nonce_account(start)]
    return made


def advance(nonce: Nonce) -> Instruction:
    """What must stand first in a transaction that carries the nonce."""
    return advance_nonce_account(
        AdvanceNonceAccountParams(nonce_pubkey=nonce.account, authorized_pubkey=nonce.authority)
    )


def read_nonce(key: Pubkey, account: Account, slot: int) -> Nonce:
    """Decode a nonce account.

    Raises:
        LedgerAnswerError: it is none.
    """
    data = account.data
    if account.owner != SYSTEM_PROGRAM or len(data) != NONCE_SIZE or data[_STATE] != _INITIALISED:
        raise LedgerAnswerError(f"{key} is no nonce account: is this the ledger that it was created on?")
    return Nonce(key, Pubkey.from_bytes(data[_AUTHORITY]), Hash.from_bytes(data[_VALUE]), slot)


def _seed(number: int) -> str:
    return f"cottage-nonce-{number}"

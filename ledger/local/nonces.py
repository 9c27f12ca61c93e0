"""Durable nonces, by the rules of a cluster.

The machine inside ``solders`` runs the nonce instructions, but it judges and advances them by a blockhash of its own that means
nothing here. So whether a transaction may use a nonce, and what the nonce is next, is decided from the ledger's blockhashes.

Source: Agave, runtime/src/bank/check_transactions.rs and the system program's nonce instructions.
"""

from __future__ import annotations

import hashlib

from solders.account import Account
from solders.hash import Hash
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

NONCE_SIZE = 80
_ADVANCE = (4).to_bytes(4, "little")  # AdvanceNonceAccount.
_INITIALISED = (1).to_bytes(4, "little")
_STATE, _AUTHORITY, _VALUE = slice(4, 8), slice(8, 40), slice(40, 72)


def durable(blockhash: Hash) -> bytes:
    """The nonce that an account takes on in a block with this blockhash."""
    return hashlib.sha256(b"DURABLE_NONCE" + bytes(blockhash)).digest()


def value(account: Account | None) -> bytes | None:
    """What a nonce account holds; None where it is none."""
    if account is None or account.owner != SYSTEM_PROGRAM or len(account.data) != NONCE_SIZE:
        return None
    return account.data[_VALUE] if account.data[_STATE] == _INITIALISED else None


def authority(account: Account) -> Pubkey:
    """Who must sign for a nonce account."""
    return Pubkey.from_bytes(account.data[_AUTHORITY])


def with_value(account: Account, nonce: bytes) -> Account:
    """The same nonce account with another nonce."""
    data = account.data[: _VALUE.start] + nonce + account.data[_VALUE.stop :]
    return Account(account.lamports, data, account.owner)


def advanced(message: Message | MessageV0) -> tuple[Pubkey, list[Pubkey]] | None:
    """The nonce account that a message's first instruction advances, and who signs that; None where it does not."""
    keys = message.account_keys
    if not message.instructions:
        return None
    first = message.instructions[0]
    accounts = list(first.accounts)
    # Whoever is loaded from a table is no signer and no nonce account that counts.
    if keys[first.program_id_index] != SYSTEM_PROGRAM or bytes(first.data)[:4] != _ADVANCE or not accounts:
        return None
    if any(index >= len(keys) for index in accounts) or not is_writable(message, accounts[0]):
        return None
    return keys[accounts[0]], [keys[index] for index in accounts if index < message.header.num_required_signatures]


def is_writable(message: Message | MessageV0, index: int) -> bool:
    """Whether a message may write one of its own accounts: signers come first, then others; in both, those to be written."""
    header, signers = message.header, message.header.num_required_signatures
    if index < signers:
        return index < signers - header.num_readonly_signed_accounts
    return index < len(message.account_keys) - header.num_readonly_unsigned_accounts

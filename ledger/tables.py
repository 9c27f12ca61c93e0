"""Address lookup tables: lists of addresses on the ledger, so that a transaction names 50 payees by one byte each.

A table is made by its owner, grows, and is closed in two steps: deactivated, and 513 slots later given back with its rent.

Source: https://solana.com/docs/advanced/lookup-tables; Agave, programs/address-lookup-table.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from solders.account import Account
from solders.address_lookup_table_account import ID as TABLE_PROGRAM
from solders.address_lookup_table_account import (
    AddressLookupTable,
    AddressLookupTableAccount,
    derive_lookup_table_address,
)
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from ledger.errors import LedgerAnswerError

MAX_ADDRESSES = 256  # Of a table, by its program.
MAX_ADDRESSES_A_TRANSACTION = 24  # 32 bytes each, beside the nonce and the creation of the table: what fits 1,232.
# Until a deactivated table may be closed: its slot must have left the 512 that programs are told of.
CLOSING_SLOTS = 513
_ACTIVE = 2**64 - 1


@dataclass(frozen=True)
class Table:
    """A lookup table as it lies on the ledger.

    Attributes:
        grown: slot of its newest addresses, which count from the next slot on.
        deactivated: slot at which it was deactivated; None while it serves.
    """

    address: Pubkey
    addresses: tuple[Pubkey, ...]
    grown: int
    deactivated: int | None

    def account(self) -> AddressLookupTableAccount:
        """As a message is compiled with it."""
        return AddressLookupTableAccount(self.address, list(self.addresses))


def table_address(owner: Pubkey, slot: int) -> Pubkey:
    """Address of the table that an owner makes with a recent slot."""
    return derive_lookup_table_address(owner, slot)[0]


def create_table(owner: Pubkey, slot: int) -> Instruction:
    """Make an empty table; ``slot`` is one of the last 512."""
    address, bump = derive_lookup_table_address(owner, slot)
    return Instruction(TABLE_PROGRAM, struct.pack("<IQB", 0, slot, bump), _accounts(address, owner))


def extend_table(owner: Pubkey, table: Pubkey, addresses: Sequence[Pubkey]) -> Instruction:
    """Append addresses; the owner pays their rent."""
    data = struct.pack("<IQ", 2, len(addresses)) + b"".join(map(bytes, addresses))
    return Instruction(TABLE_PROGRAM, data, _accounts(table, owner))


def deactivate_table(owner: Pubkey, table: Pubkey) -> Instruction:
    """End a table's service."""
    return Instruction(TABLE_PROGRAM, struct.pack("<I", 3), _accounts(table, owner)[:2])


def close_table(owner: Pubkey, table: Pubkey) -> Instruction:
    """Give back a table whose service has ended CLOSING_SLOTS ago, and its rent to the owner."""
    accounts = [*_accounts(table, owner)[:2], AccountMeta(owner, is_signer=False, is_writable=True)]
    return Instruction(TABLE_PROGRAM, struct.pack("<I", 4), accounts)


def read_table(address: Pubkey, account: Account) -> Table:
    """Decode a lookup table.

    Raises:
        LedgerAnswerError: it is none.
    """
    if account.owner != TABLE_PROGRAM:
        raise LedgerAnswerError(f"{address} is no address lookup table: is this the ledger that it was made on?")
    try:
        content = AddressLookupTable.deserialize(account.data)
    except ValueError as error:
        raise LedgerAnswerError(f"lookup table {address} cannot be read: {error}") from error
    ended = content.meta.deactivation_slot
    return Table(
        address, tuple(content.addresses), content.meta.last_extended_slot, None if ended == _ACTIVE else ended
    )


def _accounts(table: Pubkey, owner: Pubkey) -> list[AccountMeta]:
    return [
        AccountMeta(table, is_signer=False, is_writable=True),
        AccountMeta(owner, is_signer=True, is_writable=False),
        AccountMeta(owner, is_signer=True, is_writable=True),
        AccountMeta(SYSTEM_PROGRAM, is_signer=False, is_writable=False),
    ]

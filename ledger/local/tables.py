"""Address lookup tables: which accounts a message loads from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from solders.account import Account
from solders.address_lookup_table_account import ID as TABLE_PROGRAM
from solders.address_lookup_table_account import AddressLookupTable
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey


class TableError(Exception):
    """A table does not give what a message asks of it; the text is the transaction error in Solana's notation."""


@dataclass(frozen=True)
class Loaded:
    """Accounts that a message loads: they stand behind its own, those to be written first."""

    writable: tuple[Pubkey, ...] = ()
    readonly: tuple[Pubkey, ...] = ()


def load(message: Message | MessageV0, lookup: Callable[[Pubkey], Account | None]) -> Loaded:
    """Resolve a message's tables.

    Raises:
        TableError: a table is missing, is no table, or is shorter than the message believes.
    """
    if not isinstance(message, MessageV0):
        return Loaded()
    writable: list[Pubkey] = []
    readonly: list[Pubkey] = []
    for wanted in message.address_table_lookups:
        account = lookup(wanted.account_key)
        if account is None:
            raise TableError("AddressLookupTableNotFound")
        if account.owner != TABLE_PROGRAM:
            raise TableError("InvalidAddressLookupTableOwner")
        try:
            addresses = AddressLookupTable.deserialize(account.data).addresses
            writable += [addresses[index] for index in wanted.writable_indexes]
            readonly += [addresses[index] for index in wanted.readonly_indexes]
        except IndexError:
            raise TableError("InvalidAddressLookupTableIndex") from None
        except ValueError:
            raise TableError("InvalidAddressLookupTableData") from None
    return Loaded(tuple(writable), tuple(readonly))

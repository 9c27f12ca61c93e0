"""JSON shapes of accounts, balances and transactions, as Solana's RPC documents them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from solders.account import Account
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.token.constants import TOKEN_2022_PROGRAM_ID, TOKEN_PROGRAM_ID

from common import base58
from ledger.local.store import Entry

Json = dict[str, Any]
Lookup = Callable[[Pubkey], Account | None]

TOKEN_PROGRAMS = (TOKEN_PROGRAM_ID, TOKEN_2022_PROGRAM_ID)
TOKEN_ACCOUNT_SIZE = 165
MINT_SIZE = 82
_ACCOUNT_KIND = 2  # Token-2022 writes the kind behind the common part of an account.
_RENT_EPOCH = 2**64 - 1


def account_json(account: Account, data_slice: Mapping[str, int] | None = None) -> Json:
    """An account in base-64 encoding, whole or the asked slice of its data."""
    data = account.data
    if data_slice is not None:
        data = data[data_slice["offset"] : data_slice["offset"] + data_slice["length"]]
    return {
        "data": [base64.b64encode(data).decode(), "base64"],
        "executable": account.executable,
        "lamports": account.lamports,
        "owner": str(account.owner),
        "rentEpoch": _RENT_EPOCH,
        "space": len(account.data),
    }


def is_token_account(account: Account) -> bool:
    """Whether an account holds tokens of either token program."""
    size = len(account.data)
    if account.owner not in TOKEN_PROGRAMS or size < TOKEN_ACCOUNT_SIZE:
        return False
    return size == TOKEN_ACCOUNT_SIZE or account.data[TOKEN_ACCOUNT_SIZE] == _ACCOUNT_KIND


def token_amount_json(units: int, decimals: int) -> Json:
    """An amount of tokens in its three notations."""
    text = f"{units:0{decimals + 1}d}"
    whole, fraction = (text[:-decimals], text[-decimals:].rstrip("0")) if decimals else (text, "")
    return {
        "amount": str(units),
        "decimals": decimals,
        "uiAmount": units / 10**decimals,
        "uiAmountString": f"{whole}.{fraction}" if fraction else whole,
    }


def token_account_amount(account: Account, lookup: Lookup) -> Json:
    """The amount in a token account; the mint tells the decimals."""
    mint = lookup(Pubkey.from_bytes(account.data[:32]))
    decimals = mint.data[44] if mint is not None and len(mint.data) >= MINT_SIZE else 0
    return token_amount_json(int.from_bytes(account.data[64:72], "little"), decimals)


def balances_json(keys: Sequence[Pubkey], lookup: Lookup) -> tuple[list[int], list[Json]]:
    """Lamports of every account of a transaction, and tokens of those that hold some."""
    lamports: list[int] = []
    tokens: list[Json] = []
    for index, key in enumerate(keys):
        account = lookup(key)
        lamports.append(account.lamports if account else 0)
        if account is not None and is_token_account(account):
            tokens.append(
                {
                    "accountIndex": index,
                    "mint": str(Pubkey.from_bytes(account.data[:32])),
                    "owner": str(Pubkey.from_bytes(account.data[32:64])),
                    "programId": str(account.owner),
                    "uiTokenAmount": token_account_amount(account, lookup),
                }
            )
    return lamports, tokens


def memo_text(message: Message | MessageV0, keys: Sequence[Pubkey]) -> str | None:
    """What the memo instructions of a message say, in the notation of getSignaturesForAddress."""
    memos = [bytes(i.data) for i in message.instructions if keys[i.program_id_index] == MEMO_PROGRAM_ID]
    return "; ".join(f"[{len(memo)}] {memo.decode('utf-8', 'replace')}" for memo in memos) or None


def status_json(error: str | None) -> Json:
    """A transaction's result: ``error`` is JSON or None."""
    return {"Ok": None} if error is None else {"Err": msgspec.json.decode(error)}


def entry_json(entry: Entry, encoding: str) -> Json:
    """A recorded transaction as getTransaction answers; ``encoding`` is ``base64`` or ``json``."""
    transaction = VersionedTransaction.from_bytes(entry.wire)
    body: Any = [base64.b64encode(entry.wire).decode(), "base64"]
    if encoding != "base64":
        body = {
            "signatures": [str(signature) for signature in transaction.signatures],
            "message": _message_json(transaction.message),
        }
    return {
        "slot": entry.slot,
        "blockTime": entry.time,
        "transaction": body,
        "meta": msgspec.json.decode(entry.meta),
        "version": 0 if isinstance(transaction.message, MessageV0) else "legacy",
    }


def _message_json(message: Any) -> Json:
    header = message.header
    return {
        "header": {
            "numRequiredSignatures": header.num_required_signatures,
            "numReadonlySignedAccounts": header.num_readonly_signed_accounts,
            "numReadonlyUnsignedAccounts": header.num_readonly_unsigned_accounts,
        },
        "accountKeys": [str(key) for key in message.account_keys],
        "recentBlockhash": str(message.recent_blockhash),
        "instructions": [
            {
                "programIdIndex": instruction.program_id_index,
                "accounts": list(instruction.accounts),
                "data": base58.encode(bytes(instruction.data)),
                "stackHeight": None,
            }
            for instruction in message.instructions
        ],
        "addressTableLookups": [
            {
                "accountKey": str(lookup.account_key),
                "writableIndexes": list(lookup.writable_indexes),
                "readonlyIndexes": list(lookup.readonly_indexes),
            }
            for lookup in getattr(message, "address_table_lookups", ())  # Legacy messages have none.
        ],
    }

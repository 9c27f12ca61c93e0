"""The JSON-RPC methods of the embedded ledger: the part of Solana's that clients of Cottage use, and two more.

``cottageInfo`` tells program, mint and treasury; ``cottageFaucet`` gives test tokens and SOL.

Source: https://solana.com/docs/rpc/http
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from solders.hash import Hash, ParseHashError
from solders.message import from_bytes_versioned
from solders.pubkey import Pubkey
from solders.transaction import SanitizeError, VersionedTransaction

from common import base58
from common.errors import BadAddressError
from ledger.errors import LedgerError
from ledger.local.chain import BLOCKHASH_SLOTS, LocalChain, TransactionOutcome, TransactionRefusedError
from ledger.local.encoding import (
    TOKEN_PROGRAMS,
    Json,
    account_json,
    entry_json,
    is_token_account,
    status_json,
    token_account_amount,
    token_amount_json,
)
from ledger.local.genesis import Genesis, give
from ledger.money import DECIMALS, MAX_AMOUNT

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS = -32700, -32600, -32601, -32602
PREFLIGHT_FAILURE = -32002
BLOCK_NOT_AVAILABLE = -32004
MAX_TRANSACTION_BYTES = 1232  # One IPv6 packet, as on Solana; a bigger one would work here and nowhere else.
MAX_KEYS = 100  # Accounts in one getMultipleAccounts, as on Solana.
MAX_STATUSES = 256
MAX_HISTORY = 1000
MAX_FILTERS = 4  # As on Solana.
MAX_BLOCKS = 500  # Slots named in one answer.
MAX_FAUCET_LAMPORTS = 1_000_000 * 10**9
MAX_FAUCET_TOKENS = MAX_AMOUNT // 10**6  # A million gifts fit the token's supply.
_LAMPORTS_PER_SIGNATURE = 5000
_SLOTS_PER_EPOCH = 432_000
_VERSION = "4.1.2"  # Of the Agave crates inside solders.
_MAX_INTEGER = 2**64 - 1

Params = list[Any]


class RpcError(LedgerError):
    """An answer with an error object."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        self.code, self.data = code, data
        super().__init__(message)


class Rpc:
    """Answers one request after another; not for several threads."""

    def __init__(self, chain: LocalChain, genesis: Genesis) -> None:
        self._chain, self._genesis = chain, genesis
        self._methods: Mapping[str, Callable[[Params], Any]] = {
            "getHealth": lambda _: "ok",
            "getVersion": lambda _: {"solana-core": _VERSION, "feature-set": 0},
            "getGenesisHash": lambda _: str(chain.blockhash(0)),
            "getSlot": lambda _: chain.slot,
            "getBlockHeight": lambda _: chain.slot,
            "getBlocks": self._blocks,
            "getBlock": self._block,
            "getEpochInfo": self._epoch_info,
            "getLatestBlockhash": self._latest_blockhash,
            "isBlockhashValid": self._is_blockhash_valid,
            "getFeeForMessage": self._fee,
            "getMinimumBalanceForRentExemption": lambda p: chain.rent_minimum(_integer(p, 0, 10_485_760)),
            "getBalance": self._balance,
            "getAccountInfo": self._account_info,
            "getMultipleAccounts": self._multiple_accounts,
            "getProgramAccounts": self._program_accounts,
            "getTokenAccountBalance": self._token_balance,
            "getTokenAccountsByOwner": self._token_accounts,
            "getTokenSupply": self._token_supply,
            "sendTransaction": self._send,
            "simulateTransaction": self._simulate,
            "getSignatureStatuses": self._statuses,
            "getSignaturesForAddress": self._signatures,
            "getTransaction": self._transaction,
            "requestAirdrop": self._airdrop,
            "cottageInfo": self._info,
            "cottageFaucet": self._faucet,
        }

    def call(self, method: str, params: Params) -> Any:
        """Run one method.

        Raises:
            RpcError: the method is unknown, a parameter is wrong, or a transaction was refused.
            StoreFailedError: the disk refused a write; stop serving.
        """
        handler = self._methods.get(method)
        if handler is None:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:60]!r}")
        self._chain.tick()
        try:
            return handler(params)
        except TransactionRefusedError as refused:
            raise RpcError(PREFLIGHT_FAILURE, str(refused), _simulation(refused)) from refused

    def _with_context(self, value: Any) -> Json:
        return {"context": {"slot": self._chain.slot, "apiVersion": _VERSION}, "value": value}

    # Time and blockhashes

    def _epoch_info(self, _: Params) -> Json:
        slot = self._chain.slot
        return {
            "absoluteSlot": slot,
            "blockHeight": slot,
            "epoch": slot // _SLOTS_PER_EPOCH,
            "slotIndex": slot % _SLOTS_PER_EPOCH,
            "slotsInEpoch": _SLOTS_PER_EPOCH,
            "transactionCount": self._chain.store.count(),
        }

    def _latest_blockhash(self, _: Params) -> Json:
        slot = self._chain.slot
        value = {"blockhash": str(self._chain.blockhash()), "lastValidBlockHeight": slot + BLOCKHASH_SLOTS}
        return self._with_context(value)

    def _blocks(self, params: Params) -> list[int]:
        """Every slot up to the present one has a block here."""
        first = _integer(params, 0, _MAX_INTEGER)
        last = _integer(params, 1, _MAX_INTEGER) if len(params) > 1 and params[1] is not None else self._chain.slot
        return list(range(first, min(last, self._chain.slot, first + MAX_BLOCKS - 1) + 1))

    def _block(self, params: Params) -> Json:
        """A block's place and hash; its transactions are found by their signatures."""
        slot = _integer(params, 0, _MAX_INTEGER)
        if slot > self._chain.slot:
            raise RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")
        return {
            "blockhash": str(self._chain.blockhash(slot)),
            "previousBlockhash": str(self._chain.blockhash(max(0, slot - 1))),
            "parentSlot": max(0, slot - 1),
            "blockHeight": slot,
            "blockTime": None,
        }

    def _is_blockhash_valid(self, params: Params) -> Json:
        try:
            blockhash = Hash.from_string(_text(params, 0))
        except ParseHashError as error:
            raise RpcError(INVALID_PARAMS, f"Invalid param: no blockhash: {error}") from error
        return self._with_context(self._chain.is_valid_blockhash(blockhash))

    def _fee(self, params: Params) -> Json:
        try:
            message = from_bytes_versioned(_base64(_text(params, 0)))
        except ValueError as error:
            raise RpcError(INVALID_PARAMS, f"Invalid param: no message: {error}") from error
        return self._with_context(_LAMPORTS_PER_SIGNATURE * message.header.num_required_signatures)

    # Accounts

    def _balance(self, params: Params) -> Json:
        account = self._chain.account(_address(params, 0))
        return self._with_context(account.lamports if account else 0)

    def _account_info(self, params: Params) -> Json:
        account = self._chain.account(_address(params, 0))
        return self._with_context(account_json(account, _slice(params)) if account else None)

    def _multiple_accounts(self, params: Params) -> Json:
        keys = _list(params, 0, MAX_KEYS)
        accounts = [self._chain.account(_address(keys, index)) for index in range(len(keys))]
        data_slice = _slice(params)
        return self._with_context([account_json(found, data_slice) if found else None for found in accounts])

    def _program_accounts(self, params: Params) -> Any:
        config = _config(params, 1)
        filters = [_filter(document) for document in _list([config.get("filters") or []], 0, MAX_FILTERS)]
        data_slice = _slice(params)
        found = [
            {"pubkey": str(key), "account": account_json(account, data_slice)}
            for key, account in self._chain.program_accounts(_address(params, 0))
            if all(matches(account.data) for matches in filters)
        ]
        return self._with_context(found) if config.get("withContext") else found

    def _token_balance(self, params: Params) -> Json:
        account = self._chain.account(_address(params, 0))
        if account is None or not is_token_account(account):
            raise RpcError(INVALID_PARAMS, "Invalid param: could not find account")
        return self._with_context(token_account_amount(account, self._chain.account))

    def _token_supply(self, params: Params) -> Json:
        account = self._chain.account(_address(params, 0))
        if account is None or account.owner not in TOKEN_PROGRAMS or len(account.data) < 82:
            raise RpcError(INVALID_PARAMS, "Invalid param: could not find mint")
        return self._with_context(token_amount_json(int.from_bytes(account.data[36:44], "little"), account.data[44]))

    def _token_accounts(self, params: Params) -> Json:
        owner, wanted = bytes(_address(params, 0)), _config(params, 1)
        mint = bytes(_address([wanted["mint"]], 0)) if "mint" in wanted else None
        found = [
            {"pubkey": str(key), "account": account_json(account)}
            for program in TOKEN_PROGRAMS
            if wanted.get("programId", str(program)) == str(program)
            for key, account in self._chain.program_accounts(program)
            if is_token_account(account) and account.data[32:64] == owner and mint in (None, account.data[:32])
        ]
        return self._with_context(found)

    # Transactions

    def _send(self, params: Params) -> str:
        transaction, config = _transaction(params), _config(params, 1)
        return self._chain.submit(transaction, preflight=not config.get("skipPreflight"))

    def _simulate(self, params: Params) -> Json:
        transaction, config = _transaction(params), _config(params, 1)
        outcome = self._chain.simulate(transaction, verify=bool(config.get("sigVerify")))
        return self._with_context(_simulation(outcome))

    def _statuses(self, params: Params) -> Json:
        found: list[Json | None] = []
        for signature in _list(params, 0, MAX_STATUSES):
            entry = self._chain.store.find(str(signature))
            found.append(
                None
                if entry is None
                else {
                    "slot": entry.slot,
                    "confirmations": None,
                    "err": _decoded(entry.error),
                    "status": status_json(entry.error),
                    "confirmationStatus": "finalized",
                }
            )
        return self._with_context(found)

    def _signatures(self, params: Params) -> list[Json]:
        config = _config(params, 1)
        limit = _integer([config.get("limit") or MAX_HISTORY], 0, MAX_HISTORY)
        before, until = (_text([config[name]], 0) if config.get(name) else None for name in ("before", "until"))
        return [
            {
                "signature": entry.signature,
                "slot": entry.slot,
                "err": _decoded(entry.error),
                "memo": entry.memo,
                "blockTime": entry.time,
                "confirmationStatus": "finalized",
            }
            for entry in self._chain.store.mentions(bytes(_address(params, 0)), before, until, limit)
        ]

    def _transaction(self, params: Params) -> Json | None:
        entry = self._chain.store.find(_text(params, 0))
        # The second parameter may be the encoding alone, an older form that clients still use.
        alone = len(params) > 1 and isinstance(params[1], str)
        encoding = params[1] if alone else _config(params, 1).get("encoding", "json")
        return None if entry is None else entry_json(entry, encoding)

    # The faucet

    def _airdrop(self, params: Params) -> str:
        lamports = _integer(params, 1, MAX_FAUCET_LAMPORTS)
        return give(self._chain, self._genesis, _address(params, 0), 0, lamports)

    def _faucet(self, params: Params) -> str:
        tokens, lamports = _integer(params, 1, MAX_FAUCET_TOKENS), _integer(params, 2, MAX_FAUCET_LAMPORTS)
        return give(self._chain, self._genesis, _address(params, 0), tokens, lamports)

    def _info(self, _: Params) -> Json:
        market = self._genesis.market
        return {
            "program": str(market.program),
            "mint": str(market.mint),
            "decimals": DECIMALS,
            "treasury": str(self._genesis.treasury_account),
            "authority": str(self._genesis.root.pubkey()),
        }


def _simulation(result: TransactionRefusedError | TransactionOutcome) -> Json:
    return {
        "err": result.error,
        "logs": result.logs,
        "accounts": None,
        "unitsConsumed": result.units,
        "returnData": None,
        "innerInstructions": None,
        "loadedAccountsDataSize": 0,
        "replacementBlockhash": None,
    }


def _decoded(error: str | None) -> Any:
    return None if error is None else msgspec.json.decode(error)


def _parameter(params: Params, index: int, kind: type, what: str) -> Any:
    value = params[index] if index < len(params) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise RpcError(INVALID_PARAMS, f"Invalid param {index}: expected {what}, got {str(value)[:60]!r}")
    return value


def _text(params: Params, index: int) -> str:
    return str(_parameter(params, index, str, "a text"))


def _integer(params: Params, index: int, most: int) -> int:
    value = int(_parameter(params, index, int, "a whole number"))
    if not 0 <= value <= most:
        raise RpcError(INVALID_PARAMS, f"Invalid param {index}: {value} must lie between 0 and {most}")
    return value


def _list(params: Params, index: int, most: int) -> list[Any]:
    value: list[Any] = _parameter(params, index, list, "a list")
    if len(value) > most:
        raise RpcError(INVALID_PARAMS, f"Invalid param {index}: {len(value)} entries, at most {most} are answered")
    return value


def _config(params: Params, index: int) -> Json:
    if index >= len(params) or params[index] is None:
        return {}
    config: Json = _parameter(params, index, dict, "an object")
    return config


def _address(params: Params, index: int) -> Pubkey:
    text = _text(params, index)
    try:
        return Pubkey.from_string(text)
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid param {index}: {text[:60]!r} is no address") from error


def _slice(params: Params) -> dict[str, int] | None:
    config = _config(params, 1)
    if config.get("dataSlice") is None:
        return None
    asked = _config([config["dataSlice"]], 0)
    return {name: _integer([asked.get(name)], 0, _MAX_INTEGER) for name in ("offset", "length")}


def _filter(document: Any) -> Callable[[bytes], bool]:
    """One filter of getProgramAccounts as a predicate over an account's data."""
    if isinstance(document, dict) and "dataSize" in document:
        size = document["dataSize"]
        return lambda data: len(data) == size
    if isinstance(document, dict) and isinstance(compare := document.get("memcmp"), dict):
        offset, text = _integer([compare.get("offset")], 0, _MAX_INTEGER), _text([compare.get("bytes")], 0)
        try:
            wanted = _base64(text) if compare.get("encoding") == "base64" else base58.decode(text)
        except (ValueError, BadAddressError) as error:
            raise RpcError(INVALID_PARAMS, f"Invalid filter: {text[:60]!r}") from error
        return lambda data: data[offset : offset + len(wanted)] == wanted
    raise RpcError(INVALID_PARAMS, f"Invalid filter: {str(document)[:60]}: use dataSize or memcmp")


def _base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _transaction(params: Params) -> VersionedTransaction:
    text, config = _text(params, 0), _config(params, 1)
    try:
        wire = _base64(text) if config.get("encoding", "base58") == "base64" else base58.decode(text)
    except (ValueError, binascii.Error, BadAddressError) as error:
        raise RpcError(INVALID_PARAMS, f"invalid transaction encoding: {error}") from error
    if len(wire) > MAX_TRANSACTION_BYTES:
        raise RpcError(INVALID_PARAMS, f"transaction too large: {len(wire)} bytes (max: {MAX_TRANSACTION_BYTES})")
    try:
        transaction = VersionedTransaction.from_bytes(wire)
        transaction.sanitize()
    except (ValueError, SanitizeError) as error:
        raise RpcError(INVALID_PARAMS, f"failed to deserialize transaction: {error}") from error
    return transaction

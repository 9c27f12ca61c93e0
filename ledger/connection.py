"""One JSON-RPC connection whose every failure is a typed error of this package."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import httpx2
from solana.exceptions import SolanaRpcException
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Confirmed, Finalized, Processed
from solana.rpc.core import RPCException
from solana.rpc.jsonrpc import JsonRpcErrorCode, JsonRpcRequest, SolanaJsonRpcError
from solana.rpc.models import MemcmpOpts, TxOpts
from solders.account import Account
from solders.errors import SerdeJSONError
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.rpc.errors import NodeUnhealthyMessage, SendTransactionPreflightFailureMessage
from solders.rpc.responses import RpcConfirmedTransactionStatusWithSignature
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from solders.transaction_status import (
    EncodedConfirmedTransactionWithStatusMeta,
    TransactionConfirmationStatus,
    TransactionDetails,
    TransactionErrorFieldless,
)

from common.errors import UrlError
from common.http_sessions import ANSWER_S, NO_ANSWER, Proxy, ProxyError, proxy_for, told_of_waiting
from common.system_words import reason
from common.urls import parse_url
from ledger.errors import AddressError, LedgerAnswerError, LedgerUnavailableError, TransactionFailedError
from ledger.failures import explain

PAGE = 1000  # Signatures in one answer: the most that Solana gives.
_MAX_KEYS = 100
_SLOTS_AT_ONCE = 512  # Slots in which a block is looked for at a time; a cluster may leave out many in a row.

_Answer = TypeVar("_Answer")
Commitment = Literal["unknown", "processed", "confirmed", "finalized"]
SendResult = Literal["sent", "processed", "unknown blockhash"]


@dataclass(frozen=True)
class TransactionStanding:
    """How far a transaction has come, as the endpoint knew at ``slot``.

    Attributes:
        failed: it was executed and refused, which counts as soon as it is finalized.
    """

    commitment: Commitment
    failed: bool
    slot: int


@dataclass(frozen=True)
class Height:
    """Where the chain stands: ``height`` counts blocks, ``slot`` also counts times at which no block was made."""

    height: int
    slot: int


class Connection:
    """A connection to one JSON-RPC endpoint. Close it with ``aclose``.

    Raises, from every method:
        LedgerUnavailableError: no connection, no answer in time, or the endpoint is unhealthy.
        LedgerAnswerError: the endpoint answered with an error or with something that is no answer.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = parse_url(url)
        except UrlError as error:
            raise AddressError(f"the ledger's URL: {error}") from error
        try:
            proxy = proxy_for(self._url)
        except ProxyError as error:
            raise LedgerUnavailableError(f"{url} cannot be asked: {error}") from error
        self.url = str(self._url)
        self._client = _Client(self.url, proxy)
        self._way = "" if proxy is None else f" through the proxy {proxy}"

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def accounts(self, keys: Sequence[Pubkey], *, final: bool = False) -> list[Account | None]:
        """Accounts in the order asked for, None where there is none; each hundred at one moment.

        ``final``: as of the newest block that can never be undone.
        """
        found: list[Account | None] = []
        for start in range(0, len(keys), _MAX_KEYS):
            part = list(keys[start : start + _MAX_KEYS])
            commitment = Finalized if final else Confirmed
            answer = await self._ask(partial(self._client.get_multiple_accounts, part, commitment))
            found.extend(answer.value)
        return found

    async def program_accounts(self, program: Pubkey, offset: int, content: bytes) -> list[tuple[Pubkey, Account]]:
        """Accounts of a program that hold ``content`` (32 bytes) at ``offset``."""
        compare = MemcmpOpts(offset=offset, bytes=str(Pubkey.from_bytes(content)))
        answer = await self._ask(
            lambda: self._client.get_program_accounts(program, encoding="base64", filters=[compare])
        )
        return [(entry.pubkey, entry.account) for entry in answer.value]

    async def blockhash(self) -> tuple[Hash, int]:
        """A recent blockhash and the last block height at which it is valid."""
        value = (await self._ask(self._client.get_latest_blockhash)).value
        return value.blockhash, value.last_valid_block_height

    async def is_recent(self, blockhash: Hash) -> bool:
        """Whether a transaction with this blockhash can still be executed, as far as the endpoint knows."""
        params = [str(blockhash), {"commitment": "processed"}]
        request = JsonRpcRequest(method="isBlockhashValid", params=params)
        return (await self._ask(lambda: self._client.send_rpc_request(request, dict[str, Any])))["value"] is True

    async def final_account(self, key: Pubkey) -> tuple[Account | None, int]:
        """An account in the newest block that can never be undone, and the slot of that block."""
        answer = await self._ask(lambda: self._client.get_account_info(key, Finalized, "base64"))
        return answer.value, int(answer.context.slot)

    async def confirmed_slot(self) -> int:
        """The newest slot that most of the cluster has voted for."""
        return int((await self._ask(lambda: self._client.get_slot(Confirmed))).value)

    async def block_height(self) -> int:
        """Height of the newest block that can never be undone."""
        return int((await self._ask(lambda: self._client.get_block_height(Finalized))).value)

    async def slot(self) -> int:
        """The newest slot that the endpoint has seen, however young."""
        return int((await self._ask(lambda: self._client.get_slot(Processed))).value)

    async def block_after(self, slot: int) -> tuple[int, str] | None:
        """Slot and hash of the first block after ``slot`` that can never be undone; None while there is none yet."""
        newest, first = await self.slot(), None
        for start in range(slot + 1, newest + 1, _SLOTS_AT_ONCE):
            found = (await self._ask(partial(self._client.get_blocks, start, start + _SLOTS_AT_ONCE - 1))).value
            if found:
                first = int(found[0])
                break
        if first is None:
            return None
        details = TransactionDetails.None_
        block = (
            await self._ask(
                lambda: self._client.get_block(
                    first,
                    max_supported_transaction_version=0,
                    transaction_details=details,
                    rewards=False,
                    commitment=Finalized,
                )
            )
        ).value
        return None if block is None else (first, str(block.blockhash))

    async def genesis_hash(self) -> str:
        """By which a chain is known, at whichever of its endpoints it is asked."""
        return str((await self._ask(self._client.get_genesis_hash)).value)

    async def rent(self, size: int) -> int:
        """Lamports that an account of ``size`` bytes must hold."""
        return int((await self._ask(lambda: self._client.get_minimum_balance_for_rent_exemption(size))).value)

    async def trial(self, transaction: VersionedTransaction) -> tuple[str | None, list[str]]:
        """Why a transaction would fail (None where it would not), and what its programs would log. Nothing is sent."""
        value = (await self._ask(lambda: self._client.simulate_transaction(transaction))).value
        return None if value.err is None else str(value.err), list(value.logs or [])

    async def final_height(self) -> Height:
        """The same by another method, with its slot."""
        value = (await self._ask(lambda: self._client.get_epoch_info(Finalized))).value
        return Height(int(value.block_height), int(value.absolute_slot))

    async def send(self, wire: bytes, program: Pubkey) -> SendResult:
        """Hand over a signed transaction. ``program`` is the market's, to explain its errors.

        Raises:
            TransactionFailedError: the endpoint tried it out and it fails; carries the logs.
        """
        options = TxOpts(skip_confirmation=True, preflight_commitment=Confirmed)
        try:
            await self._ask(lambda: self._client.send_raw_transaction(wire, options))
        except _PreflightError as refused:
            if refused.error == TransactionErrorFieldless.AlreadyProcessed:
                return "processed"
            if refused.error == TransactionErrorFieldless.BlockhashNotFound:
                return "unknown blockhash"
            reason, code = explain(refused.error, refused.logs, program)
            raise TransactionFailedError("", reason, code, refused.logs) from refused
        return "sent"

    async def slot_of(self, signature: Signature) -> int | None:
        """Slot of the block that holds a transaction; None while the endpoint knows of none."""
        ask = self._client.get_signature_statuses
        found = (await self._ask(lambda: ask([signature], search_transaction_history=True))).value[0]
        return None if found is None else int(found.slot)

    async def standing(self, signature: Signature) -> TransactionStanding:
        """What became of a transaction, as far as the endpoint remembers."""
        ask = self._client.get_signature_statuses
        answer = await self._ask(lambda: ask([signature], search_transaction_history=True))
        found, slot = answer.value[0], int(answer.context.slot)
        if found is None:
            return TransactionStanding("unknown", False, slot)
        # Old blocks are no longer voted on: then the endpoint says no confirmation status and null confirmations.
        final = found.confirmation_status == TransactionConfirmationStatus.Finalized or found.confirmations is None
        if final:
            return TransactionStanding("finalized", found.err is not None, slot)
        confirmed = found.confirmation_status == TransactionConfirmationStatus.Confirmed
        return TransactionStanding("confirmed" if confirmed else "processed", found.err is not None, slot)

    async def signatures(
        self, address: Pubkey, before: Signature | None
    ) -> list[RpcConfirmedTransactionStatusWithSignature]:
        """One page of transactions that mention an address, newest first."""
        answer = await self._ask(lambda: self._client.get_signatures_for_address(address, before=before, limit=PAGE))
        return list(answer.value)

    async def transaction(self, signature: Signature) -> EncodedConfirmedTransactionWithStatusMeta:
        """A processed transaction."""
        answer = await self._ask(
            lambda: self._client.get_transaction(signature, "json", max_supported_transaction_version=0)
        )
        if answer.value is None:
            raise LedgerAnswerError(f"{self.url} lists transaction {signature} but does not have it: try again later")
        return answer.value

    async def call(self, method: str, *params: str | int) -> Any:
        """Call a method that only the embedded ledger has."""
        request = JsonRpcRequest(method=method, params=list(params))
        return await self._ask(lambda: self._client.send_rpc_request(request, dict[str, Any] | str))

    async def _ask(self, request: Callable[[], Awaitable[_Answer]]) -> _Answer:
        try:
            with told_of_waiting(self._url):
                async with asyncio.timeout(ANSWER_S):  # The library counts from one piece of an answer to the next.
                    return await request()
        except TimeoutError as error:
            raise LedgerUnavailableError(self._silent(NO_ANSWER)) from error
        except SolanaRpcException as error:
            cause = error.__cause__ or error
            if isinstance(cause, httpx2.HTTPStatusError):
                status = cause.response.status_code
                if status in (408, 429) or status >= 500:  # A ledger's own, or of what stands before it.
                    raise LedgerUnavailableError(
                        f"{self.url}{self._way} is busy or away (HTTP {status}): try again later"
                    ) from error
                raise LedgerUnavailableError(self._stranger(f"HTTP {status}")) from error
            raise LedgerUnavailableError(self._silent(_why(cause))) from error
        except RPCException as error:
            raise self._translate(error.args[0]) from error
        except SolanaJsonRpcError as error:
            if error.code == JsonRpcErrorCode.METHOD_NOT_FOUND:
                message = f"{self.url} is not the embedded ledger: configure program and mint for a cluster"
                raise LedgerAnswerError(message) from error
            raise LedgerAnswerError(f"{self.url} answered: {error}") from error
        except (ValueError, SerdeJSONError) as error:  # Those of pydantic and json derive from ValueError.
            raise LedgerAnswerError(self._stranger("something else than JSON-RPC")) from error

    def _silent(self, why: str) -> str:
        asked = "does the proxy reach it" if self._way else "is the ledger running"
        return f"{self.url} does not answer{self._way} ({why}): {asked}?"

    def _stranger(self, answer: str) -> str:
        said = f"at {self.url}{self._way} answers something that is no Solana ledger: {answer}"
        return f"{said}; see whether address and port are the ledger's"

    def _translate(self, message: Any) -> Exception:
        if isinstance(message, SendTransactionPreflightFailureMessage):
            return _PreflightError(message.data.err, message.data.logs or [])
        if isinstance(message, NodeUnhealthyMessage):
            return LedgerUnavailableError(f"{self.url} is behind the cluster: try again later")
        return LedgerAnswerError(f"{self.url} answered: {getattr(message, 'message', message)}")


def _why(error: BaseException) -> str:
    """Why nobody was reached, in the system's words where it has some below the library's."""
    below: BaseException | None = error
    while below is not None:
        if isinstance(below, OSError) and below.errno is not None:
            return reason(below)
        below = below.__cause__ or below.__context__
    return NO_ANSWER if isinstance(error, httpx2.TimeoutException) else str(error) or "the connection broke"


class _Client(AsyncClient):
    """The library's client on the way that ``common.http_sessions`` names: its own follows the environment even to loopback."""

    def __init__(self, url: str, proxy: Proxy | None) -> None:
        # Whoever names a proxy keeps the library from reading the environment; it is used by nobody.
        super().__init__(url, commitment=Confirmed, timeout=ANSWER_S, http2=False, proxy=url)
        login = {"Proxy-Authorization": proxy.login} if proxy is not None and proxy.login else None
        way = httpx2.AsyncHTTPTransport(proxy=None if proxy is None else httpx2.Proxy(str(proxy.url), headers=login))
        self._provider.session = httpx2.AsyncClient(transport=way, timeout=ANSWER_S)


class _PreflightError(Exception):
    """The endpoint tried a transaction out and refused it."""

    def __init__(self, error: Any, logs: list[str]) -> None:
        self.error, self.logs = error, logs
        super().__init__(str(error))

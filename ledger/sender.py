"""Signs, sends and follows transactions, so that each happens once or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from ledger.addresses import parse_address
from ledger.connection import Connection
from ledger.errors import LedgerAnswerError, LedgerUnavailableError, TransactionExpiredError, TransactionFailedError
from ledger.failures import explain
from ledger.nonces import Nonce, advance, read_nonce
from ledger.states import PreparedTransaction

CONFIRM_TIMEOUT_S = 60.0  # A blockhash lives about that long.
_FIRST_POLL_S, _LAST_POLL_S, _POLL_GROWTH = 0.005, 0.5, 1.5

Outcome = Literal["pending", "confirmed", "failed", "expired"]


@dataclass(frozen=True)
class SigningWindow:
    """What a transaction is signed for: a recent blockhash until a block height, or a durable nonce until that is used.

    Attributes:
        last_valid_block_height: of a blockhash; of a nonce the slot at which it was read.
    """

    blockhash: Hash
    last_valid_block_height: int
    nonce: Nonce | None = None

    def sign(
        self,
        signer: Keypair,
        instructions: Sequence[Instruction],
        cosigners: Sequence[Keypair] = (),
        tables: Sequence[AddressLookupTableAccount] = (),
    ) -> PreparedTransaction:
        """A transaction of ``signer``, who also pays its fee.

        Args:
            cosigners: the other keys that it needs.
            tables: shorten the addresses that they hold.
        """
        first = [] if self.nonce is None else [advance(self.nonce)]
        message = MessageV0.try_compile(signer.pubkey(), [*first, *instructions], list(tables), self.blockhash)
        transaction = VersionedTransaction(message, [signer, *cosigners])
        nonce = "" if self.nonce is None else str(self.nonce.account)
        signature, wire = str(transaction.signatures[0]), bytes(transaction)
        return PreparedTransaction(signature, wire, self.last_valid_block_height, nonce)


class Sender:
    """Sends through one connection; ``program`` is the market's, to explain its errors."""

    def __init__(self, connection: Connection, program: Pubkey) -> None:
        self._connection, self._program = connection, program

    async def window(self, nonce: str = "") -> SigningWindow:
        """The current window for signing; with the address of a nonce account the one that this gives.

        Raises:
            LedgerAnswerError: there is no such nonce account.
        """
        if not nonce:
            return SigningWindow(*await self._connection.blockhash())
        key = parse_address(nonce)
        account, slot = await self._connection.final_account(key)
        if account is None:
            raise LedgerAnswerError(f"{self._connection.url} has no nonce account {key}: create it first")
        found = read_nonce(key, account, slot)
        return SigningWindow(found.value, slot, found)

    async def prepare(
        self, signer: Keypair, instructions: Sequence[Instruction], nonce: str = ""
    ) -> PreparedTransaction:
        """Sign for the current window."""
        return (await self.window(nonce)).sign(signer, instructions)

    async def submit(self, prepared: PreparedTransaction) -> None:
        """See ``Ledger.submit``."""
        try:
            result = await self._connection.send(prepared.wire, self._program)
        except TransactionFailedError as error:
            # An earlier sending may have succeeded and so be the reason why this one cannot.
            if await self.standing_of(prepared, "confirmed") == "confirmed":
                return
            raise TransactionFailedError(prepared.signature, error.reason, error.code, error.logs) from error
        if result != "unknown blockhash":
            return
        outcome = await self.standing_of(prepared, "confirmed")
        if outcome == "expired":
            raise TransactionExpiredError(f"transaction {prepared.signature} expired unsent: prepare it anew")
        if outcome == "pending":
            raise LedgerUnavailableError(f"{self._connection.url} does not know the blockhash yet: try again")

    async def outcome(self, signature: str, last_valid_block_height: int) -> Outcome:
        """See ``Ledger.outcome``."""
        return await self._outcome(signature, partial(self._passed, last_valid_block_height), "finalized")

    async def outcome_of(self, prepared: PreparedTransaction) -> Outcome:
        """See ``Ledger.outcome_of``."""
        return await self.standing_of(prepared, "finalized")

    async def standing_of(self, prepared: PreparedTransaction, enough: Literal["confirmed", "finalized"]) -> Outcome:
        """What became of a transaction, where ``enough`` is what counts as done. ``failed`` and ``expired`` are always final."""
        gone = partial(self._passed, prepared.last_valid_block_height)
        if prepared.nonce:
            gone = partial(self._used, prepared)
        return await self._outcome(prepared.signature, gone, enough)

    async def _outcome(
        self, signature: str, gone: Callable[[], Awaitable[int | None]], enough: Literal["confirmed", "finalized"]
    ) -> Outcome:
        """Args:
        gone: since which slot the transaction cannot be executed any more; None while it can.
        """
        parsed = Signature.from_string(signature)
        standing = await self._connection.standing(parsed)
        if standing.commitment == "unknown":
            since = await gone()
            if since is None:
                return "pending"
            # It may have been executed between the two questions, and the answer must know the slot since when it is gone.
            standing = await self._connection.standing(parsed)
            if standing.commitment == "unknown":
                return "expired" if standing.slot >= since else "pending"
        if standing.failed:
            return "failed" if standing.commitment == "finalized" else "pending"
        return "confirmed" if standing.commitment in ("finalized", enough) else "pending"

    async def _passed(self, last_valid_block_height: int) -> int | None:
        """Whether a block height has passed for good, by two methods that must agree; the slot at which it had.

        Assumed: an endpoint that is behind, or whose nodes are at different heights, does not err in both answers and in the
        same direction. Against one that lies on purpose in all of them only nonces and cumulative amounts help, and they do.
        """
        if await self._connection.block_height() <= last_valid_block_height:
            return None
        found = await self._connection.final_height()
        if found.height <= last_valid_block_height or found.slot < found.height:
            return None
        return found.slot

    async def _used(self, prepared: PreparedTransaction) -> int | None:
        """Whether the nonce that a transaction carries has been used up, and the slot at which it had."""
        key = parse_address(prepared.nonce)
        account, slot = await self._connection.final_account(key)
        if slot < prepared.last_valid_block_height:
            return None  # The endpoint is behind the block from which the nonce was read.
        own = VersionedTransaction.from_bytes(prepared.wire).message.recent_blockhash
        if account is not None and read_nonce(key, account, slot).value == own:
            return None
        return slot

    async def confirm(
        self, prepared: PreparedTransaction, timeout: float = CONFIRM_TIMEOUT_S, *, send: bool = True
    ) -> str:
        """See ``Ledger.confirm``."""
        try:
            async with asyncio.timeout(timeout):
                if send:
                    await self.submit(prepared)
                outcome = await self._decided(prepared)
        except TimeoutError as error:
            message = f"transaction {prepared.signature} was not decided within {timeout} s: ask its outcome later"
            raise LedgerUnavailableError(message) from error
        if outcome == "failed":
            raise await self._failure(prepared.signature)
        if outcome == "expired":
            raise TransactionExpiredError(f"transaction {prepared.signature} expired: prepare it anew")
        return prepared.signature

    async def _decided(self, prepared: PreparedTransaction) -> Outcome:
        pause = _FIRST_POLL_S
        while (outcome := await self.standing_of(prepared, "confirmed")) == "pending":
            await asyncio.sleep(pause)
            pause = min(pause * _POLL_GROWTH, _LAST_POLL_S)
        return outcome

    async def _failure(self, signature: str) -> TransactionFailedError:
        meta = (await self._connection.transaction(Signature.from_string(signature))).transaction.meta
        logs = (meta.log_messages if meta else None) or []
        reason, code = explain(meta.err if meta else None, logs, self._program)
        return TransactionFailedError(signature, reason, code, logs)

"""Signs, sends and follows transactions, so that each happens once or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from ledger.connection import Connection
from ledger.errors import LedgerUnavailableError, TransactionExpiredError, TransactionFailedError
from ledger.failures import explain
from ledger.states import PreparedTransaction

CONFIRM_TIMEOUT_S = 60.0  # A blockhash lives about that long.
_FIRST_POLL_S, _LAST_POLL_S, _POLL_GROWTH = 0.005, 0.5, 1.5

Outcome = Literal["pending", "confirmed", "failed", "expired"]


@dataclass(frozen=True)
class Window:
    """A recent blockhash and the last block height at which transactions with it are processed."""

    blockhash: Hash
    last_valid_block_height: int

    def sign(
        self, signer: Keypair, instructions: Sequence[Instruction], cosigners: Sequence[Keypair] = ()
    ) -> PreparedTransaction:
        """A transaction of ``signer``, who also pays its fee; ``cosigners`` are the other keys that it needs."""
        message = MessageV0.try_compile(signer.pubkey(), instructions, [], self.blockhash)
        transaction = VersionedTransaction(message, [signer, *cosigners])
        return PreparedTransaction(str(transaction.signatures[0]), bytes(transaction), self.last_valid_block_height)


class Sender:
    """Sends through one connection; ``program`` is the market's, to explain its errors."""

    def __init__(self, connection: Connection, program: Pubkey) -> None:
        self._connection, self._program = connection, program

    async def window(self) -> Window:
        """The current window for signing."""
        return Window(*await self._connection.blockhash())

    async def prepare(self, signer: Keypair, instructions: Sequence[Instruction]) -> PreparedTransaction:
        """Sign for the current window."""
        return (await self.window()).sign(signer, instructions)

    async def submit(self, prepared: PreparedTransaction) -> None:
        """See ``Ledger.submit``."""
        try:
            result = await self._connection.send(prepared.wire, self._program)
        except TransactionFailedError as error:
            # An earlier sending may have succeeded and so be the reason why this one cannot.
            if await self.outcome(prepared.signature, prepared.last_valid_block_height) == "confirmed":
                return
            raise TransactionFailedError(prepared.signature, error.reason, error.code, error.logs) from error
        if result != "unknown blockhash":
            return
        outcome = await self.outcome(prepared.signature, prepared.last_valid_block_height)
        if outcome == "expired":
            raise TransactionExpiredError(f"transaction {prepared.signature} expired unsent: prepare it anew")
        if outcome == "pending":
            raise LedgerUnavailableError(f"{self._connection.url} does not know the blockhash yet: try again")

    async def outcome(self, signature: str, last_valid_block_height: int) -> Outcome:
        """See ``Ledger.outcome``."""
        parsed = Signature.from_string(signature)
        status = await self._connection.status(parsed)
        if status == "unknown" and await self._connection.block_height() > last_valid_block_height:
            # It may have been processed between the two questions.
            status = await self._connection.status(parsed)
            return "expired" if status == "unknown" else status
        return "pending" if status == "unknown" else status

    async def confirm(self, prepared: PreparedTransaction, timeout: float) -> str:
        """See ``Ledger.confirm``."""
        try:
            async with asyncio.timeout(timeout):
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
        while (outcome := await self.outcome(prepared.signature, prepared.last_valid_block_height)) == "pending":
            await asyncio.sleep(pause)
            pause = min(pause * _POLL_GROWTH, _LAST_POLL_S)
        return outcome

    async def _failure(self, signature: str) -> TransactionFailedError:
        meta = (await self._connection.transaction(Signature.from_string(signature))).transaction.meta
        logs = (meta.log_messages if meta else None) or []
        reason, code = explain(meta.err if meta else None, logs, self._program)
        return TransactionFailedError(signature, reason, code, logs)

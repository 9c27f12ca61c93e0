"""The door to the ledger: ``Ledger`` prepares, sends and reads everything that has to do with money.

A movement of money has three steps, so that a crash between any two neither loses nor repeats it:

    prepared = await ledger.prepare_refund(seed, submitter, job)    # signed, not sent
    ...store prepared.signature, .wire and .last_valid_block_height...
    await ledger.submit(prepared)                                   # as often as one likes
    await ledger.outcome(signature, last_valid_block_height)        # pending .. confirmed

Only after ``expired`` or ``failed`` may the same thing be prepared anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

from ledger.addresses import address_of, check_job, job_bytes, keypair, parse_address
from ledger.connection import Connection
from ledger.disputes import DisputeCalls
from ledger.door import MAX_TRANSACTION_BYTES, memo_of
from ledger.errors import LedgerAnswerError
from ledger.escrows import DEFAULT_PAYEES, EscrowCalls
from ledger.history import LedgerEvent, read_history, read_payouts
from ledger.money import DECIMALS
from ledger.payouts import Payouts
from ledger.program.codes import Consent
from ledger.program.interface import MarketAddresses
from ledger.promises import PromisedEarnings
from ledger.states import DisputeState, EscrowState, PreparedTransaction, StakeState
from ledger.transfers import TransferCalls

__all__ = [
    "DEFAULT_PAYEES",
    "MAX_TRANSACTION_BYTES",
    "Consent",
    "DisputeState",
    "EscrowState",
    "Ledger",
    "LedgerConfig",
    "LedgerEvent",
    "PreparedTransaction",
    "PromisedEarnings",
    "StakeState",
    "address_of",
    "job_bytes",
]


@dataclass(frozen=True)
class LedgerConfig:
    """Where the ledger is. With None the endpoint is asked, which only the embedded ledger answers."""

    url: str
    program: str | None = None
    mint: str | None = None
    treasury: str | None = None


class Ledger(EscrowCalls, DisputeCalls, TransferCalls):
    """A connection to the ledger; made by ``connect``, used as an async context manager or closed by hand.

    Addresses are base-58 texts, seeds 32 bytes, jobs the 32 bytes of ``job_bytes(job_id)``.

    Raises, from every method that asks the ledger:
        LedgerUnavailableError: no answer; trying again is safe.
        LedgerAnswerError: an answer that cannot be right.
        AddressError, AmountError: an argument is malformed; nothing was sent.
    """

    @classmethod
    async def connect(cls, config: LedgerConfig) -> Ledger:
        """Connect and check that program and token are there."""
        connection = Connection(config.url)
        try:
            program, mint, treasury = config.program, config.mint, config.treasury
            if program is None or mint is None:
                info = await connection.call("cottageInfo")
                program, mint = program or info["program"], mint or info["mint"]
                treasury = treasury or info["treasury"]
            market = MarketAddresses(parse_address(program), parse_address(mint))
            await _check_market(connection, market)
            return cls(connection, market, parse_address(treasury) if treasury else None)
        except BaseException:  # Also when cancelled: nobody else could close the connection.
            await connection.aclose()
            raise

    async def aclose(self) -> None:
        """Close the connection."""
        await self._connection.aclose()

    async def __aenter__(self) -> Ledger:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def identity(self) -> str:
        """Which money this is, whatever endpoint leads to it: the chain's genesis hash, the market program, the token."""
        return f"{await self._connection.genesis_hash()}/{self._market.program}/{self._market.mint}"

    def payouts(self, coordinator_seed: bytes) -> Payouts:
        """How a coordinator pays many at a time."""
        return Payouts(self._connection, self._market, self._sender, coordinator_seed)

    async def prepare_memo(self, seed: bytes, text: str, submitter: str, job: bytes) -> PreparedTransaction:
        """Write a lifecycle event (``events.encode``) that the job's ``history`` will show.

        Raises:
            EventError: longer than MAX_MEMO_BYTES.
        """
        signer = keypair(seed)
        escrow = self._market.escrow(parse_address(submitter), check_job(job))
        return await self._prepare(signer, memo_of(signer.pubkey(), text, escrow))

    async def history(self, submitter: str, job: bytes) -> list[LedgerEvent]:
        """Everything that happened to a job, oldest first.

        Lifecycle events count only when the submitter or the escrow's coordinator signed them.
        """
        state = await self.escrow(submitter, job)
        authors = {submitter} if state is None else {submitter, state.coordinator}
        escrow = parse_address(self.escrow_address(submitter, job))
        return await read_history(self._connection, self._market.program, escrow, frozenset(authors))

    async def stake_history(self, node: str) -> list[LedgerEvent]:
        """What the market program did with a node's stake, oldest first, over all the times that it was opened."""
        stake = self._market.stake(parse_address(node))
        return await read_history(self._connection, self._market.program, stake, frozenset())

    async def paid_to(self, owner: str) -> list[LedgerEvent]:
        """Every payout of the market to an owner's wallet, oldest first, with the escrow that it came from."""
        wallet = self._market.wallet(parse_address(owner))
        return await read_payouts(self._connection, self._market.program, wallet)


async def _check_market(connection: Connection, market: MarketAddresses) -> None:
    program, mint = await connection.accounts([market.program, market.mint])
    if program is None or not program.executable:
        raise LedgerAnswerError(f"{connection.url} has no program {market.program}: deploy it or correct the address")
    if mint is None or len(mint.data) != 82 or mint.data[44] != DECIMALS:
        raise LedgerAnswerError(f"{market.mint} is no token with {DECIMALS} decimals on {connection.url}")

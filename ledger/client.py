"""The door to the ledger: ``Ledger`` prepares, sends and reads everything that has to do with money.

A movement of money has three steps, so that a crash between any two neither loses nor repeats it:

    prepared = await ledger.prepare_settlement(seed, submitter, job, payouts)   # signed, not sent
    ...store prepared[i].signature, .wire and .last_valid_block_height...
    await ledger.submit(prepared[i])                                            # as often as one likes
    await ledger.outcome(signature, last_valid_block_height)                    # pending .. confirmed

Only after ``expired`` or ``failed`` may the same thing be prepared anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from spl.memo.constants import MEMO_PROGRAM_ID
from spl.memo.instructions import create_memo
from spl.memo.models import MemoParams
from spl.token.instructions import create_idempotent_associated_token_account

from ledger.addresses import address_of, check_hash, check_job, job_bytes, keypair, parse_address
from ledger.connection import Connection
from ledger.errors import (
    AmountError,
    EscrowExistsError,
    EventError,
    InsufficientFundsError,
    LedgerAnswerError,
    NoEscrowError,
    NoStakeError,
)
from ledger.events import MAX_MEMO_BYTES
from ledger.history import LedgerEvent, read_history
from ledger.money import DECIMALS, Amount, amount, show
from ledger.program.interface import MAX_PAYEES, Market
from ledger.program.layout import JOB_OFFSET, read_escrow, read_stake
from ledger.sender import CONFIRM_TIMEOUT_S, Outcome, Sender, Window
from ledger.states import EscrowState, PreparedTransaction, StakeState, escrow_state, stake_state

__all__ = [
    "EscrowState",
    "Ledger",
    "LedgerConfig",
    "LedgerEvent",
    "PreparedTransaction",
    "StakeState",
    "address_of",
    "job_bytes",
]

MAX_TRANSACTION_BYTES = 1232  # One IPv6 packet: what a cluster accepts.
MAX_PAYEES_A_TRANSACTION = 20  # Fits 1,232 bytes where every payee has a token account already.
DEFAULT_PAYEES = 64  # Payees an escrow is opened for; each costs 40 bytes of rent, returned at the close.
# A node keeps 10,000 bytes of a transaction's logs, and the history is read from them. Measured: 360 bytes a
# payout, 1,480 where the payee's token account is created first; a little room is added to both.
_MAX_LOG, _PAYEE_LOG, _NEW_PAYEE_LOG = 9000, 400, 1650


@dataclass(frozen=True)
class LedgerConfig:
    """Where the ledger is. With None the endpoint is asked, which only the embedded ledger answers."""

    url: str
    program: str | None = None
    mint: str | None = None
    treasury: str | None = None


class Ledger:
    """A connection to the ledger; made by ``connect``, used as an async context manager or closed by hand.

    Addresses are base-58 texts, seeds 32 bytes, jobs the 32 bytes of ``job_bytes(job_id)``.

    Raises, from every method that asks the ledger:
        LedgerUnavailableError: no answer; trying again is safe.
        LedgerAnswerError: an answer that cannot be right.
        AddressError, AmountError: an argument is malformed; nothing was sent.
    """

    def __init__(self, connection: Connection, market: Market, treasury: Pubkey | None) -> None:
        self._connection, self._market, self._treasury = connection, market, treasury
        self._sender = Sender(connection, market.program)

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
            market = Market(parse_address(program), parse_address(mint))
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

    @property
    def program(self) -> str:
        """Address of the market program."""
        return str(self._market.program)

    @property
    def mint(self) -> str:
        """Address of the token."""
        return str(self._market.mint)

    @property
    def treasury(self) -> str | None:
        """Token account that receives slashed stake, where it is known."""
        return None if self._treasury is None else str(self._treasury)

    def escrow_address(self, submitter: str, job: bytes) -> str:
        """Address of a job's escrow, whether it was opened or not."""
        return str(self._market.escrow(parse_address(submitter), check_job(job)))

    def wallet(self, owner: str) -> str:
        """Address of an owner's token account, whether it exists or not."""
        return str(self._market.wallet(parse_address(owner)))

    # Wallets

    async def faucet(self, owner: str, amount: Amount, lamports: int = 10_000_000_000) -> None:
        """Give somebody test tokens and SOL. Only the embedded ledger does."""
        parse_address(owner)
        await self._connection.call("cottageFaucet", owner, _checked(amount), lamports)

    async def balance(self, owner: str) -> Amount:
        """Tokens in an owner's wallet, 0 where there is none."""
        return Amount(await self._tokens(self._market.wallet(parse_address(owner))))

    async def lamports(self, owner: str) -> int:
        """SOL of an owner, in lamports: what fees and rent are paid from."""
        account = (await self._connection.accounts([parse_address(owner)]))[0]
        return 0 if account is None else account.lamports

    # Escrow

    async def prepare_escrow(
        self,
        submitter: bytes,
        job: bytes,
        coordinator: str,
        amount: Amount,
        deadline_unix: int,
        max_payees: int = DEFAULT_PAYEES,
    ) -> PreparedTransaction:
        """Open a job's escrow and deposit ``amount``; ``submitter`` is the seed of whoever pays.

        Raises:
            EscrowExistsError: this submitter opened this job before.
            InsufficientFundsError: the submitter's wallet holds less.
        """
        signer = keypair(submitter)
        key, market = signer.pubkey(), self._market
        if not 1 <= max_payees <= MAX_PAYEES:
            raise AmountError(f"{max_payees} payees: an escrow takes between 1 and {MAX_PAYEES}")
        if _checked(amount) == 0:
            raise AmountError("0 is no deposit: the escrow of a job holds its budget")
        if await self.escrow(str(key), job) is not None:
            raise EscrowExistsError(f"{key} opened this job before: look at its escrow, or use another job id")
        held = await self.balance(str(key))
        if held < amount:
            raise InsufficientFundsError(f"{key} holds {show(held)}, {show(amount)} are needed: fund the wallet")
        escrow = market.escrow(key, job)
        instructions = [
            create_idempotent_associated_token_account(key, escrow, market.mint),
            market.escrow_open(key, job, parse_address(coordinator), deadline_unix, max_payees),
            market.escrow_deposit(key, escrow, amount),
        ]
        return await self._prepare(signer, instructions)

    async def open_escrow(
        self, submitter: bytes, job: bytes, coordinator: str, amount: Amount, deadline_unix: int
    ) -> str:
        """``prepare_escrow``, sent and confirmed; returns the signature."""
        prepared = await self.prepare_escrow(submitter, job, coordinator, amount, deadline_unix)
        return await self.confirm(prepared)

    async def escrow(self, submitter: str, job: bytes) -> EscrowState | None:
        """A job's escrow, or None where it was never opened in this token."""
        address = self._market.escrow(parse_address(submitter), check_job(job))
        account, vault = await self._connection.accounts([address, self._market.wallet(address)])
        if account is None or account.owner != self._market.program:
            return None
        content = read_escrow(account.data)
        # Somebody may open an escrow in a worthless token: it is no escrow here.
        if content.mint != self._market.mint or content.vault != self._market.wallet(address):
            return None
        return escrow_state(address, content, _amount_in(vault.data) if vault else 0)

    async def find_escrows(self, job: bytes) -> list[EscrowState]:
        """Escrows of a job, whoever submitted it. Anybody may open one for any job: compare the submitter."""
        market = self._market
        accounts = await self._connection.program_accounts(market.program, JOB_OFFSET, check_job(job))
        submitters = [str(read_escrow(account.data).submitter) for _, account in accounts if account.data[0] == 1]
        found = [await self.escrow(submitter, job) for submitter in sorted(submitters)]
        return [state for state in found if state is not None]

    async def prepare_settlement(
        self, coordinator_seed: bytes, submitter: str, job: bytes, payouts: Mapping[str, Amount]
    ) -> list[PreparedTransaction]:
        """Pay nodes from a job's escrow.

        Args:
            payouts: payee to what it shall have received for this job *in total*. Who received as much
                already gets nothing, so a repeated settlement pays nothing more.
        Returns:
            Transactions that may be sent in any order; each creates the token accounts that it needs. None
            when everybody has received as much already.
        Raises:
            NoEscrowError: the job has no open escrow.
            InsufficientFundsError: the escrow holds less than what is due.
        """
        signer = keypair(coordinator_seed)
        state = await self._open_escrow_state(submitter, job)
        due, rest = dict[str, Amount](), 0
        for payee, total in sorted(payouts.items()):
            missing = _checked(total) - state.paid_to.get(self.wallet(payee), 0)
            if missing > 0:
                due[payee], rest = total, rest + missing
        if rest > state.balance:
            message = f"{show(rest)} are due, the escrow {state.address} holds {show(state.balance)}"
            raise InsufficientFundsError(f"{message}: deposit more or pay less")
        payees = [parse_address(payee) for payee in due]
        wallets = await self._connection.accounts([self._market.wallet(payee) for payee in payees])
        new = frozenset(payee for payee, wallet in zip(payees, wallets, strict=True) if wallet is None)
        pending, prepared = list(zip(payees, due.values(), strict=True)), list[PreparedTransaction]()
        escrow, window = parse_address(state.address), await self._sender.window()
        while pending:
            transaction, count = self._settle_most(signer, escrow, pending, new, window)
            prepared.append(transaction)
            pending = pending[count:]
        return prepared

    def _settle_most(
        self,
        signer: Keypair,
        escrow: Pubkey,
        pending: Sequence[tuple[Pubkey, Amount]],
        new: frozenset[Pubkey],
        window: Window,
    ) -> tuple[PreparedTransaction, int]:
        """The longest beginning of the payouts that fits one transaction; one payee always fits."""
        count = min(len(pending), MAX_PAYEES_A_TRANSACTION)
        while True:
            transaction = window.sign(signer, self._settle(signer.pubkey(), escrow, pending[:count], new))
            logs = sum(_NEW_PAYEE_LOG if payee in new else _PAYEE_LOG for payee, _ in pending[:count])
            if (len(transaction.wire) <= MAX_TRANSACTION_BYTES and logs <= _MAX_LOG) or count == 1:
                return transaction, count
            count -= 1

    def _settle(
        self, coordinator: Pubkey, escrow: Pubkey, payouts: Sequence[tuple[Pubkey, Amount]], new: frozenset[Pubkey]
    ) -> list[Instruction]:
        mint = self._market.mint
        creations = [
            create_idempotent_associated_token_account(coordinator, payee, mint) for payee, _ in payouts if payee in new
        ]
        return [*creations, self._market.escrow_settle(coordinator, escrow, payouts)]

    async def prepare_refund(self, coordinator_seed: bytes, submitter: str, job: bytes) -> PreparedTransaction:
        """Return whatever is left to the submitter. The submitter's own seed works after the deadline.

        Raises:
            NoEscrowError: the job has no open escrow.
        """
        signer, owner = keypair(coordinator_seed), parse_address(submitter)
        await self._open_escrow_state(submitter, job)
        instructions = [
            create_idempotent_associated_token_account(signer.pubkey(), owner, self._market.mint),
            self._market.escrow_refund(signer.pubkey(), owner, job),
        ]
        return await self._prepare(signer, instructions)

    async def prepare_close(self, seed: bytes, submitter: str, job: bytes) -> PreparedTransaction:
        """Give the rent of a refunded escrow back to the submitter; its totals stay readable.

        Raises:
            NoEscrowError: the job has no open escrow.
        """
        signer = keypair(seed)
        await self._open_escrow_state(submitter, job)
        close = self._market.escrow_close(signer.pubkey(), parse_address(submitter), job)
        return await self._prepare(signer, [close])

    async def _open_escrow_state(self, submitter: str, job: bytes) -> EscrowState:
        state = await self.escrow(submitter, job)
        if state is None or state.closed:
            what = "was never opened" if state is None else "was closed"
            raise NoEscrowError(f"the escrow of {submitter} for job {job.hex()[:16]} {what}")
        return state

    # Events

    async def prepare_memo(self, seed: bytes, text: str, submitter: str, job: bytes) -> PreparedTransaction:
        """Write a lifecycle event (``events.encode``) that the job's ``history`` will show.

        Raises:
            EventError: longer than MAX_MEMO_BYTES.
        """
        signer = keypair(seed)
        key, memo = signer.pubkey(), text.encode()
        if not 0 < len(memo) <= MAX_MEMO_BYTES:
            raise EventError(f"a memo of {len(memo)} bytes: between 1 and {MAX_MEMO_BYTES} fit")
        # The memo program refuses accounts that do not sign, so an empty transfer carries the reference.
        carrier = transfer(TransferParams(from_pubkey=key, to_pubkey=key, lamports=0))
        escrow = AccountMeta(self._market.escrow(parse_address(submitter), check_job(job)), False, False)
        reference = Instruction(carrier.program_id, carrier.data, [*carrier.accounts, escrow])
        note = create_memo(MemoParams(program_id=MEMO_PROGRAM_ID, signer=key, message=memo))
        return await self._prepare(signer, [reference, note])

    async def history(self, submitter: str, job: bytes) -> list[LedgerEvent]:
        """Everything that happened to a job, oldest first.

        Lifecycle events count only when the submitter or the escrow's coordinator signed them.
        """
        state = await self.escrow(submitter, job)
        authors = {submitter} if state is None else {submitter, state.coordinator}
        escrow = parse_address(self.escrow_address(submitter, job))
        return await read_history(self._connection, self._market.program, escrow, frozenset(authors))

    # Stake

    async def prepare_stake(self, node_seed: bytes, amount: Amount, coordinator: str) -> PreparedTransaction:
        """Deposit stake; the first time this opens it and names the coordinator who may slash it.

        Raises:
            InsufficientFundsError: the node's wallet holds less.
            LedgerAnswerError: the stake names another coordinator.
        """
        signer = keypair(node_seed)
        node, market = signer.pubkey(), self._market
        held, state = await self.balance(str(node)), await self.stake(str(node))
        if held < _checked(amount):
            raise InsufficientFundsError(f"{node} holds {show(held)}, {show(amount)} are needed: fund the wallet")
        instructions = [market.stake_deposit(node, node, amount)]
        if state is None:
            vault = create_idempotent_associated_token_account(node, market.stake(node), market.mint)
            instructions = [vault, market.stake_open(node, parse_address(coordinator)), *instructions]
        elif state.coordinator != coordinator:
            raise LedgerAnswerError(f"the stake of {node} names coordinator {state.coordinator}, not {coordinator}")
        return await self._prepare(signer, instructions)

    async def open_stake(self, node_seed: bytes, amount: Amount, coordinator: str) -> str:
        """``prepare_stake``, sent and confirmed; returns the signature."""
        return await self.confirm(await self.prepare_stake(node_seed, amount, coordinator))

    async def stake(self, node: str) -> StakeState | None:
        """A node's stake, or None where it has none in this token. Compare ``coordinator`` and ``treasury``."""
        address = self._market.stake(parse_address(node))
        account, vault = await self._connection.accounts([address, self._market.wallet(address)])
        if account is None or account.owner != self._market.program:
            return None
        content = read_stake(account.data)
        if content.mint != self._market.mint or content.vault != self._market.wallet(address):
            return None
        return stake_state(address, content, _amount_in(vault.data) if vault else 0)

    async def prepare_slash(
        self, coordinator_seed: bytes, node: str, amount: Amount, reason_hash: bytes
    ) -> PreparedTransaction:
        """Move stake to the treasury, once for every ``reason_hash`` (32 bytes, not all zero).

        Raises:
            NoStakeError: the node has no stake.
            InsufficientFundsError: the stake is smaller; ``StakeState.slashable`` says what the cap allows.
        """
        signer, key = keypair(coordinator_seed), parse_address(node)
        state = await self.stake(node)
        if state is None:
            raise NoStakeError(f"{node} has no stake: nothing can be slashed")
        if _checked(amount) > state.balance:
            raise InsufficientFundsError(f"the stake of {node} is {show(state.balance)}, not {show(amount)}")
        treasury = parse_address(state.treasury)
        slash = self._market.stake_slash(signer.pubkey(), key, treasury, amount, check_hash(reason_hash))
        return await self._prepare(signer, [slash])

    async def prepare_stake_request(self, node_seed: bytes, amount: Amount) -> PreparedTransaction:
        """Start the cool-down for taking stake back; an amount of 0 withdraws the request."""
        signer = keypair(node_seed)
        return await self._prepare(signer, [self._market.stake_request(signer.pubkey(), _checked(amount))])

    async def prepare_stake_withdrawal(self, node_seed: bytes) -> PreparedTransaction:
        """Take back what was requested, once the cool-down has passed."""
        signer = keypair(node_seed)
        node, market = signer.pubkey(), self._market
        wallet = create_idempotent_associated_token_account(node, node, market.mint)
        return await self._prepare(signer, [wallet, market.stake_withdraw(node)])

    # Transactions

    async def submit(self, prepared: PreparedTransaction) -> None:
        """Send. A transaction that was processed already is success, so sending twice is harmless.

        Raises:
            TransactionFailedError: it would fail, as the ledger found out by trying.
            TransactionExpiredError: its blockhash ran out and it never was processed.
        """
        await self._sender.submit(prepared)

    async def slot(self) -> int:
        """The newest slot: no block after it is known to anybody yet."""
        return await self._connection.slot()

    async def block_after(self, slot: int) -> tuple[int, str] | None:
        """Slot and hash (base 58) of the first final block after ``slot``; None while there is none yet."""
        return await self._connection.block_after(slot)

    async def outcome(self, signature: str, last_valid_block_height: int) -> Outcome:
        """What became of a transaction. ``expired`` is final: it never happened and never will."""
        return await self._sender.outcome(signature, last_valid_block_height)

    async def confirm(self, prepared: PreparedTransaction, timeout: float = CONFIRM_TIMEOUT_S) -> str:
        """Send and wait; returns the signature.

        Raises:
            TransactionFailedError: it failed; carries the programs' logs.
            TransactionExpiredError: it was not processed while its blockhash was valid.
            LedgerUnavailableError: nothing was decided within ``timeout`` seconds.
        """
        return await self._sender.confirm(prepared, timeout)

    async def _prepare(self, signer: Keypair, instructions: Sequence[Instruction]) -> PreparedTransaction:
        return await self._sender.prepare(signer, instructions)

    async def _tokens(self, wallet: Pubkey) -> int:
        account = (await self._connection.accounts([wallet]))[0]
        return 0 if account is None else _amount_in(account.data)


def _checked(value: Amount) -> Amount:
    return amount(value)


def _amount_in(token_account: bytes) -> int:
    return int.from_bytes(token_account[64:72], "little")


async def _check_market(connection: Connection, market: Market) -> None:
    program, mint = await connection.accounts([market.program, market.mint])
    if program is None or not program.executable:
        raise LedgerAnswerError(f"{connection.url} has no program {market.program}: deploy it or correct the address")
    if mint is None or len(mint.data) != 82 or mint.data[44] != DECIMALS:
        raise LedgerAnswerError(f"{market.mint} is no token with {DECIMALS} decimals on {connection.url}")

"""How a coordinator pays many: token accounts first, lookup tables where they help, then up to 50 payees a transaction.

``Payouts.prepare`` and ``prepare_promise`` look at the ledger and return the one transaction that comes next, until nothing is
missing. So whoever was interrupted asks again, and nothing is ever done twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from solders.compute_budget import set_compute_unit_limit
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.constants import TOKEN_PROGRAM_ID
from spl.token.instructions import create_idempotent_associated_token_account

from ledger.addresses import check_job, keypair, parse_address
from ledger.connection import Connection
from ledger.errors import (
    InsufficientFundsError,
    LedgerAnswerError,
    LedgerStateError,
    LedgerUnavailableError,
    NoEscrowError,
)
from ledger.money import Amount, amount, show
from ledger.nonces import MAX_NONCES_A_TRANSACTION, NONCE_SIZE, create_nonces, nonce_address
from ledger.program.codes import MAX_BATCH, MAX_GROWTH, Consent
from ledger.program.interface import MarketAddresses
from ledger.program.layout import EscrowAccount, EscrowStatus, read_escrow
from ledger.promises import earnings_of
from ledger.sender import Sender, SigningWindow
from ledger.states import PreparedTransaction
from ledger.tables import (
    CLOSING_SLOTS,
    MAX_ADDRESSES,
    MAX_ADDRESSES_A_TRANSACTION,
    Table,
    close_table,
    create_table,
    deactivate_table,
    extend_table,
    read_table,
    table_address,
)

# Payees that one transaction appends to an escrow's list, 32 bytes each beside a nonce and a limit.
MAX_ADMISSIONS = 20
MAX_TABLES_A_TRANSACTION = 4  # 34 bytes each; 50 payees of four tables fit.
MAX_TRANSACTION_BYTES = 1232
MAX_WALLETS_A_TRANSACTION = 10  # Creating one takes 3 addresses that no other shares; 12 fit without a nonce.
RECENT_SLOTS = 256  # Of which a table may still be made when its transaction arrives; programs are told of 512.
SLOTS_A_LOOK = 16
# Generous: a limit that is too low fails, one that is too high costs nothing.
UNITS_A_PAYEE, UNITS_BASE = 8_000, 40_000
UNITS_AN_ENTRY = 12  # Each admission looks through the whole table; measured: 6 an entry.
MAX_UNITS = 1_400_000  # Of a transaction, on every cluster.


class Payouts:
    """Prepares what one coordinator pays. Raises what ``Ledger`` raises."""

    def __init__(self, connection: Connection, market: MarketAddresses, sender: Sender, seed: bytes) -> None:
        self._connection, self._market, self._sender = connection, market, sender
        self._signer: Keypair = keypair(seed)
        self._owner: Pubkey = self._signer.pubkey()
        self._slots: set[int] = set()  # Of tables that were made lately, or are on their way.

    async def nonces(self, count: int, part: int = 0, parts: int = 1) -> list[str]:
        """Addresses of the coordinator's first ``count`` nonce accounts; creates those that are missing.

        Args:
            part: with several ``parts`` only every so manieth of them, in the order of their addresses, from this one on: who
                takes one part each shares none.
        """
        numbered = [(nonce_address(self._owner, number), number) for number in range(count)]
        if parts > 1:
            numbered = sorted(numbered, key=lambda one: str(one[0]))[part::parts]
        keys = [key for key, _ in numbered]
        accounts = await self._connection.accounts(keys)
        missing = [number for (_, number), account in zip(numbered, accounts, strict=True) if account is None]
        rent = await self._connection.rent(NONCE_SIZE) if missing else 0
        for start in range(0, len(missing), MAX_NONCES_A_TRANSACTION):
            made = create_nonces(self._owner, missing[start : start + MAX_NONCES_A_TRANSACTION], rent)
            await self._sender.confirm(await self._sender.prepare(self._signer, made))
        return [str(key) for key in keys]

    async def prepare(
        self,
        submitter: str,
        job: bytes,
        payouts: Mapping[str, Amount],
        nonce: str = "",
        tables: Sequence[str] = (),
        had: AbstractSet[str] = frozenset(),
    ) -> PreparedTransaction | None:
        """What comes next on the way to paying nodes from a job's escrow.

        Who has closed its token account is left out. It is given one once, or each payout would give the rent away again.

        Args:
            payouts: payee to what it shall have received for this job *in total*; at most MAX_BATCH.
            nonce: address of the nonce account to carry; empty for a blockhash.
            tables: the lookup tables of the job, oldest first.
            had: payees who have had a token account, beside those whom this escrow has paid.
        Returns:
            A transaction with ``step`` ``wallets``, ``grow``, ``admit`` or ``table``, after which to ask again; one without,
            which pays everybody; None where everybody who can be paid has received as much already, in blocks that can never be
            undone. ``made``: payees whom it gives a token account.
        Raises:
            NoEscrowError: the job has no open escrow.
            InsufficientFundsError: the escrow holds less than what is due, or its cap allows less.
            StateError: a payee has no entry in the escrow's table, and the submitter lets nobody else admit it.
            LedgerUnavailableError: what was paid is not final, or the table's newest addresses do not count yet: ask again.
        """
        if len(payouts) > MAX_BATCH:
            raise LedgerAnswerError(f"{len(payouts)} payees in one settlement: at most {MAX_BATCH} fit")
        escrow = self._market.escrow(parse_address(submitter), check_job(job))
        state, due, new = await self._payable(escrow, payouts, had)
        if not (due or new):
            _, due, new = await self._payable(escrow, payouts, had, final=True)
            if due or new:
                raise LedgerUnavailableError(f"what escrow {escrow} has paid can still be undone: ask again")
            return None
        window = await self._sender.window(nonce)
        if new:
            new = new[:MAX_WALLETS_A_TRANSACTION]
            made = self._signed(window, self._creations(new), "wallets")
            return replace(made, made=tuple(map(str, new)))
        strangers = [payee for payee, _ in due if self._market.wallet(payee) not in state.payees]
        if strangers:
            return self._admission(window, escrow, state, strangers)
        pay = self._pay(escrow, state, due)
        plain = window.sign(self._signer, pay)
        if len(plain.wire) <= MAX_TRANSACTION_BYTES:
            return plain
        return await self._with_tables(window, escrow, due, pay, tables)

    async def prepare_promise(
        self, submitter: str, job: bytes, cumulative: Mapping[str, Amount], nonce: str = ""
    ) -> PreparedTransaction | None:
        """What comes next on the way to promising payees what they have earned of a job in total.

        Who is promised something has an entry of the escrow's table first, so that nothing but a proof is missing for a claim.

        Args:
            cumulative: payee to what it shall have received; whoever was promised something before must be in it.
        Returns:
            A transaction with ``step`` ``grow`` or ``admit``, after which to ask again; one without, which promises; None where
            just this is promised already, in blocks that can never be undone.
        Raises:
            NoEscrowError, StateError: as ``prepare``; StateError also where the escrow takes no promises any more.
            InsufficientFundsError: the escrow holds less than what would be promised, or its cap allows less.
            LedgerUnavailableError: what was promised is not final: ask again.
        """
        escrow = self._market.escrow(parse_address(submitter), check_job(job))
        earned = earnings_of(self._market, cumulative)
        state, balance = await self._escrow(escrow, final=False)
        if state.earnings_root == earned.root:
            if (await self._escrow(escrow, final=True))[0].earnings_root != earned.root:
                raise LedgerUnavailableError(f"what escrow {escrow} promises can still be undone: ask again")
            return None
        if state.status != EscrowStatus.OPEN:
            raise LedgerStateError(f"escrow {escrow} has been refunded: it takes no promises any more")
        if earned.total > min(state.paid + balance, state.cap):
            message = f"{show(earned.total)} cannot be promised: escrow {escrow} has {show(state.paid + balance)}"
            raise InsufficientFundsError(f"{message} with what it paid, and may pay {show(state.cap)}")
        window = await self._sender.window(nonce)
        strangers = [key for key in map(parse_address, cumulative) if self._market.wallet(key) not in state.payees]
        if strangers:
            return self._admission(window, escrow, state, strangers)
        promise = self._market.escrow_commit(self._owner, escrow, earned.root, earned.total, state.period + 1)
        return self._signed(window, [promise], "")

    async def prepare_end_of_table(self, table: str, nonce: str = "") -> PreparedTransaction | None:
        """What comes next on the way to giving a table back: its deactivation, its closing, or None where it is gone.

        Raises:
            LedgerUnavailableError: it was deactivated, and cannot be closed yet.
        """
        key = parse_address(table)
        found = await self._table(key)
        if found is None:
            return None
        if found.deactivated is None:
            return self._signed(
                await self._sender.window(nonce), [deactivate_table(self._owner, key)], "deactivate", key
            )
        left = found.deactivated + CLOSING_SLOTS - await self._connection.confirmed_slot()
        if left >= 0:
            raise LedgerUnavailableError(f"lookup table {table} can be closed in {left + 1} slots")
        return self._signed(await self._sender.window(nonce), [close_table(self._owner, key)], "", key)

    async def left_out(self, submitter: str, job: bytes, payouts: Mapping[str, Amount]) -> AbstractSet[str]:
        """Those of these payees who have not received as much, in blocks that can never be undone.

        Raises:
            NoEscrowError: the job has no open escrow.
        """
        escrow = self._market.escrow(parse_address(submitter), check_job(job))
        state, _ = await self._escrow(escrow, final=True)
        paid = {who: state.payees.get(self._market.wallet(parse_address(who)), 0) for who in payouts}
        return {who for who, total in payouts.items() if paid[who] < total}

    async def _payable(
        self, escrow: Pubkey, payouts: Mapping[str, Amount], had: AbstractSet[str], *, final: bool = False
    ) -> tuple[EscrowAccount, list[tuple[Pubkey, int]], list[Pubkey]]:
        """The escrow, payments that are due to who has a token account, and payees who are to get their first one."""
        state, due = await self._due(escrow, payouts, final=final)
        wallets = await self._connection.accounts([self._market.wallet(payee) for payee, _ in due], final=final)
        able = [payment for payment, wallet in zip(due, wallets, strict=True) if wallet is not None]
        without = [payee for (payee, _), wallet in zip(due, wallets, strict=True) if wallet is None]
        new = [key for key in without if str(key) not in had and not state.payees.get(self._market.wallet(key))]
        return state, able, new

    async def _due(
        self, escrow: Pubkey, payouts: Mapping[str, Amount], *, final: bool = False
    ) -> tuple[EscrowAccount, list[tuple[Pubkey, int]]]:
        state, balance = await self._escrow(escrow, final=final)
        due, rest = list[tuple[Pubkey, int]](), 0
        for name, total in sorted(payouts.items()):
            payee = parse_address(name)
            missing = amount(total) - state.payees.get(self._market.wallet(payee), 0)
            if missing > 0:
                due.append((payee, total))
                rest += missing
        if rest > balance:
            message = f"{show(rest)} are due, the escrow {escrow} holds {show(balance)}"
            raise InsufficientFundsError(f"{message}: deposit more or pay less")
        if state.paid + rest > state.cap:
            message = f"{show(rest)} are due, and {show(state.paid)} of at most {show(state.cap)} were paid"
            raise InsufficientFundsError(f"{message}: ask the submitter to raise the cap of {escrow}")
        return state, due

    async def _escrow(self, escrow: Pubkey, *, final: bool) -> tuple[EscrowAccount, int]:
        account, vault = await self._connection.accounts([escrow, self._market.wallet(escrow)], final=final)
        if account is None or account.owner != self._market.program:
            raise NoEscrowError(f"escrow {escrow} was never opened")
        state = read_escrow(account.data)
        if state.mint != self._market.mint or state.status == EscrowStatus.CLOSED:
            raise NoEscrowError(f"escrow {escrow} was closed, or is in another token")
        return state, int.from_bytes(vault.data[64:72], "little") if vault else 0

    def _admission(
        self, window: SigningWindow, escrow: Pubkey, state: EscrowAccount, strangers: Sequence[Pubkey]
    ) -> PreparedTransaction:
        if Consent.ADMIT not in state.consent:
            raise LedgerStateError(f"{strangers[0]} has no entry in {escrow}: enrol it, or let the submitter admit it")
        room = state.capacity - len(state.payees)
        if room == 0:
            more = min(MAX_GROWTH, len(strangers))
            return self._signed(window, [self._market.escrow_grow(self._owner, escrow, more)], "grow")
        units_each = 2_000 + UNITS_AN_ENTRY * (len(state.payees) + MAX_ADMISSIONS)
        admitted = strangers[: min(room, MAX_ADMISSIONS, (MAX_UNITS - UNITS_BASE) // units_each)]
        limit = set_compute_unit_limit(UNITS_BASE + units_each * len(admitted))
        admission = self._market.escrow_admit(self._owner, escrow, admitted, enrol=True)
        return self._signed(window, [limit, admission], "admit")

    def _pay(self, escrow: Pubkey, state: EscrowAccount, due: Sequence[tuple[Pubkey, int]]) -> list[Instruction]:
        limit = set_compute_unit_limit(UNITS_BASE + UNITS_A_PAYEE * len(due))
        places = {wallet: place for place, wallet in enumerate(state.payees)}
        slots = [places[self._market.wallet(payee)] for payee, _ in due]
        return [limit, self._market.escrow_settle(self._owner, escrow, due, slots)]

    def _creations(self, payees: Sequence[Pubkey]) -> list[Instruction]:
        mint = self._market.mint
        return [create_idempotent_associated_token_account(self._owner, payee, mint) for payee in payees]

    async def _with_tables(
        self,
        window: SigningWindow,
        escrow: Pubkey,
        due: Sequence[tuple[Pubkey, int]],
        pay: Sequence[Instruction],
        names: Sequence[str],
    ) -> PreparedTransaction:
        wanted = [escrow, self._market.wallet(escrow), self._market.mint, TOKEN_PROGRAM_ID]
        wanted += [self._market.wallet(payee) for payee, _ in due]
        known = [table for name in names if (table := await self._table(parse_address(name))) is not None]
        serving = [table for table in known if table.deactivated is None]
        used, missing = _cover(wanted, serving)
        newest = serving[-1] if serving else None
        if missing and (newest is None or len(newest.addresses) + len(missing) > MAX_ADDRESSES):
            return await self._new_table(window, missing)
        if missing and newest is not None:
            more = extend_table(self._owner, newest.address, missing[:MAX_ADDRESSES_A_TRANSACTION])
            return self._signed(window, [more], "table", newest.address)
        if await self._connection.confirmed_slot() <= max(table.grown for table in used):
            raise LedgerUnavailableError("the newest addresses of a lookup table count from the next slot on")
        signed = window.sign(self._signer, pay, tables=[table.account() for table in used])
        if len(signed.wire) > MAX_TRANSACTION_BYTES:
            raise LedgerAnswerError(f"{len(due)} payees take {len(signed.wire)} bytes: pay fewer at a time")
        # The newest: if it was made for this payment, only its row knows it.
        return _with(signed, "", serving[-1].address)

    async def _new_table(self, window: SigningWindow, wanted: Sequence[Pubkey]) -> PreparedTransaction:
        slot = await self._slot_of_a_table()
        address = table_address(self._owner, slot)
        made = [
            create_table(self._owner, slot),
            extend_table(self._owner, address, wanted[:MAX_ADDRESSES_A_TRANSACTION]),
        ]
        return self._signed(window, made, "table", address)

    async def _slot_of_a_table(self) -> int:
        """A recent slot of which there is no table yet: its address follows from that, and creating it again is no error.

        Payments that begin in the same slot would fill one table, and each of their jobs would end it for the others.
        """
        # The newest slot may be on a fork that is left; a few older ones are on all of them.
        newest = max(0, await self._connection.confirmed_slot() - 1)
        self._slots = {slot for slot in self._slots if slot > newest - RECENT_SLOTS}
        slots = [slot for slot in range(newest, max(-1, newest - RECENT_SLOTS), -1) if slot not in self._slots]
        slots = slots[:SLOTS_A_LOOK]
        accounts = await self._connection.accounts([table_address(self._owner, slot) for slot in slots])
        for slot, account in zip(slots, accounts, strict=True):
            if account is None and slot not in self._slots:
                self._slots.add(slot)
                return slot
        raise LedgerUnavailableError("every recent slot has its lookup table: ask again")

    async def _table(self, key: Pubkey) -> Table | None:
        account = (await self._connection.accounts([key]))[0]
        return None if account is None else read_table(key, account)

    def _signed(
        self, window: SigningWindow, instructions: Sequence[Instruction], step: str, table: Pubkey | None = None
    ) -> PreparedTransaction:
        return _with(window.sign(self._signer, instructions), step, table)


def _cover(wanted: Sequence[Pubkey], tables: Sequence[Table]) -> tuple[list[Table], list[Pubkey]]:
    """The few tables that hold most of the addresses, and the addresses that none of these holds."""
    used, missing = list[Table](), list(wanted)
    while missing and len(used) < MAX_TABLES_A_TRANSACTION:
        best = max(tables, key=lambda table: len(set(missing) & set(table.addresses)), default=None)
        if best is None or not set(missing) & set(best.addresses):
            break
        used.append(best)
        missing = [key for key in missing if key not in best.addresses]
    return used, missing


def _with(signed: PreparedTransaction, step: str, table: Pubkey | None) -> PreparedTransaction:
    address = "" if table is None else str(table)
    return replace(signed, step=step, table=address)

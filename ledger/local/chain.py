"""The virtual machine as a ledger: real time, blockhashes that expire, no replay, nothing lost in a crash.

The machine inside ``solders`` keeps none of that by itself: its clock stands still, it knows one constant
blockhash, and it forgets a transaction after 32 others. So slots follow the wall clock, blockhashes are
derived from a secret and the slot (the same after a restart), and every signature is looked up in the store.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from solders.account import Account
from solders.hash import Hash
from solders.litesvm import LiteSVM
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import FailedTransactionMetadata, TransactionMetadata

from ledger.errors import LedgerError
from ledger.local import floating_point, nonces, tables
from ledger.local.encoding import balances_json, memo_text, status_json
from ledger.local.store import Entry, LocalStore

SLOT_S = 0.4  # As on Solana.
BLOCKHASH_SLOTS = 150  # How long a blockhash stays valid, as on Solana: one minute.
SLOT_HASHES = 512  # What programs are told of past slots, as on Solana: a lookup table closes only after as many.
# Of the clock, for nonces that wait for a block; blockhashes still live for two thirds of a minute.
MAX_SLOTS_AHEAD = 50
FIRST_SLOT = 32  # Above zero, because a program is visible from the slot after its deployment on.

Clock = Callable[[], float]
"""Unix time in seconds."""


class TransactionRefusedError(LedgerError):
    """A transaction was refused before it cost a fee; nothing was recorded.

    Attributes:
        error: the transaction error as JSON-able value, in Solana's notation.
        logs: what the programs logged until they failed.
        units: compute units used until then.
    """

    def __init__(self, error: Any, logs: list[str] | None = None, units: int = 0) -> None:
        self.error, self.logs, self.units = error, logs or [], units
        super().__init__(f"Transaction simulation failed: {error}")


class StoreFailedError(LedgerError):
    """The disk refused a write: memory is ahead of it, so nothing may be served until a restart."""


@dataclass(frozen=True)
class TransactionOutcome:
    """What executing a transaction gave. ``error`` is None on success."""

    error: Any
    logs: list[str]
    units: int
    fee: int


class LocalChain:
    """Executes transactions one after another. Not for several threads.

    Args:
        store: where everything is kept.
        clock: Unix time in seconds; it may jump back, slots never do.
        secret: 32 bytes from which blockhashes are derived.
    """

    def __init__(self, store: LocalStore, clock: Clock, secret: bytes, genesis_time: float) -> None:
        self.store = store
        self._clock, self._secret, self._genesis_time = clock, secret, genesis_time
        self._failed = False
        self._vm = LiteSVM()
        self._vm.with_blockhash_check(False).with_transaction_history(0)
        self._slot = max(FIRST_SLOT, store.last_slot())
        self._vm_slot, self._wall = -1, 0
        self._restore()
        self.tick()

    def _restore(self) -> None:
        accounts = [(Pubkey.from_bytes(key), Account.from_bytes(value)) for key, value in self.store.accounts()]
        # A program's data account must be there before the program itself.
        for key, account in sorted(accounts, key=lambda pair: pair[1].executable):
            self._vm.set_account(key, account)

    @property
    def slot(self) -> int:
        """The current slot, which is also the block height."""
        return self._slot

    @property
    def failed(self) -> bool:
        """Whether the disk refused a write, so that only a restart helps."""
        return self._failed

    def tick(self, at_least: int = 0) -> None:
        """Let time pass: moves the slot and the machine's clock."""
        now = self._clock()
        self._wall = FIRST_SLOT + int(max(0.0, now - self._genesis_time) / SLOT_S)
        self._slot = max(self._slot, self._wall, at_least)
        clock = self._vm.get_clock()
        if self._vm_slot != self._slot or clock.unix_timestamp != int(now):
            clock.slot, clock.unix_timestamp = self._slot, int(now)
            self._vm.set_clock(clock)
            if self._vm_slot != self._slot:
                past = range(self._slot - 1, max(-1, self._slot - 1 - SLOT_HASHES), -1)
                self._vm.set_slot_hashes([(slot, self.blockhash(slot)) for slot in past])
            self._vm_slot = self._slot

    def blockhash(self, slot: int | None = None) -> Hash:
        """The blockhash of a slot, by default the current one."""
        number = (self._slot if slot is None else slot).to_bytes(8, "little")
        return Hash.from_bytes(hashlib.sha256(self._secret + number).digest())

    def is_valid_blockhash(self, blockhash: Hash) -> bool:
        """Whether a transaction with this blockhash may still be processed."""
        first = max(0, self._slot - BLOCKHASH_SLOTS)
        return any(self.blockhash(slot) == blockhash for slot in range(self._slot, first - 1, -1))

    def account(self, key: Pubkey) -> Account | None:
        """An account, or None where there is none."""
        return self._vm.get_account(key)

    def program_accounts(self, program: Pubkey) -> list[tuple[Pubkey, Account]]:
        """Every account that a program owns."""
        return self._vm.get_program_accounts(program)

    def rent_minimum(self, size: int) -> int:
        """Lamports that an account of this size must hold."""
        return self._vm.minimum_balance_for_rent_exemption(size)

    def endow(self, key: Pubkey, lamports: int) -> None:
        """Put lamports into an account out of nothing; only for the first start."""
        self._vm.set_account(key, Account(lamports, b"", Pubkey.default()))

    def simulate(self, transaction: VersionedTransaction, *, verify: bool) -> TransactionOutcome:
        """Execute without any effect."""
        self.tick()
        self._vm.with_sigverify(verify)
        try:
            with floating_point.emptied():
                result = self._vm.simulate_transaction(transaction)
        finally:
            self._vm.with_sigverify(True)
        if isinstance(result, FailedTransactionMetadata):
            return _outcome(result)
        return _outcome(result.meta())

    def submit(self, transaction: VersionedTransaction, *, preflight: bool) -> str:
        """Execute and record a transaction; returns its signature.

        A transaction that fails after its fee was due is recorded with its error, as a cluster does, unless
        ``preflight`` found out before.

        Raises:
            RefusedError: processed before, blockhash unknown or expired, or failed before the fee was due.
            StoreFailedError: the disk refused; the caller must stop serving.
        """
        if self._failed:
            raise StoreFailedError("an earlier write to the ledger's file failed: restart the ledger")
        self.tick()
        signature = str(transaction.signatures[0])
        if self.store.find(signature) is not None:
            raise TransactionRefusedError("AlreadyProcessed")
        nonce = None
        if not self.is_valid_blockhash(transaction.message.recent_blockhash):
            nonce = self._nonce(transaction.message)
            if nonce is None:
                raise TransactionRefusedError("BlockhashNotFound")
        if preflight:
            trial = self.simulate(transaction, verify=True)
            if trial.error is not None:
                raise TransactionRefusedError(trial.error, trial.logs, trial.units)
        self._execute(signature, transaction, nonce)
        return signature

    def _nonce(self, message: Any) -> Pubkey | None:
        """The nonce account that lets a message without a recent blockhash be processed now; None where none does."""
        found = nonces.advanced(message) if isinstance(message, Message | MessageV0) else None
        if found is None:
            return None
        key, signers = found
        account = self.account(key)
        if account is None or nonces.value(account) != bytes(message.recent_blockhash):
            return None
        # One use a block: the nonce of this block's own hash cannot be advanced in it, but the next block may begin.
        if nonces.durable(self.blockhash()) == bytes(message.recent_blockhash):
            if self._slot >= self._wall + MAX_SLOTS_AHEAD:
                return None
            self.tick(at_least=self._slot + 1)
        return key if nonces.authority(account) in signers else None

    def _execute(self, signature: str, transaction: VersionedTransaction, nonce: Pubkey | None) -> None:
        message = transaction.message
        if not isinstance(message, MessageV0 | Message):
            raise TransactionRefusedError("UnsupportedVersion")
        try:
            loaded = tables.load(message, self.account)
        except tables.TableError as refusal:
            raise TransactionRefusedError(str(refusal)) from refusal
        keys = [*message.account_keys, *loaded.writable, *loaded.readonly]
        written = [key for index, key in enumerate(message.account_keys) if nonces.is_writable(message, index)]
        written += loaded.writable
        before, kept = balances_json(keys, self.account), {key: nonces.value(self.account(key)) for key in written}
        with floating_point.emptied():
            outcome = _outcome(self._vm.send_transaction(transaction))
        after = balances_json(keys, self.account)
        # The machine names a fee even where nobody could pay it; only a payer who did was served.
        if outcome.error is not None and before[0][0] == after[0][0]:
            raise TransactionRefusedError(outcome.error, outcome.logs, outcome.units)
        self._advance_nonces(kept, nonce)
        error = None if outcome.error is None else msgspec.json.encode(outcome.error).decode()
        meta = {
            "err": outcome.error,
            "status": status_json(error),
            "fee": outcome.fee,
            "preBalances": before[0],
            "postBalances": after[0],
            "preTokenBalances": before[1],
            "postTokenBalances": after[1],
            "innerInstructions": [],
            "logMessages": outcome.logs,
            "rewards": [],
            "loadedAddresses": {
                "writable": [str(key) for key in loaded.writable],
                "readonly": [str(key) for key in loaded.readonly],
            },
            "computeUnitsConsumed": outcome.units,
        }
        entry = Entry(
            signature,
            self._slot,
            int(self._clock()),
            error,
            memo_text(message, keys),
            bytes(transaction),
            msgspec.json.encode(meta),
        )
        changed = {bytes(key): None if (account := self.account(key)) is None else bytes(account) for key in written}
        try:
            self.store.record(entry, changed, [bytes(key) for key in keys])
        except sqlite3.Error as refusal:
            self._failed = True
            raise StoreFailedError(f"transaction {signature} could not be written: {refusal}") from refusal

    def _advance_nonces(self, before: Mapping[Pubkey, bytes | None], used: Pubkey | None) -> None:
        """Give every nonce that was set or advanced the value of this block; what was used advances though all else failed."""
        for key, old in before.items():
            account = self.account(key)
            new = nonces.value(account)
            if account is not None and new is not None and (new != old or key == used):
                self._vm.set_account(key, nonces.with_value(account, nonces.durable(self.blockhash())))


def _outcome(result: TransactionMetadata | FailedTransactionMetadata) -> TransactionOutcome:
    """The machine's own JSON is the one complete notation of its errors."""
    document = msgspec.json.decode(result.to_json())
    error = None if isinstance(result, TransactionMetadata) else document["err"]
    meta = document if isinstance(result, TransactionMetadata) else document["meta"]
    return TransactionOutcome(error, meta["logs"], meta["compute_units_consumed"], meta["fee"])


def compile_message(chain: LocalChain, payer: Pubkey, instructions: list[Any]) -> MessageV0:
    """A message with the current blockhash, for the ledger's own transactions."""
    return MessageV0.try_compile(payer, instructions, [], chain.blockhash())

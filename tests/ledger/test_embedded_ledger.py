"""The embedded ledger forgets nothing and repeats nothing, through crashes, restarts and a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from ledger.client import Ledger, LedgerConfig, address_of, job_bytes
from ledger.errors import LedgerUnavailableError
from ledger.local.chain import (
    BLOCKHASH_SLOTS,
    SLOT_S,
    LocalChain,
    StoreFailedError,
    TransactionRefusedError,
    compile_message,
)
from ledger.local.genesis import give, open_chain
from ledger.local.store import Entry, LocalStore
from ledger.money import Amount, parse
from tests.ledger.by_hand import pay
from tests.ledger.served import served
from tests.ledger.world import HandClock, World, key, transaction

SUBMITTER, COORDINATOR = b"\1" * 32, b"\2" * 32
NODES = [bytes([10 + index]) * 32 for index in range(3)]
JOB = job_bytes("0" * 32)
FAR = 4_000_000_000  # A deadline in the year 2096.


def test_a_transaction_is_processed_once_even_after_many_others(world: World) -> None:
    """The machine itself forgets a transaction after 32 others."""
    first = transaction(world, [_gift(world, 1)], key("stranger"))
    world.chain.submit(first, preflight=True)
    for number in range(2, 60):
        world.chain.submit(transaction(world, [_gift(world, number)], key("stranger")), preflight=True)
    with pytest.raises(TransactionRefusedError, match="AlreadyProcessed"):
        world.chain.submit(first, preflight=True)
    with pytest.raises(TransactionRefusedError, match="AlreadyProcessed"):
        world.chain.submit(first, preflight=False)


def _gift(world: World, lamports: int) -> Instruction:
    return transfer(TransferParams(from_pubkey=world.stranger, to_pubkey=world.node, lamports=lamports))


def test_a_transaction_expires_with_its_blockhash(world: World) -> None:
    late = transaction(world, [_gift(world, 1)], key("stranger"))
    last = transaction(world, [_gift(world, 2)], key("stranger"))
    issued = world.chain.slot
    while world.chain.slot < issued + BLOCKHASH_SLOTS:
        world.clock.advance(SLOT_S)
        world.chain.tick()
    world.chain.submit(last, preflight=True)
    world.clock.advance(SLOT_S)
    with pytest.raises(TransactionRefusedError, match="BlockhashNotFound"):
        world.chain.submit(late, preflight=True)


def test_a_blockhash_that_nobody_issued_is_refused(world: World) -> None:
    assert not world.chain.is_valid_blockhash(Hash.default())


def test_a_transaction_through_a_lookup_table_is_refused(world: World) -> None:
    """Accounts behind a table would change without being stored."""
    table = AddressLookupTableAccount(world.new_key("table"), [world.node])
    message = MessageV0.try_compile(world.stranger, [_gift(world, 1)], [table], world.chain.blockhash())
    assert message.address_table_lookups
    for preflight in (True, False):
        with pytest.raises(TransactionRefusedError, match="AddressLookupTableNotFound"):
            world.chain.submit(VersionedTransaction(message, [key("stranger")]), preflight=preflight)


def test_slots_follow_the_clock_forward_and_never_back(world: World) -> None:
    world.clock.advance(4.0)
    world.chain.tick()
    slot = world.chain.slot
    world.clock.advance(-1000.0)
    world.chain.tick()
    assert world.chain.slot == slot
    world.clock.advance(1004.0)
    world.chain.tick()
    assert world.chain.slot == slot + 10


def test_a_failed_transaction_is_recorded_with_its_fee_where_preflight_was_skipped(world: World) -> None:
    broke = transaction(world, [_gift(world, 10**18)], key("stranger"))
    before = world.chain.account(world.stranger)
    signature = world.chain.submit(broke, preflight=False)
    entry, after = world.chain.store.find(signature), world.chain.account(world.stranger)
    assert entry is not None
    assert entry.error is not None
    assert before is not None
    assert after is not None
    assert before.lamports - after.lamports == 5000


def test_a_transaction_refused_before_its_fee_leaves_no_trace(world: World) -> None:
    count = world.chain.store.count()
    with pytest.raises(TransactionRefusedError):
        world.chain.submit(transaction(world, [_gift(world, 10**18)], key("stranger")), preflight=True)
    nobody = key("penniless")
    gift = transfer(TransferParams(from_pubkey=nobody.pubkey(), to_pubkey=world.node, lamports=1))
    with pytest.raises(TransactionRefusedError, match="AccountNotFound"):
        world.chain.submit(transaction(world, [gift], nobody), preflight=False)
    assert world.chain.store.count() == count


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    clock, path = HandClock(), tmp_path / "ledger.db"
    store = LocalStore(path)
    chain, genesis = open_chain(store, clock)
    owner = key("owner").pubkey()
    give(chain, genesis, owner, 77, 10**9)
    sent, count = _move(chain, key("owner"), owner, 1), store.count()
    chain.submit(sent, preflight=True)
    closed = key("emptied")
    give(chain, genesis, closed.pubkey(), 0, 10**9)
    chain.submit(_move(chain, closed, owner, 10**9 - 5000), preflight=True)  # all but the fee
    blockhash = chain.blockhash()
    store.close()

    store = LocalStore(path)
    again, reopened = open_chain(store, clock)
    assert reopened.market == genesis.market
    assert store.count() == count + 3  # nothing was created a second time
    wallet = again.account(reopened.market.wallet(owner))
    assert wallet is not None
    assert int.from_bytes(wallet.data[64:72], "little") == 77
    assert again.account(closed.pubkey()) is None  # what was emptied does not come back
    with pytest.raises(TransactionRefusedError, match="AlreadyProcessed"):
        again.submit(sent, preflight=True)
    assert again.is_valid_blockhash(blockhash)  # a transaction prepared before may be sent after
    store.close()


def _move(chain: LocalChain, source: Keypair, target: Pubkey, lamports: int) -> VersionedTransaction:
    move = transfer(TransferParams(from_pubkey=source.pubkey(), to_pubkey=target, lamports=lamports))
    return VersionedTransaction(compile_message(chain, source.pubkey(), [move]), [source])


def test_an_interrupted_first_start_is_completed_by_the_next(tmp_path: Path) -> None:
    """Whatever step the first start was cut after, the second one ends it."""
    reference = LocalStore(":memory:")
    open_chain(reference, HandClock())
    count = reference.count()
    for steps in (0, 1, 2, count - 2, count - 1):
        cut = _Cut(tmp_path / f"{steps}.db", steps)
        with pytest.raises(StoreFailedError):
            open_chain(cut, HandClock())
        cut.close()
        store = LocalStore(tmp_path / f"{steps}.db")
        chain, genesis = open_chain(store, HandClock())
        assert chain.account(genesis.market.terms()) is not None
        store.close()


class _Cut(LocalStore):
    """A store whose disk fails after some transactions."""

    def __init__(self, path: Path, steps: int) -> None:
        super().__init__(path)
        self._left = steps

    def record(self, entry: Entry, accounts: Mapping[bytes, bytes | None], mentioned: Iterable[bytes]) -> None:
        if self._left == 0:
            raise sqlite3.OperationalError("disk I/O error")
        self._left -= 1
        super().record(entry, accounts, mentioned)


def test_a_full_disk_stops_the_ledger_before_it_promises_anything(tmp_path: Path) -> None:
    clock, path = HandClock(), tmp_path / "ledger.db"
    store = LocalStore(path)
    chain, genesis = open_chain(store, clock)
    pages = store._db.execute("pragma page_count").fetchone()[0]
    store._db.execute(f"pragma max_page_count = {pages}")
    owner, given = key("owner").pubkey(), 0
    with pytest.raises(StoreFailedError, match="full"):  # noqa: PT012 - some writes still fit
        for _ in range(1000):
            give(chain, genesis, owner, 1, 0)
            given += 1
    with pytest.raises(StoreFailedError, match="restart"):
        give(chain, genesis, owner, 1, 0)
    store.close()
    store = LocalStore(path)
    chain, _ = open_chain(store, clock)
    wallet = chain.account(genesis.market.wallet(owner))
    assert wallet is None or int.from_bytes(wallet.data[64:72], "little") == given
    store.close()


async def test_two_ledgers_are_told_apart_and_each_is_the_same_after_a_restart(tmp_path: Path) -> None:
    known = []
    for name in ("one", "other", "one"):
        (tmp_path / name).mkdir(exist_ok=True)
        with served(tmp_path / name) as server:
            async with await Ledger.connect(LedgerConfig(server.start())) as ledger:
                known.append(await ledger.identity())
    one, other, again = known
    assert one == again
    assert not set(one.split("/")) & set(other.split("/")), "genesis hash, program and token"


def test_two_ledgers_never_share_a_file(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        server.start()
        command = [sys.executable, "-m", "ledger.local", "--port", "0", "--db", str(server.db)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 1
        assert "another program uses its file: end that" in second.stderr


def test_a_signal_ends_the_server_with_success(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.start() == server.ready_text
        assert server.end(signal.SIGTERM) == 0


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        port = server.start().rsplit(":", 1)[1]
        command = [sys.executable, "-m", "ledger.local", "--port", port, "--db", str(tmp_path / "other.db")]
        second = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 1
        assert port in second.stderr


async def test_after_kill_9_everything_confirmed_is_there_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        async with await Ledger.connect(LedgerConfig(server.start())) as ledger:
            await ledger.faucet(address_of(SUBMITTER), parse("1000"))
            await ledger.faucet(address_of(COORDINATOR), Amount(0))
            await ledger.open_escrow(SUBMITTER, JOB, address_of(COORDINATOR), parse("100"), FAR)
            payouts = {address_of(node): parse("10") for node in NODES}
            sent = await pay(ledger, COORDINATOR, address_of(SUBMITTER), JOB, payouts)
            unsent = await ledger.prepare_refund(COORDINATOR, address_of(SUBMITTER), JOB)
            program = ledger.program
        server.end(signal.SIGKILL)
        async with await Ledger.connect(LedgerConfig(server.start())) as ledger:
            assert ledger.program == program
            for one in sent:
                assert await ledger.outcome(one.signature, one.last_valid_block_height) == "confirmed"
                await ledger.submit(one)  # a replay is recognised, not executed
            assert [await ledger.balance(address_of(node)) for node in NODES] == [parse("10")] * 3
            await ledger.confirm(unsent)  # signed before the crash, sent after it
            state = await ledger.escrow(address_of(SUBMITTER), JOB)
            assert state is not None
            assert (state.deposited, state.paid, state.refunded) == (parse("100"), parse("30"), parse("70"))
            history = await ledger.history(address_of(SUBMITTER), JOB)
            kinds = ["opened", "deposited", *["admitted"] * 3, *["paid"] * 3, "refunded"]
            assert [event.kind for event in history] == kinds


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cut", [1, 20])
async def test_killed_while_busy_the_ledger_keeps_every_acknowledged_payment(tmp_path: Path, cut: int) -> None:
    node, acknowledged, burst = address_of(NODES[0]), 0, 40
    with served(tmp_path) as server:
        async with await Ledger.connect(LedgerConfig(server.start())) as ledger:
            for finished in asyncio.as_completed([ledger.faucet(node, Amount(1), 0) for _ in range(burst)]):
                with contextlib.suppress(LedgerUnavailableError):
                    await finished
                    acknowledged += 1
                    if acknowledged == cut:
                        server.end(signal.SIGKILL)
        async with await Ledger.connect(LedgerConfig(server.start())) as ledger:
            held = await ledger.balance(node)
    # What was acknowledged happened; what was not may have, each at most once.
    assert cut <= acknowledged <= held <= burst

"""Nodes, their credit and days are changed by several cells at a time: none meets a conflict, none waits in a circle."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest
from sqlalchemy import text

from common.clock import SystemClock
from coordinator.domain.account import Account, Role
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError, KeyReusedError, OtherCellError, StoreAwayError
from coordinator.services.accounts.accounts import TOUCH_S, AccountService
from coordinator.services.accounts.expiry import NODE_S, Forgetting
from coordinator.services.audits import credit
from coordinator.services.audits.audit_outcomes import send_away
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.jobs import idempotency
from coordinator.services.jobs.idempotency import IdempotentAnswers
from coordinator.services.network.machine_days import Added, add, day_of
from coordinator.store.ports import Transaction, col
from coordinator.store.records import (
    CommitRecord,
    CreditRecord,
    KeyRecord,
    MachineDay,
    NodeRecord,
    OutboxRecord,
    ReplayRecord,
    SessionRecord,
)
from tests.coordinator.cells.conftest import NODE, CellAtWork, job, name, node
from tests.coordinator.fakes import WALLET, digest
from tests.support.clock import VirtualClock
from tests.support.databases import needs_postgres

pytestmark = needs_postgres
Both = tuple[CellAtWork, CellAtWork]
JOBS, EACH = 4, 40  # So many errands of each of so many jobs of each cell.
SHARE, DAY = 7, 20_000
HANGS_S = 120.0


def share(of: str, number: int, **fields: object) -> CommitRecord:
    """What a node did in a round."""
    made = CommitRecord(
        of, 1, number, 0, 0, "lease", NODE, WALLET, digest("r"), 1, digest("g"), 1, 1, True, "pending", SHARE
    )
    return msgspec.structs.replace(made, **fields)


async def prepared(cells: Both) -> list[tuple[CellAtWork, str]]:
    """Jobs of both cells, and one node."""
    async with cells[0].sql.transaction() as tx:
        await tx.insert(node())
    found = []
    for number, cell in enumerate(cells):
        async with cell.sql.transaction() as tx:
            for place in range(JOBS):
                await tx.insert(job(number, place))
                found.append((cell, name(number, place)))
    return found


async def verified(number: int, work: UnitOfWork) -> None:
    """What follows from a share that is verified and paid, as services have it."""
    work.queue(OutboxRecord(f"event:{work.job.id}:{number}", work.job.id, "event", {"text": ""}, work.now))
    await credit.earn(work, [share(work.job.id, number)], ())
    record = await work.tx.get(NodeRecord, NODE)
    await work.tx.update(msgspec.structs.replace(record, earned=record.earned + SHARE))
    await add(work.tx, DAY * 86_400.0, {NODE: Added(earned=SHARE)})
    work.change(paid=work.job.paid + SHARE)


async def test_hundreds_of_changes_of_one_node_by_two_cells_are_all_there(cells: Both) -> None:
    jobs = await prepared(cells)
    calls = Counter[str]()

    async def act(number: int, work: UnitOfWork) -> None:
        calls[work.job.id] += 1
        await verified(number, work)

    async with asyncio.timeout(HANGS_S):
        for number in range(EACH):
            await asyncio.gather(*(cell.desk.ask(one, partial(act, number)) for cell, one in jobs))
    total = 2 * JOBS * EACH
    assert set(calls.values()) == {EACH}, "none had to be tried again"
    async with cells[0].sql.transaction() as tx:
        record = await tx.get(NodeRecord, NODE)
        assert (record.rounds, record.earned) == (total, total * SHARE)
        [known] = await tx.find(CreditRecord)
        assert (known.amount, known.account_id) == (total * SHARE, job(0).account_id)
        [day] = await tx.find(MachineDay)
        assert day.earned == total * SHARE
        assert {one.paid for one in await tx.everywhere.find(Job)} == {EACH * SHARE}
        assert len(await tx.everywhere.find(OutboxRecord)) == total
    for cell in cells:
        assert cell.counted.counts["transactions"] == JOBS * EACH, "none waits for another job to be worked on, too"


async def test_whole_jobs_that_are_opened_meet_none_either(cells: Both) -> None:
    jobs = await prepared(cells)

    async def works(cell: CellAtWork, of: str) -> None:
        for number in range(EACH // 4):
            async with cell.desk.open(of) as work:
                await verified(number, work)
            async with cell.context.store.transaction() as tx:
                await tx.hold_shared()
                record = await tx.get(NodeRecord, NODE)
                await tx.update(msgspec.structs.replace(record, faults=record.faults + 1))

    async with asyncio.timeout(HANGS_S):
        await asyncio.gather(*(works(cell, of) for cell, of in jobs))
    async with cells[1].sql.transaction() as tx:
        record = await tx.get(NodeRecord, NODE)
    assert (record.rounds, record.faults) == (2 * JOBS * EACH // 4,) * 2


async def test_of_two_lies_that_are_found_at_a_time_one_sends_the_node_away(cells: Both) -> None:
    """One lie costs a node its stake once: who comes second finds it away."""
    await prepared(cells)
    for turn in range(10):
        async with cells[0].sql.transaction() as tx:
            record = await tx.get(NodeRecord, NODE)
            await tx.update(msgspec.structs.replace(record, banned=False, reason=""))

        async def lied(work: UnitOfWork) -> bool:
            return await send_away(work, NODE, "it lied") is not None

        found = await asyncio.gather(*(cell.desk.ask(name(place), lied) for place, cell in enumerate(cells)))
        assert sorted(found) == [False, True], turn


async def test_a_standing_that_is_lost_in_one_cell_while_the_other_adds_to_it_is_lost_once(cells: Both) -> None:
    jobs = await prepared(cells)

    async def lost(work: UnitOfWork) -> None:
        await credit.lose(work, NODE, everywhere=True)

    async def at_once(act: Callable[[UnitOfWork], Awaitable[None]], of: tuple[CellAtWork, str]) -> None:
        await of[0].desk.ask(of[1], act)

    async with asyncio.timeout(HANGS_S):
        for number in range(10):
            tasks = [at_once(partial(verified, number), one) for one in jobs]
            await asyncio.gather(*tasks, at_once(lost, jobs[number % len(jobs)]))
    await cells[0].desk.ask(name(0), lost)
    async with cells[0].sql.transaction() as tx:
        record = await tx.get(NodeRecord, NODE)
        assert (record.rounds, record.earned) == (0, 10 * len(jobs) * SHARE)
        assert [one.amount for one in await tx.find(CreditRecord)] == [0]


async def test_the_lock_is_held_to_the_end_and_asked_for_once(cells: Both) -> None:
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7073698 AND granted"

    async def locks(tx: Transaction) -> int:
        connection = tx._connection  # type: ignore[attr-defined]
        return int((await connection.execute(text(held))).scalar_one())

    async with cells[0].sql.transaction() as tx:
        assert await locks(tx) == 0
        for _ in range(3):
            await tx.hold_shared()
        assert await locks(tx) == 1

        async def other() -> None:
            async with cells[1].sql.transaction() as theirs:
                await theirs.hold_shared()

        waiting = asyncio.create_task(other())
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
    async with asyncio.timeout(HANGS_S):
        await waiting
    async with cells[0].sql.transaction() as tx:
        assert await locks(tx) == 0


# --- what a place that nobody thought of would meet -------------------------------------------------------------------------


async def test_a_lost_race_for_a_common_record_is_tried_once_more(cells: Both) -> None:
    await prepared(cells)
    tries = Counter[str]()

    def careless(races: int) -> Callable[[UnitOfWork], Awaitable[int]]:
        async def act(work: UnitOfWork) -> int:
            tries[work.job.id] += 1
            record = await work.tx.get(NodeRecord, NODE)
            if tries[work.job.id] <= races:
                async with cells[1].sql.transaction() as tx:
                    theirs = await tx.get(NodeRecord, NODE)
                    await tx.update(msgspec.structs.replace(theirs, faults=theirs.faults + 1))
            await work.tx.update(msgspec.structs.replace(record, faults=record.faults + 10))
            work.change(paid=work.job.paid + 1)
            return record.faults

        return act

    assert await cells[0].desk.ask(name(0, 0), careless(1)) == 1
    with pytest.raises(ConflictError):
        await cells[0].desk.ask(name(0, 1), careless(9))
    assert tries == {name(0, 0): 2, name(0, 1): 2}
    async with cells[0].sql.transaction() as tx:
        assert [(await tx.get(Job, name(0, place))).paid for place in range(2)] == [1, 0]
        assert (await tx.get(NodeRecord, NODE)).faults == 1 + 10 + 2


async def test_what_holds_common_records_is_stored_before_another_job_is_worked_on(cells: Both) -> None:
    await prepared(cells)
    first = cells[0]

    async def quiet(work: UnitOfWork) -> None:
        work.change(paid=work.job.paid + 1)
        await asyncio.sleep(0)

    async def held(work: UnitOfWork) -> None:
        await work.hold_shared()
        await quiet(work)

    for act, taken in ((quiet, 1), (held, JOBS)):
        first.counted.counts.clear()
        await asyncio.gather(*(first.desk.ask(name(0, place), act) for place in range(JOBS)))
        assert first.counted.counts["transactions"] == taken, act


async def test_a_desk_refuses_the_jobs_of_another_cell_before_anything_is_done(cells: Both) -> None:
    await prepared(cells)
    first, done = cells[0], []

    async def act(work: UnitOfWork) -> None:
        done.append(work.job.id)
        await asyncio.sleep(0)

    for of in (name(1, 0), name(1, 99)):
        with pytest.raises(OtherCellError) as asked:
            await first.desk.ask(of, act)
        with pytest.raises(OtherCellError) as opened:
            async with first.desk.open(of) as work:
                await act(work)
        assert asked.value.cell == opened.value.cell == 1
    assert done == []
    assert first.counted.counts["transactions"] == 0
    await cells[1].desk.ask(name(1, 0), act)
    assert done == [name(1, 0)]
    assert all(first.context.cell.has(first.context.new_job()) for _ in range(50))


# --- accounts ---------------------------------------------------------------------------------------------------------------


async def test_a_session_and_a_key_that_two_cells_see_used_at_once_are_good_in_both(cells: Both) -> None:
    clock = VirtualClock()
    services = [AccountService(cell.context.store, clock) for cell in cells]
    account = await services[0].create("ada", Role.OPERATOR)
    secret = await services[0].begin_session(account.id, "password")
    who = await services[0].by_session(secret)
    assert who is not None
    _, key = await services[0].create_key(who, "key", frozenset(who.scopes))
    for _ in range(10):
        await clock.advance(TOUCH_S + 1)
        found = await asyncio.gather(
            *(one.by_session(secret) for one in services), *(one.by_key(key) for one in services)
        )
        assert [one.account_id for one in found if one] == [account.id] * 4
    async with cells[1].sql.transaction() as tx:
        assert [one.seen for one in await tx.find(SessionRecord)] == [clock.time()]
        assert [one.used for one in await tx.find(KeyRecord)] == [clock.time()]


async def test_one_request_that_reaches_two_cells_at_once_is_one(cells: Both) -> None:
    answers = [IdempotentAnswers(cell.context.store, SystemClock(), new_id=cell.context.new_job) for cell in cells]
    named: set[str] = set()

    async def begin(one: IdempotentAnswers, key: str) -> str:
        async with one.turn("0" * 32, key, "print") as turn:
            return turn.record.resource

    for number in range(20):
        both = await asyncio.gather(*(begin(one, f"key {number}") for one in answers))
        assert len(set(both)) == 1, number
        assert sum(cell.context.cell.has(both[0]) for cell in cells) == 1
        named |= set(both)
    assert len(named) == 20
    with pytest.raises(KeyReusedError):
        async with answers[1].turn("0" * 32, "key 0", "another print"):
            pass


async def test_old_keys_are_forgotten_by_two_cells_at_a_time(cells: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "CLEAN_S", -1.0)
    answers = [IdempotentAnswers(cell.context.store, SystemClock()) for cell in cells]
    for turn in range(5):
        async with cells[0].sql.transaction() as tx:
            for number in range(40):
                await tx.insert(ReplayRecord("1" * 32, f"old {turn} {number}", "print", secrets.token_hex(16), 1.0))

        async def begin(one: IdempotentAnswers, key: str) -> None:
            async with one.turn("0" * 32, key, "print"):
                pass

        await asyncio.gather(*(begin(one, f"{turn} {place}") for place, one in enumerate(answers)))
        async with cells[0].sql.transaction() as tx:
            assert await tx.find(ReplayRecord, col(ReplayRecord.account_id).equals("1" * 32)) == []


async def test_whom_another_cell_knows_is_not_forgotten(cells: Both) -> None:
    """Accounts with a job there, and nodes that are there, or have worked there."""
    first, second = cells
    now = first.context.clock.time()
    long_ago, today = now - 400 * 86_400.0, day_of(now)
    nodes = [f"{place}" * 43 for place in "abcd"]
    async with second.sql.transaction() as tx:
        for place, account in enumerate(("of a job there", "of nothing")):
            await tx.insert(Account(f"{place + 1}" * 32, account, account, Role.SUBMITTER, long_ago))
        await tx.insert(job(1, account_id="1" * 32))
        for one in nodes:
            await tx.insert(node(address=one, since=long_ago, seen=now - NODE_S - 9))
        await tx.insert(Lease("l" * 32, name(1), nodes[0], WALLET, 1, None, None, long_ago, state="ended"))
        await tx.insert(MachineDay(nodes[1], today, seconds=9))
        await tx.insert(MachineDay(nodes[2], today - 30, seconds=9))
    assert await Forgetting(first.context, lambda _: False).look() == (2, 1)
    async with first.sql.transaction() as tx:
        assert [one.address for one in await tx.find(NodeRecord)] == nodes[:2]
        assert [one.id for one in await tx.find(Account)] == ["1" * 32]
        assert await tx.find(Audit) == []


async def test_a_cell_whose_database_is_gone_lets_the_other_go_on(cells: Both) -> None:
    """Whoever held the common records and is gone holds them no longer."""
    await prepared(cells)

    async def dies(work: UnitOfWork) -> None:
        await work.hold_shared()
        pid = (await work.tx.inner._connection.execute(text("SELECT pg_backend_pid()"))).scalar_one()  # type: ignore[attr-defined]
        async with cells[1].sql.transaction() as tx:
            await tx._connection.execute(text(f"SELECT pg_terminate_backend({pid})"))  # type: ignore[attr-defined]
        await work.tx.get(NodeRecord, NODE)

    with pytest.raises(StoreAwayError):
        await cells[0].desk.ask(name(0), dies)
    async with asyncio.timeout(HANGS_S):
        await cells[1].desk.ask(name(1), partial(verified, 1))
        await cells[0].desk.ask(name(0), partial(verified, 1))

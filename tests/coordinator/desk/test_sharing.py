"""Errands of several jobs share a transaction, and nobody's fault is another's."""

import asyncio
import multiprocessing
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.run import Run
from coordinator.errors import NotFoundError, StoreAwayError
from coordinator.services.core.domain_events import NodeExpelled, SharesMayBeDue
from coordinator.services.core.errands import MAX_SHARING
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import Store, col
from coordinator.store.records import EventRecord, RunRecord
from coordinator.store.sql import SqlStore
from protocol.task import Layers
from tests.coordinator.desk.conftest import JOBS, Office, opened
from tests.coordinator.fakes import WALLET
from tests.support.databases import Postgres, needs_postgres

ACKED, EACH_S = 150, 60.0


def pay(amount: int, line: str = "paid") -> Callable[[UnitOfWork], Awaitable[int]]:
    """Something that changes the job and its timeline."""

    async def act(work: UnitOfWork) -> int:
        work.change(paid=work.job.paid + amount)
        work.note("spent", line)
        await asyncio.sleep(0)
        return work.job.paid

    return act


async def fail(work: UnitOfWork) -> None:
    """Something that changes the job and then cannot go on."""
    work.change(paid=work.job.paid + 1_000)
    work.note("spent", "never")
    await asyncio.sleep(0)
    raise ValueError(work.job.id)


async def test_what_is_asked_together_shares_one_transaction(office: Office) -> None:
    done = await asyncio.gather(*(office.desk.ask(job, pay(number)) for number, job in enumerate(JOBS, 1)))
    assert done == list(range(1, 9))
    assert office.store.counts["transactions"] == 1
    assert await office.paid() == dict(zip(JOBS, done, strict=True))
    assert await office.lines() == {job: ["paid"] for job in JOBS}


async def test_no_transaction_has_more_than_so_many(office: Office) -> None:
    asked = [office.desk.ask(JOBS[number % 8], pay(1)) for number in range(MAX_SHARING + 1)]
    await asyncio.gather(*asked)
    assert office.store.counts["transactions"] == 2
    assert sum((await office.paid()).values()) == MAX_SHARING + 1


async def test_a_fault_in_one_harms_no_other(office: Office) -> None:
    asked = [office.desk.ask(job, fail if job == JOBS[3] else pay(5)) for job in JOBS]
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in done] == [ValueError if job == JOBS[3] else int for job in JOBS]
    assert await office.paid() == {job: 0 if job == JOBS[3] else 5 for job in JOBS}, (
        "each is stored once, the fault not"
    )
    assert await office.lines() == {job: [] if job == JOBS[3] else ["paid"] for job in JOBS}


async def test_what_is_done_again_is_counted_once_and_what_is_not_stored_never(office: Office) -> None:
    metrics = office.context.metrics

    async def report(work: UnitOfWork) -> None:
        work.count("reports_total")
        work.observe("look_wait_seconds", 2.0)
        await asyncio.sleep(0)

    async def wrong(work: UnitOfWork) -> None:
        await report(work)
        await fail(work)

    asked = [office.desk.ask(job, wrong if job == JOBS[3] else report) for job in JOBS]
    await asyncio.gather(*asked, return_exceptions=True)
    assert metrics.value("reports_total") == 7, "all but one were done twice"
    assert "cottage_look_wait_seconds_count 7.0" in metrics.text()
    office.store.away.append("before")
    with pytest.raises(StoreAwayError):
        await office.desk.ask(JOBS[0], report)
    assert metrics.value("reports_total") == 7


async def test_a_fault_among_several_of_one_job_harms_no_other(office: Office) -> None:
    first, wrong, last = (office.desk.ask(JOBS[0], act) for act in (pay(1, "first"), fail, pay(2, "last")))
    done = await asyncio.gather(first, wrong, last, return_exceptions=True)
    assert [done[0], type(done[1]), done[2]] == [1, ValueError, 3]
    assert (await office.lines())[JOBS[0]] == ["first", "last"]


async def test_a_job_that_is_not_there_harms_no_other(office: Office) -> None:
    done = await asyncio.gather(
        office.desk.ask(JOBS[0], pay(1)), office.desk.ask("f" * 32, pay(1)), return_exceptions=True
    )
    assert done[0] == 1
    assert isinstance(done[1], NotFoundError)


async def test_of_one_job_they_are_done_in_their_order_and_followed_up_once(office: Office) -> None:
    followed: list[int] = []

    async def then(work: UnitOfWork) -> None:
        followed.append(work.job.paid)
        work.note("spent", "then")
        await asyncio.sleep(0)

    asked = [office.desk.ask(JOBS[0], pay(1, str(number)), then) for number in range(5)]
    assert await asyncio.gather(*asked) == [1, 2, 3, 4, 5]
    assert followed == [5]
    assert (await office.lines())[JOBS[0]] == ["0", "1", "2", "3", "4", "then"]


async def test_who_asked_is_told_only_once_it_is_stored_and_all_others_were_told(office: Office) -> None:
    told: list[str] = []
    office.desk.on_stored(lambda work: told.append(work.job.id))
    office.desk.on(SharesMayBeDue, lambda work, _event: told.append(f"event of {work.job.id}"))

    async def act(work: UnitOfWork) -> None:
        assert told == [], "nothing is stored yet"
        work.record(SharesMayBeDue())
        await asyncio.sleep(0)

    await asyncio.gather(*(office.desk.ask(job, act) for job in JOBS[:2]))
    assert told == [JOBS[0], f"event of {JOBS[0]}", JOBS[1], f"event of {JOBS[1]}"]


async def test_who_was_given_a_place_is_known_before_the_next_job_is_looked_at(office: Office) -> None:
    """Else two jobs would give seats to one node."""
    async with office.store.inner.transaction() as tx:
        for job in JOBS[:2]:
            await tx.insert(RunRecord(job, Run((Layers(0, 1),), 1, 10, 2, (0,))))

    async def seat(work: UnitOfWork) -> bool:
        free = WALLET not in office.leases.busy()
        if free:
            work.grant(WALLET, WALLET, (0, 0))
        await asyncio.sleep(0)
        return free

    assert await asyncio.gather(*(office.desk.ask(job, seat) for job in JOBS[:2])) == [True, False]
    assert office.store.counts["transactions"] == 2
    assert office.context.metrics.value("leases_granted_total") == 1
    async with office.store.inner.transaction() as tx:
        assert [lease.job for lease in await tx.find(Lease, col(Lease.node).equals(WALLET))] == [JOBS[0]]


async def test_who_was_sent_away_is_known_before_the_next_job_is_looked_at(office: Office) -> None:
    banned: list[str] = []
    office.desk.on(NodeExpelled, lambda _work, event: banned.append(event.node))

    async def expel(work: UnitOfWork) -> list[str]:
        known = list(banned)
        work.record(NodeExpelled(work.job.id))
        await asyncio.sleep(0)
        return known

    asked = [office.desk.ask(job, expel) for job in JOBS[:3]]
    assert await asyncio.gather(*asked) == [[], [JOBS[0]], [JOBS[0], JOBS[1]]]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_store_that_goes_away_fails_all_and_what_was_stored_is_seen_by_the_next(
    office: Office, when: str
) -> None:
    office.store.away.append(when)
    done = await asyncio.gather(*(office.desk.ask(job, pay(1)) for job in JOBS), return_exceptions=True)
    assert [type(one) for one in done] == [StoreAwayError] * 8
    assert office.store.counts["transactions"] == 1, "nobody tries again but who asked"
    stored = 0 if when == "before" else 1
    assert await office.paid() == dict.fromkeys(JOBS, stored)
    again = await asyncio.gather(*(office.desk.ask(job, pay(1)) for job in JOBS))
    assert again == [stored + 1] * 8, "jobs are read anew"


async def test_who_leaves_before_its_turn_is_not_waited_for_and_harms_nobody(office: Office) -> None:
    asked = [office.desk.ask(job, pay(1)) for job in JOBS]
    asked[0].cancel()
    assert await asyncio.gather(*asked[1:]) == [1] * 7
    assert (await office.paid())[JOBS[0]] == 0


async def test_a_step_in_memory_is_stored_before_another_job_can_fail(office: Office) -> None:
    """A secure sum, say, goes on by a phase in memory: done twice, it would count as lost."""
    steps: list[str] = []

    async def step(work: UnitOfWork) -> None:
        steps.append(work.job.id)
        work.moved_memory = True
        await asyncio.sleep(0)

    asked = [office.desk.ask(JOBS[0], step), office.desk.ask(JOBS[1], fail)]
    done = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in done] == [type(None), ValueError]
    assert steps == [JOBS[0]]


async def test_a_job_that_fails_again_and_again_has_nobody_else_done_twice(office: Office) -> None:
    times: Counter[str] = Counter()

    async def count(work: UnitOfWork) -> None:
        times[work.job.id] += 1
        await asyncio.sleep(0)

    async def turn() -> None:
        asked = [office.desk.ask(job, fail if job == JOBS[3] else count) for job in JOBS]
        await asyncio.gather(*asked, return_exceptions=True)

    await turn()
    times.clear()
    office.store.counts.clear()
    await turn()
    assert times == {job: 1 for job in JOBS if job != JOBS[3]}
    assert office.store.counts["transactions"] == 3
    assert await office.desk.ask(JOBS[3], pay(1)) == 1
    office.store.counts.clear()
    assert await asyncio.gather(*(office.desk.ask(job, pay(1)) for job in JOBS)) == [1, 1, 1, 2, 1, 1, 1, 1]
    assert office.store.counts["transactions"] == 1, "once it is well it shares again"


async def test_what_is_taken_back_once_one_has_failed_is_not_done(office: Office) -> None:
    """As reports of one lease: each needs those before it."""
    asked = [office.desk.ask(JOBS[0], act) for act in (pay(1), fail, pay(4))]

    async def wait() -> None:
        try:
            for one in asked:
                await one
        finally:
            for one in asked:
                one.cancel()

    with pytest.raises(ValueError, match=JOBS[0]):
        await wait()
    await office.desk.ask(JOBS[1], pay(1))
    assert (await office.paid())[JOBS[0]] == 1


async def test_a_store_that_goes_away_while_each_is_done_by_itself_is_waited_for_once(office: Office) -> None:
    async def harm(work: UnitOfWork) -> None:
        office.store.away.append("before")  # The next transaction, in which the first is done again, is not stored.
        await fail(work)

    done = await asyncio.gather(
        *(office.desk.ask(job, harm if job == JOBS[7] else pay(1)) for job in JOBS), return_exceptions=True
    )
    assert [type(one) for one in done] == [StoreAwayError] * 8
    assert office.store.counts["transactions"] == 2


async def test_a_fault_in_telling_of_one_job_keeps_no_other_from_being_told_of(office: Office) -> None:
    told: list[str] = []

    def tell(work: UnitOfWork) -> None:
        if work.job.id == JOBS[1]:
            raise ValueError
        told.append(work.job.id)

    office.desk.on_stored(tell)
    done = await asyncio.gather(*(office.desk.ask(job, pay(1)) for job in JOBS[:3]), return_exceptions=True)
    assert [type(one) for one in done] == [int, ValueError, int]
    assert told == [JOBS[0], JOBS[2]]


async def test_whoever_opens_a_job_has_it_alone(office: Office) -> None:
    order: list[str] = []

    async def note(work: UnitOfWork) -> None:
        order.append("asked")
        work.note("spent", "asked")
        await asyncio.sleep(0)

    async with office.desk.open(JOBS[0]) as work:
        asked = office.desk.ask(JOBS[1], note)
        await asyncio.sleep(0.02)
        work.note("spent", "opened")
        order.append("opened")
    await asked
    assert order == ["opened", "asked"]


async def test_at_the_end_what_is_under_way_is_stored_and_what_waits_is_not_begun(office: Office) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def slow(work: UnitOfWork) -> int:
        begun.set()
        await go.wait()
        return await pay(1)(work)

    under_way = office.desk.ask(JOBS[0], slow)
    await begun.wait()
    waits = office.desk.ask(JOBS[1], pay(1))
    closing = asyncio.create_task(office.desk.close())
    await asyncio.sleep(0)
    go.set()
    await closing
    assert under_way.result() == 1
    assert waits.cancelled()
    assert await office.paid() == {job: int(job == JOBS[0]) for job in JOBS}


@needs_postgres
async def test_what_postgresql_refuses_is_told_and_not_that_its_transaction_is_over(postgres: Postgres) -> None:
    store = await SqlStore.open(postgres.migrated_url())

    async def refused() -> None:
        async with store.transaction() as tx:
            await tx.find(Job, limit=1)  # The first statement goes through SQLAlchemy.
            await tx.find(Job, col(Job.id).equals("a\0b"))

    try:
        with pytest.raises(DBAPIError, match="invalid byte sequence"):
            await refused()
        async with store.transaction() as tx:
            assert await tx.find(Job) == []
    finally:
        await store.close()


# --- a kill ---------------------------------------------------------------------------------------------------------------


def work_on(url: str, folder: str, pipe: Connection) -> None:
    """A process that pays by ones for eight jobs, many at a time, and says of each once it is told that it is stored."""

    async def run() -> None:
        office = opened(await SqlStore.open(url), Path(folder))

        async def one(job: str) -> None:
            while True:
                pipe.send((job, await office.desk.ask(job, pay(1))))

        await asyncio.gather(*(one(job) for job in JOBS for _ in range(3)))

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=needs_postgres)])
async def test_a_kill_in_mid_group_loses_nothing_that_anybody_was_told_and_leaves_no_half(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server: Postgres | None = request.getfixturevalue("postgres") if kind == "postgresql" else None
    url = f"sqlite+aiosqlite:///{tmp_path / 'test.db'}" if server is None else server.migrated_url()
    store: Store = await SqlStore.open(url)
    async with store.transaction() as tx:
        for job in JOBS:
            await tx.insert(_job(job))
    await store.close()
    known = await asyncio.to_thread(_killed, url, str(tmp_path))
    store = await SqlStore.open(url)
    try:
        async with store.transaction() as tx:
            paid = {job.id: job.paid for job in await tx.find(Job)}
            lines = Counter(line.job for line in await tx.find(EventRecord))
    finally:
        await store.close()
    assert sum(paid.values()) >= ACKED
    assert all(paid[job] >= most for job, most in known.items()), "who was told that it is stored finds it stored"
    assert lines == paid, "of each group a job's state and its timeline are there together, or none"


def _job(job: str) -> Job:
    import msgspec

    from tests.coordinator.jobs.test_lifecycle import JOB

    return msgspec.structs.replace(JOB, id=job)


def _killed(url: str, folder: str) -> dict[str, int]:
    """Kill -9 a process at work; what it had said of each job."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe(duplex=False)
    process = spawning.Process(target=work_on, args=(url, folder, theirs), daemon=True)
    process.start()
    theirs.close()
    known: dict[str, int] = {}
    try:
        for _ in range(ACKED):
            assert ours.poll(EACH_S), "it says nothing"
            job, paid = ours.recv()
            known[job] = max(paid, known.get(job, 0))
    finally:
        assert process.pid is not None
        process.kill()
        process.join()
    assert process.exitcode == -signal.SIGKILL
    with suppress(EOFError, OSError):  # What was said before the kill, and not read yet.
        while ours.poll(0):
            job, paid = ours.recv()
            known[job] = max(paid, known.get(job, 0))
    return known

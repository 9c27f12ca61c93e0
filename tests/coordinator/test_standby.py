"""Several coordinators on one PostgreSQL: one works, the others wait, and whoever was replaced changes nothing any more."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import text

from coordinator.cli import EXIT_DATA, EXIT_LEDGER
from coordinator.config import Config
from coordinator.errors import StoreAwayError, StoreError
from coordinator.store.ownership import BEAT_S, GONE_S, STALE_S, Ownership
from coordinator.store.ports import col
from coordinator.store.records import EventRecord, RoundRecord
from coordinator.store.sql import SqlStore
from tests.coordinator.conftest import House, ScriptedNode, nodes, opened, until
from tests.coordinator.fakes import FakeChain
from tests.coordinator.test_faults import ended, reached, start
from tests.coordinator.test_serve import ledger_url as ledger_url
from tests.coordinator.test_serve import line_with
from tests.coordinator.test_serve import start as start_process
from tests.ledger.served import served
from tests.support.addresses import free_port
from tests.support.clock import VirtualClock
from tests.support.databases import Postgres, needs_postgres
from tests.support.wait import HANGS_S

pytestmark = needs_postgres

FILES = "the data folder of all"
BEATS = "UPDATE {table} SET beats = beats + 1"


class Waiting:
    """Coordinators of one database; their time is the test's."""

    def __init__(self, url: str) -> None:
        self.url, self.clock = url, VirtualClock()
        self.made: list[Ownership] = []

    async def one(self, address: str = "key", files: str = FILES, ledger: str = "") -> Ownership:
        self.made.append(made := await Ownership.open(self.url, self.clock, address, files))
        made.ledger = ledger
        return made


@pytest.fixture
async def waiting(postgres: Postgres) -> AsyncIterator[Waiting]:
    made = Waiting(postgres.url())
    yield made
    for one in made.made:
        await one.close()


async def stands_still(waiting: Waiting, first: Ownership, second: Ownership) -> None:
    """The first one says nothing for as long as the second one needs to take over."""
    assert not await second.take()
    await waiting.clock.advance(STALE_S - 0.1)
    assert not await second.take(), "it may only be busy"
    await waiting.clock.advance(0.1)
    assert await second.take()
    assert second.fence == first.fence + 1


async def note(store: SqlStore, said: str) -> None:
    async with store.transaction() as tx:
        await tx.insert(EventRecord("job", 1.0, "note", said))  # type: ignore[arg-type]


async def noted(store: SqlStore) -> list[str]:
    async with store.transaction() as tx:
        return [str(event.text) for event in await tx.find(EventRecord, col(EventRecord.job).equals("job"))]


async def test_the_second_waits_while_the_first_lives_and_has_its_place_at_once_when_it_ends(waiting: Waiting) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    async with first.kept() as lost:
        for _ in range(8):
            assert not await second.take()
            await waiting.clock.advance(STALE_S / 4)
            await asyncio.sleep(0.05)  # For the database, whose time is real.
        assert not lost.is_set()
    assert await second.take()


async def test_who_waits_knows_where_the_one_at_work_serves(waiting: Waiting) -> None:
    first, second, third = [await waiting.one() for _ in range(3)]

    async def known(url: str) -> bool:
        await waiting.clock.advance(0.5)
        await second.take()
        return second.at_work == url

    assert await first.take()
    assert await known(""), "it does not serve yet"
    async with first.kept():
        first.open_door("http://10.0.0.7:8470", anywhere=False)
        await until(lambda: known("http://10.0.0.7:8470"))
        first.open_door("http://0.0.0.0:8470", anywhere=True)
        await until(lambda: known("http://127.0.0.1:8470"))
    await until(lambda: known(""))
    assert second.fence > first.fence, "the place was free, and nobody goes to the old door"
    await third.take()
    assert third.at_work == ""


async def test_who_was_replaced_changes_nothing_and_hears_of_it(waiting: Waiting) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    old = await SqlStore.open(waiting.url, first)
    await note(old, "before")
    await stands_still(waiting, first, second)
    new = await SqlStore.open(waiting.url, second)
    with pytest.raises(StoreAwayError) as refused:
        await note(old, "after")
    assert refused.value.cause == "another coordinator has taken over"
    await note(new, "mine")
    assert await noted(new) == ["before", "mine"]
    async with asyncio.timeout(HANGS_S), first.kept() as lost:
        await lost.wait()
    assert not await first.take(), "its end has not freed the place of the other"
    await new.close()
    await old.close()


async def let_go(owner: Ownership) -> None:
    """All its connections end, as when its process dies; the database sees it a moment later."""
    await owner._line.close()
    await asyncio.sleep(0.2)


async def test_who_has_lost_all_connections_is_waited_for_a_moment_only(waiting: Waiting) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    assert await first._execute(BEATS), "it has a connection"
    assert not await second.take()
    await let_go(first)
    assert not await second.take()
    await waiting.clock.advance(GONE_S - 0.1)
    assert not await second.take(), "it may come back"
    await waiting.clock.advance(0.1)
    assert await second.take()
    assert not await first._execute(BEATS + " WHERE fence = :fence", fence=first.fence), "it changes nothing any more"


async def test_who_comes_back_in_time_keeps_its_place(waiting: Waiting) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    assert await first._execute(BEATS)
    for _ in range(4):
        assert not await second.take()
        await let_go(first)
        await waiting.clock.advance(GONE_S)
        assert await first._execute(BEATS)
        assert not await second.take()
    await waiting.clock.advance(GONE_S)
    assert not await second.take(), "it is there, and may be busy"


async def test_after_the_database_was_away_an_owner_has_its_time_to_come_back(
    waiting: Waiting, postgres: Postgres
) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    assert await first._execute(BEATS)
    assert not await second.take()
    postgres.kill()
    try:
        with pytest.raises(StoreAwayError):
            await second.take()
    finally:
        postgres.start()
    assert not await second.take()
    await waiting.clock.advance(STALE_S - 0.1)
    assert not await second.take(), "it has no connection yet"
    assert await first._execute(BEATS)
    assert not await second.take()
    await let_go(first)
    await waiting.clock.advance(GONE_S)
    assert await second.take(), "it had come back"


async def test_another_version_whose_connections_have_no_name_is_waited_for_as_ever(waiting: Waiting) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    assert await first._rows._line.changed(BEATS.format(table="cottage_owner"))
    await stands_still(waiting, first, second)


async def test_what_was_under_way_ends_before_the_next_one_begins(waiting: Waiting) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    old = await SqlStore.open(waiting.url, first)

    async def half() -> None:
        async with old.transaction() as tx:
            await tx.insert(EventRecord("job", 1.0, "note", "half"))  # type: ignore[arg-type]
            await stands_still(waiting, first, second)

    with pytest.raises(StoreAwayError):
        await half()
    new = await SqlStore.open(waiting.url, second)
    assert await noted(new) == []
    await new.close()
    await old.close()


async def test_what_begins_while_another_one_takes_over_sees_the_new_owner(waiting: Waiting) -> None:
    """It waits for the lock, and must not look at what was there before it had it."""
    first = await waiting.one()
    assert await first.take()
    old = await SqlStore.open(waiting.url, first)
    await note(old, "before")  # Its question is prepared now, as it is in a coordinator at work.
    async with first._engine.connect() as taker:
        await taker.begin()
        await taker.execute(text("LOCK TABLE cottage_owner IN ACCESS EXCLUSIVE MODE"))
        late = asyncio.create_task(note(old, "late"))
        await asyncio.sleep(0.5)
        assert not late.done(), "it waits"
        await taker.execute(text("UPDATE cottage_owner SET fence = fence + 1"))
        await taker.commit()
    with pytest.raises(StoreAwayError):
        await late
    await old.close()


@pytest.mark.long
async def test_a_database_that_was_away_costs_nobody_its_place(waiting: Waiting, postgres: Postgres) -> None:
    first, second = await waiting.one(), await waiting.one()
    assert await first.take()
    assert not await second.take()
    postgres.kill()
    try:
        with pytest.raises(StoreAwayError):
            await second.take()
        await waiting.clock.advance(10 * STALE_S)
    finally:
        postgres.start()
    assert not await second.take(), "the first one could not reach it either"
    async with first.kept() as lost:
        await asyncio.sleep(0.2)
        await waiting.clock.advance(STALE_S)
        assert not lost.is_set()


async def test_of_several_that_wait_one_takes_over(waiting: Waiting) -> None:
    first, *others = [await waiting.one() for _ in range(6)]
    assert await first.take()
    await asyncio.gather(*(one.take() for one in others))
    await waiting.clock.advance(STALE_S)
    taken = await asyncio.gather(*(one.take() for one in others))
    assert sorted(taken) == [False] * 4 + [True]


@pytest.mark.parametrize(
    ("address", "files", "said"),
    [
        ("another", FILES, "copy coordinator.key from its data folder"),
        ("key", "another", "share its data folder, or name the same bucket with --store"),
    ],
)
async def test_who_could_not_take_over_says_so_while_the_other_one_works(
    waiting: Waiting, address: str, files: str, said: str
) -> None:
    first, second = await waiting.one(), await waiting.one(address, files)
    assert await first.take()
    assert not await second.take()
    async with first.kept():
        await asyncio.sleep(0.2)
        with pytest.raises(StoreError, match=said):
            await second.take()
    assert await second.take(), "nobody is there whom it would disturb"


async def test_who_has_another_ledger_says_so_while_the_other_one_works(waiting: Waiting) -> None:
    first, same, other = [
        await waiting.one(ledger=ledger) for ledger in ("", "chain/market/token", "chain/market/coin")
    ]

    async def seen_by(*looking: Ownership) -> None:
        for _ in range(3):
            await waiting.clock.advance(BEAT_S)
            await asyncio.sleep(0.1)  # For the database, whose time is real.
            for one in looking:
                assert not await one.take()

    assert await first.take()
    async with first.kept():
        await seen_by(same, other)  # It has not connected to its ledger yet.
        first.ledger = same.ledger
        await seen_by(same)
        said = (
            r"money on the ledger chain/market/token, and this one on chain/market/coin .*same chain with --ledger-url"
        )
        with pytest.raises(StoreError, match=said):
            await seen_by(other)
        other.ledger = ""
        await seen_by(other)  # It does not know its own.
    assert await other.take(), "nobody is there whom it would disturb"


async def test_what_a_version_tells_that_knows_no_ledgers_is_not_compared(waiting: Waiting) -> None:
    """It leaves in the row what one of before has said there."""
    first, old, late = [await waiting.one(ledger=ledger) for ledger in ("chain/market/token", "", "chain/market/coin")]
    assert await first.take()
    async with first.kept():
        await asyncio.sleep(0.2)
    assert await old.take()
    assert not await late.take()
    for _ in range(2):
        assert await old._execute(BEATS)
        assert not await late.take()
    async with old._engine.connect() as connection:
        row = (await connection.execute(text("SELECT ledger FROM cottage_owner"))).scalar()
    assert row == f"{first.fence} chain/market/token"


async def move(node: ScriptedNode, house: House) -> asyncio.Task[None]:
    node.house = house
    return asyncio.create_task(node.run())


@pytest.mark.slow
async def test_one_that_does_not_notice_harms_nothing_however_long_it_goes_on(config: Config, waiting: Waiting) -> None:
    """Two coordinators run at once, with the same nodes and the same ledger; the first one is never told to stop."""
    config = replace(config, database_url=waiting.url)
    first, second, chain = await waiting.one(), await waiting.one(), FakeChain()
    assert await first.take()
    async with opened(config, chain, ownership=first) as old:
        async with nodes(old, 5) as made:
            job = await start(old, rounds=5)
            await reached(old, job, 2)
            await stands_still(waiting, first, second)
            before = len(chain.signed)
            async with opened(config, chain, ownership=second) as new:
                moved = [await move(node, new) for node in made]
                ended_job = await ended(new, job)
                for task in moved:
                    task.cancel()
                await asyncio.gather(*moved, return_exceptions=True)
                async with new.parts.context.store.transaction() as tx:
                    rounds = await tx.find(RoundRecord, col(RoundRecord.job).equals(job))
            assert ended_job.state == "settled", ended_job.reason
            assert not any(task.done() for task in old.loops), "the first one was at work all the while"
    complete = Counter(one.number for one in rounds if one.state == "complete")
    assert set(complete.values()) == {1}
    assert len(chain.signed) > before
    executed = Counter(chain.executed.values())
    assert set(executed.values()) == {1}, "nothing happened twice on the ledger"
    account = chain.escrows[job]
    assert sum(account.paid.values()) + account.refunded == account.deposited


async def answers(url: str, path: str) -> tuple[int, str]:
    try:
        async with aiohttp.ClientSession() as http, http.get(f"{url}{path}") as answer:
            return answer.status, await answer.text()
    except aiohttp.ClientConnectionError:
        return 0, ""


async def test_processes_take_over_when_one_is_killed_stopped_or_ended(
    tmp_path: Path, postgres: Postgres, ledger_url: str
) -> None:
    database, ports = postgres.url(), (free_port(), free_port())
    urls = [f"http://127.0.0.1:{port}" for port in ports]

    async def coordinator(number: int) -> asyncio.subprocess.Process:
        words = ["--data", str(tmp_path / "data"), "--ledger-url", ledger_url, "--open", "--no-own-auditor"]
        return await start_process(*words, "--port", str(ports[number]), "--database-url", database)

    async def serves(number: int) -> None:
        async def ready() -> bool:
            return (await answers(urls[number], "/readyz"))[0] == 200

        await until(ready)

    first = await coordinator(0)
    second = None
    try:
        await serves(0)
        second = await coordinator(1)
        await line_with(second, "this one stands by")
        await until(lambda: _does(urls[1], "standby"))
        await serves(1)
        assert (await answers(urls[1], "/api/v1/network"))[0] == 200, "it answers in the first one's place"
        first.kill()
        await until(lambda: _does(urls[1], "ok"))
        await first.wait()
        first = await coordinator(0)
        await line_with(first, "this one stands by")
        second.send_signal(signal.SIGSTOP)
        await until(lambda: _does(urls[0], "ok"))
        second.send_signal(signal.SIGCONT)
        await line_with(second, "another coordinator has taken the database over")
        await until(lambda: _does(urls[1], "standby"))
        first.send_signal(signal.SIGTERM)
        await until(lambda: _does(urls[1], "ok"))
        await serves(1)
        _, complaint = await asyncio.wait_for(first.communicate(), 20)
        assert first.returncode == 0, complaint.decode()
        assert json.loads((await answers(urls[1], "/api/v1/network"))[1])["coordinator"]
    finally:
        for process in (first, second):
            if process is not None and process.returncode is None:
                process.kill()
                await process.wait()


async def test_a_process_with_another_ledger_or_none_that_answers_disturbs_nobody(
    tmp_path: Path, postgres: Postgres, ledger_url: str
) -> None:
    words = ["--data", str(tmp_path / "data"), "--open", "--no-own-auditor", "--database-url", postgres.url()]
    made, port = [], free_port()
    try:
        with served(tmp_path) as other:
            made.append(first := await start_process(*words, "--ledger-url", ledger_url, "--port", str(port)))
            await line_with(first, "serving on")
            made.append(stranger := await start_process(*words, "--ledger-url", other.start(), "--port", "0"))
            _, said = await asyncio.wait_for(stranger.communicate(), HANGS_S)
        assert stranger.returncode == EXIT_DATA, said.decode()
        assert b"name an endpoint of the same chain with --ledger-url" in b" ".join(said.split())
        made.append(late := await start_process(*words, "--ledger-url", "http://127.0.0.1:9", "--port", "0"))
        await line_with(late, "cannot be used now: http://127.0.0.1:9")
        await line_with(late, "this one stands by")
        assert await _does(f"http://127.0.0.1:{port}", "ok")
        first.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(late.communicate(), HANGS_S)
        assert late.returncode == EXIT_LEDGER, said.decode()
    finally:
        for process in made:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _does(url: str, what: str) -> bool:
    """Whether a process says that it works ("ok"), or stands by ("standby")."""
    return (await answers(url, "/healthz"))[1] == json.dumps({"status": what}, separators=(",", ":"))


async def test_the_table_of_owners_is_no_business_of_migrations(waiting: Waiting) -> None:
    """A newer version that waits has changed nothing that the older one works with."""
    await waiting.one()
    engine = waiting.made[0]._engine
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
        assert [row[0] for row in found] == ["cottage_owner"]

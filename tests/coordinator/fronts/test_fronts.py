"""Coordinators that stand by answer what they read, and lead the rest to the one at work: real PostgreSQL, real sockets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from common.clock import SystemClock
from coordinator.client.client import Client
from coordinator.config import Config
from coordinator.errors import ElsewhereError, StoreAwayError
from coordinator.front import front_of
from coordinator.store.ownership import Ownership
from coordinator.store.ports import col
from coordinator.store.reading import ReadingStore
from coordinator.store.records import EventRecord
from coordinator.store.sql import SqlStore
from coordinator.store.turns import _ARRIVED
from coordinator.web.fronts import line
from coordinator.web.fronts.answering import LedgerFacts
from coordinator.web.fronts.seal import FRONT, STANDS_BY
from coordinator.web.http import answer
from coordinator.web.signal import PATH
from protocol.codec import decode
from protocol.identity import NodeKey
from protocol.node import Challenge
from protocol.rest.api import NewJob
from tests.coordinator.conftest import FRONTS, FRONTS_SEED, House, ScriptedNode, opened, until
from tests.coordinator.fakes import COORDINATOR, FakeChain, spec
from tests.coordinator.test_faults import ended
from tests.support.databases import Postgres, needs_postgres
from tests.support.wait import HANGS_S

pytestmark = needs_postgres

READS = (
    "/api/v1/jobs",
    "/api/v1/jobs/{job}",
    "/api/v1/jobs/{job}/nodes",
    "/api/v1/jobs/{job}/rounds",
    "/api/v1/jobs/{job}/commits",
    "/api/v1/jobs/{job}/audits",
    "/api/v1/jobs/{job}/receipts",
    "/api/v1/jobs/{job}/metrics",
    "/api/v1/jobs/{job}/events",
    "/api/v1/jobs/{job}/logs",
    "/api/v1/jobs/{job}/checkpoints",
    "/api/v1/ledger",
    "/api/v1/disputes",
    "/api/v1/jobs/{job}/rounds/1/evidence",
    "/api/v1/ledger/audits",
    "/openapi.json",
)
ASKED = ("/api/v1/network", "/api/v1/nodes", "/api/v1/relays")
LED = ("/api/v1/ledger/totals", "/api/v1/jobs/{job}/model.zip", "/api/v1/uploads/" + 32 * "0")
PAGES = (
    "/",
    "/jobs",
    "/api/v1/market",
    "/jobs/{job}",
    "/network",
    "/machines",
    "/ledger",
    "/status",
    "/docs",
    "/static/cottage.css",
)


@dataclass
class Town:
    """Coordinators of one database. ``door``: where the one at work serves, as fronts see it."""

    config: Config
    chain: FakeChain
    ownership: Ownership
    door: str = ""

    @asynccontextmanager
    async def works(self) -> AsyncIterator[House]:
        assert await self.ownership.take()
        async with self.ownership.kept():
            async with opened(self.config, self.chain, rest=True, ownership=self.ownership) as house:
                self.door = base(house)
                yield house
                self.door = ""

    @asynccontextmanager
    async def front(self, **changes: Any) -> AsyncIterator[str]:
        config = replace(self.config, open=True, **changes)
        async with front_of(config, SystemClock(), [lambda: self.door], NodeKey(FRONTS_SEED)) as app:
            server = TestServer(app)
            await server.start_server()
            url = str(server.make_url("/")).rstrip("/")
            if self.door:
                await until(lambda: serves(url))
            try:
                yield url
            finally:
                await server.close()


@pytest.fixture
async def town(config: Config, postgres: Postgres) -> AsyncIterator[Town]:
    config = replace(config, database_url=postgres.migrated_url())
    ownership = await Ownership.open(config.database, SystemClock(), "key", "files")
    yield Town(config, FakeChain(), ownership)
    await ownership.close()


def base(house: House) -> str:
    return house.url.removesuffix(PATH)


async def get(url: str, headers: dict[str, str] | None = None) -> tuple[int, bytes, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as http,
        http.get(url, headers=headers, allow_redirects=False) as answer,
    ):
        return answer.status, await answer.read(), dict(answer.headers)


async def serves(url: str) -> bool:
    return (await get(f"{url}/readyz"))[0] == 200


@asynccontextmanager
async def homes(house: House, url: str, count: int) -> AsyncIterator[list[ScriptedNode]]:
    """Nodes that have connected at a front."""
    made = [ScriptedNode(house, number + 1) for number in range(count)]
    for node in made:
        node.house = replace(house, url=url + PATH)
    tasks = [asyncio.create_task(node.run()) for node in made]
    try:
        await until(lambda: all(node.welcomes for node in made))
        yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def submitted(url: str, rounds: int = 3) -> str:
    async with Client(url) as client:
        return (await client.create_job(msgspec.to_builtins(NewJob(spec(2, 2, tokens=1024 * rounds)).spec))).id


async def waiting(house: House, url: str) -> str:
    """A job that waits for its escrow."""
    async with homes(house, url, 4):
        return await submitted(url)


async def test_a_job_begins_ends_and_is_read_at_a_front_alone(town: Town) -> None:
    async with town.works() as house, town.front() as url:
        async with homes(house, url, 5):
            job = await submitted(url)
            async with Client(url) as client:
                assert (await client.fund(job)).state != "created"
            assert (await ended(house, job)).state == "settled"
            for path in (*READS, *ASKED, *LED):
                here, there = await get(url + path.format(job=job)), await get(base(house) + path.format(job=job))
                assert here[:2] == there[:2], path
                assert here[0] == (200 if path not in LED[1:] else 404), (path, here[1])
                assert here[2].get("ETag") == there[2].get("ETag"), path
            for path in PAGES:
                status, page, headers = await get(url + path.format(job=job))
                assert status == 200, (path, page)
                assert "Content-Security-Policy" in headers
        assert house.peers.violations == []
        assert (
            sum(town.chain.escrows[job].paid.values()) + town.chain.escrows[job].refunded
            == town.chain.escrows[job].deposited
        )


async def test_what_is_stored_costs_the_one_at_work_nothing(town: Town) -> None:
    async with town.works() as house, town.front() as url:
        job = await waiting(house, url)
        turns = house.parts.context.store
        before = count_transactions(turns)
        for path in (path for path in READS if "evidence" not in path):
            status, said, _ = await get(url + path.format(job=job))
            assert status == 200, said
        assert before() == 0, "no transaction there"


def count_transactions(store: Any) -> Any:
    """How many transactions of requests a store begins from now on."""
    turns = store._inner._turns
    made, original = [0], turns.take

    async def take() -> None:
        made[0] += _ARRIVED.get() is not None
        await original()

    turns.take = take
    return lambda: made[0]


async def test_a_submitter_is_told_the_same_of_the_escrow(town: Town) -> None:
    key = NodeKey(FRONTS_SEED).address
    town.chain.program = town.chain.mint = key
    async with town.works() as house, town.front() as url:
        path = f"/api/v1/jobs/{await waiting(house, url)}/funding"
        here, there = [json.loads((await get(one + path))[1]) for one in (url, base(house))]
        assert here.pop("coordinator") == key, "whoever leads has the key of the one at work"
        assert there.pop("coordinator") == COORDINATOR
        assert len(here.pop("escrow")) >= 32
        there.pop("escrow")  # Of a ledger in memory.
        assert here == there


async def test_the_one_at_work_believes_fronts_alone_who_somebody_is(town: Town) -> None:
    """And a front believes nobody, unless it has a proxy."""
    lie = {"X-Forwarded-For": "203.0.113.9", FRONT: "0" * 64}

    async def seen(url: str, house: House, headers: dict[str, str]) -> str:
        node = ScriptedNode(house, 1)
        async with aiohttp.ClientSession() as http, http.ws_connect(url + PATH, headers=headers) as socket:
            challenge = decode(await socket.receive_bytes(), Challenge)
            assert url.endswith(challenge.host.rpartition(":")[2]), "what it signs is the name that it asked for"
            node._socket = socket
            await node.send(node.hello(challenge))
            await until(lambda: house.parts.nodes.session(node.key.address) is not None)
            session = house.parts.nodes.session(node.key.address)
            assert session is not None
            found = session.address
        await until(lambda: house.parts.nodes.session(node.key.address) is None)
        return found

    async with town.works() as house, town.front() as url, town.front(behind_proxy=True) as proxied:
        assert await seen(base(house), house, lie) == "127.0.0.1"
        assert await seen(url, house, lie) == "127.0.0.1"
        assert await seen(proxied, house, lie) == "203.0.113.9"
        assert await seen(base(house), house, {**lie, **FRONTS.headers}) == "203.0.113.9"
        for path in ("/fronts/stream", "/fronts/ask"):
            assert (await get(base(house) + path, lie))[0] in (404, 405)


async def test_a_stream_at_a_front_hears_at_once(town: Town) -> None:
    async with town.works() as house, town.front() as url:
        job = await waiting(house, url)
        async with aiohttp.ClientSession() as http, http.get(f"{url}/api/v1/jobs/{job}/stream") as stream:
            async with asyncio.timeout(HANGS_S):
                await stream.content.readuntil(b"\n\n")
                await asyncio.sleep(1.0)
                loop = asyncio.get_running_loop()
                began = loop.time()
                await house.parts.jobs.cancel(job)
                while b"event: end" not in await stream.content.readuntil(b"\n\n"):
                    pass
                assert loop.time() - began < 3.0, "sooner than it looks by itself"


async def test_reading_goes_on_while_nobody_works_and_what_is_led_waits(town: Town) -> None:
    async with town.front() as url:
        async with town.works() as first:
            await until(lambda: serves(url))
            job = await waiting(first, url)
        status, said, _ = await get(f"{url}/api/v1/jobs/{job}")
        assert status == 200, said
        assert (await get(f"{url}/jobs"))[0] in (200, 503)
        async with aiohttp.ClientSession() as http:
            asked = asyncio.create_task(http.post(f"{url}/api/v1/jobs/{job}/cancel"))
            node = ScriptedNode(first, 7)
            node.house = replace(first, url=url + PATH)
            comes = asyncio.create_task(node.run())
            await asyncio.sleep(0.5)
            assert not asked.done()
            async with town.works():
                answer = await asked
                assert answer.status == 200, await answer.text()
                assert (await answer.json())["state"] == "cancelled"
                await until(lambda: bool(node.welcomes))
                comes.cancel()
                await asyncio.gather(comes, return_exceptions=True)


@asynccontextmanager
async def dying(how: str, then: str = "") -> AsyncIterator[tuple[str, list[str]]]:
    """Something at work that answers fronts, and whose connection ends in the middle of a request, or that stands by."""
    seen: list[str] = []

    async def news(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"\n")
        await asyncio.sleep(60)
        return response

    async def ask(_request: web.Request) -> web.Response:
        return answer(LedgerFacts("http://ledger.test", "program", "mint", COORDINATOR, True))

    async def anything(request: web.Request) -> web.StreamResponse:
        seen.append(request.method)
        if how == "stands by":
            return web.Response(status=503, headers={STANDS_BY: "1"})
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    app = web.Application()
    app.router.add_get("/fronts/stream", news)
    app.router.add_post("/fronts/ask", ask)
    app.router.add_route("*", "/{rest:.*}", anything)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("/")).rstrip("/"), seen
    await server.close()


@pytest.mark.parametrize(("key", "status"), [("", 503), ("once", 200)])
async def test_a_change_is_led_twice_only_if_it_is_done_once(town: Town, key: str, status: int) -> None:
    async with town.works() as house, dying("aborts") as (there, seen), town.front() as url:
        job = await waiting(house, base(house))
        works, town.door = town.door, there
        await until(lambda: town_leads(url, seen))
        seen.clear()
        async with aiohttp.ClientSession() as http:
            headers = {"Idempotency-Key": key} if key else {}
            asked = asyncio.create_task(http.post(f"{url}/api/v1/jobs/{job}/cancel", headers=headers))
            await until(lambda: "POST" in seen)
            town.door = works
            answer = await asked
            assert answer.status == status
            if not key:
                assert "nobody knows whether it was done" in await answer.text()


async def town_leads(url: str, seen: list[str]) -> bool:
    async with aiohttp.ClientSession() as http, http.post(f"{url}/api/v1/jobs/none/cancel"):
        return bool(seen)


async def test_who_only_stands_by_is_not_believed_to_work(town: Town) -> None:
    async with town.works() as house, dying("stands by") as (there, seen), town.front() as url:
        job = await waiting(house, base(house))
        works, town.door = town.door, there
        async with aiohttp.ClientSession() as http:
            await asyncio.sleep(0.5)
            asked = asyncio.create_task(http.post(f"{url}/api/v1/jobs/{job}/cancel"))
            await until(lambda: "POST" in seen)
            town.door = works
            assert (await asked).status == 200, "nothing had been done"
    async with town.front() as one:
        status, _, headers = await get(f"{one}/api/v1/network", dict(FRONTS.headers))
        assert (status, headers[STANDS_BY]) == (503, "1"), "fronts lead nothing in a circle"


async def test_a_front_of_another_version_reads_nothing(town: Town) -> None:
    async with town.works() as house:
        engine = house.parts.context.store._inner._engine  # type: ignore[attr-defined]
        async with engine.begin() as connection:
            await connection.execute(text("UPDATE alembic_version SET version_num = 'r9999'"))
        async with town.front() as url:
            before = count_transactions(house.parts.context.store)
            assert (await get(f"{url}/api/v1/jobs"))[0] == 200
            assert before() > 0, "the one at work has read it"


async def test_a_front_without_anybody_at_work_says_so(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "WAIT_S", 0.1)  # So long it waits after its start.
    async with town.front() as url:
        await asyncio.sleep(0.3)
        status, said, headers = await get(f"{url}/api/v1/network")
        assert (status, headers["Retry-After"]) == (503, "2")
        assert b"at work" in said
        assert (await get(f"{url}/readyz"))[0] == 503
        assert (await get(f"{url}/healthz"))[:2] == (200, b'{"status":"standby"}')


async def test_what_only_reads_changes_nothing_whatever_it_is_told(town: Town) -> None:
    writes, reads = await SqlStore.open(town.config.database), ReadingStore(town.config.database)
    event = EventRecord("job", 1.0, "note", "said")  # type: ignore[arg-type]
    try:
        assert await reads.fits()
        async with writes.transaction() as tx:
            await tx.insert(event)
        async with reads.transaction() as one:
            assert len(await one.find(EventRecord, col(EventRecord.job).equals("job"))) == 1
            async with writes.transaction() as tx:
                await tx.insert(event)
            assert len(await one.find(EventRecord, col(EventRecord.job).equals("job"))) == 1, "one moment"
        for change in ("insert", "update", "delete"):
            with pytest.raises(ElsewhereError):
                async with reads.transaction() as tx:
                    await getattr(tx, change)(event)
        with pytest.raises((DBAPIError, StoreAwayError)):
            async with reads.transaction() as tx:
                await tx._connection.execute(text("DELETE FROM events"))  # type: ignore[attr-defined]
        async with writes.transaction() as tx:
            assert len(await tx.find(EventRecord, col(EventRecord.job).equals("job"))) == 2
    finally:
        await reads.close()
        await writes.close()


async def test_many_read_while_one_writes(town: Town) -> None:
    """A reader waits for no writer: the one at work may be in the middle of a transaction for as long as it likes."""
    async with town.works() as house, town.front() as url:
        job = await waiting(house, url)
        async with house.parts.context.store.transaction() as tx:
            await tx.find(EventRecord, limit=1)
            async with asyncio.timeout(HANGS_S):
                found = await asyncio.gather(*(get(f"{url}/api/v1/jobs/{job}") for _ in range(30)))
        assert {status for status, _, _ in found} == {200}

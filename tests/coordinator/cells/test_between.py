"""What cells ask each other: real HTTP between them, and nobody else is answered."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from common.clock import SystemClock
from coordinator.config import Config
from coordinator.domain.cells import Cell
from coordinator.services.network import nodes as rules
from coordinator.services.network.cell_nodes import told
from coordinator.web import http as answers
from coordinator.web.fronts import between
from coordinator.web.fronts.between import BETWEEN, BetweenAnswers, BetweenCells, BetweenQuestion, BetweenSeal
from coordinator.web.fronts.seal import FrontSeal
from protocol.codec import decode_json, encode_json
from protocol.identity import NodeKey
from protocol.network import RelayEnvelope
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.conftest import until
from tests.coordinator.fakes import spec
from tests.coordinator.network.test_relays import KEY, OTHER, SECRET, envelope, report

SEED = bytes(range(32))
ALL = 3


@dataclass
class Cells:
    """Coordinators of cells, each at a door of its own. ``doors``: as the database has them."""

    benches: list[Bench]
    asking: list[BetweenCells]
    doors: dict[int, str]
    http: aiohttp.ClientSession

    def of(self, number: int) -> Cell:
        return Cell(number, len(self.benches))


class Away(BetweenCells):
    """One that counts how often it asks."""

    asked = 0

    async def _ask(self, number: int, url: str, question: BetweenQuestion) -> bytes | None:
        self.asked += question.what == "nodes"
        return await super()._ask(number, url, question)


@asynccontextmanager
async def cells(config: Config = CONFIG, count: int = ALL) -> AsyncIterator[Cells]:
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Cells([Bench(config, clock=SystemClock()) for _ in range(count)], [], {}, http)
        for number, bench in enumerate(made.benches):
            app = web.Application()
            answers.protect(app, lambda *_: None)
            parts = bench.parts
            asked = (parts.nodes, parts.leases, parts.relays, parts.federations, parts.settlement)
            BetweenAnswers(BetweenSeal(SEED), made.of(number), *asked).setup(app)
            server = TestServer(app)
            await server.start_server()
            stack.push_async_callback(server.close)
            made.doors[number] = str(server.make_url("/")).rstrip("/")
            made.asking.append(Away(made.of(number), lambda: made.doors, BetweenSeal(SEED), http, SystemClock()))
        yield made


@asynccontextmanager
async def running(*asking: BetweenCells) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(one.run()) for one in asking]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_cell_hears_of_the_nodes_of_others_and_of_its_own_nothing() -> None:
    async with cells() as town:
        await town.benches[0].enter(1)
        await town.benches[1].enter(9, containers=True)
        job = await town.benches[2].fund(await town.benches[2].job(spec(2, 2), nodes=6))
        await town.benches[2].parts.upkeep.tick()
        await town.asking[0].look()
        known, free = town.asking[0].known(), town.asking[0].free()
        busy = {lease.node for lease in town.benches[2].parts.leases.of_job(job.id)}
        assert len(known) == 1 + 6
        assert {node for node, one in known.items() if one.busy} == busy
        standing_by = {lease.node for lease in town.benches[2].parts.leases.standing_by()}
        assert free == known.keys() - busy | standing_by
        assert {node for node, one in known.items() if one.containers} == {node_of(9)}
        here = town.benches[1].parts.nodes
        assert known[node_of(9)].candidate == here.everybody()[0], "as it is known there"


async def test_what_cannot_come_is_known_and_not_free() -> None:
    async with cells(count=2) as town:
        for number in range(1, 5):
            await town.benches[1].enter(number)
        nodes = town.benches[1].parts.nodes
        nodes.drain(node_of(1))
        paused = nodes.session(node_of(2))
        assert paused is not None
        paused.accepting = False
        nodes.claims.claim("ffff", {node_of(3)})  # Of a job of cell 2: its name is odd.
        await town.asking[0].look()
        assert town.asking[0].free() == {node_of(4)}
        assert {node: one.lends for node, one in town.asking[0].known().items()} == {
            node_of(1): False,
            node_of(2): True,
            node_of(3): True,
            node_of(4): True,
        }
        even = f"{0xFFFFFFE:x}" + 25 * "0"
        assert [one.free for one in told(nodes, town.benches[1].parts.leases, Cell(1, 2).has)][2]
        nodes.claims.claim("ffff", ())
        nodes.claims.hear({even: [node_of(4)]})
        town.asking[0]._looked = float("-inf")
        await town.asking[0].look()
        assert town.asking[0].free() == {node_of(3), node_of(4)}, (
            "a claim of its own job does not keep it from its cell"
        )


async def test_answers_are_shared_kept_for_seconds_and_asked_for_while_somebody_wants_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cells(count=2) as town:
        asking: Any = town.asking[0]
        await asyncio.gather(*(asking.look() for _ in range(20)))
        await asking.look()
        assert asking.asked == 1
        monkeypatch.setattr(between, "FRESH_S", 0.05)
        monkeypatch.setattr(between, "TURN_S", 0.02)
        async with running(asking):
            asking.free()
            await until(lambda: asking.asked >= 4)
            monkeypatch.setattr(between, "WANTED_S", 0.0)
            await asyncio.sleep(0.2)
            still = asking.asked
            await asyncio.sleep(0.3)
            assert asking.asked == still, "nobody wants to know"
            monkeypatch.setattr(between, "SLOW_S", 0.05)
            await until(lambda: asking.asked > still)


async def test_a_cell_that_is_away_is_left_out_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "ANSWER_S", 0.5)
    async with cells() as town:
        await town.benches[1].enter(1)
        await town.benches[2].enter(2)

        async def stalls(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await asyncio.sleep(20)
            finally:
                writer.close()

        silent = await asyncio.start_server(stalls, "127.0.0.1", 0)
        town.doors[2] = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        began = time.monotonic()
        await town.asking[0].look()
        assert time.monotonic() - began < 5.0
        assert set(town.asking[0].known()) == {node_of(1)}
        silent.close()
        town.doors[2] = "http://127.0.0.1:9"
        town.asking[0]._looked = float("-inf")
        await town.asking[0].look()
        assert set(town.asking[0].known()) == {node_of(1)}
        del town.doors[1], town.doors[2]
        town.asking[0]._looked = float("-inf")
        await town.asking[0].look()
        assert town.asking[0].known() == {}


async def test_what_is_old_says_nothing_of_who_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cells(count=2) as town:
        await town.benches[1].enter(1)
        asking = town.asking[0]
        await asking.look()
        assert asking.free()
        asking._looked -= between.FRESH_S + between.SEEN_S
        assert asking.free() == frozenset()
        assert asking.known(), "it counts in quotes for a while"
        asking._looked -= between.OLD_S
        assert asking.known() == {}


async def test_who_comes_into_a_cell_leaves_the_others_also_where_one_was_away_for_a_moment() -> None:
    async with cells(count=2) as town:
        await town.benches[0].enter(1)
        await town.benches[0].enter(2)
        await asyncio.sleep(0.05)
        door, town.doors[0] = town.doors[0], "http://127.0.0.1:9"
        async with running(town.asking[1]):
            town.asking[1].came([node_of(1)])
            await until(lambda: 0 in town.asking[1]._silent)
            town.doors[0] = door
            await until(lambda: node_of(1) in town.benches[0].closed)
        assert town.benches[0].closed == {node_of(1): rules.TAKEN_OVER}


async def test_who_has_come_here_since_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cells(count=2) as town:
        asking = town.asking[1]
        asking.came([node_of(1)])
        await asyncio.sleep(0.2)
        await town.benches[0].enter(1)
        async with running(asking):
            await until(lambda: not asking._came)
        assert town.benches[0].closed == {}


async def test_a_relay_is_known_to_all_cells_though_it_speaks_to_one() -> None:
    config = replace(CONFIG, relays=frozenset({KEY.address, OTHER.address}))
    async with cells(config) as town:
        first = town.benches[0].parts.relays
        first.on_announced(town.asking[0].relay)
        async with running(*town.asking):
            for sent in (report(region="eu", bytes_relayed=100), report(region="us", bytes_relayed=300)):
                first.announce(decode_json(envelope(sent), RelayEnvelope))
                await until(lambda sent=sent: all(regions(bench) == [sent.region] for bench in town.benches))
            first.announce(decode_json(envelope(report(OTHER, urls=(far(),)), OTHER), RelayEnvelope))
            await until(lambda: all(len(bench.parts.relays.views()) == 2 for bench in town.benches))
        figures = [bench.parts.context.metrics for bench in town.benches]
        assert [one.value("relay_reports_total") for one in figures] == [3, 0, 0], "counted where it was told"
        assert [one.value("relay_bytes_total") for one in figures] == [300, 0, 0]
        assert SECRET not in str(town.benches[1].parts.relays.views())


async def test_a_report_that_does_not_hold_is_passed_on_to_nobody_and_taken_from_nobody() -> None:
    config = replace(CONFIG, relays=frozenset({KEY.address}))
    async with cells(config, count=2) as town:
        forged = RelayEnvelope(encode_json(report()), OTHER.sign("cottage-relay", encode_json(report())))
        stale = decode_json(envelope(report(sent=time.time() - 600.0)), RelayEnvelope)
        asking = town.asking[0]
        for one in (forged, stale, RelayEnvelope(b"{}", bytes(64))):
            question = BetweenQuestion("relay", 0, relay=one)
            assert await asking._ask(1, town.doors[1], question) == b"[]", "no error: it may be a repetition"
        assert town.benches[1].parts.relays.views() == []
        first = town.benches[0].parts.relays
        first.on_announced(asking.relay)
        with pytest.raises(Exception, match="is not by"):
            first.announce(forged)
        assert not asking._relays


@pytest.mark.parametrize("word", ["none", "a front's", "another network's"])
async def test_nobody_else_is_answered(word: str) -> None:
    headers = {
        "none": {},
        "a front's": FrontSeal(SEED).headers,
        "another network's": BetweenSeal(b"x" * 32).headers,
    }[word]
    async with cells(count=1) as town:
        await town.benches[0].enter(1)
        body = encode_json(BetweenQuestion("came", 1, came={node_of(1): 0.0}))
        async with town.http.post(town.doors[0] + BETWEEN, data=body, headers=dict(headers)) as said:
            assert said.status == 404
            assert "nothing is here" in await said.text()
        assert town.benches[0].closed == {}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"what": "candidates", "cell": 0}', b'{"what": "nodes"}', b"\xff"])
async def test_a_question_that_is_none_is_refused_in_words(body: bytes) -> None:
    async with cells(count=1) as town:
        asking = town.http.post(town.doors[0] + BETWEEN, data=body, headers=dict(BetweenSeal(SEED).headers))
        async with asking as said:
            assert said.status == 422, await said.text()


def node_of(number: int) -> str:
    return NodeKey(number.to_bytes(32, "big")).address


def far() -> str:
    return "turn:other.invalid:3478?transport=udp"


def regions(bench: Bench) -> list[str]:
    return [view.region for view in bench.parts.relays.views()]

"""Nodes that nobody knows: what an address and all of them together may open, and that others are still let in."""

import asyncio
import itertools
import socket
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from coordinator.errors import StoreAwayError, UnavailableError
from coordinator.services.network import admission as crowds
from coordinator.services.network.admission import Crowd, CrowdedError
from coordinator.services.network.nodes import TAKEN_OVER, NodeRefusedError, NodeSession
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.records import NodeRecord
from coordinator.web.connections import Connections, listen, put_off
from protocol.identity import NodeKey
from protocol.network import NetworkReport, PeerMeasure
from protocol.node import Accounts, Claim
from tests.coordinator.bench import Bench
from tests.support.clock import VirtualClock

HOME, FARM = "192.0.2.1", "198.51.100.7"


class Gate(Bench):
    """A bench whose nodes come from somewhere."""

    async def come(self, number: int, address: str, known: bool = False) -> NodeSession:
        key = NodeKey(number.to_bytes(32, "big")).address
        if known:
            async with self.store.transaction() as tx:
                for record in await tx.find(NodeRecord, col(NodeRecord.address).equals(key)):
                    await tx.update(msgspec.structs.replace(record, rounds=3))
        return await self.enter(number, address=address)

    def here(self) -> set[str]:
        return {session.node for session in self.parts.nodes.sessions()}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "MAX_GREETING": 6,
        "MAX_GREETING_EACH": 3,
        "MAX_GREETING_SLOW": 2,
        "WAIT_S": 0.3,
        "MAX_HERE_EACH": 8,
        "MAX_STRANGERS": 10,
        "MAX_STRANGERS_EACH": 5,
        "NEW_KEYS": 7.0,
    }.items():
        monkeypatch.setattr(crowds, name, value)


async def test_an_address_has_so_many_strangers_until_their_work_is_verified() -> None:
    bench = Gate()
    for number in range(1, 6):
        await bench.come(number, HOME)
    with pytest.raises(NodeRefusedError, match="5 nodes of your address") as refused:
        await bench.come(6, HOME)
    assert refused.value.retry_seconds
    bench.parts.nodes.stands(bench.parts.nodes.sessions()[0].node, 1)
    await bench.come(7, HOME)
    await bench.come(20, FARM)
    bench.parts.nodes.leave(bench.parts.nodes.sessions()[1])
    bench.clock.t += 3600.0
    await bench.come(8, HOME)


async def test_new_keys_of_an_address_run_out_and_grow_again_and_old_keys_need_none() -> None:
    bench = Gate()
    for number in range(1, 8):
        bench.parts.nodes.leave(await bench.come(number, HOME))
    with pytest.raises(NodeRefusedError, match="many new keys") as refused:
        await bench.come(8, HOME)
    assert refused.value.retry_seconds == crowds.NEW_KEY_S
    async with bench.store.transaction() as tx:
        assert len(await tx.find(NodeRecord)) == 7, "a refused key leaves no row"
    await bench.come(3, HOME)
    await bench.come(9, FARM)
    bench.clock.t += crowds.NEW_KEY_S + 1
    await bench.come(8, HOME)


def taken(crowd: Crowd[str]) -> int:
    """New keys of an address until one is refused."""
    for number in itertools.count():
        try:
            crowd.check(HOME, new=True, known=False)
        except CrowdedError:
            return number
    raise AssertionError


async def test_cells_take_no_more_new_keys_over_time_than_one_would() -> None:
    clock = VirtualClock()
    for cells in (1, 4):
        each: list[Crowd[str]] = [Crowd(clock, cells) for _ in range(cells)]
        assert [taken(crowd) for crowd in each] == [7] * cells, "at once as many each: an office may be led to one"
        later = 0
        for _ in range(24):
            await clock.advance(crowds.NEW_KEY_S)
            later += sum(taken(crowd) for crowd in each)
        assert later == 24


async def test_where_strangers_fill_their_part_the_largest_crowd_makes_place() -> None:
    bench = Gate()
    for number in range(1, 6):
        await bench.come(number, FARM)
    for number in range(6, 11):
        await bench.come(number, f"203.0.113.{number}")
    first = NodeKey((1).to_bytes(32, "big")).address
    assert first in bench.here()
    honest = await bench.come(11, HOME)
    assert honest.node in bench.here()
    assert len(bench.here()) == 10
    assert first not in bench.here(), "who waits longest, of the address with most"
    assert "come back later" in bench.closed[first]


async def test_who_is_known_is_let_in_however_many_strangers_there_are() -> None:
    bench = Gate()
    bench.parts.nodes.leave(await bench.come(50, HOME))
    for number in range(1, 6):
        await bench.come(number, HOME)
    await bench.come(50, HOME, known=True)
    assert len(bench.here()) == 6


async def test_a_node_that_holds_a_lease_makes_place_for_nobody() -> None:
    bench = Gate()
    for number in range(1, 6):
        await bench.come(number, FARM)
    busy = NodeKey((1).to_bytes(32, "big")).address
    bench.parts.leases.of_node = lambda node: ("a lease",) if node == busy else ()  # type: ignore[method-assign, assignment, return-value]
    for number in range(6, 12):
        await bench.come(number, f"203.0.113.{number}")
    assert busy in bench.here()
    assert NodeKey((2).to_bytes(32, "big")).address not in bench.here()


async def test_nodes_of_one_address_have_a_bound_however_well_known() -> None:
    bench = Gate()
    for number in range(1, 9):
        session = await bench.come(number, HOME)
        bench.parts.nodes.stands(session.node, 5)
        bench.clock.t += 3600.0
    with pytest.raises(NodeRefusedError, match="8 nodes of your address are here"):
        await bench.come(9, HOME, known=True)


async def test_this_machines_own_nodes_are_not_counted() -> None:
    bench = Gate()
    for number in range(1, 20):
        await bench.come(number, "127.0.0.1")
    assert len(bench.here()) == 19


async def test_connections_that_say_nothing_are_few_and_others_wait_for_a_place() -> None:
    crowd: Crowd[str] = Crowd(VirtualClock())
    said = [await crowd.greeting(HOME) for _ in range(3)]
    with pytest.raises(UnavailableError, match="3 connections of yours"):
        await crowd.greeting(HOME)
    said += [await crowd.greeting(address) for address in (FARM, FARM, "203.0.113.9")]
    with pytest.raises(UnavailableError, match=r"your turn was not there in 0\.3 s"):
        await crowd.greeting("203.0.113.10")
    first, second = [asyncio.create_task(crowd.greeting(f"203.0.113.{number}")) for number in (11, 12)]
    await asyncio.sleep(0)
    said.pop()()
    await asyncio.sleep(0)
    assert (first.done(), second.done()) == (True, False), "whoever has waited longest"
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    said.append(await first)
    for one in said:
        one()
    assert crowd._greeting.total() == crowd._inside == 0
    (await crowd.greeting(HOME))()


async def test_who_leaves_as_its_turn_comes_gives_it_to_the_next() -> None:
    crowd: Crowd[str] = Crowd(VirtualClock())
    said = [await crowd.greeting(f"203.0.113.{number}") for number in range(6)]
    leaving, next_one = [asyncio.create_task(crowd.greeting(f"203.0.113.{number}")) for number in (11, 12)]
    await asyncio.sleep(0)
    said.pop()()
    leaving.cancel()
    said.append(await next_one)
    assert leaving.cancelled()
    assert crowd._inside == 6


async def test_a_turn_that_comes_as_the_wait_is_over_is_the_next_ones() -> None:
    crowd: Crowd[str] = Crowd(VirtualClock())
    said = [await crowd.greeting(f"203.0.113.{number}") for number in range(6)]
    loop = asyncio.get_running_loop()
    late = asyncio.create_task(crowd.greeting("203.0.113.11"))
    loop.call_later(crowds.WAIT_S * 0.9, said.pop())
    await asyncio.sleep(0)
    over = loop.time() + crowds.WAIT_S + 0.1
    while loop.time() < over:
        pass  # Both timers are due at the same turn of the loop.
    with pytest.raises(UnavailableError, match="your turn was not there"):
        await late
    assert crowd._inside == crowd._greeting.total() == 5
    await crowd.greeting("203.0.113.12")


async def test_those_that_wait_are_few_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MAX_WAITING", 1)
    crowd: Crowd[str] = Crowd(VirtualClock())
    for number in range(6):
        await crowd.greeting(f"203.0.113.{number}")
    waiting = asyncio.create_task(crowd.greeting(HOME))
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="1 connections wait until others have said"):
        await crowd.greeting(FARM)
    waiting.cancel()


async def test_while_those_that_have_said_who_they_are_wait_long_few_others_are_asked() -> None:
    crowd: Crowd[str] = Crowd(VirtualClock())
    crowd.answered(crowds.SLOW_S + 1)
    for address in (HOME, FARM):
        await crowd.greeting(address)
    waiting = asyncio.create_task(crowd.greeting("203.0.113.9"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    crowd.answered(1.0)
    await waiting
    assert crowd._inside == 3


class CountedStore:
    """Counts transactions."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        self.count += 1
        return self._inner.transaction()


async def test_many_that_come_at_once_share_transactions_and_bounds_hold_exactly() -> None:
    bench = Gate()
    counted = CountedStore(bench.store)
    bench.parts.context.__dict__["store"] = counted
    came = await asyncio.gather(*(bench.come(number, HOME) for number in range(1, 9)), return_exceptions=True)
    assert counted.count <= 4, "the first one, and all that came meanwhile: kept, and told what they are owed"
    assert [type(one) for one in came].count(NodeRefusedError) == 3
    assert {str(one) for one in came if isinstance(one, NodeRefusedError)} == {
        "5 nodes of your address are here of whom no work was verified yet: wait until it was"
    }
    async with bench.store.transaction() as tx:
        assert {record.address for record in await tx.find(NodeRecord)} == bench.here()
        assert len(bench.here()) == 5


async def test_a_key_that_comes_twice_at_once_is_here_once() -> None:
    bench = Gate()
    sessions = await asyncio.gather(*(bench.come(7, HOME) for _ in range(2)))
    assert bench.here() == {sessions[0].node}
    assert bench.parts.nodes.sessions() == (sessions[1],), "the newest wins"
    assert bench.closed[sessions[0].node] == TAKEN_OVER
    async with bench.store.transaction() as tx:
        assert len(await tx.find(NodeRecord)) == 1


async def test_what_cannot_be_stored_is_told_to_all_who_wait_and_the_next_one_is_let_in() -> None:
    bench = Gate()
    store = bench.parts.context.store

    class Away(CountedStore):
        def transaction(self) -> AbstractAsyncContextManager[Transaction]:
            raise StoreAwayError("it is away")

    bench.parts.context.__dict__["store"] = Away(store)
    came = await asyncio.gather(*(bench.come(number, HOME) for number in range(1, 4)), return_exceptions=True)
    assert [type(one) for one in came] == [StoreAwayError] * 3
    bench.parts.context.__dict__["store"] = store
    assert (await bench.come(4, HOME)).node in bench.here()


def test_nothing_is_remembered_of_who_is_gone() -> None:
    crowd: Crowd[str] = Crowd(VirtualClock())
    for number in range(1_000):
        address = f"10.{number >> 8}.{number & 255}.1"
        crowd.check(address, new=False, known=False)
        crowd.came(str(number), address, known=False)
        crowd.left(str(number), address)
    assert not crowd._here
    assert not crowd._strangers
    for _ in range(8):
        crowd.check(HOME, new=False, known=True)
        crowd.came("one", HOME, known=True)
    with pytest.raises(CrowdedError):
        crowd.check(HOME, new=False, known=True)


async def test_a_stranger_tells_of_no_links_and_leaves_nothing_when_it_goes() -> None:
    bench = Gate()
    session = await bench.come(1, HOME)
    peers = tuple(
        PeerMeasure(NodeKey((100 + i).to_bytes(32, "big")).address, "host/host", 0.01, 0.0, 0.0, 0.0, 0, 0)
        for i in range(64)
    )
    await bench.parts.conversation.receive(session, NetworkReport(up=1e6, down=1e6, peers=peers))
    links = bench.parts.conversation._links
    assert links.map.line(session.node) is not None
    assert not list(links.map.links(bench.clock.now()))
    bench.parts.conversation.left(session)
    assert links.map.line(session.node) is None
    assert not links._heard


async def test_questions_about_money_are_answered_now_and_then_and_of_own_jobs_only() -> None:
    bench = Gate()
    session = await bench.come(1, HOME)
    searched = 0
    real = bench.store.transaction

    def counted() -> Any:
        nonlocal searched
        searched += 1
        return real()

    bench.store.transaction = counted  # type: ignore[method-assign, union-attr]
    for number in range(500):
        await bench.parts.conversation.receive(session, Accounts((f"{number:032x}",)))
        await bench.parts.conversation.receive(session, Claim())
    assert searched <= 8
    assert not bench.parts.conversation._untold, "nothing waits for jobs that it had no part in"
    assert not bench.parts.settlement._claimed, "and who has earned nothing keeps nobody from claiming"


async def test_connections_of_one_address_and_in_sum_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hello(_request: web.Request) -> web.Response:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    doors = Connections(behind_proxy=False, total=6, each=3)
    assert runner.server is not None
    doors.guard(runner.server)
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    monkeypatch.setattr("coordinator.web.connections._is_here", lambda _address: False)
    try:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        closed = [await reader.read(1) for reader, _ in idle[3:]]
        assert closed == [b"", b""], "the fourth and the fifth are shut at once"
        assert len(doors) == 3
        assert doors.refused == 2
        for _, writer in idle:
            writer.close()
        await asyncio.sleep(0.1)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/") as answer:
            assert await answer.text() == "hello"
        await asyncio.sleep(0.1)
        assert len(doors) <= 1
    finally:
        await runner.cleanup()


async def test_many_who_come_while_the_process_is_busy_find_a_place_and_an_answer() -> None:
    app = web.Application()
    put_off(app, "Not yet: come back in a moment.", 2)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await listen(runner, "127.0.0.1", 0)
        there = runner.addresses[0]
        with ExitStack() as stack:
            for _ in range(300):  # The loop takes none of them meanwhile.
                line = stack.enter_context(socket.create_connection(there, timeout=0.9))
            line.sendall(b"GET /anything HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            said = await asyncio.to_thread(line.makefile("rb").read)
    finally:
        await runner.cleanup()
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 2" in said
    assert said.endswith(b"Not yet: come back in a moment.\n")

"""Whose turn it is at the database: nobody is refused for the number of those who ask at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from coordinator.errors import StoreAwayError, StoreBusyError
from coordinator.metrics import Metrics
from coordinator.store import faults, turns
from coordinator.store.records import NodeRecord
from coordinator.store.sql import SqlStore
from coordinator.store.turns import Turns, of_request
from coordinator.web.monitoring.requests import measured
from tests.support.wait import HANGS_S


async def nothing_else_to_do() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def taking(order: list[str], lock: Turns, name: str, times: int = 1) -> None:
    for _ in range(times):
        await lock.take()
        order.append(name)
        await asyncio.sleep(0)
        lock.give()


async def asked(order: list[str], lock: Turns, name: str, times: int) -> None:
    with of_request():
        await taking(order, lock, name, times)


async def test_the_oldest_request_is_done_with_before_the_next_begins() -> None:
    lock, order = Turns(), list[str]()
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(asked(order, lock, name, 3))
            await asyncio.sleep(0.001)
    assert order == list("aaabbbccc")


async def test_every_second_turn_is_a_node_s_however_many_requests_wait() -> None:
    lock, order = Turns(), list[str]()
    await lock.take()
    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(asked(order, lock, "request", 1))
        await nothing_else_to_do()
        for _ in range(3):
            group.create_task(taking(order, lock, "node"))
        await nothing_else_to_do()
        lock.give()
    assert order[:6] == ["node", "request"] * 3
    assert order.count("request") == 50


async def test_nodes_keep_nobody_from_a_turn_either() -> None:
    lock, order = Turns(), list[str]()
    await lock.take()
    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(taking(order, lock, "node"))
        await nothing_else_to_do()
        group.create_task(asked(order, lock, "request", 1))
        await nothing_else_to_do()
        lock.give()
    assert order.index("request") == 1


async def test_more_requests_than_may_wait_are_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_WAITING", 3)
    lock, order = Turns(), list[str]()
    await lock.take()
    waiting = [asyncio.ensure_future(asked(order, lock, "request", 1)) for _ in range(4)]
    node = asyncio.ensure_future(taking(order, lock, "node"))
    await nothing_else_to_do()
    with pytest.raises(StoreBusyError, match="too many requests now: nothing was changed, try again"):
        await waiting[3]
    lock.give()
    await asyncio.gather(*waiting[:3], node)
    assert sorted(order) == ["node", "request", "request", "request"]


@pytest.mark.parametrize(
    "take", [taking, lambda order, lock, name: asked(order, lock, name, 1)], ids=["node", "request"]
)
async def test_who_is_gone_before_its_turn_holds_nobody_up(take: Callable[..., Awaitable[None]]) -> None:
    lock, order = Turns(), list[str]()
    await lock.take()
    gone, next_one, stays = (asyncio.ensure_future(take(order, lock, name)) for name in ("gone", "next", "stays"))
    await nothing_else_to_do()
    gone.cancel()
    await nothing_else_to_do()
    lock.give()  # It is next_one's turn, which is cancelled before it has heard of it.
    next_one.cancel()
    async with asyncio.timeout(HANGS_S):
        await asyncio.wait([gone, next_one, stays])
    assert (gone.cancelled(), next_one.cancelled(), order) == (True, True, ["stays"])
    await lock.take()


async def test_waiting_for_others_is_not_a_database_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ANSWER_S", 0.05)
    lock, order = Turns(), list[str]()
    await lock.take()
    late = asyncio.ensure_future(taking(order, lock, "late"))
    others = [asyncio.ensure_future(asked(order, lock, f"{number}", 1)) for number in range(2)]
    for _ in range(8):
        await asyncio.sleep(0.02)
        lock._since = asyncio.get_running_loop().time()  # Somebody else had a turn.
    assert not late.done()
    lock.give()
    await asyncio.gather(late, *others)


async def test_a_turn_that_never_ends_holds_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "ANSWER_S", 0.05)
    lock = Turns()
    await lock.take()
    with pytest.raises(StoreAwayError):
        await taking([], lock, "late")


async def test_a_database_that_does_not_answer_is_told_to_all_who_wait_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SLOW_S", 0.0)
    lock = Turns()
    await lock.take()
    waiting = [asyncio.ensure_future(asked([], lock, "request", 1)), asyncio.ensure_future(taking([], lock, "node"))]
    await nothing_else_to_do()
    lock.give(StoreAwayError("the server stands still"))
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert [getattr(one, "cause", one) for one in found] == ["the server stands still"] * 2
    await asyncio.wait_for(lock.take(), 1)


async def test_a_fault_of_one_statement_is_told_to_nobody_else() -> None:
    lock, order = Turns(), list[str]()
    await lock.take()
    other = asyncio.ensure_future(taking(order, lock, "other"))
    await nothing_else_to_do()
    lock.give(StoreAwayError("the disk is full"))
    await other
    assert order == ["other"]


async def test_a_request_waits_among_requests_and_a_node_s_connection_does_not() -> None:
    found: dict[str, bool] = {}

    async def see(request: web.Request) -> web.Response:
        found[request.path] = turns._ARRIVED.get() is not None
        return web.Response()

    app = web.Application(middlewares=[measured(Metrics())])
    for place in ("/page", "/api/v1/node", "/api/v1/jobs/stream"):
        app.router.add_get(place, see)
    async with TestClient(TestServer(app)) as client:
        for place in ("/page", "/api/v1/node", "/api/v1/jobs/stream"):
            await client.get(place)
    assert found == {"/page": True, "/api/v1/node": False, "/api/v1/jobs/stream": False}


async def test_a_thousand_requests_at_once_are_all_answered_and_nodes_go_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one turn may take two seconds, and all of them take longer."""
    monkeypatch.setattr(turns, "faults", SimpleNamespace(ANSWER_S=2.0))
    store = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}")
    loop, longest, over = asyncio.get_running_loop(), 0.0, asyncio.Event()

    async def look() -> None:
        async with store.transaction() as tx:
            await tx.find(NodeRecord)

    async def page() -> None:
        with of_request():
            await look()
            async with store.transaction():
                await asyncio.sleep(0.002)

    async def node() -> None:
        nonlocal longest
        while not over.is_set():
            began = loop.time()
            await look()
            longest = max(longest, loop.time() - began)

    began = loop.time()
    reports = asyncio.ensure_future(node())
    await asyncio.gather(*(page() for _ in range(1_000)))
    whole = loop.time() - began
    over.set()
    await reports
    await store.close()
    assert whole > 2.0
    assert longest < whole / 4, "a node's report does not wait for the crowd"

"""Idempotency keys: a change that is sent again happens once."""

import asyncio
from typing import Any

import aiohttp
import pytest

from coordinator.client import Client
from coordinator.client.line import HttpLine
from coordinator.errors import UnavailableError
from coordinator.services.jobs.idempotency import KEEP_S, IdempotentAnswers
from coordinator.store.memory import MemoryStore
from coordinator.store.records import ReplayRecord
from protocol.rest import api
from tests.coordinator.web.conftest import House
from tests.coordinator.web.test_api import spec
from tests.support.clock import VirtualClock
from tests.support.wait import HANGS_S


async def sent(http: aiohttp.ClientSession, url: str, key: str, body: Any = None) -> tuple[int, dict[str, Any], bool]:
    async with http.post(url, json=body, headers={"Idempotency-Key": key}) as response:
        return response.status, await response.json(), "Idempotency-Replayed" in response.headers


async def test_a_job_that_is_submitted_twice_with_one_key_is_one_job(house: House, http: aiohttp.ClientSession) -> None:
    body = {"spec": spec(await house.dataset())}
    first = await sent(http, f"{house.api}/jobs", "k-1", body)
    assert (first[0], first[2]) == (201, False)
    again = await sent(http, f"{house.api}/jobs", "k-1", body)
    assert (again[0], again[1], again[2]) == (201, first[1], True)
    await house.stop()
    await house.start()
    assert (await sent(http, f"{house.api}/jobs", "k-1", body))[1] == first[1], "a restart forgets nothing"
    assert len(await house.cluster.list(9, None)) == 1
    other = await sent(http, f"{house.api}/jobs", "k-2", body)
    assert other[1]["id"] != first[1]["id"]


async def test_a_key_of_another_request_is_refused(house: House, http: aiohttp.ClientSession) -> None:
    data = await house.dataset()
    made = await sent(http, f"{house.api}/jobs", "k", {"spec": spec(data)})
    for url, body in (
        (f"{house.api}/jobs", {"spec": spec(data, name="another")}),
        (f"{house.api}/jobs/{made[1]['id']}/fund", None),
    ):
        status, problem, _ = await sent(http, url, "k", body)
        assert (status, problem["code"], problem["field"]) == (422, "key_reused", "Idempotency-Key")


async def test_a_refusal_is_not_kept(house: House, http: aiohttp.ClientSession) -> None:
    data = await house.dataset()
    house.cluster.balance = 0
    assert (await sent(http, f"{house.api}/jobs", "k", {"spec": spec(data)}))[0] == 402
    house.cluster.balance = 50_000_000
    assert (await sent(http, f"{house.api}/jobs", "k", {"spec": spec(data)}))[0] == 201


async def test_the_same_request_while_it_is_carried_out_is_told_to_wait(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    create = house.cluster.create

    async def slow(*arguments: Any) -> api.JobView:
        begun.set()
        await go_on.wait()
        return await create(*arguments)

    monkeypatch.setattr(house.cluster, "create", slow)
    body = {"spec": spec(await house.dataset())}
    async with asyncio.timeout(HANGS_S), asyncio.TaskGroup() as group:
        first = group.create_task(sent(http, f"{house.api}/jobs", "k", body))
        await begun.wait()
        status, problem, _ = await sent(http, f"{house.api}/jobs", "k", body)
        assert (status, problem["code"]) == (409, "in_progress")
        go_on.set()
    assert first.result()[0] == 201


async def test_a_coordinator_that_died_after_it_had_made_the_job_finds_it(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = house.cluster.create

    async def dies(*arguments: Any) -> api.JobView:
        await create(*arguments)
        raise UnavailableError("the answer is lost")

    body = {"spec": spec(await house.dataset())}
    with monkeypatch.context() as patch:
        patch.setattr(house.cluster, "create", dies)
        assert (await sent(http, f"{house.api}/jobs", "k", body))[0] == 503
    (made,) = await house.cluster.list(9, None)
    status, view, _ = await sent(http, f"{house.api}/jobs", "k", body)
    assert (status, view["id"]) == (201, made.id)
    assert len(await house.cluster.list(9, None)) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 201, "é"])
async def test_a_key_that_is_none_is_named(house: House, http: aiohttp.ClientSession, key: str) -> None:
    status, problem, _ = await sent(http, f"{house.api}/jobs", key, {"spec": spec(await house.dataset())})
    assert (status, problem["field"]) == (422, "Idempotency-Key")


async def test_the_client_sends_its_key_again_when_an_answer_is_lost(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    request = HttpLine.request

    def losing(self: HttpLine, method: str, path: str, **more: Any) -> Any:
        keys.append(more.get("headers", {}).get("Idempotency-Key", ""))
        return request(self, method, path, **more)

    create, lost = house.cluster.create, iter([True, True])

    async def dies(*arguments: Any) -> api.JobView:
        made = await create(*arguments)
        if next(lost, False):
            raise UnavailableError("the answer is lost")
        return made

    monkeypatch.setattr(HttpLine, "request", losing)
    monkeypatch.setattr(house.cluster, "create", dies)
    async with Client(house.url, sleep=lambda _s: asyncio.sleep(0)) as client:
        job = await client.create_job(spec(await house.dataset()))
    assert [one.id for one in await house.cluster.list(9, None)] == [job.id]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert len(keys[0]) == 32


async def test_keys_are_forgotten_after_a_day() -> None:
    store, clock = MemoryStore(), VirtualClock()
    replays = IdempotentAnswers(store, clock)
    async with replays.turn("a", "k", "f") as turn:
        turn.keep(201, "/x", b"{}")
    async with replays.turn("a", "k", "f") as turn:
        assert turn.over
    async with replays.turn("b", "k", "other") as turn:
        assert not turn.over, "another account's keys are its own"
    await clock.advance(KEEP_S + 1)
    async with replays.turn("a", "k", "another") as turn:
        assert not turn.over
    async with store.transaction() as tx:
        assert len(await tx.find(ReplayRecord)) == 1

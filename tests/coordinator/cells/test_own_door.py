"""A coordinator of cells that others would not reach says so and ends, before any cell has come to it."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from common.urls import url_of
from coordinator import own_door
from coordinator.cells_at_work import CellWork, serve_cells
from coordinator.config import Config
from coordinator.own_door import check_door, warn_of_door
from coordinator.settings import SettingError
from tests.support.databases import Postgres, needs_postgres

HERE, ELSEWHERE = "http://127.0.0.1:8470", "http://127.0.0.2:8470"


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_door, "TRIED_S", 0.2)
    monkeypatch.setattr(own_door, "BETWEEN_S", 0.05)


async def test_who_reaches_itself_or_names_no_place_goes_on(config: Config) -> None:
    for place in (None, HERE, "http://localhost"):
        await check_door(replace(config, reachable_at=place), asyncio.Event())


@pytest.mark.parametrize(
    ("place", "why"),
    [
        (ELSEWHERE, "refused"),
        ("https://127.0.0.1", "TLS"),
        ("http://nobody.invalid:8470", "not known|resolution"),
    ],
)
async def test_who_does_not_reach_itself_is_told_why_and_what_to_do(config: Config, place: str, why: str) -> None:
    with pytest.raises(SettingError, match=rf"(?s)--reachable-at {place}: .*({why}).*--host is 127\.0\.0\.1"):
        await check_door(replace(config, reachable_at=place), asyncio.Event())


async def test_a_name_that_is_known_a_moment_later_is_waited_for(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_door, "TRIED_S", 10.0)
    asked = own_door._asked
    tries: list[str] = []

    async def unknown_at_first(url: str, word: str) -> str:
        tries.append(url)
        return "nobody knows that name" if len(tries) < 3 else await asked(url, word)

    monkeypatch.setattr(own_door, "_asked", unknown_at_first)
    await check_door(replace(config, reachable_at=HERE), asyncio.Event())
    assert len(tries) == 3


async def test_who_is_asked_to_stop_meanwhile_stops(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_door, "TRIED_S", 60.0)
    stopping = asyncio.Event()
    asyncio.get_running_loop().call_later(0.2, stopping.set)
    async with asyncio.timeout(30):
        await check_door(replace(config, reachable_at=ELSEWHERE), stopping)


@needs_postgres
async def test_no_cell_comes_to_a_coordinator_that_nobody_would_reach(config: Config, postgres: Postgres) -> None:
    taken: list[int] = []

    async def work(work: CellWork) -> None:
        taken.append(work.cell.number)

    there = replace(config, database_url=postgres.url(), cells=3, port=0, reachable_at=ELSEWHERE)
    with pytest.raises(SettingError, match="does not reach itself"):
        await serve_cells(there, lambda _: None, asyncio.Event(), work)
    assert not taken


async def test_the_one_at_work_says_where_those_that_stand_by_would_not_reach_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = web.Application()

    async def well(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app.router.add_get("/healthz", well)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = int(runner.addresses[0][1])
        await warn_of_door(url_of("127.0.0.1", port) + "/")
        assert not caplog.records
        await warn_of_door(url_of("127.0.0.1", port) + "/elsewhere")
        assert "somebody else answers, with 404" in caplog.text
        await warn_of_door(url_of("127.0.0.2", port))
        assert "others that stand by may not either" in caplog.text
    finally:
        await runner.cleanup()

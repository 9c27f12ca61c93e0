"""A handler that meets another cell's job: fronts are told whose it is, and everybody else that it is not here."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coordinator.domain.cells import Cell
from coordinator.domain.job import Job
from coordinator.errors import CottageError, OtherCellError
from coordinator.metrics import Metrics
from coordinator.store.sql import SqlStore
from coordinator.web.fronts.misdirected import misdirected
from coordinator.web.fronts.seal import CELL
from coordinator.web.http import protect
from coordinator.web.monitoring.requests import measured
from tests.coordinator.conftest import FRONTS
from tests.coordinator.fronts.carriers import job_of
from tests.support.databases import Postgres, needs_postgres

JOB = job_of(1, 3, number=9)
Act = Callable[[], Awaitable[None]]


async def met() -> None:
    raise OtherCellError(JOB, 1)


async def met_in_a_group() -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(met())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def met_where_faults_are_told() -> None:
    """As on pages, which catch what they can say."""
    try:
        await met()
    except CottageError:
        return


class Door:
    """A coordinator's door, whose handlers do ``act``."""

    def __init__(self) -> None:
        self.act: Act = met
        self.metrics = Metrics()
        app = web.Application(middlewares=[measured(self.metrics), misdirected(FRONTS)])
        protect(app, lambda _request, _status, _problem: web.Response(text="<p>a page</p>", content_type="text/html"))
        for path in ("/api/v1/notices", "/submit", "/v1/chat/completions"):
            app.router.add_post(path, self._handle)
        self.server = TestServer(app)

    async def _handle(self, _request: web.Request) -> web.Response:
        await self.act()
        return web.Response(text="done")

    async def asked(self, path: str, headers: dict[str, str]) -> tuple[int, bytes, str | None]:
        url = self.server.make_url(path)
        async with aiohttp.ClientSession() as http, http.post(url, headers=headers, data=b"{}") as said:
            return said.status, await said.read(), said.headers.get(CELL)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    made = Door()
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.mark.parametrize("act", [met, met_in_a_group, met_where_faults_are_told])
@pytest.mark.parametrize("path", ["/api/v1/notices", "/submit", "/v1/chat/completions"])
async def test_fronts_are_told_the_cell_and_others_that_it_is_not_here(door: Door, path: str, act: Act) -> None:
    door.act = act
    for headers, cell in ((dict(FRONTS.headers), "1"), ({}, None), ({"X-Cottage-Front": 64 * "0"}, None)):
        status, said, told = await door.asked(path, {"Accept": "text/html", **headers})
        assert (status, told) == (421, cell)
        words = json.loads(said)
        detail = words["error"]["message"] if path.startswith("/v1/") else words["detail"]
        assert f"job {JOB} is carried by cell 1" in detail
        assert "the network's own address" in detail
    assert "421" in door.metrics.text(), "it is counted as what it is"


@needs_postgres
async def test_a_store_of_a_cell_says_so_of_another_ones_job(door: Door, postgres: Postgres) -> None:
    store = await SqlStore.open(postgres.migrated_url(), None, Cell(0, 3))

    async def looks() -> None:
        async with store.transaction() as tx:
            await tx.get(Job, JOB)

    door.act = looks
    try:
        assert (await door.asked("/api/v1/notices", dict(FRONTS.headers)))[::2] == (421, "1")
    finally:
        await store.close()

"""Requests at a front of several cells: each comes to the cell that it names, or to the one that has what it is about."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from common.clock import SystemClock
from coordinator.config import Config
from coordinator.domain.cells import Cell, CellState
from coordinator.front import front_of
from coordinator.web.fronts import line
from coordinator.web.fronts.seal import CELL, FRONT, NONCE
from coordinator.web.http import answer
from protocol.identity import NodeKey
from tests.coordinator.conftest import FRONTS, FRONTS_SEED, until
from tests.coordinator.fronts.carriers import Carrier, Says, doors_of, front, is_ready, job_of
from tests.support.databases import needs_postgres

pytestmark = needs_postgres

CELLS = 3
JOBS = [job_of(cell, CELLS, number=cell + 5) for cell in range(CELLS)]
BEARER = {"Authorization": f"Bearer {Cell(2, CELLS).token(48 * 'a')}"}
DIGEST = 64 * "1"
"""Its first digits would be those of a job of the second cell."""


async def sent(
    url: str, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
) -> tuple[int, bytes, Mapping[str, str]]:
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, URL(url + path, encoded=True), headers=headers, data=body, allow_redirects=False) as said,
    ):
        return said.status, await said.read(), said.headers


def other(cell: int) -> Says:
    """It is another cell's."""
    return lambda _request, _body: web.Response(status=421, headers={CELL: str(cell)}, text="it is another one's")


def at(carriers: list[Carrier]) -> list[int]:
    """How often each was asked."""
    return [len(one.asked) for one in carriers]


@pytest.mark.parametrize(
    ("method", "path", "headers", "cell"),
    [
        *(("POST", f"/api/v1/jobs/{job}/cancel", {}, cell) for cell, job in enumerate(JOBS)),
        ("POST", f"/jobs/{JOBS[1]}/serve", {}, 1),
        ("PUT", f"/api/v1/jobs/{JOBS[2]}/share", {}, 2),
        ("POST", f"/api/v1/admin/jobs/{JOBS[2]}/cancel", {}, 2),
        ("GET", f"/admin/jobs/{JOBS[2]}/cancel", {}, 2),
        ("POST", f"/api/v1/jobs/%3{JOBS[1][0]}{JOBS[1][1:]}/cancel", {}, 1),
        ("GET", f"/api/v1/artifacts/{DIGEST}", BEARER, 2),
        ("PUT", f"/api/v1/artifacts/{DIGEST}?lease={JOBS[1]}", BEARER, 2),
        ("GET", f"/api/v1/artifacts/{DIGEST}", {"Authorization": "Bearer 7.aaaa"}, 0),
        ("PATCH", f"/api/v1/uploads/{JOBS[1]}", {}, 0),
        ("POST", "/api/v1/uploads", {}, 0),
        ("POST", "/sign-in", {}, 0),
        ("GET", "/metrics", {}, 0),
        ("GET", "/metrics?cell=3", {}, 2),
    ],
)
async def test_a_request_comes_to_the_cell_that_it_names(
    shared_config: Config, carriers: list[Carrier], method: str, path: str, headers: dict[str, str], cell: int
) -> None:
    async with front(shared_config, doors_of(carriers)) as url:
        status, said, _ = await sent(url, method, path, headers, b"{}" if method in ("POST", "PUT", "PATCH") else None)
    assert (status, said) == (200, b'{"cell":%d}' % cell)
    assert at(carriers) == [number == cell for number in range(CELLS)]


async def test_figures_of_a_cell_that_there_is_not_are_refused(shared_config: Config, carriers: list[Carrier]) -> None:
    async with front(shared_config, doors_of(carriers)) as url:
        for number in ("4", "0", "-1", "x"):
            status, said, _ = await sent(url, "GET", f"/metrics?cell={number}")
            assert status == 422, said
            assert b"from 1 to 3" in said
    assert at(carriers) == [0, 0, 0]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/withdrawals", b'{"amount": 1}'),
        ("DELETE", "/api/v1/uploads/none", None),
        ("POST", "/v1/chat/completions", b'{"messages": "' + 300_000 * b"x" + b'"}'),
    ],
)
async def test_what_another_cell_has_is_led_there_whole(
    shared_config: Config, carriers: list[Carrier], method: str, path: str, body: bytes | None
) -> None:
    carriers[0].says = other(2)
    async with front(shared_config, doors_of(carriers)) as url:
        status, said, _ = await sent(url, method, path, {"X-Of-Its-Own": "kept"}, body)
    assert (status, said) == (200, b'{"cell":2}')
    assert at(carriers) == [1, 0, 1]
    for one in (carriers[0].asked[0], carriers[2].asked[0]):
        assert (one.method, one.path, one.body) == (method, path, body or b"")
        assert one.headers["X-Of-Its-Own"] == "kept"
        assert FRONTS.is_on(one.headers)


async def test_a_document_of_unknown_length_is_led_on_too(shared_config: Config, carriers: list[Carrier]) -> None:
    carriers[0].says = other(1)

    async def pieces() -> object:
        for _ in range(100):
            yield 3_000 * b"p"

    async with front(shared_config, doors_of(carriers)) as url, aiohttp.ClientSession() as http:
        async with http.post(f"{url}/v1/completions", data=pieces()) as said:
            assert await said.json() == {"cell": 1}
    assert [len(one.asked[0].body) for one in carriers[:2]] == [300_000, 300_000]


async def test_a_body_that_cannot_be_sent_again_is_refused_with_the_way_out(
    shared_config: Config, carriers: list[Carrier]
) -> None:
    for one in carriers:
        one.says = other((one.number + 1) % CELLS)
    async with front(shared_config, doors_of(carriers)) as url:
        status, said, _ = await sent(url, "POST", "/api/v1/jobs", {}, 2_000_000 * b"x")
        assert (status, sum(at(carriers))) == (413, 1)
        assert b"of another cell" in said
        assert b"1,048,576 bytes" in said


async def test_a_request_that_nobody_has_ends(shared_config: Config, carriers: list[Carrier]) -> None:
    """Cells that name each other are asked three times in all; then what the last one said is the answer."""
    for one in carriers:
        one.says = other((one.number + 1) % CELLS)
    async with front(shared_config, doors_of(carriers)) as url:
        status, said, headers = await sent(url, "POST", "/api/v1/notices", {}, b"{}")
        assert (status, said) == (421, b"it is another one's")
        assert CELL not in headers
        assert at(carriers) == [1, 1, 1]
        for odd in (CELLS, -1, 10**9):
            carriers[0].says = other(odd)
            assert (await sent(url, "POST", "/api/v1/notices", {}, b"{}"))[:2] == (421, b"it is another one's")
    assert at(carriers) == [4, 1, 1]


@pytest.mark.parametrize("name", [JOBS[1], f"{JOBS[1]}@3", f"{JOBS[1]}:{JOBS[2]}"])
async def test_a_request_to_a_model_goes_to_its_cell_at_once(
    shared_config: Config, carriers: list[Carrier], name: str
) -> None:
    body = b'{"messages": [{"role": "user", "content": "say \\"model\\": \\"%s\\""}], "model" : "%s"}'
    async with front(shared_config, doors_of(carriers)) as url:
        status, said, _ = await sent(url, "POST", "/v1/chat/completions", {}, body % (JOBS[2].encode(), name.encode()))
    assert (status, said) == (200, b'{"cell":1}')
    assert at(carriers) == [0, 1, 0]


async def test_a_stranger_tells_no_carrier_what_fronts_tell(shared_config: Config, carriers: list[Carrier]) -> None:
    lie = {NONCE: 64 * "a", CELL: "2", FRONT: "a word"}
    async with front(shared_config, doors_of(carriers)) as url:
        await sent(url, "POST", "/api/v1/notices", lie, b"{}")
    headers = carriers[0].asked[0].headers
    assert NONCE not in headers
    assert CELL not in headers
    assert FRONTS.is_on(headers)


async def test_a_new_job_goes_where_nodes_are_to_spare(shared_config: Config, carriers: list[Carrier]) -> None:
    told = {0: CellState(wanted=0, idle=4, nodes=9), 1: CellState(wanted=1, idle=8, nodes=9), 2: CellState(9, 9, 30)}
    paths = ("/api/v1/jobs", "/api/v1/quote", "/submit", "/submit/array", "/submit/quote", "/submit/report")
    async with front(shared_config, doors_of(carriers), lambda: told) as url:
        for path in paths:
            await sent(url, "POST", path, {}, b"{}")
    assert at(carriers) == [0, len(paths), 0]


async def test_new_jobs_are_spread_where_cells_tell_nothing(shared_config: Config, carriers: list[Carrier]) -> None:
    for one in carriers:
        one.says = lambda _request, _body: answer({}, 201)
    async with front(shared_config, doors_of(carriers)) as url:
        for _ in range(6):
            await sent(url, "POST", "/api/v1/jobs", {}, b"{}")
    assert at(carriers) == [2, 2, 2]


async def test_a_job_that_was_not_made_counts_nowhere(shared_config: Config, carriers: list[Carrier]) -> None:
    """So a form that is reviewed and sent stays in one cell, where its data set was looked at."""
    async with front(shared_config, doors_of(carriers)) as url:
        for path in ("/submit/report", "/submit", "/submit"):
            await sent(url, "POST", path, {}, b"{}")
    assert at(carriers) == [3, 0, 0]


async def test_a_cell_that_is_away_holds_up_its_own_requests_alone(
    shared_config: Config, carriers: list[Carrier], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = Carrier(1)
    doors = doors_of([carriers[0], late, carriers[2]])
    async with AsyncExitStack() as stack, front(shared_config, doors) as url:
        asked = asyncio.create_task(sent(url, "POST", f"/api/v1/jobs/{JOBS[1]}/cancel", {}, b"{}"))
        for cell in (0, 2):
            assert (await sent(url, "POST", f"/api/v1/jobs/{JOBS[cell]}/cancel", {}, b"{}"))[0] == 200
        assert not asked.done()
        assert not await is_ready(url)
        await stack.enter_async_context(late.serves())
        assert (await asked)[:2] == (200, b'{"cell":1}')
        await until(lambda: is_ready(url))
        late.door = ""
        monkeypatch.setattr(line, "WAIT_S", 0.1)
        await asyncio.sleep(0.5)
        assert not await is_ready(url)
        assert (await sent(url, "GET", "/readyz", {}, b""))[0] == 200, "others are led to"
        status, said, headers = await sent(url, "POST", f"/api/v1/jobs/{JOBS[1]}/cancel", {}, b"{}")
        assert (status, headers["Retry-After"]) == (503, "2")
        assert b"cell 2 of 3" in said


class SlowCarrier(Carrier):
    """One that has a request for a while."""

    async def _anything(self, request: web.Request) -> web.StreamResponse:
        said = await super()._anything(request)
        await asyncio.sleep(1.0)
        return said


@asynccontextmanager
async def served(config: Config, doors: list[Callable[[], str]]) -> AsyncIterator[str]:
    """A front as programs serve it: nothing is cancelled because whoever asked has gone."""
    async with front_of(replace(config, open=True), SystemClock(), doors, NodeKey(FRONTS_SEED)) as app:
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        url = f"http://{host}:{port}"
        await until(lambda: is_ready(url))
        try:
            yield url
        finally:
            await runner.cleanup()


async def test_who_asks_and_goes_is_led_once_and_fills_no_log(
    shared_config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    slow = [SlowCarrier(number) for number in range(CELLS)]
    async with AsyncExitStack() as stack:
        for one in slow:
            await stack.enter_async_context(one.serves())
        url = await stack.enter_async_context(served(shared_config, doors_of(slow)))
        for method, path in (("GET", "/metrics?cell=2"), ("POST", f"/api/v1/jobs/{JOBS[1]}/cancel")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(sent(url, method, path), 0.5)
        await asyncio.sleep(2.0)
    assert at(list(slow)) == [0, 2, 0], "nobody waits for it"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []

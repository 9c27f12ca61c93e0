"""Something else than a coordinator or a ledger answers at the address: one sentence with the address says so."""

from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from solders.pubkey import Pubkey

from coordinator.client.client import Client
from coordinator.client.errors import ClientError
from ledger.connection import Connection
from ledger.errors import LedgerError
from tests.coordinator.web.conftest import House
from tests.support.proxy import proxying

PAGE = "<!DOCTYPE HTML><html>sign in</html>"


@pytest.fixture
async def stranger() -> AsyncIterator[tuple[str, list[int]]]:
    """A web server's address, and the status that it answers with next."""
    status = [200]

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status[0], text=PAGE, content_type="text/html")

    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", status
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            200,
            "at {url} answers something that is no Cottage coordinator: a web page; is the address right, and does this "
            "network ask to sign in first?",
        ),
        (
            404,
            "at {url} answers something that is no Cottage coordinator: HTTP 404; see whether address and port are the "
            "coordinator's",
        ),
        (502, "the coordinator at {url} does not answer (HTTP 502): is it running?"),
    ],
)
async def test_a_web_server_is_no_coordinator(stranger: tuple[str, list[int]], status: int, said: str) -> None:
    url, answers = stranger
    answers[0] = status

    async def no_wait(_seconds: float) -> None: ...

    async with Client(url, "key", no_wait) as client:
        with pytest.raises(ClientError) as refused:
            await client.account()
    assert str(refused.value) == said.format(url=url)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.parametrize(
    "answer", ["403 Forbidden", "502 Bad Gateway", "302 Found", "511 Network Authentication Required"]
)
async def test_a_proxy_that_answers_for_itself_is_named(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_wait(_seconds: float) -> None: ...

    async with proxying(answer=answer) as proxy, Client("http://cottage.test", "key", no_wait) as client:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with pytest.raises(ClientError, match=rf" through the proxy http://127.0.0.1:{proxy.port} \(HTTP_PROXY\) "):
            await client.account()
        connection = Connection("http://cottage.test")
        with pytest.raises(LedgerError, match=rf"the proxy http://127.0.0.1:{proxy.port} \(HTTP_PROXY\)"):
            await connection.accounts([Pubkey.default()])
        await connection.aclose()


async def test_what_a_browser_shows_behind_the_address_is_told_apart(house: House) -> None:
    async with Client(f"{house.url}/?job=1#more", "key") as client:
        assert await client.jobs() == ()
    async with Client(f"{house.url}/jobs/7Kq", "key") as client:
        with pytest.raises(ClientError) as refused:
            await client.jobs()
    assert str(refused.value) == (
        f"a coordinator answers at {house.url} and has nothing at /jobs/7Kq: leave that out of the address"
    )


@pytest.mark.parametrize(("status", "answer"), [(405, "HTTP 405"), (200, "something else than JSON-RPC")])
async def test_a_web_server_is_no_ledger(stranger: tuple[str, list[int]], status: int, answer: str) -> None:
    url, answers = stranger
    answers[0] = status
    connection = Connection(url)
    try:
        with pytest.raises(LedgerError) as refused:
            await connection.accounts([Pubkey.default()])
    finally:
        await connection.aclose()
    assert str(refused.value) == (
        f"at {url} answers something that is no Solana ledger: {answer}; see whether address and port are the ledger's"
    )


@pytest.mark.parametrize("status", [429, 503])
async def test_a_ledger_that_has_no_time_is_no_stranger(stranger: tuple[str, list[int]], status: int) -> None:
    url, answers = stranger
    answers[0] = status
    connection = Connection(url)
    try:
        with pytest.raises(LedgerError) as refused:
            await connection.accounts([Pubkey.default()])
    finally:
        await connection.aclose()
    assert str(refused.value) == f"{url} is busy or away (HTTP {status}): try again later"


async def test_a_ledger_that_is_not_there_is_told_in_the_systems_words() -> None:
    connection = Connection("http://127.0.0.1:9")
    try:
        with pytest.raises(LedgerError) as refused:
            await connection.accounts([Pubkey.default()])
    finally:
        await connection.aclose()
    assert str(refused.value) == "http://127.0.0.1:9 does not answer (nobody listens there): is the ledger running?"

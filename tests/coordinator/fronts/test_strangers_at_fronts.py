"""What strangers send to a front asks nothing that is fronts' alone, and spoils nobody else's request."""

import asyncio

import aiohttp
from yarl import URL

from coordinator.web.fronts.answering import ASK, NEWS
from tests.coordinator.fronts.test_fronts import Town, base, get, town
from tests.support.databases import needs_postgres
from tests.support.wait import HANGS_S

pytestmark = needs_postgres
__all__ = ["town"]


async def test_a_stranger_asks_nothing_with_a_fronts_seal(town: Town) -> None:
    async with town.works() as house, town.front() as url, aiohttp.ClientSession() as http:
        for at in (url, base(house)):
            for path in (ASK, ASK.replace("a", "%61", 1)):
                async with http.post(URL(at + path, encoded=True), json={"what": "nodes"}) as answer:
                    assert answer.status == 404, (at, path, await answer.read())
            assert (await get(at + NEWS))[0] == 404


async def sent(url: str, head: bytes) -> bytes:
    """The first bytes of an answer to ``head``; the connection stays open meanwhile."""
    at = URL(url)
    reader, writer = await asyncio.open_connection(at.host, at.port)
    try:
        writer.write(head.replace(b"\r\n", f"\r\nHost: {at.host}:{at.port}\r\n".encode(), 1) + b"\r\n")
        async with asyncio.timeout(HANGS_S):
            return await reader.readline()
    finally:
        writer.close()


async def test_a_method_that_changes_a_connection_is_led_nowhere(town: Town) -> None:
    """What is behind a CONNECT is nobody's request: its connection to the one at work would serve others next."""
    async with town.works(), town.front() as url, aiohttp.ClientSession() as http:
        assert (await sent(url, b"CONNECT a:80 HTTP/1.1\r\n")).split()[1] == b"405"
        async with asyncio.timeout(5), http.post(f"{url}/api/v1/jobs/{32 * '0'}/cancel") as answer:
            assert answer.status == 404, await answer.read()

"""Rows F21 of what must not be reached: every way to name a private address ends before a packet leaves."""

import ipaddress
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from coordinator.services.core.egress import ForbiddenAddressError, outside_session

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")

HOSTILE = (
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://0/",
    "http://localhost/",
    "http://localhost./",
    "http://10.0.0.1/",
    "http://172.16.3.4/",
    "http://192.168.1.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://100.64.0.1/",
    "http://198.18.0.1/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::ffff:169.254.169.254]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2001:0::1]/",
    "http://[fc00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[fe80::1]/",
    "http://[ff02::1]/",
    "http://user@127.0.0.1:80/",
    "https://127.0.0.1/",
    "http://①②⑦.⓪.⓪.①/",
)


class Server:
    """A server on loopback that counts who came, and redirects to where it is told."""

    def __init__(self) -> None:
        self.came = 0
        self.port = 0
        self.location = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.came += 1
        if request.path == "/away":
            return web.Response(status=302, headers={"Location": self.location})
        return web.Response(text="secret")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.mark.parametrize("url", HOSTILE)
async def test_no_private_address_is_connected_to_however_it_is_written(url: str, monkeypatch: Any) -> None:
    tried: list[object] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _socket, address: tried.append(address))
    async with outside_session(5.0) as http:
        with pytest.raises((aiohttp.ClientError, OSError)) as refused:
            await http.get(url)
    assert tried == []
    error = refused.value
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientConnectorDNSError):
        assert isinstance(error.os_error, ForbiddenAddressError), error


class Rebinding(AbstractResolver):
    """Answers with a public address first, and with this machine's after that."""

    def __init__(self) -> None:
        self.asked = 0

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> list[ResolveResult]:
        self.asked += 1
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in (("127.0.0.1",) if self.asked > 1 else ("127.0.0.2", "127.0.0.1"))
        ]

    async def close(self) -> None:
        return None


async def test_a_name_that_changes_its_mind_reaches_nothing(server: Server) -> None:
    resolver = Rebinding()
    async with outside_session(5.0) as http:
        assert isinstance(http.connector, aiohttp.TCPConnector)
        http.connector._resolver = resolver
        for _ in range(3):
            with pytest.raises(aiohttp.ClientConnectorError) as refused:
                await http.get(f"http://public.example:{server.port}/")
            assert isinstance(refused.value.os_error, ForbiddenAddressError)
    assert (resolver.asked, server.came) == (3, 0)


async def test_a_redirect_from_an_allowed_server_to_a_forbidden_one_is_refused(server: Server) -> None:
    server.location = f"http://127.0.0.2:{server.port}/"
    async with outside_session(5.0, [ipaddress.ip_network("127.0.0.1/32")]) as http:
        async with http.get(f"http://127.0.0.1:{server.port}/") as answer:
            assert await answer.text() == "secret", "what the operator allows is reached"
        with pytest.raises(aiohttp.ClientConnectorError) as refused:
            await http.get(f"http://127.0.0.1:{server.port}/away")
    assert isinstance(refused.value.os_error, ForbiddenAddressError)
    assert server.came == 2


async def test_proxies_of_the_environment_are_not_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{server.port}")
    async with outside_session(5.0) as http:
        with pytest.raises(aiohttp.ClientConnectorError):
            await http.get("http://169.254.169.254/")
    assert server.came == 0

"""A relay tells the coordinator of itself: a real HTTP server on the other side."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from common.clock import SystemClock
from protocol import identity
from protocol.codec import decode_json
from protocol.identity import NodeKey
from protocol.network import MAX_USERS, RelayEnvelope, RelayOrder, RelayReport
from tests.relay.conftest import SECRET, asker, code, peer, relay_options, until
from tests.support.clock import VirtualClock
from transport.relay.announce import CONTEXT, PATH, Announcer, Identity, check_coordinator
from transport.relay.errors import AnnounceError, OptionsError
from transport.relay.server import RelayServer
from transport.relay.usage import Users


@dataclass
class Coordinator:
    """Takes reports; answers with ``order`` or with ``refusal``."""

    url: str = ""
    order: RelayOrder = field(default_factory=lambda: RelayOrder(10.0))
    refusal: int = 0
    garbage: bytes = b""
    reports: list[RelayReport] = field(default_factory=list)
    refused: int = 0

    async def take(self, request: web.Request) -> web.Response:
        envelope: RelayEnvelope = decode_json(await request.read(), RelayEnvelope)
        report: RelayReport = decode_json(envelope.report, RelayReport)
        identity.verify(report.relay, envelope.signature, CONTEXT, envelope.report)
        if self.refusal:
            self.refused += 1
            return web.json_response({"error": "not allowed here"}, status=self.refusal)
        self.reports.append(report)
        order = {"next_seconds": self.order.next_seconds, "user_rate": self.order.user_rate}
        return web.Response(body=self.garbage or json.dumps(order).encode())


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    made = Coordinator()
    app = web.Application()
    app.router.add_post(PATH, made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


@contextlib.asynccontextmanager
async def running(announcer: Announcer) -> AsyncIterator[None]:
    task = asyncio.create_task(announcer.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def identity_of(key: NodeKey) -> Identity:
    return Identity(key, ("turn:198.51.100.7:3478?transport=udp",), SECRET, "Frankfurt")


async def test_a_report_is_signed_and_tells_load_and_usage(relay: RelayServer, coordinator: Coordinator) -> None:
    key = NodeKey.generate()
    announcer = Announcer(coordinator.url, identity_of(key), relay, SystemClock())
    async with peer() as (friend, at), asker(relay.addresses[0], "node-job") as client, aiohttp.ClientSession() as http:
        await client.allocate()
        await client.bind(0x4000, at)
        client.send(b"\x40\x00\x00\x05hello")
        await friend.next()
        await announcer.once(http)
        report = coordinator.reports[0]
        assert (report.relay, report.secret, report.region) == (key.address, SECRET, "Frankfurt")
        assert (report.allocations, report.allocations_max, report.bytes_relayed) == (1, 4096, 5)
        assert [(usage.user, usage.bytes_relayed) for usage in report.usage] == [("node-job", 5)]
        await announcer.once(http)
        assert coordinator.reports[1].usage == (), "nothing new of anybody"
        assert coordinator.reports[1].sent > report.sent
        assert coordinator.reports[1].started == report.started


async def test_reports_follow_the_coordinators_pace_and_its_rate_is_obeyed(coordinator: Coordinator) -> None:
    clock = VirtualClock(1_800_000_000.0)
    coordinator.order = RelayOrder(next_seconds=7.0, user_rate=1000.0)
    async with RelayServer(relay_options(), clock) as server:
        known = server.users.get("known")
        async with running(Announcer(coordinator.url, identity_of(NodeKey.generate()), server, clock)):
            await until(lambda: len(coordinator.reports) == 1)
            await until(lambda: bool(clock._timers))
            await clock.advance(6.9)
            assert len(coordinator.reports) == 1
            await clock.advance(0.2)
            await until(lambda: len(coordinator.reports) == 2)
        for user in (known, server.users.get("new")):
            assert user.bucket.take(256 * 1024, 0.0)
            assert not user.bucket.take(1, 0.0)


async def test_a_refusal_is_tried_again_ever_more_rarely_and_relaying_goes_on(
    relay: RelayServer, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    coordinator.refusal = 403
    announcer = Announcer(coordinator.url, identity_of(NodeKey.generate()), relay, clock, jitter=lambda: 0.0)
    async with running(announcer), asker(relay.addresses[0]) as client:
        for tries, wait in ((1, 0.25), (2, 0.5), (3, 1.0)):
            await until(lambda tries=tries: coordinator.refused == tries and clock._timers[-1:] != [])
            assert code(await client.permit("127.0.0.1")) == 437, "it still answers"
            await clock.advance(wait)
        coordinator.refusal = 0
        await clock.advance(2.0)
        await until(lambda: bool(coordinator.reports))
    assert "403" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("garbage", [b"{}", b"<html>", b'{"next_seconds":-1}', b'{"next_seconds":1,"x":2}', b"\xff"])
async def test_an_answer_that_is_none_is_an_error(relay: RelayServer, coordinator: Coordinator, garbage: bytes) -> None:
    coordinator.garbage = garbage
    announcer = Announcer(coordinator.url, identity_of(NodeKey.generate()), relay, SystemClock())
    async with aiohttp.ClientSession() as http:
        with pytest.raises(AnnounceError):
            await announcer.once(http)


async def test_nobody_there_is_an_error_that_names_the_address(relay: RelayServer) -> None:
    announcer = Announcer("http://127.0.0.1:1", identity_of(NodeKey.generate()), relay, SystemClock())
    async with aiohttp.ClientSession() as http:
        with pytest.raises(AnnounceError, match=r"127\.0\.0\.1:1"):
            await announcer.once(http)


def test_more_users_than_fit_follow_in_the_next_report() -> None:
    users = Users(0.0)
    for number in range(MAX_USERS + 5):
        users.get(f"user{number}").bytes_relayed = 1
    told, usage = users.unreported()
    assert len(usage) == MAX_USERS
    for user in told:
        user.bytes_reported = user.bytes_relayed
    assert len(users.unreported()[1]) == 5


@pytest.mark.parametrize("url", ["http://cottage.example.org", "http://10.0.0.1:8080", "ftp://x", "cottage", ""])
def test_the_secret_never_crosses_a_network_in_the_clear(url: str) -> None:
    with pytest.raises(OptionsError):
        check_coordinator(url)


def test_tls_loopback_and_an_explicit_wish_are_allowed() -> None:
    assert check_coordinator("https://cottage.example.org/") == "https://cottage.example.org"
    assert check_coordinator("http://127.0.0.1:8080") == "http://127.0.0.1:8080"
    assert check_coordinator("http://[::1]:8080") == "http://[::1]:8080"
    assert check_coordinator("http://203.0.113.1", plain_allowed=True) == "http://203.0.113.1"

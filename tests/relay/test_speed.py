"""The relay's speed test: what it measures, and everything that it refuses to whom it could be abused by."""

import asyncio
import contextlib
import secrets
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aioice.stun import Class, Method
from aioice.turn import make_integrity_key

from tests.relay.conftest import LIMIT_S, any_relay, asker, code, credentials, needs_coturn, relay_options, until
from transport.ice.ice import IceServer
from transport.nettest import speed as nettest_speed
from transport.nettest.errors import SpeedError
from transport.nettest.speed import measure
from transport.nettest.stream import RelayStream, begin_trial, connect
from transport.relay import message, speed
from transport.relay.message import Attribute
from transport.relay.metrics import render
from transport.relay.options import Quota
from transport.relay.server import RelayServer
from transport.relay.speed import REPORT, Direction

DOWN = (Attribute.SPEED_TEST, message.uint32(Direction.DOWN))
SMALL = Quota(speed_hour_bytes=1e6, speed_rate=1e9)


def entry(relay: RelayServer | tuple[str, int], user: str = "node", **changes: Any) -> IceServer:
    host, port = relay.addresses[0] if isinstance(relay, RelayServer) else relay
    server = IceServer(f"turn:{host}:{port}?transport=tcp", *credentials(user))
    return replace(server, **changes)


@contextlib.asynccontextmanager
async def relay_with(quota: Quota, **changes: Any) -> AsyncIterator[RelayServer]:
    async with RelayServer(relay_options(quota=quota, **changes)) as server:
        yield server


@contextlib.asynccontextmanager
async def trial(
    relay: RelayServer, direction: Direction, user: str = "node"
) -> AsyncIterator[tuple[RelayStream, list[int]]]:
    """A connection that is under test, and the sizes of what comes over it."""
    sizes: list[int] = []
    server = entry(relay, user)
    async with asyncio.timeout(LIMIT_S), connect(server) as stream:
        await begin_trial(stream, server, direction)
        stream.take_over(lambda data: sizes.append(len(data)))
        yield stream, sizes


@pytest.mark.parametrize("direction", Direction)
async def test_a_rate_that_the_relay_sets_is_measured(direction: Direction) -> None:
    async with relay_with(Quota(speed_rate=5e6)) as relay:
        assert await measure(entry(relay), direction) == pytest.approx(5e6, rel=0.1)
        assert relay.desk.speed.moved[direction] > 5e6
        assert f'speed_test_bytes_total{{direction="{direction.name.lower()}"}}' in render(relay)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that sends so little at once that where a slow test begins and ends within a piece does not count."""
    monkeypatch.setattr(speed, "CHUNK", 4096)
    monkeypatch.setattr(speed, "_NOISE", secrets.token_bytes(4096))


@pytest.mark.usefixtures("small_pieces")
async def test_the_operators_limit_for_all_holds_for_tests_too() -> None:
    async with relay_with(Quota(total_rate=2e6)) as relay:
        assert await measure(entry(relay), Direction.DOWN) == pytest.approx(2e6, rel=0.15)


@pytest.mark.usefixtures("small_pieces")
async def test_a_slow_line_is_measured_by_few_connections_although_many_were_slow_to_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[float] = []
    loop = asyncio.get_running_loop()

    async def one_by_one(stream: RelayStream, server: IceServer, direction: Direction) -> None:
        begun.append(loop.time())
        await asyncio.sleep(0.02 * (len(begun) - 1))
        await begin_trial(stream, server, direction)

    monkeypatch.setattr(nettest_speed, "begin_trial", one_by_one)
    # However busy the machine is: all begin, and the relay has not ended the test when it is looked at.
    for where, name in ((nettest_speed, "SETUP_S"), (nettest_speed, "GRACE_S"), (speed, "TRIAL_S")):
        monkeypatch.setattr(where, name, LIMIT_S)
    # With what the relay lets pass at once, twice as much would be at the limit between many and few.
    async with relay_with(Quota(total_rate=1.5e5)) as relay:
        # A machine that is busy elsewhere makes it less; nothing makes it more.
        assert 0.75e5 < await measure(entry(relay), Direction.DOWN) < 1.65e5
    assert len(begun) == nettest_speed.CONNECTIONS + nettest_speed.FEW_CONNECTIONS


async def test_nothing_is_sent_over_udp(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        assert code(await client.raw(Method.ALLOCATE, [DOWN])) == 401
        assert code(await client.ask(Method.ALLOCATE, DOWN)) == 400
        assert not client.inbox.items
    assert sum(relay.desk.speed.moved.values()) == 0


async def test_nothing_is_sent_without_the_password(relay: RelayServer) -> None:
    for wrong in ({"credential": "guessed"}, {"username": "1:node"}):
        with pytest.raises(SpeedError, match="does not accept the credentials"):
            await measure(entry(relay, **wrong), Direction.DOWN)
    assert sum(relay.desk.speed.moved.values()) == 0


async def test_a_direction_that_is_none_is_refused(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        for value in (0, 3, 2**32 - 1):
            assert code(await client.ask(Method.ALLOCATE, (Attribute.SPEED_TEST, message.uint32(value)))) == 400
        assert code(await client.ask(Method.ALLOCATE, (Attribute.SPEED_TEST, b""))) == 400


async def test_a_user_gets_its_share_of_an_hour_and_no_more_under_the_names_of_its_jobs() -> None:
    async with relay_with(SMALL) as relay:
        async with trial(relay, Direction.DOWN) as (stream, sizes):
            await stream.closed.wait()
        assert sum(sizes) <= SMALL.speed_hour_bytes
        assert relay.desk.speed.moved[Direction.DOWN] <= SMALL.speed_hour_bytes + 64 * 1024
        async with trial(relay, Direction.DOWN, "node-0123456789abcdef") as (stream, sizes):
            await stream.closed.wait()
        assert sum(sizes) < 64 * 1024
        async with trial(relay, Direction.DOWN, "another") as (stream, sizes):
            await stream.closed.wait()
        assert sum(sizes) > SMALL.speed_hour_bytes / 2


async def test_what_is_sent_to_the_relay_counts_as_well() -> None:
    async with relay_with(SMALL) as relay, trial(relay, Direction.UP) as (stream, _):
        assert stream.transport is not None
        stream.transport.write(bytes(8 << 20))
        await stream.closed.wait()
        assert relay.desk.speed.moved[Direction.UP] <= SMALL.speed_hour_bytes


async def test_all_users_together_have_a_bound() -> None:
    async with relay_with(Quota(speed_total_hour_bytes=1e6)) as relay:
        moved = 0
        for user in ("a", "b", "c"):
            async with trial(relay, Direction.DOWN, user) as (stream, sizes):
                await stream.closed.wait()
            moved += sum(sizes)
        assert moved <= 1e6 + 64 * 1024


async def test_only_so_many_measure_at_once() -> None:
    async with relay_with(Quota(speed_streams=2, speed_streams_per_user=1, speed_rate=1e6)) as relay:
        async with trial(relay, Direction.UP, "a"), trial(relay, Direction.UP, "b"):
            with pytest.raises(SpeedError, match="often enough"):
                await measure(entry(relay, "a"), Direction.UP)
            with pytest.raises(SpeedError, match="for others just now"):
                await measure(entry(relay, "c"), Direction.UP)
        await until(lambda: relay.connections == 0)
        async with trial(relay, Direction.UP, "c"):
            pass


async def test_a_user_begins_only_so_many_in_an_hour() -> None:
    async with relay_with(Quota(speed_hour_streams=2, speed_rate=1e6)) as relay:
        for _ in range(2):
            async with trial(relay, Direction.UP):
                pass
        with pytest.raises(SpeedError, match="often enough"):
            await measure(entry(relay), Direction.UP)


async def test_a_client_that_never_reads_costs_a_bounded_buffer_and_is_cut_off(
    relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speed, "TRIAL_S", 0.3)
    async with trial(relay, Direction.DOWN) as (stream, _):
        assert stream.transport is not None
        stream.transport.pause_reading()
        [connection] = relay._connections
        waiting = 0
        while relay.connections:
            waiting = max(waiting, connection._transport.get_write_buffer_size())
            await asyncio.sleep(0.01)
    assert waiting <= 2 << 20
    assert connection._trial is not None
    assert relay.desk.speed._running == 0


async def test_a_client_that_stays_is_cut_off(relay: RelayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "TRIAL_S", 0.2)
    async with trial(relay, Direction.UP) as (stream, sizes):
        await stream.closed.wait()
        assert sizes
    assert all(size % REPORT.size == 0 for size in sizes)
    await until(lambda: relay.desk.speed._running == 0)


async def test_who_speaks_while_it_should_listen_is_cut_off(relay: RelayServer) -> None:
    async with trial(relay, Direction.DOWN) as (stream, _):
        assert stream.transport is not None
        stream.transport.write(b"and now for something else")
        await stream.closed.wait()


async def test_others_are_served_while_somebody_measures(relay: RelayServer) -> None:
    async with trial(relay, Direction.DOWN) as (_, sizes), asker(relay.addresses[0]) as client:
        await until(lambda: sum(sizes) > 1 << 20)
        assert code(await client.allocate()) == 0
        assert code(await client.permit("127.0.0.1")) == 0


async def test_a_relay_that_offers_none_answers_as_one_that_never_heard_of_it() -> None:
    async with relay_with(Quota(speed_streams=0)) as relay:
        with pytest.raises(SpeedError, match="does not measure speed"):
            await measure(entry(relay), Direction.DOWN)


@needs_coturn
async def test_coturn_does_not_measure_and_that_is_said() -> None:
    async with any_relay("coturn") as address:
        with pytest.raises(SpeedError, match="does not measure speed"):
            await measure(entry(address), Direction.DOWN)


async def test_a_connection_has_an_allocation_or_a_test_never_both(relay: RelayServer) -> None:
    server = entry(relay)
    async with asyncio.timeout(LIMIT_S), connect(server) as stream:
        wanted = [(Attribute.REQUESTED_TRANSPORT, bytes([17, 0, 0, 0]))]
        challenge = await stream.ask(Method.ALLOCATE, wanted)
        key = make_integrity_key(server.username, "cottage", server.credential)
        nonce = challenge.get(Attribute.NONCE) or b""
        proof = [
            (Attribute.USERNAME, server.username.encode()),
            (Attribute.REALM, b"cottage"),
            (Attribute.NONCE, nonce),
        ]
        assert (await stream.ask(Method.ALLOCATE, [*wanted, *proof], key)).kind is Class.RESPONSE
        with pytest.raises(SpeedError, match="437"):
            await begin_trial(stream, server, Direction.DOWN)
    await until(lambda: relay.allocations == 0)


@pytest.mark.parametrize("seed", range(8))
async def test_a_relay_of_nonsense_is_told_not_believed(seed: int) -> None:
    """The client's side: whatever listens there, the end is a SpeedError, soon."""
    noise = secrets.token_bytes(64) if seed else struct.pack("!HH", 0x0101, 0xFFFC) + bytes(60)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(noise)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
    async with server:
        with pytest.raises(SpeedError):
            await measure(entry(server.sockets[0].getsockname()), Direction.DOWN)


@pytest.mark.parametrize("direction", Direction)
async def test_where_only_tls_gets_out_the_rates_are_measured_over_it(
    certificate: tuple[Path, Path], direction: Direction
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    async with relay_with(Quota(speed_rate=5e6), tls_port=0, tls=context) as relay:
        host, port = relay.tls_addresses[0]
        server = IceServer(f"turns:{host}:{port}?transport=tcp", *credentials(), ca_file=str(certificate[0]))
        assert await measure(server, direction) == pytest.approx(5e6, rel=0.15)
        with pytest.raises(SpeedError, match="cannot be reached"):
            await measure(replace(server, ca_file=""), direction)
        with pytest.raises(SpeedError, match=r"nowhere\.pem"):
            await measure(replace(server, ca_file="nowhere.pem"), direction)

"""Candidates from real STUN servers and relays on loopback, reached by UDP, TCP and TLS, dead or alive."""

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aioice.candidate import Candidate
from aioice.ice import Connection

from common.errors import IceConfigError
from tests.relay.conftest import certificate, credentials, relay_options, until
from transport.ice.candidates import Gatherer, RelayMemory
from transport.ice.ice import IceServer
from transport.ice.turn_client import IceRelay, RelayWay, relays
from transport.relay.message import Address
from transport.relay.server import RelayServer

__all__ = ["certificate"]
HERE = ("127.0.0.1",)


def turn(address: Address, query: str = "?transport=udp", scheme: str = "turn", ca_file: Path | str = "") -> IceServer:
    return IceServer(f"{scheme}:{address[0]}:{address[1]}{query}", *credentials(), ca_file=str(ca_file))


@contextlib.contextmanager
def silence(
    port: int = 0, kind: socket.SocketKind = socket.SOCK_DGRAM
) -> "contextlib._GeneratorContextManager[Address]":
    """A port that takes everything and says nothing."""
    with socket.socket(socket.AF_INET, kind) as end:
        end.bind(("127.0.0.1", port))
        if kind is socket.SOCK_STREAM:
            end.listen()
        yield end.getsockname()


@dataclasses.dataclass
class Gathered:
    connection: Connection
    gatherer: Gatherer
    candidates: list[Candidate]
    took_s: float

    def kinds(self) -> list[str]:
        return sorted(candidate.type for candidate in self.candidates)

    def relayed(self) -> list[Candidate]:
        return [candidate for candidate in self.candidates if candidate.type == "relay"]


@contextlib.asynccontextmanager
async def gathered(
    *servers: IceServer, memory: RelayMemory | None = None, addresses: tuple[str, ...] = HERE
) -> AsyncIterator[Gathered]:
    connection = Connection(ice_controlling=True)
    gatherer = Gatherer(connection, servers, memory or RelayMemory())
    began = time.monotonic()
    found = await gatherer.gather(addresses)
    try:
        yield Gathered(connection, gatherer, found, time.monotonic() - began)
    finally:
        await connection.close()


async def test_without_servers_the_hosts_own_addresses_are_all() -> None:
    async with gathered() as result:
        assert result.kinds() == ["host"]
        assert result.candidates[0].host == "127.0.0.1"


async def test_an_address_that_has_just_gone_is_left_out() -> None:
    async with gathered(addresses=("192.0.2.7", "127.0.0.1")) as result:
        assert [candidate.host for candidate in result.candidates] == ["127.0.0.1"]


@pytest.mark.parametrize("way", ["udp", "tcp", "tls"])
async def test_a_relay_gives_an_address_by_each_way(way: str, certificate: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with RelayServer(relay_options(tls_port=0, tls=context)) as relay:
        if way == "tls":
            server = turn(relay.tls_addresses[0], "", "turns", certificate[0])
        else:
            server = turn(relay.addresses[0], f"?transport={way}")
        async with gathered(server) as result:
            assert len(result.relayed()) == 1
            assert relay.allocations == 1
        await until(lambda: relay.allocations == 0)


async def test_a_relay_with_a_certificate_of_somebody_else_is_not_used(
    certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    async with RelayServer(relay_options(tls_port=0, tls=context)) as relay:
        async with gathered(turn(relay.tls_addresses[0], "", "turns")) as result:
            assert result.relayed() == [], "the system's authorities did not sign it"
        assert relay.allocations == 0


async def test_where_udp_is_swallowed_tcp_leads_to_the_relay_and_is_remembered() -> None:
    async with RelayServer(relay_options()) as relay:
        host, port = relay.addresses[0]
        memory = RelayMemory()
        with silence() as (_, dead):
            servers = (turn((host, dead)), turn((host, port), "?transport=tcp"))
            async with gathered(*servers, memory=memory) as first:
                assert len(first.relayed()) == 1
                assert memory.way(host) is RelayWay.TCP
                assert first.gatherer.udp_blocked
            async with gathered(*servers, memory=memory) as again:
                assert len(again.relayed()) == 1
                assert again.took_s < first.took_s, "TCP is tried at once"


async def test_a_relay_by_tcp_stands_behind_one_by_udp() -> None:
    async with RelayServer(relay_options()) as relay:
        address = relay.addresses[0]
        async with gathered(turn(address)) as udp, gathered(turn(address, "?transport=tcp")) as tcp:
            assert udp.relayed()[0].priority > tcp.relayed()[0].priority
            assert not udp.gatherer.udp_blocked


async def test_both_relays_give_an_address_and_the_first_is_the_better() -> None:
    async with RelayServer(relay_options()) as best, RelayServer(relay_options()) as second:
        async with gathered(turn(best.addresses[0]), turn(second.addresses[0])) as result:
            first, other = sorted(result.relayed(), key=lambda candidate: -candidate.priority)
            assert best.allocations == second.allocations == 1
            assert first.priority > other.priority


async def test_a_third_relay_is_not_asked() -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(RelayServer(relay_options())) for _ in range(3)]
        async with gathered(*(turn(server.addresses[0]) for server in servers)) as result:
            assert len(result.relayed()) == 2
            assert [server.allocations for server in servers] == [1, 1, 0]


async def test_a_dead_relay_delays_nothing_while_the_other_one_lives() -> None:
    async with RelayServer(relay_options()) as alive:
        with silence() as dead:
            async with gathered(turn(dead), turn(alive.addresses[0])) as result:
                assert len(result.relayed()) == 1
                assert result.took_s < 1.5


async def test_dead_servers_alone_delay_the_offer_by_two_seconds() -> None:
    with silence() as udp, silence(kind=socket.SOCK_STREAM) as tcp:
        servers = IceServer(f"stun:127.0.0.1:{udp[1]}"), turn(udp), turn(tcp, "?transport=tcp")
        async with gathered(*servers) as result:
            assert result.kinds() == ["host"]
            assert 1.5 < result.took_s < 4


async def test_the_second_stun_server_answers_for_the_first() -> None:
    async with RelayServer(relay_options()) as alive:
        with silence() as dead:
            servers = IceServer(f"stun:127.0.0.1:{dead[1]}"), IceServer(f"stun:127.0.0.1:{alive.addresses[0][1]}")
            async with gathered(*servers) as result:
                assert result.kinds() == ["host"], "seen as it is: no reflexive candidate beside the host's"
                assert result.took_s < 1.5


async def test_wrong_credentials_give_no_address_and_no_delay() -> None:
    async with RelayServer(relay_options()) as relay:
        host, port = relay.addresses[0]
        async with gathered(IceServer(f"turn:{host}:{port}?transport=udp", "9999999999:eve", "guess")) as result:
            assert result.kinds() == ["host"]
            assert result.took_s < 1.5


async def test_giving_up_in_the_middle_leaves_no_allocation() -> None:
    async with RelayServer(relay_options()) as relay:
        connection = Connection(ice_controlling=True)
        with silence() as dead:
            gatherer = Gatherer(connection, (turn(dead), turn(relay.addresses[0])), RelayMemory())
            job = asyncio.create_task(gatherer.gather(HERE))
            await until(lambda: relay.allocations == 1)
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
        await connection.close()
        await until(lambda: relay.allocations == 0)


async def test_closing_waits_for_no_dead_relay() -> None:
    connection = Connection(ice_controlling=True)
    async with RelayServer(relay_options()) as relay:
        await Gatherer(connection, (turn(relay.addresses[0]),), RelayMemory()).gather(HERE)
    began = time.monotonic()
    await connection.close()
    assert time.monotonic() - began < 1


def test_entries_of_one_host_are_the_ways_to_one_relay() -> None:
    udp, tcp = turn(("relay.test", 3478)), turn(("relay.test", 3478), "?transport=tcp")
    tls = turn(("relay.test", 443), "?transport=tcp", "turns")
    assert relays([tls, IceServer("stun:relay.test"), tcp, udp]) == [
        IceRelay("relay.test", ((RelayWay.UDP, udp), (RelayWay.TCP, tcp), (RelayWay.TLS, tls)))
    ]


def test_an_entry_that_names_no_transport_means_both() -> None:
    entry = turn(("relay.test", 3478), "")
    assert relays([entry]) == [IceRelay("relay.test", ((RelayWay.UDP, entry), (RelayWay.TCP, entry)))]


def test_the_order_of_relays_is_kept() -> None:
    names = [
        relay.host
        for relay in relays([turn(("b.test", 1)), turn(("a.test", 1)), turn(("b.test", 2), "?transport=tcp")])
    ]
    assert names == ["b.test", "a.test"]


def test_two_ports_by_one_way_are_two_relays() -> None:
    assert len(relays([turn(("127.0.0.1", 1)), turn(("127.0.0.1", 2))])) == 2


def test_tls_over_udp_is_refused_by_name() -> None:
    with pytest.raises(IceConfigError, match="turns means TLS over TCP"):
        turn(("relay.test", 443), "?transport=udp", "turns")


def test_ipv6_addresses_stand_in_brackets() -> None:
    server = turn(("[2001:db8::1]", 3478))
    assert (server.host, server.port, server.transport, server.secure) == ("2001:db8::1", 3478, "udp", False)


def test_ports_default_to_those_of_the_scheme() -> None:
    assert IceServer("stun:a.test").port == 3478
    assert IceServer("turns:a.test", "u", "p").port == 5349

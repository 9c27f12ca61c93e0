"""Packets through the relay, by aioice's own client over UDP, TCP and TLS."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from aioice import stun
from aioice.stun import Method

from tests.relay.conftest import SECRET, asker, code, needs_ipv6, peer, relay_options, relayed, until
from tests.support.clock import VirtualClock
from transport.ice.ice import turn_credentials
from transport.relay.message import Attribute
from transport.relay.server import RelayServer


async def exchange(server: RelayServer, address: tuple[str, int], way: str = "udp", tls: object = None) -> None:
    ip = address[0]
    async with peer(ip) as (friend, at), relayed(address, way, tls) as (inbox, transport):
        transport.sendto(b"out", at)
        data, source = await friend.next()
        assert data == b"out"
        assert source == transport.get_extra_info("sockname")
        friend.transport.sendto(b"and back", source)
        assert await inbox.next() == (b"and back", at)
    await until(lambda: not server.allocations)


@pytest.mark.parametrize("way", ["udp", "tcp"])
async def test_a_client_and_a_peer_exchange_datagrams(relay: RelayServer, way: str) -> None:
    await exchange(relay, relay.addresses[0], way)


async def test_tls_carries_the_same(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    trust = ssl.create_default_context(cafile=str(certificate[0]))
    async with RelayServer(relay_options(tls_port=0, tls=context)) as server:
        await exchange(server, server.tls_addresses[0], "tcp", trust)


@needs_ipv6
async def test_ipv6_clients_and_peers_are_served_alike() -> None:
    async with RelayServer(relay_options(listen=("127.0.0.1", "::1"))) as server, peer("::1") as (friend, at):
        async with asker(server.addresses[1], ip="::1") as client:
            family = (Attribute.REQUESTED_ADDRESS_FAMILY, bytes([2, 0, 0, 0]))
            answer = await client.allocate(family)
            assert answer.attributes["XOR-RELAYED-ADDRESS"][0] == "::1"
            assert code(await client.bind(0x4000, at)) == 0
            client.send(b"\x40\x00\x00\x02hi")
            assert (await friend.next())[0] == b"hi"
            assert code(await client.permit("127.0.0.1")) == 443, "an IPv6 address cannot reach an IPv4 peer"


async def test_two_clients_of_one_relay_reach_each_other_inside_of_it(relay: RelayServer) -> None:
    async with relayed(relay.addresses[0]) as (left, one), relayed(relay.addresses[0], "tcp") as (right, other):
        here, there = one.get_extra_info("sockname"), other.get_extra_info("sockname")
        other.sendto(b"opens the way", here)
        await until(lambda: relay.desk.counters.dropped.get("no permission") == 1)
        one.sendto(b"first", there)
        assert await right.next() == (b"first", here)
        other.sendto(b"second", here)
        assert await left.next() == (b"second", there)


async def test_a_peer_without_permission_gets_nothing_through(relay: RelayServer) -> None:
    async with peer() as (friend, _), asker(relay.addresses[0]) as client:
        at = (await client.allocate()).attributes["XOR-RELAYED-ADDRESS"]
        friend.transport.sendto(b"unasked", at)
        await until(lambda: relay.desk.counters.dropped.get("no permission") == 1)
        assert not client.inbox.items


async def test_send_and_data_indications_need_no_channel(relay: RelayServer) -> None:
    async with peer() as (friend, at), asker(relay.addresses[0]) as client:
        mine = (await client.allocate()).attributes["XOR-RELAYED-ADDRESS"]
        client.indicate(b"too early", at)
        await until(lambda: relay.desk.counters.dropped.get("no permission") == 1)
        assert code(await client.permit("127.0.0.1")) == 0
        client.indicate(b"now", at)
        assert await friend.next() == (b"now", mine)
        friend.transport.sendto(b"reply", mine)
        data, _ = await client.inbox.next()
        indication = stun.parse_message(data)
        assert indication.message_method == Method.DATA
        assert indication.attributes["DATA"] == b"reply"
        assert indication.attributes["XOR-PEER-ADDRESS"] == at


async def test_an_empty_datagram_passes_in_both_directions(relay: RelayServer) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as friend:  # asyncio does not send empty datagrams.
        friend.setblocking(False)
        friend.bind(("127.0.0.1", 0))
        async with asker(relay.addresses[0]) as client:
            mine = (await client.allocate()).attributes["XOR-RELAYED-ADDRESS"]
            await client.bind(0x4001, friend.getsockname())
            client.send(b"\x40\x01\x00\x00")
            assert await asyncio.get_running_loop().sock_recvfrom(friend, 100) == (b"", mine)
            friend.sendto(b"", mine)
            assert (await client.inbox.next())[0] == b"\x40\x01\x00\x00"


async def test_allocation_permission_and_channel_end_when_their_time_is_over() -> None:
    clock = VirtualClock(1_800_000_000.0)
    async with RelayServer(relay_options(), clock) as server, peer() as (friend, at):
        async with asker(server.addresses[0]) as client:
            client.username, client.password = _lasting(clock)
            mine = (await client.allocate((Attribute.LIFETIME, (3600).to_bytes(4, "big")))).attributes
            await client.permit("127.0.0.1")
            await clock.advance(299)
            friend.transport.sendto(b"in time", mine["XOR-RELAYED-ADDRESS"])
            await client.inbox.next()
            await clock.advance(2)
            friend.transport.sendto(b"late", mine["XOR-RELAYED-ADDRESS"])
            await until(lambda: server.desk.counters.dropped.get("no permission") == 1)
            await client.bind(0x4000, at)
            await clock.advance(599)
            client.send(b"\x40\x00\x00\x07in time")
            await friend.next()
            await clock.advance(2)
            client.send(b"\x40\x00\x00\x04late")
            await until(lambda: server.desk.counters.dropped.get("no channel") == 1)
            assert server.allocations == 1
            await clock.advance(3600 - 902 + 6)
            assert server.allocations == 0
            client.nonce = b""
            assert code(await client.permit("127.0.0.1")) == 437


async def test_refreshing_prolongs_an_allocation_and_zero_ends_it() -> None:
    clock = VirtualClock(1_800_000_000.0)
    async with RelayServer(relay_options(), clock) as server, asker(server.addresses[0]) as client:
        client.username, client.password = _lasting(clock)
        assert (await client.allocate()).attributes["LIFETIME"] == 600
        await clock.advance(500)
        answer = await client.ask(Method.REFRESH, (Attribute.LIFETIME, (900).to_bytes(4, "big")))
        assert answer.attributes["LIFETIME"] == 900
        await clock.advance(600)
        assert server.allocations == 1
        assert code(await client.ask(Method.REFRESH, (Attribute.LIFETIME, bytes(4)))) == 0
        assert server.allocations == 0
        assert code(await client.ask(Method.REFRESH, (Attribute.LIFETIME, bytes(4)))) == 437


async def test_a_repeated_request_gets_the_same_address_and_a_second_one_a_refusal(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        first = await client.allocate()
        again = await client.ask(
            Method.ALLOCATE, (Attribute.REQUESTED_TRANSPORT, bytes([17, 0, 0, 0])), transaction=first.transaction_id
        )
        assert again.attributes["XOR-RELAYED-ADDRESS"] == first.attributes["XOR-RELAYED-ADDRESS"]
        assert relay.allocations == 1
        assert code(await client.allocate()) == 437


async def test_a_closed_connection_takes_its_allocation_along(relay: RelayServer) -> None:
    async with relayed(relay.addresses[0], "tcp") as (_, transport):
        assert relay.allocations == 1
        transport._TurnTransport__inner_protocol.transport.abort()
        await until(lambda: not relay.allocations)
    assert relay.connections == 0


async def test_behind_a_cloud_nat_clients_are_told_the_public_address() -> None:
    async with RelayServer(relay_options(external={"127.0.0.1": "198.51.100.7"})) as server:
        assert server.addresses[0][0] == "198.51.100.7"
        inside = ("127.0.0.1", server.addresses[0][1])
        async with asker(inside) as left, asker(inside, "other") as right:
            here = (await left.allocate()).attributes["XOR-RELAYED-ADDRESS"]
            there = (await right.allocate()).attributes["XOR-RELAYED-ADDRESS"]
            assert here[0] == there[0] == "198.51.100.7"
            assert code(await left.bind(0x4000, there)) == 403, "a documentation network is not the Internet"


async def test_closing_the_relay_leaves_nothing_open() -> None:
    server = RelayServer(relay_options())
    await server.start()
    async with asker(server.addresses[0]) as client:
        await client.allocate()
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        await server.aclose()
        assert await reader.read() == b""
        writer.close()
    assert server.allocations == server.connections == 0
    await server.aclose()


def _lasting(clock: VirtualClock) -> tuple[str, str]:
    return turn_credentials(SECRET, "node", clock.time(), 24 * 3600)

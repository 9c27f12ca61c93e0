"""Whom a client may reach through the relay: one list of probes, for ours and for coturn with the same options (row F26)."""

import ipaddress

import pytest

from tests.relay.conftest import any_relay, asker, code, needs_coturn, needs_ipv6, peer, until
from transport.relay.message import Attribute
from transport.relay.peer_policy import PeerPolicy
from transport.relay.server import RelayServer

FORBIDDEN_V4 = [
    "0.0.0.0",
    "0.1.2.3",
    "10.1.2.3",
    "100.64.0.1",
    "127.0.0.1",
    "127.8.8.8",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
]
FORBIDDEN_V6 = [
    "::",
    "::1",
    "::7f00:1",
    "::ffff:127.0.0.1",
    "::ffff:10.1.2.3",
    "::ffff:169.254.169.254",
    "::ffff:0:10.1.2.3",
    "64:ff9b::a01:203",
    "64:ff9b:1::a01:203",
    "2001::1",
    "2001:db8::1",
    "2002:a01:203::1",
    "fc00::1",
    "fd00::1",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]
PUBLIC_V4 = ["8.8.8.8", "100.63.255.255", "100.128.0.1", "172.15.0.1", "172.32.0.1", "192.167.0.1", "223.255.255.255"]
PUBLIC_V6 = ["2606:4700::1111", "2003::1", "2a00::1"]

relays = pytest.mark.parametrize("kind", ["ours", pytest.param("coturn", marks=needs_coturn)])


@relays
async def test_an_ipv4_allocation_reaches_the_internet_only(kind: str) -> None:
    async with any_relay(kind, allowed=()) as address, asker(address) as client:
        assert code(await client.allocate()) == 0
        for ip in FORBIDDEN_V4:
            assert code(await client.permit(ip)) == 403, ip
            assert code(await client.bind(0x4000, (ip, 80))) == 403, ip
        for ip in FORBIDDEN_V6:
            assert code(await client.permit(ip)) in (403, 443), ip
        for ip in PUBLIC_V4:
            assert code(await client.permit(ip)) == 0, ip


@needs_ipv6
@relays
async def test_an_ipv6_allocation_reaches_the_internet_only(kind: str) -> None:
    family = (Attribute.REQUESTED_ADDRESS_FAMILY, bytes([2, 0, 0, 0]))
    async with any_relay(kind, allowed=(), listen=("127.0.0.1", "::1")) as address, asker(address) as client:
        assert code(await client.allocate(family)) == 0
        for ip in FORBIDDEN_V6:
            assert code(await client.permit(ip)) == 403, ip
            assert code(await client.bind(0x4000, (ip, 80))) == 403, ip
        for ip in PUBLIC_V6:
            assert code(await client.permit(ip)) == 0, ip


@relays
async def test_what_the_operator_allows_is_reached_and_its_neighbour_is_not(kind: str) -> None:
    allowed = (ipaddress.ip_network("192.168.7.0/24"), ipaddress.ip_network("10.1.2.3/32"))
    async with any_relay(kind, allowed=allowed) as address, asker(address) as client:
        assert code(await client.allocate()) == 0
        for ip, expected in {"192.168.7.9": 0, "192.168.8.9": 403, "10.1.2.3": 0, "10.1.2.4": 403}.items():
            assert code(await client.permit(ip)) == expected, ip


async def test_one_forbidden_peer_spoils_the_whole_request(relay: RelayServer) -> None:
    async with peer() as (friend, _), asker(relay.addresses[0]) as client:
        mine = (await client.allocate()).attributes["XOR-RELAYED-ADDRESS"]
        assert code(await client.permit("127.0.0.1", "10.0.0.1")) == 403
        friend.transport.sendto(b"nothing was granted", mine)
        await until(lambda: relay.desk.counters.dropped.get("no permission") == 1)


def test_the_relays_own_addresses_are_opened_only_by_name() -> None:
    own = ["192.168.7.1", "5.6.7.8", "fe80::1%eth0"]
    wide = PeerPolicy([ipaddress.ip_network("192.168.7.0/24")], own)
    assert wide.permits("192.168.7.2")
    assert not wide.permits("192.168.7.1")
    assert not wide.permits("5.6.7.8"), "a public address of the relay's machine is not the Internet"
    assert PeerPolicy([ipaddress.ip_network("5.6.7.8/32")], own).permits("5.6.7.8")
    assert not wide.permits("host.example.org")
    assert not wide.permits("fe80::1%eth0")


async def test_a_neighbouring_allocation_is_reached_and_a_service_beside_the_relay_is_not() -> None:
    """A relay on an address where it may relay, but whose other ports are its own."""
    net = ipaddress.ip_network("127.0.0.0/8")  # As a network it does not open the relay's own 127.0.0.1.
    async with peer() as (service, beside), any_relay("ours", allowed=(net,)) as address:
        async with asker(address, "a") as left, asker(address, "b") as right:
            here = (await left.allocate()).attributes["XOR-RELAYED-ADDRESS"]
            there = (await right.allocate()).attributes["XOR-RELAYED-ADDRESS"]
            assert code(await left.bind(0x4000, beside)) == 403
            assert code(await left.bind(0x4001, there)) == 0
            assert code(await right.bind(0x4000, here)) == 0
            left.indicate(b"to the service", beside)
            left.send(b"\x40\x01\x00\x05hello")
            assert (await right.inbox.next())[0] == b"\x40\x00\x00\x05hello"
            assert not service.items

"""Every error code, from our relay and, where both can, from coturn with the same options (row F26)."""

import contextlib
import dataclasses
import secrets

import pytest
from aioice import stun
from aioice.stun import Class, Method

from tests.relay.conftest import (
    REALM,
    UDP_TRANSPORT,
    Asker,
    any_relay,
    asker,
    code,
    credentials,
    needs_coturn,
    peer,
    relay_options,
    until,
)
from tests.support.clock import VirtualClock
from transport.ice.ice import turn_credentials
from transport.relay import message
from transport.relay.message import Attribute
from transport.relay.options import Quota
from transport.relay.server import RelayServer


async def test_without_credentials_a_client_is_asked_for_them(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        answer = await client.raw(Method.ALLOCATE, [UDP_TRANSPORT])
        assert code(answer) == 401
        assert answer.attributes["REALM"] == REALM
        assert len(answer.attributes["NONCE"]) < 32


def _wrong_secret(client: Asker) -> None:
    client.username, client.password = turn_credentials("another secret altogether", "node", 4e9)


def _expired(client: Asker) -> None:
    client.username, client.password = credentials(lifetime_s=-1)


def _no_expiry(client: Asker) -> None:
    client.username = "node"


@pytest.mark.parametrize("change", [_wrong_secret, _expired, _no_expiry])
async def test_credentials_that_do_not_hold_are_refused(relay: RelayServer, change: object) -> None:
    async with asker(relay.addresses[0]) as client:
        change(client)  # type: ignore[operator]
        assert code(await client.allocate()) == 401
    assert relay.allocations == 0


async def test_an_allocation_does_not_outlive_its_credentials() -> None:
    clock = VirtualClock(1_800_000_000.0)
    async with RelayServer(relay_options(), clock) as server, asker(server.addresses[0]) as client:
        client.username, client.password = turn_credentials(relay_options().secret, "node", clock.time(), 100)
        assert (await client.allocate()).attributes["LIFETIME"] == 100
        await clock.advance(101)
        assert code(await client.ask(Method.REFRESH, (Attribute.LIFETIME, (600).to_bytes(4, "big")))) == 401
        await clock.advance(5)
        assert server.allocations == 0


async def test_renewed_credentials_of_the_same_user_prolong_an_allocation() -> None:
    clock = VirtualClock(1_800_000_000.0)
    secret = relay_options().secret
    async with RelayServer(relay_options(), clock) as server, asker(server.addresses[0]) as client:
        client.username, client.password = turn_credentials(secret, "node", clock.time(), 100)
        await client.allocate()
        client.username, client.password = turn_credentials(secret, "node", clock.time(), 5000)
        assert code(await client.ask(Method.REFRESH, (Attribute.LIFETIME, (600).to_bytes(4, "big")))) == 0
        client.username, client.password = turn_credentials(secret, "other", clock.time(), 5000)
        assert code(await client.ask(Method.REFRESH, (Attribute.LIFETIME, bytes(4)))) == 441
        assert server.allocations == 1


async def test_a_nonce_is_stale_after_an_hour() -> None:
    clock = VirtualClock(1_800_000_000.0)
    async with RelayServer(relay_options(), clock) as server, asker(server.addresses[0]) as client:
        client.username, client.password = turn_credentials(relay_options().secret, "node", clock.time(), 9000)
        await client.allocate()
        await clock.advance(3601)
        answer = await client.allocate()
        assert code(answer) == 438
        client.nonce = answer.attributes["NONCE"]
        assert code(await client.allocate()) == 0


async def test_an_overheard_request_is_worth_nothing_from_another_address(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client, asker(relay.addresses[0]) as thief:
        await client.allocate()
        thief.nonce = client.nonce
        assert code(await thief.allocate()) == 438


@pytest.mark.parametrize("nonce", [b"x", b"-", b"zz-00", b"\xff\xfe-1", b"5f5e100-" + b"0" * 16, b"-1-" + b"0" * 16])
async def test_an_invented_nonce_is_stale(relay: RelayServer, nonce: bytes) -> None:
    async with asker(relay.addresses[0]) as client:
        client.nonce = nonce
        assert code(await client.allocate()) == 438


async def test_signed_without_a_user_name_is_a_bad_request(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        assert code(await client.raw(Method.ALLOCATE, [UDP_TRANSPORT], key=b"k")) == 400


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        pytest.param([], 400, id="no transport"),
        pytest.param([(Attribute.REQUESTED_TRANSPORT, bytes([6, 0, 0, 0]))], 442, id="TCP allocations"),
        pytest.param([(Attribute.REQUESTED_TRANSPORT, b"\x11")], 400, id="a transport of one byte"),
        pytest.param([UDP_TRANSPORT, (Attribute.REQUESTED_ADDRESS_FAMILY, bytes([2, 0, 0, 0]))], 440, id="IPv6"),
        pytest.param([UDP_TRANSPORT, (Attribute.REQUESTED_ADDRESS_FAMILY, bytes([9, 0, 0, 0]))], 440, id="family 9"),
        pytest.param([UDP_TRANSPORT, (0x0018, b"\x80\0\0\0")], 420, id="even ports"),
        pytest.param([UDP_TRANSPORT, (0x7ABC, b"")], 420, id="an attribute of the future"),
    ],
)
async def test_an_allocation_that_cannot_be_is_refused_with_a_signed_reason(
    relay: RelayServer, attributes: list[tuple[int, bytes]], expected: int
) -> None:
    async with asker(relay.addresses[0]) as client:
        answer = await client.ask(Method.ALLOCATE, *attributes)
        assert code(answer) == expected
        assert answer.check_message_integrity(client.key)
    assert relay.allocations == 0


async def test_an_optional_attribute_that_is_not_known_does_no_harm(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        assert code(await client.allocate((0x8000, bytes([2, 0, 0, 0])), (0xC057, b"vendor"))) == 0


async def test_without_an_allocation_nothing_can_be_done(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        assert code(await client.permit("127.0.0.1")) == 437
        assert code(await client.bind(0x4000, ("127.0.0.1", 4000))) == 437
        assert code(await client.ask(Method.REFRESH)) == 437


async def test_channels_are_bound_by_the_rules(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        await client.allocate()
        for number in (0, 0x3FFF, 0x5000, 0xFFFF):
            assert code(await client.bind(number, ("127.0.0.1", 4000))) == 400
        assert code(await client.bind(0x4000, ("127.0.0.1", 0))) == 400, "no peer has port 0"
        assert code(await client.bind(0x4000, ("127.0.0.1", 4000))) == 0
        assert code(await client.bind(0x4000, ("127.0.0.1", 4000))) == 0, "binding again renews"
        assert code(await client.bind(0x4000, ("127.0.0.1", 4001))) == 400, "the number stands for another peer"
        assert code(await client.bind(0x4001, ("127.0.0.1", 4000))) == 400, "the peer has another number"
        assert code(await client.ask(Method.CHANNEL_BIND, (Attribute.CHANNEL_NUMBER, b"\x40\x02\0\0"))) == 400
        assert code(await client.ask(Method.CREATE_PERMISSION)) == 400
        assert code(await client.ask(Method.SEND)) == 400, "SEND is no request"


async def test_permissions_and_channels_of_one_allocation_are_bounded() -> None:
    quota = Quota(permissions=3, channels=2)
    async with RelayServer(relay_options(quota=quota)) as server, asker(server.addresses[0]) as client:
        await client.allocate()
        assert code(await client.permit("8.8.8.8", "8.8.4.4")) == 0
        assert code(await client.permit("1.1.1.1", "1.0.0.1")) == 508
        assert code(await client.bind(0x4000, ("8.8.8.8", 1))) == 0
        assert code(await client.bind(0x4001, ("8.8.8.8", 2))) == 0
        assert code(await client.bind(0x4002, ("8.8.8.8", 3))) == 508


@pytest.mark.parametrize("kind", ["ours", pytest.param("coturn", marks=needs_coturn)])
async def test_a_user_has_only_so_many_allocations(kind: str) -> None:
    async with any_relay(kind, quota=Quota(allocations_per_user=3)) as address, contextlib.AsyncExitStack() as stack:
        users = ["one", "one", "one", "one", "two"]
        clients = [await stack.enter_async_context(asker(address, user)) for user in users]
        codes = [code(await client.allocate()) for client in clients]
        assert codes == [0, 0, 0, 486, 0]


async def test_an_ended_allocation_makes_room_for_another() -> None:
    quota = Quota(allocations=1, allocations_per_user=1)
    async with RelayServer(relay_options(quota=quota)) as server:
        async with asker(server.addresses[0]) as first, asker(server.addresses[0], "other") as second:
            await first.allocate()
            assert code(await second.allocate()) == 508
            await first.ask(Method.REFRESH, (Attribute.LIFETIME, bytes(4)))
            assert code(await second.allocate()) == 0


async def test_when_the_relayed_ports_are_used_up_the_client_is_told() -> None:
    async with RelayServer(relay_options(min_port=41002, max_port=41002)) as server:
        async with asker(server.addresses[0]) as first, asker(server.addresses[0]) as second:
            assert (await first.allocate()).attributes["XOR-RELAYED-ADDRESS"][1] == 41002
            assert code(await second.allocate()) == 508


async def test_a_user_over_its_rate_loses_packets_and_others_do_not() -> None:
    quota = dataclasses.replace(Quota(), user_rate=1.0)
    clock = VirtualClock(1_800_000_000.0)  # The bucket is not refilled.
    async with RelayServer(relay_options(quota=quota), clock) as server, peer() as (friend, at):
        async with asker(server.addresses[0], "fast") as fast, asker(server.addresses[0], "slow") as slow:
            for client in (fast, slow):
                client.username, client.password = turn_credentials(
                    relay_options().secret, "fast" if client is fast else "slow", clock.time(), 9000
                )
                await client.allocate()
                assert code(await client.bind(0x4000, at)) == 0
            payload = bytes(1000)
            frame = b"\x40\x00" + len(payload).to_bytes(2, "big") + payload
            for sent in range(1, 301):
                fast.send(frame)
                await until(lambda sent=sent: _seen(server) == sent)
            passed = server.desk.counters.to_peers_packets
            assert passed == 256 * 1024 // 1000
            slow.send(frame)
            await until(lambda: server.desk.counters.to_peers_packets == passed + 1)
            assert server.desk.counters.dropped["rate"] == 300 - passed
            await until(lambda: len(friend.items) == passed + 1)


def _seen(server: RelayServer) -> int:
    counters = server.desk.counters
    return counters.to_peers_packets + counters.dropped.get("rate", 0)


async def test_an_unknown_attribute_in_a_binding_request_is_named(relay: RelayServer) -> None:
    async with asker(relay.addresses[0]) as client:
        transaction = secrets.token_bytes(12)
        client.send(message.encode(Method.BINDING, Class.REQUEST, transaction, [(0x7ABC, b"")]))
        data, _ = await client.inbox.next()
        assert code(stun.parse_message(data)) == 420
        assert data.endswith(bytes.fromhex("000a0002 7abc 0000"))

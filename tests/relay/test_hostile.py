"""Noise, floods and connections that lead nowhere: the relay lives on, stays small and answers little."""

import asyncio
import gc
import random
import secrets
import tracemalloc

import pytest
from aioice.stun import Class, Method

from tests.relay.conftest import UDP_TRANSPORT, asker, code, credentials, peer, relay_options, until
from tests.support.clock import VirtualClock
from transport.relay import guard, message, stream
from transport.relay.errors import MalformedMessageError
from transport.relay.guard import StrangerGuard
from transport.relay.message import Attribute
from transport.relay.options import Quota
from transport.relay.server import RelayServer
from transport.relay.usage import MAX_USERS_KEPT, Users


def samples() -> list[bytes]:
    """One valid message of every kind."""
    transaction = bytes(range(12))
    attributes = [
        UDP_TRANSPORT,
        (Attribute.LIFETIME, (600).to_bytes(4, "big")),
        (Attribute.CHANNEL_NUMBER, b"\x40\0\0\0"),
        (Attribute.XOR_PEER_ADDRESS, message.xor_address(("127.0.0.1", 9), transaction)),
        (Attribute.XOR_PEER_ADDRESS, message.xor_address(("2001:db8::1", 9), transaction)),
        (Attribute.DATA, b"data"),
        (Attribute.CHANGE_REQUEST, bytes(4)),
        (Attribute.USERNAME, credentials()[0].encode()),
        (Attribute.REALM, b"cottage"),
        (Attribute.NONCE, b"5f5e100-0123456789abcdef"),
    ]
    made = []
    for method in Method:
        for kind in Class:
            made.append(message.encode(method, kind, transaction, attributes, b"key"))
            made.append(message.encode(method, kind, transaction, attributes))
    return [*made, b"\x40\x00\x00\x04data", b"\x40\x00\xff\xffshort"]


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(120))
    data = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(1, 6)):
        match chance.randrange(4):
            case 0:
                data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                del data[chance.randrange(len(data)) :]
            case 2:
                place = chance.randrange(len(data) + 1)
                data[place:place] = chance.randbytes(chance.randrange(1, 9))
            case _:
                place = chance.randrange(20, max(21, len(data) - 1))
                data[place : place + 2] = chance.choice((b"\xff\xff", b"\0\0", b"\0\1"))
        if not data:
            return b""
    if len(data) >= 4 and chance.random() < 0.7:
        data[2:4] = ((len(data) - 20) & 0xFFFF).to_bytes(2, "big")  # So that it gets past the first check.
    return bytes(data)


async def test_twenty_thousand_mutated_datagrams_leave_the_relay_alive_and_small(
    relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "SOURCE_RATE", 1e9)
    monkeypatch.setattr(guard, "SOURCE_BURST", 1e9)
    monkeypatch.setattr(relay.desk, "_guard", StrangerGuard())
    relay.desk._guard._total._rate = 0.0
    chance, seeds = random.Random(20_000), samples()
    async with asker(relay.addresses[0]) as member, asker(relay.addresses[0], "stranger") as stranger:
        await member.allocate()
        assert code(await member.bind(0x4000, stranger.address)) == 0

        async def fire(count: int) -> None:
            for number in range(count):
                data = mutated(chance, seeds)
                (member if number % 2 else stranger).send(data)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            assert code(await member.permit("127.0.0.1")) == 0
            member.inbox.items.clear()
            stranger.inbox.items.clear()

        await fire(4000)
        gc.collect()
        tracemalloc.start()
        await fire(8000)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        await fire(8000)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    assert relay.allocations == 1
    assert grown < 100_000, f"{grown:,} bytes more after 8,000 datagrams"
    assert relay.desk.counters.dropped["malformed"] > 1000


@pytest.mark.parametrize("seed", range(4))
def test_the_parser_gives_a_message_or_its_own_error(seed: int) -> None:
    chance, seeds = random.Random(seed), samples()
    for _ in range(5000):
        try:
            parsed = message.parse(mutated(chance, seeds))
            parsed.peers()
            parsed.text(Attribute.USERNAME)
            parsed.number(Attribute.LIFETIME)
            parsed.not_understood()
            parsed.signed_with(b"key")
        except MalformedMessageError:
            continue


def test_what_was_encoded_is_read_back_and_a_changed_bit_shows() -> None:
    data = message.encode(Method.ALLOCATE, Class.REQUEST, bytes(12), [(Attribute.DATA, b"abc"), UDP_TRANSPORT], b"key")
    parsed = message.parse(data)
    assert parsed.attributes == ((Attribute.DATA, b"abc"), UDP_TRANSPORT)
    assert parsed.signed_with(b"key")
    assert not parsed.signed_with(b"another")
    for bit in range(len(data) * 8 - 24 * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert not message.parse(bytes(changed)).signed_with(b"key"), f"bit {bit}"
        except MalformedMessageError:
            continue


def test_attributes_behind_the_signature_are_nobodys_word() -> None:
    data = message.encode(Method.REFRESH, Class.REQUEST, bytes(12), [UDP_TRANSPORT], b"key")
    more = data + b"\x00\x0d\x00\x04\x00\x00\x00\x00"
    parsed = message.parse(more[:2] + (len(more) - 20).to_bytes(2, "big") + more[4:])
    assert parsed.get(Attribute.LIFETIME) is None


async def test_a_flood_of_strangers_gets_few_answers_and_a_client_is_served_meanwhile(relay: RelayServer) -> None:
    async with peer() as (friend, at), asker(relay.addresses[0]) as client, asker(relay.addresses[0]) as flood:
        await client.allocate()
        await client.bind(0x4000, at)
        for _ in range(20):
            for _ in range(100):
                flood.send(message.encode(Method.ALLOCATE, Class.REQUEST, secrets.token_bytes(12), [UDP_TRANSPORT]))
            client.send(b"\x40\x00\x00\x04live")
            assert (await friend.next())[0] == b"live"
        await until(lambda: relay.desk.counters.dropped.get("stranger", 0) > 1000)
        assert len(flood.inbox.items) < 2 * guard.SOURCE_BURST


async def test_a_stranger_gets_hardly_more_than_it_sent(relay: RelayServer) -> None:
    """Whoever forges the address of a victim must not gain from it."""
    async with asker(relay.addresses[0]) as client:
        for data, most in (
            (message.encode(Method.ALLOCATE, Class.REQUEST, bytes(12), [UDP_TRANSPORT]), 100),
            (message.encode(Method.BINDING, Class.REQUEST, bytes(12), []), 56),
        ):
            client.send(data)
            answer, _ = await client.inbox.next()
            assert len(answer) <= most
        for data in (b"", b"\0" * 19, b"\x00\x01", message.encode(Method.BINDING, Class.INDICATION, bytes(12), [])):
            client.send(data)
        client.send(message.encode(Method.BINDING, Class.REQUEST, bytes(range(12)), []))
        answer, _ = await client.inbox.next()
        assert answer[8:20] == bytes(range(12)), "only the request was answered"


def test_forged_sources_do_not_fill_the_memory() -> None:
    limits = StrangerGuard()
    for number in range(3 * guard.MAX_SOURCES):
        limits.allows(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(limits._sources) <= guard.MAX_SOURCES


def test_one_ipv6_network_counts_as_one_source() -> None:
    limits = StrangerGuard()
    allowed = [limits.allows(f"2001:db8:0:1::{number:x}", 0.0) for number in range(500)]
    assert sum(allowed) == guard.SOURCE_BURST
    assert limits.allows("2001:db8:0:2::1", 0.0)
    assert limits.allows("fe80::1%eth0", 0.0)


def test_users_without_an_allocation_make_room_for_new_ones() -> None:
    users = Users(0.0)
    holder = users.get("holder")
    holder.allocations = 1
    for number in range(MAX_USERS_KEPT + 10):
        users.get(f"user{number}")
    assert users.get("holder") is holder
    assert len(users._users) <= MAX_USERS_KEPT


async def test_a_connection_that_speaks_something_else_is_cut(relay: RelayServer) -> None:
    reader, writer = await asyncio.open_connection(*relay.addresses[0])
    writer.write(b"\xffGET / HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionResetError):
            await _to_the_end(reader)
    writer.close()
    await until(lambda: relay.connections == 0)


async def _to_the_end(reader: asyncio.StreamReader) -> None:
    if await reader.read() == b"":
        raise ConnectionResetError


async def test_a_connection_without_an_allocation_is_cut_after_a_while(
    relay: RelayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "IDLE_S", 0.05)
    reader, writer = await asyncio.open_connection(*relay.addresses[0])
    async with asyncio.timeout(5):
        with pytest.raises(ConnectionResetError):
            await _to_the_end(reader)
    writer.close()


async def test_one_address_has_only_so_many_connections() -> None:
    async with RelayServer(relay_options(quota=Quota(streams_per_address=2))) as server:
        opened = [await asyncio.open_connection(*server.addresses[0]) for _ in range(3)]
        await until(lambda: server.desk.counters.dropped.get("connections") == 1)
        assert server.connections == 2
        for _, writer in opened:
            writer.close()
        await until(lambda: server.connections == 0)


async def test_the_port_for_nat_kinds_answers_binding_requests_only() -> None:
    clock = VirtualClock(1_800_000_000.0)
    async with RelayServer(relay_options(), clock) as server:
        extra = server._listeners[1].public
        async with asker(extra) as client:
            client.send(message.encode(Method.ALLOCATE, Class.REQUEST, bytes(12), [UDP_TRANSPORT]))
            await until(lambda: server.desk.counters.dropped.get("malformed") == 1)
            assert code(await client.raw(Method.BINDING)) == 0

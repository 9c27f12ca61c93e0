"""Two machines that meet through a relay: codes, the mailbox, and what strangers can do there."""

import asyncio
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.identity import NodeKey
from tests.nettest.conftest import targets_of
from transport.nettest.errors import NettestError
from transport.nettest.mailbox import MAX_PARTS, PART_BYTES, TOKEN_BYTES, Mailbox, MeetingPoint, opened
from transport.relay.server import RelayServer

KEY = NodeKey(b"k" * 32)
TOKEN = b"t" * TOKEN_BYTES
LIMIT_S = 20.0


def test_a_code_is_one_line_and_comes_back_whole() -> None:
    point = MeetingPoint("turn:relay.test:3478?transport=udp", "25.0.0.1", 50000, KEY.address, TOKEN)
    code = point.code()
    assert len(code) < 250
    assert code.isascii()
    assert not set(code) & set(" \n=+/")
    assert MeetingPoint.read(f"  {code}\n") == point


@given(st.text(max_size=400))
def test_any_other_line_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(NettestError, match="copy the whole line"):
        MeetingPoint.read(text)


class Box:
    """A mailbox and what has arrived in it."""

    def __init__(self) -> None:
        self.taken: asyncio.Queue[bytes] = asyncio.Queue()


async def test_messages_of_any_size_arrive_once_and_both_ways(relay: RelayServer) -> None:
    first, second = Box(), Box()
    target = targets_of(relay)[0]
    sizes = (0, 1, PART_BYTES, PART_BYTES + 1, 20 * PART_BYTES)
    async with asyncio.timeout(LIMIT_S), opened(target, TOKEN, first.taken.put_nowait) as one:
        async with opened(target, TOKEN, second.taken.put_nowait) as two:
            one.admit()
            two.other = one.address
            for size in sizes:
                message = secrets.token_bytes(size)
                await two.send(message)
                assert await first.taken.get() == message
                await one.send(message)
                assert await second.taken.get() == message
    assert first.taken.empty()
    assert second.taken.empty()


async def test_who_does_not_know_the_token_is_not_heard(relay: RelayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.nettest.mailbox.GIVE_UP_S", 1.0)
    box, target = Box(), targets_of(relay)[0]
    async with asyncio.timeout(LIMIT_S), opened(target, TOKEN, box.taken.put_nowait) as one:
        one.admit()
        async with opened(target, b"x" * TOKEN_BYTES, lambda _: None) as stranger:
            stranger.other = one.address
            with pytest.raises(NettestError, match="does not answer through the relay"):
                await stranger.send(b"let me in")
        assert one.other is None
    assert box.taken.empty()


@given(st.lists(st.binary(max_size=60), max_size=30))
def test_no_packet_breaks_a_mailbox_and_its_memory_is_bounded(packets: list[bytes]) -> None:
    mailbox = Mailbox(TOKEN, lambda _: None)

    class Wire:
        def sendto(self, data: bytes, to: tuple[str, int]) -> None:
            pass

    mailbox.connection_made(Wire())
    for packet in packets:
        mailbox.datagram_received(packet, ("25.0.0.1", 1))
        mailbox.datagram_received(TOKEN + packet, ("25.0.0.1", 1))
    assert len(mailbox._partial) <= 8
    assert all(len(parts) <= MAX_PARTS for parts in mailbox._partial.values())

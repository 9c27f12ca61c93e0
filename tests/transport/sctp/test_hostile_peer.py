"""Peers that break the rules after an honest handshake: the association goes on, or ends with a reason; memory stays flat."""

import random
import struct

import pytest

from tests.transport.sctp.hostile import BURST, WHOLE, attacked, flat_memory
from tests.transport.sctp.pairs import until
from transport.sctp import packet as wire
from transport.sctp.association import MAX_CONTROL
from transport.sctp.congestion.controller import INITIAL_PACKETS
from transport.sctp.datapath import SACK_PACKETS
from transport.sctp.receive import MAX_AHEAD, MAX_RUNS, RECEIVE_WINDOW
from transport.sctp.send import MAX_TIMEOUT_S

MEGABYTE = 1 << 20
RECONFIG, RESET = 130, 13  # RFC 6525, sections 3.1 and 4.1.
OPEN = struct.pack("!BBHLHH", 3, 0, 0, 0, 1, 0) + b"x"


# Acknowledgements


@pytest.mark.parametrize("ahead", [1, 1000, 2**31 - 2])
async def test_acknowledging_what_was_never_sent_ends_the_association(ahead: int) -> None:
    async with attacked() as peer:
        peer.victim.channel.send(b"one packet")
        await until(lambda: bool(peer.tsns()))
        await peer.send_raw(peer.sack(peer.tsns()[0] + ahead))
        await peer.check_it_ended("that was never sent")


async def test_a_gap_block_that_reaches_beyond_what_was_sent_ends_the_association() -> None:
    async with attacked() as peer:
        peer.victim.channel.send(b"one packet")
        await until(lambda: bool(peer.tsns()))
        await peer.send_raw(peer.sack(peer.tsns()[0], (2, 9)))
        await peer.check_it_ended("that was never sent")


async def test_withheld_acknowledgements_get_the_first_window_and_then_ever_less() -> None:
    async with attacked() as peer:
        for _ in range(8):
            peer.victim.channel.send(bytes(250_000))
        sender = peer.victim.sctp._data.sender
        with flat_memory(2 * MEGABYTE):
            await until(lambda: sender.timeouts >= 2, 10 * MAX_TIMEOUT_S)
        assert len(set(peer.tsns())) <= INITIAL_PACKETS + 2
        assert len(peer.tsns()) <= (INITIAL_PACKETS + 2) * (sender.timeouts + 1)
        assert peer.victim.channel.bufferedAmount > 1_900_000
        await peer.check_good_messages_pass()


async def test_a_window_that_stays_closed_gets_single_packets_and_nothing_is_lost_count_of() -> None:
    async with attacked() as peer:
        first = peer.victim.sctp._data.sender.next_tsn
        await peer.send_raw(peer.sack(first - 1, window=0))
        await peer.settle()
        peer.victim.channel.send(bytes(200_000))
        for number in range(20):
            await until(lambda number=number: len(set(peer.tsns())) == number + 1)  # type: ignore[misc]
            assert peer.victim.sctp.path_stats().bytes_inflight <= peer.victim.sctp.path_stats().mtu
            await peer.send_raw(peer.sack(first + number, window=0))
        await peer.check_good_messages_pass()


async def test_a_window_of_four_gigabytes_changes_nothing_about_the_pace() -> None:
    async with attacked() as peer:
        first = peer.victim.sctp._data.sender.next_tsn
        await peer.send_raw(peer.sack(first - 1, window=2**32 - 1))
        await peer.settle()
        for _ in range(16):
            peer.victim.channel.send(bytes(250_000))
        sender = peer.victim.sctp._data.sender
        await until(lambda: sender.timeouts >= 1)
        assert len(set(peer.tsns())) <= INITIAL_PACKETS + 2
        await peer.check_good_messages_pass()


async def test_bombs_of_gap_blocks_are_sorted_out() -> None:
    chance = random.Random(7)
    async with attacked() as peer:
        for _ in range(4):
            peer.victim.channel.send(bytes(250_000))
        await until(lambda: len(peer.tsns()) >= INITIAL_PACKETS - 2)
        first = peer.tsns()[0]
        seen = len(set(peer.tsns()))
        bombs = []
        for _ in range(1000):
            offsets = sorted(chance.randrange(2, seen) for _ in range(2 * chance.randrange(1, 300)))
            gaps = list(zip(offsets[::2], offsets[1::2], strict=True))
            chance.random() < 0.5 and chance.shuffle(gaps)
            bombs.append(peer.sack(first - 1, *gaps))
        with flat_memory(4 * MEGABYTE):
            await peer.send_all(bombs)
        await peer.check_good_messages_pass()
        inflight = peer.victim.sctp._data.sender.inflight
        assert 0 <= inflight <= 64 * MEGABYTE


# Data


async def test_a_flood_of_duplicates_is_answered_in_batches_and_holds_nothing() -> None:
    async with attacked() as peer:
        twice = peer.data(payload=b"once")
        with flat_memory(2 * MEGABYTE):
            await peer.send_all([twice] * 10_000)
            await until(lambda: peer.victim.sctp._data.receiver.duplicates > 9000)
            peer.packets.clear()
        assert peer.victim.received == [b"once"]
        assert peer.victim.sctp._data.receiver.held == 0
        await peer.check_good_messages_pass()


async def test_floods_of_good_packets_get_an_acknowledgement_for_many() -> None:
    async with attacked() as peer:
        packets = [peer.data(n, flags=WHOLE | wire.UNORDERED, payload=bytes(1000)) for n in range(4096)]
        await peer.send_all(packets)
        assert len(peer.victim.received) == 4096
        assert len(peer.told(wire.SACK)) <= 4096 / SACK_PACKETS + 4096 / 16


async def test_messages_whose_turn_never_comes_end_the_association() -> None:
    async with attacked() as peer:
        number = 0
        while peer.alive and number < 40_000:
            packets = [
                peer.data(number + n, sequence=peer.sequence + 1 + number + n, payload=bytes(1100)) for n in range(512)
            ]
            await peer.send_all(packets)
            number += 512
        await peer.check_it_ended("withholds what is due")
        assert number * 1100 < 2 * RECEIVE_WINDOW


async def test_data_that_jumps_ahead_is_dropped_or_waits_within_bounds() -> None:
    chance = random.Random(3)
    async with attacked() as peer:
        jumps = [chance.choice((MAX_AHEAD + 2, 2**31 - 1, 2**31, 2**32 - 2)) for _ in range(500)]
        holes = [chance.randrange(2, MAX_AHEAD) for _ in range(8000)]
        with flat_memory(8 * MEGABYTE):
            await peer.send_all([peer.data(ahead, flags=WHOLE | wire.UNORDERED) for ahead in jumps + holes])
            peer.packets.clear()
            peer.victim.received.clear()
        receiver = peer.victim.sctp._data.receiver
        assert len(receiver._runs) <= MAX_RUNS
        assert receiver.dropped >= 500 * 0.5
        await peer.check_good_messages_pass()


async def test_forwarding_to_anywhere_is_survived() -> None:
    chance = random.Random(5)
    async with attacked() as peer:
        for _ in range(2000):
            point = (peer.tsn + chance.choice((1, 5, MAX_AHEAD, 2**31 - 2))) & wire.TSN_MASK
            streams = [(chance.randrange(2**16), chance.randrange(2**16)) for _ in range(chance.randrange(200))]
            await peer.send(wire.forward_chunk(point, streams))
        await peer.settle()
        await peer.check_good_messages_pass()


async def test_chunks_that_lie_about_their_length_are_left_out() -> None:
    async with attacked() as peer:
        for length in (0, 1, 3, 5, 100, 0xFFFF):
            for kind in (wire.DATA, wire.SACK, wire.HEARTBEAT, wire.FORWARD_TSN, 130, 14, 63, 255):
                await peer.send(struct.pack("!BBH", kind, 3, length))
        await peer.settle()
        assert peer.victim.received == []
        await peer.check_good_messages_pass()


# Streams and channels


@pytest.mark.long
async def test_every_stream_that_there_is_may_be_used() -> None:
    async with attacked() as peer:
        packets = [peer.data(n, stream=n, sequence=0, protocol=99) for n in range(65_536)]
        with flat_memory(32 * MEGABYTE):  # 65,536 times what is remembered of a stream.
            await peer.send_all(packets)
            peer.packets.clear()
        await peer.check_good_messages_pass()


async def test_announcements_that_make_no_sense_open_nothing() -> None:
    chance = random.Random(9)
    async with attacked() as peer:
        opened: list[object] = []
        peer.victim.connection.on("datachannel", opened.append)
        shapes = [
            OPEN[:-1],
            b"\3",
            OPEN[:8] + b"\xff\xff\xff\xff",
            OPEN[:12] + b"\xff",
            b"\2",
            b"\7" + OPEN[1:],
            *(chance.randbytes(chance.randrange(1, 30)) for _ in range(500)),
        ]
        messages = [shape for shape in shapes if shape[0] != 3 or shape in shapes[:6]]
        await peer.send_all(
            [peer.data(n, stream=100 + n, sequence=0, protocol=50, payload=shape) for n, shape in enumerate(messages)]
        )
        assert opened == []
        await peer.check_good_messages_pass()


def reset(chance: random.Random, last: int) -> bytes:
    """A RE-CONFIG chunk that resets some streams once everything up to ``last`` has come."""
    numbers = [chance.randrange(2, 2**16) for _ in range(chance.randrange(20))]
    body = struct.pack(f"!LLL{len(numbers)}H", chance.randrange(2**32), 0, last & wire.TSN_MASK, *numbers)
    return wire.chunk(RECONFIG, 0, struct.pack("!HH", RESET, 4 + len(body)) + body)


async def test_a_storm_of_resets_waits_within_bounds_and_is_answered_at_most_twice_each() -> None:
    chance = random.Random(11)
    async with attacked() as peer:
        waiting: list[int] = []
        sctp = peer.victim.sctp
        take = sctp.on_control
        sctp.on_control = lambda *chunk: (take(*chunk), waiting.append(len(sctp._controls)))
        with flat_memory(8 * MEGABYTE):
            for _ in range(8):
                for _ in range(BURST):
                    await peer.send(*(reset(chance, peer.tsn + chance.choice((-1, 0, 5, 2**30))) for _ in range(20)))
                await peer.settle()
            await until(lambda: not sctp._controls)
            assert max(waiting) == MAX_CONTROL
            assert len(peer.told(RECONFIG)) <= 2 * len(waiting)  # Performed; or in progress, and then performed.
            peer.packets.clear()
        await peer.check_good_messages_pass()


async def test_a_second_handshake_within_the_first_changes_nothing() -> None:
    chance = random.Random(13)
    async with attacked() as peer:
        init = struct.pack("!LLHHL", 1, 1 << 20, 10, 10, 77)
        for body, kind in ((init, 1), (init, 2), (chance.randbytes(24), 10), (b"", 11), (init, 1)):
            for _ in range(50):
                await peer.send(wire.chunk(kind, 0, body))
        await peer.settle()
        peer.victim.channel.send(b"still here")
        await until(lambda: any(b"still here" in body for body in peer.told(wire.DATA)))
        await peer.check_good_messages_pass()


@pytest.mark.parametrize("wrong", ["tag", "checksum", "short"])
async def test_packets_of_another_association_are_left_out(wrong: str) -> None:
    async with attacked() as peer:
        packet = peer.data(payload=b"evil")
        if wrong == "tag":
            packet = wire.Framer(5000, 5000, peer.tag ^ 1).data(peer.tsn, peer.stream, peer.sequence, 53, 3, b"evil")
        packets = {"tag": packet, "checksum": packet[:-1] + b"\xff", "short": packet[:11]}
        await peer.send_raw(packets[wrong])
        await peer.settle()
        await peer.check_good_messages_pass()
        assert b"evil" not in peer.victim.received

"""A million fuzzed packets: 700,000 in the data path, 250,000 as DTLS records, 50,000 through real sockets and DTLS."""

import asyncio
import gc
import os
import random
import socket
from collections.abc import Hashable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.support.seeds import seeds
from tests.transport.sctp.fuzz import Fuzzer
from tests.transport.sctp.hostile import BURST, Attacker, attacked
from tests.transport.sctp.pairs import joined, until
from transport.sctp.congestion.controller import RateController
from transport.sctp.datapath import DataPath, DatapathSetup
from transport.sctp.dtls import RECORD_HEADER, Records
from transport.sctp.mtu import BASE_MTU
from transport.sctp.packet import Framer
from transport.sctp.receive import RECEIVE_WINDOW, ReceiveBook, SctpMessage
from transport.sctp.schedule import ScheduledMessage
from transport.sctp.send import SendBook
from transport.sctp.udp.offload import DatagramRun

IN_PROCESS, AS_RECORDS, THROUGH_SOCKETS = 700_000, 250_000, 50_000
PARTS = 7  # The first number is run in so many tests, so that several processes share them.
BATCH = 16
RUN = 12  # Packets of a batch that follow one another, nearly.
MAX_MESSAGE = 1 << 18
MOST_HELD = RECEIVE_WINDOW * 5 // 4 + MAX_MESSAGE
MOST_GROWTH = 32 << 20
TAG = 0x1234ABCD

pytestmark = pytest.mark.slow


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Plain(Records):
    """Records without encryption: what this part tests comes after it."""

    overhead = 37
    batching = True

    def __init__(self) -> None:
        """Nothing is sealed yet."""
        self._sealed = b""

    def seal(self, packet: bytes) -> None:
        """See Records."""
        self._sealed += b"\x17" + bytes(10) + len(packet).to_bytes(2, "big") + packet

    def take(self) -> memoryview:
        """See Records."""
        sealed, self._sealed = self._sealed, b""
        return memoryview(sealed)


class Nowhere:
    """A path into the void."""

    overhead, interface_mtu, max_payload, truthful, writable, offload = 28, 1500, 1472, True, True, "portable"

    def send(self, buffer: memoryview, segment: int) -> None:
        """Only what is well formed may leave."""
        assert segment > RECORD_HEADER

    def close(self) -> None:
        """Nothing is open."""

    def let_fragment(self, allowed: bool) -> None:
        """Nothing is cut."""


class Owner:
    """What the association does for its data path, as far as that matters here."""

    def __init__(self) -> None:
        self.messages: list[SctpMessage] = []
        self.fault = ""

    def on_messages(self, messages: list[SctpMessage]) -> None:
        self.messages = messages

    def on_control(self, kind: int, flags: int, body: bytes) -> None:
        pass

    def on_released(self, released: dict[Hashable, int]) -> None:
        assert all(size > 0 for size in released.values())

    def on_fault(self, reason: str) -> None:
        self.fault = reason

    def on_closed(self) -> None:
        raise AssertionError("nobody has closed it")

    def on_traffic(self, sent: tuple[int, int], received: tuple[int, int]) -> None:
        pass

    def check_path(self) -> None:
        pass


def data_path(owner: Owner, chance: random.Random) -> DataPath:
    first = chance.getrandbits(32)
    receiver = ReceiveBook(chance.getrandbits(32), MAX_MESSAGE)
    sender = SendBook(first, 1 << 20, {}, partial=True)
    path = DataPath(DatapathSetup(5000, 5000, TAG, 7), Plain(), receiver, sender, RateController(BASE_MTU), owner)
    path.attach(Nowhere())  # type: ignore[arg-type]
    return path


def alone(packets: list[bytes]) -> list[DatagramRun]:
    return [DatagramRun(packet, len(packet)) for packet in packets if packet]


def joined_up(packets: list[bytes]) -> list[DatagramRun]:
    """Neighbours of one length together, as records are opened."""
    alike = [(size, list(packets)) for size, packets in groupby(packets, key=len) if size]
    return [DatagramRun(b"".join(packets), size) for size, packets in alike]


def check_a_good_message_passes(path: DataPath, owner: Owner, framer: Framer) -> None:
    """Two, for what waits in a gap may be in the way of the first."""
    due = path.receiver.cumulative + 1
    for tsn in (due, due + 1):
        path.on_packets(alone([framer.data(tsn, 9, 0, 53, 7, b"good")]))
        if owner.fault or any(message.data == b"good" for message in owner.messages):
            return
    raise AssertionError("a good message does not pass")


@pytest.mark.parametrize("seed", seeds(1, of=PARTS))
async def test_the_data_path_takes_anything(seed: int) -> None:
    chance, owner, framer = random.Random(seed), Owner(), Framer(5000, 5000, TAG)
    fuzzer, path, ended, before = Fuzzer(seed, framer), data_path(owner, random.Random(seed)), 0, 0
    for number in range(IN_PROCESS // PARTS // BATCH):
        packets = [fuzzer.packet(path.receiver.cumulative, path.sender.next_tsn) for _ in range(BATCH - RUN)]
        packets[chance.randrange(len(packets)) : 0] = fuzzer.run(path.receiver.cumulative, RUN)
        if not path.sender.backlog:
            limit = chance.choice((None, 0, 2))
            path.queue(
                ScheduledMessage("owner", 1, 53, bytes(20_000), ordered=chance.random() < 0.5, max_retransmits=limit)
            )
        try:
            path.on_packets(joined_up(packets))
            if number % 64 == 0 and not owner.fault:
                check_a_good_message_passes(path, owner, framer)
        except Exception as error:
            error.add_note("after " + " ".join(packet.hex() for packet in packets))
            raise
        assert 0 <= path.receiver.held <= MOST_HELD
        assert path.sender.inflight >= 0
        if owner.fault:
            ended += 1
            path.close()
            owner = Owner()
            path = data_path(owner, chance)
        if number % 8 == 0:
            await asyncio.sleep(0)  # Timers and pace have their turn.
        if number == 500:
            before = resident_bytes()
    path.close()
    assert ended > 20, "the fuzzer comes nowhere near the rules"
    assert resident_bytes() - before < MOST_GROWTH


async def test_records_are_genuine_and_new_or_left_out() -> None:
    """Replayed, flipped, cut, joined, made up: nothing of it reaches SCTP, whatever its epoch and number claim."""
    chance = random.Random(1)
    async with joined() as (one, two):
        genuine: list[bytes] = []
        path = two.sctp._data
        take = path.on_datagrams
        for end in (path, path._path):
            end._on_datagrams = lambda runs: (genuine.extend(one for run in runs for one in run.each()), take(runs))
        await one.send_all([chance.randbytes(chance.randrange(1, 3000)) for _ in range(300)])
        await until(lambda: len(two.received) == 300)
        assert len(genuine) > 300
        before, reached = resident_bytes(), 0
        on_packets = path.on_packets

        def count(packets: list[DatagramRun]) -> None:
            nonlocal reached
            reached += len(packets)
            on_packets(packets)

        path.on_packets = count
        for _ in range(AS_RECORDS // BATCH):
            forged = [_forged(chance, chance.choice(genuine)) for _ in range(BATCH)]
            take([DatagramRun(one, max(1, len(one) // chance.choice((1, 1, 2, 3)))) for one in forged])
        assert reached == 0
        path.on_packets = on_packets
        assert resident_bytes() - before < MOST_GROWTH
        one.channel.send(b"good")
        two.channel.send(b"good")
        await until(lambda: two.received[-1:] == [b"good"] and one.received == [b"good"])
        assert len(two.received) == 301


def _forged(chance: random.Random, genuine: bytes) -> bytes:
    way = chance.random()
    if way < 0.2:
        return genuine
    forged = bytearray(genuine)
    if way < 0.6:
        for _ in range(chance.randrange(1, 4)):
            forged[chance.randrange(len(forged))] ^= 1 << chance.randrange(8)
    elif way < 0.7:
        del forged[chance.randrange(1, len(forged)) :]
    elif way < 0.8:
        forged += genuine[: chance.randrange(len(genuine))]
    elif way < 0.9:
        forged[3:11] = chance.randbytes(8)
    else:  # A record of the handshake's time, without encryption: alerts, and messages of a handshake.
        body = chance.choice((b"\1\0", b"\2\x28", chance.randbytes(chance.randrange(1, 80))))
        kind = chance.choice((20, 21, 22, 23, 24))
        forged[:] = bytes([kind, 0xFE, 0xFD]) + bytes(2) + chance.randbytes(6) + len(body).to_bytes(2, "big") + body
    return bytes(forged)


@pytest.mark.long
async def test_what_comes_through_real_sockets_and_dtls_never_raises() -> None:
    """Here what belongs to the life of the association reaches aiortc, too."""
    sent = round_number = 0
    while sent < THROUGH_SOCKETS:
        async with attacked() as peer:
            count = await _fuzz(peer, round_number, THROUGH_SOCKETS - sent)
            sent += count
            round_number += 1
            if peer.alive:
                await peer.check_good_messages_pass()
            else:
                await until(lambda: peer.victim.channel.readyState == "closed")
            assert peer.victim.sctp._data.receiver.held <= MOST_HELD
    assert round_number < THROUGH_SOCKETS / 100


async def _fuzz(peer: Attacker, seed: int, most: int) -> int:
    fuzzer = Fuzzer(seed, Framer(5000, 5000, peer.tag), ending=0.0005)
    data: Any = peer.victim.sctp._data
    for sent in range(0, most, BURST):
        if not peer.alive:
            return sent
        if peer.victim.channel.readyState == "open" and not data.sender.backlog:
            peer.victim.channel.send(bytes(20_000))
        for _ in range(BURST):
            await peer.send_raw(fuzzer.packet(data.receiver.cumulative, data.sender.next_tsn))
        await peer.settle()
        peer.packets.clear()
        peer.victim.received.clear()
    return most


async def test_strangers_who_write_to_the_port_change_nothing() -> None:
    chance = random.Random(2)
    async with joined() as (one, two):
        pair = two.sctp._connection()._nominated[1]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for number in range(200):
                for _ in range(20):
                    first = chance.choice((0, 1, 16, 20, 22, 23, 63, 64, 127, 128, 255))
                    stranger.sendto(bytes([first]) + chance.randbytes(chance.randrange(200)), pair.local_addr)
                one.channel.send(number.to_bytes(2, "big"))
                await until(lambda number=number: len(two.received) == number + 1)  # type: ignore[misc]
        assert two.received == [number.to_bytes(2, "big") for number in range(200)]

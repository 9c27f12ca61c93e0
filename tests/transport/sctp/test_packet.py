"""SCTP packets as bytes, compared with aiortc's own, and with lies in every length."""

import random

import pytest
from aiortc.rtcsctptransport import DataChunk, ForwardTsnChunk, SackChunk, parse_packet, serialize_packet
from hypothesis import given
from hypothesis import strategies as st

from transport.sctp import packet as wire
from transport.sctp.packet import Framer, MalformedPacketError, Sack

FRAMER = Framer(5000, 5001, 0xDEADBEEF)
u32 = st.integers(0, 2**32 - 1)
u16 = st.integers(0, 2**16 - 1)


@given(u32, u16, u16, u32, st.sampled_from([0, 3, 7, 15]), st.binary(min_size=1, max_size=64))
def test_data_reads_the_same_in_stock_aiortc(
    tsn: int, stream: int, sequence: int, protocol: int, flags: int, payload: bytes
) -> None:
    packet = FRAMER.data(tsn + 2**32, stream, sequence, protocol, flags, payload)
    source, destination, tag, [chunk] = parse_packet(packet)
    assert (source, destination, tag) == (5000, 5001, 0xDEADBEEF)
    assert isinstance(chunk, DataChunk)
    assert (chunk.tsn, chunk.stream_id, chunk.stream_seq, chunk.protocol) == (tsn, stream, sequence, protocol)
    assert (chunk.flags, chunk.user_data) == (flags, payload)
    assert len(packet) % 4 == 0
    assert wire.verify(packet, 0xDEADBEEF)


@given(
    u32, u32, st.lists(st.tuples(st.integers(2, 65535), st.integers(2, 65535)), max_size=8), st.lists(u32, max_size=5)
)
def test_acknowledgements_come_back_as_they_were(
    cumulative: int, window: int, gaps: list[tuple[int, int]], doubles: list[int]
) -> None:
    sack = Sack(cumulative, window, tuple(gaps), tuple(doubles))
    packet = FRAMER.packet(wire.sack_chunk(sack))
    [(kind, _, start, end)] = wire.split(packet)
    assert kind == wire.SACK
    assert wire.read_sack(packet, start, end) == sack
    [stock] = parse_packet(packet)[3]
    assert isinstance(stock, SackChunk)
    assert (stock.cumulative_tsn, stock.advertised_rwnd, stock.duplicates) == (cumulative, window, doubles)
    assert stock.gaps == gaps


def test_what_stock_aiortc_gives_up_is_understood_and_the_other_way_round() -> None:
    chunk = ForwardTsnChunk()
    chunk.cumulative_tsn, chunk.streams = 77, [(1, 2), (3, 4)]
    packet = serialize_packet(5000, 5001, 1, chunk)
    [(kind, _, start, end)] = wire.split(packet)
    assert kind == wire.FORWARD_TSN
    assert wire.read_forward(packet, start, end) == (77, [(1, 2), (3, 4)])
    [stock] = parse_packet(FRAMER.packet(wire.forward_chunk(77, [(1, 2), (3, 4)])))[3]
    assert isinstance(stock, ForwardTsnChunk)
    assert (stock.cumulative_tsn, stock.streams) == (77, [(1, 2), (3, 4)])


def test_a_single_changed_bit_or_another_tag_is_noticed() -> None:
    packet = FRAMER.data(1, 2, 3, 53, 3, b"payload")
    assert not wire.verify(packet, 0xDEADBEEE)
    for position in range(len(packet)):
        changed = bytearray(packet)
        changed[position] ^= 1
        assert not wire.verify(bytes(changed), 0xDEADBEEF), position


@pytest.mark.parametrize("length", [0, 1, 3, 17, 0xFFFF])
def test_a_chunk_whose_length_lies_is_refused(length: int) -> None:
    packet = bytearray(FRAMER.packet(wire.chunk(wire.HEARTBEAT, 0, b"12345678")))
    packet[14:16] = length.to_bytes(2, "big")
    with pytest.raises(MalformedPacketError, match=str(length)):
        wire.split(bytes(packet))


def test_counts_in_an_acknowledgement_that_lie_are_refused() -> None:
    body = bytearray(wire.sack_chunk(Sack(1, 2, ((2, 3),), ())))
    for position in (12, 14):
        lying = bytearray(body)
        lying[position : position + 2] = b"\xff\xff"
        packet = FRAMER.packet(bytes(lying))
        [(_, _, start, end)] = wire.split(packet)
        with pytest.raises(MalformedPacketError):
            wire.read_sack(packet, start, end)
    with pytest.raises(MalformedPacketError):
        wire.read_sack(packet, start, start + 11)
    with pytest.raises(MalformedPacketError):
        wire.read_forward(packet, start, start + 6)


@pytest.mark.parametrize("length", range(30))
def test_a_packet_of_one_data_chunk_is_known_for_what_cutting_it_finds(length: int) -> None:
    """The quick way out is taken for exactly the packets whose only chunk is a whole and padded one of data."""
    for kind in (wire.DATA, wire.SACK):
        for size in range(length, 34):
            packet = bytes(wire.COMMON_HEADER) + bytes([kind, 3, 0, length]) + bytes(range(max(0, size - 4)))
            try:
                chunks = wire.split(packet)
            except MalformedPacketError:
                chunks = []
            whole = len(packet) == wire.COMMON_HEADER + (length + 3 & ~3)
            alone = len(chunks) == 1 and kind == wire.DATA and whole and length > wire.DATA_HEADER
            found = wire.lone_data(packet, 0)
            assert found == (wire.read_data(packet, *chunks[0][1:]) if alone else None)
            assert wire.lone_data(packet, 1) is None


@pytest.mark.parametrize("seed", range(40))
def test_a_run_of_packets_is_read_as_they_would_be_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    size, count, first = 4 * chance.randrange(1, 30), chance.randrange(4, 60), chance.choice((1, 250, 2**32 - 20))
    tsns = [first + number + (7 if chance.random() < 0.03 else 0) for number in range(count)]
    flags = [chance.choice((4, 4, 4, 5, 6, 12)) for _ in range(count)]
    framer = Framer(5000, 5001, 7, checksums=False)
    packets = [framer.data(tsn, 2, 3, 53, flag, chance.randbytes(size)) for tsn, flag in zip(tsns, flags, strict=True)]
    together = b"".join(packets)
    found = wire.data_runs(together, len(packets[0]), 7)
    assert found is not None
    assert [
        ((run.tsn + at) % 2**32, run.stream, run.sequence, run.protocol, flag, payload)
        for run in found
        for at, (flag, payload) in enumerate(zip(run.flags, run.payloads, strict=True))
    ] == [wire.lone_data(packet, 7) for packet in packets]
    heads = framer.heads(tsns[0], 2, 3, 53, flags[:1], size)
    assert packets[0].startswith(heads[0])
    assert len(heads[0]) == len(packets[0]) - size
    assert wire.data_runs(together, len(packets[0]), 8) is None
    assert wire.data_runs(together[:-1], len(packets[0]), 7) is None
    for at in (*range(13), 14, 15, *range(20, 28)):
        spoilt = bytearray(together)
        spoilt[chance.randrange(count) * len(packets[0]) + at] ^= 1 << chance.randrange(8)
        assert wire.data_runs(bytes(spoilt), len(packets[0]), 7) is None


def test_a_data_chunk_shorter_than_its_header_is_refused() -> None:
    for length in range(wire.CHUNK_HEADER, wire.DATA_HEADER):
        packet = bytes(wire.COMMON_HEADER) + bytes([wire.DATA, 3, 0, length]) + bytes(-length % 4 + length - 4)
        [(_, flags, start, end)] = wire.split(packet)
        with pytest.raises(MalformedPacketError, match=str(length)):
            wire.read_data(packet, flags, start, end)


@given(u32, st.binary(min_size=1, max_size=64))
def test_a_packet_without_a_checksum_is_taken_and_gets_one_for_stock_aiortc(tsn: int, payload: bytes) -> None:
    bare, whole = (Framer(5000, 5001, 7, checksums=wanted).data(tsn, 2, 3, 53, 3, payload) for wanted in (False, True))
    assert bare[8:12] == bytes(4)
    assert wire.verify(bare, 7)
    assert not wire.verify(bare, 8)
    assert wire.lone_data(bare, 7) == wire.lone_data(whole, 7) == (tsn, 2, 3, 53, 3, payload)
    assert wire.with_checksum(bare) == whole == wire.with_checksum(whole)
    assert Framer(5000, 5001, 7, checksums=False).packet(bare[12:]) == bare


def test_a_wrong_checksum_is_no_missing_one() -> None:
    packet = bytearray(FRAMER.data(1, 2, 3, 53, 3, b"payload"))
    packet[8] ^= 1
    assert wire.lone_data(bytes(packet), 0xDEADBEEF) is None
    assert not wire.verify(bytes(packet), 0xDEADBEEF)


def test_random_bytes_raise_nothing_but_the_one_error() -> None:
    chance = random.Random(5)
    for _ in range(20_000):
        packet = chance.randbytes(chance.randrange(80))
        wire.verify(packet, 1)
        try:
            chunks = wire.split(packet)
        except MalformedPacketError:
            continue
        for kind, _, start, end in chunks:
            read = {0: wire.read_sack, 1: wire.read_forward}[kind & 1]
            try:
                read(packet, start, end)
            except MalformedPacketError:
                continue


@pytest.mark.parametrize(
    ("body", "holds"),
    [
        (b"", True),
        (b"\0\x0d\0\x08abcd", True),
        (b"\0\x0d\0\x05a\0\0\0\0\x0d\0\x04", True),
        (b"\0\x0d\0\0", False),
        (b"\0\x0d\0\x03", False),
        (b"\0\x0d\0\x09abcd", False),
    ],
)
def test_parameters_of_no_length_or_beyond_their_chunk_are_noticed(body: bytes, holds: bool) -> None:
    assert wire.parameters_hold(body, 130, 0, len(body)) is holds
    assert wire.parameters_hold(bytes(16) + body, wire.INIT, 0, 16 + len(body)) is holds
    assert wire.parameters_hold(body, wire.DATA, 0, len(body))

"""Records sealed and opened in batches, both ways that pyOpenSSL offers, with forged ones in between."""

import contextlib
import random

import pytest
from aiortc.rtcdtlstransport import SRTP_PROFILES, RTCCertificate
from OpenSSL import SSL

from transport.sctp.dtls import DirectRecords, DtlsClosedError, Records, first_length, open_records
from transport.sctp.udp.offload import DatagramRun


def shaken() -> tuple[SSL.Connection, SSL.Connection]:
    """Two ends of a session, joined in memory."""
    ends = []
    for _ in range(2):
        context = RTCCertificate.generateCertificate()._create_ssl_context(srtp_profiles=SRTP_PROFILES)
        ends.append(SSL.Connection(context))
    client, server = ends
    client.set_connect_state()
    server.set_accept_state()
    done: set[SSL.Connection] = set()
    while len(done) < 2:
        for end, other in ((client, server), (server, client)):
            try:
                end.do_handshake()
                done.add(end)
            except SSL.WantReadError:
                pass
            with contextlib.suppress(SSL.WantReadError):
                other.bio_write(end.bio_read(65536))
    return client, server


@pytest.fixture(params=[Records, DirectRecords], ids=["public", "direct"])
def ends(request: pytest.FixtureRequest) -> tuple[Records, Records]:
    client, server = shaken()
    return request.param(client), request.param(server)


def cut(sealed: memoryview) -> list[bytes]:
    """The records of a buffer."""
    records = []
    while sealed:
        length = first_length(sealed)
        records.append(bytes(sealed[:length]))
        sealed = sealed[length:]
    return records


def runs(datagrams: list[bytes]) -> list[DatagramRun]:
    return [DatagramRun(datagram, len(datagram)) for datagram in datagrams]


def sealed(sender: Records, packets: list[bytes]) -> memoryview:
    for packet in packets:
        sender.seal(packet)
    return sender.take()


def opened(receiver: Records, runs: list[DatagramRun]) -> list[bytes]:
    return [packet for run in receiver.open(runs) for packet in run.each()]


def packets(count: int, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(1400) for _ in range(count)]


def test_many_packets_go_into_one_buffer_and_come_out_the_same(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sent = packets(40)
    records = cut(sealed(sender, sent))
    assert len({len(record) for record in records}) == 1
    assert len(records[0]) == 1400 + sender.overhead
    assert sender.batching
    assert opened(receiver, runs(records)) == sent
    assert receiver.answers() == b""


@pytest.mark.parametrize("size", [4, 28, 1400])
def test_a_run_is_sealed_as_its_packets_would_be_one_by_one(ends: tuple[Records, Records], size: int) -> None:
    sender, receiver = ends
    chance = random.Random(size)
    for count in (1, 2, 40, 3):
        heads, data = [chance.randbytes(min(size, 28)) for _ in range(count)], chance.randbytes(count * size)
        sender.seal_run(heads, memoryview(data), size)
        records = cut(sender.take())
        assert opened(receiver, runs(records)) == [
            head + data[n * size : (n + 1) * size] for n, head in enumerate(heads)
        ]


def test_packets_of_one_length_are_handed_over_together(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sent = [*packets(30), b"short", *packets(250, seed=4)]
    records = [record for start in range(0, len(sent), 40) for record in cut(sealed(sender, sent[start : start + 40]))]
    found = receiver.open(runs(records))
    assert [packet for run in found for packet in run.each()] == sent
    if isinstance(receiver, DirectRecords):
        assert len(found) < 10


def test_forged_cut_repeated_and_foreign_datagrams_spoil_nothing_beside_them(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    chance = random.Random(2)
    sent = packets(60)
    genuine = cut(sealed(sender, sent[:30])) + cut(sealed(sender, sent[30:]))
    mixed: list[bytes] = []
    for record in genuine:
        forged = bytearray(record)
        forged[-1] ^= 1
        lying = bytearray(record)
        lying[11:13] = b"\xff\xff"
        noise = bytes([chance.randrange(20, 64)]) + chance.randbytes(chance.randrange(60))
        mixed += [bytes(forged), bytes(lying), record, record, record[:40], noise]
    assert opened(receiver, runs(mixed)) == sent
    assert not receiver.closed


def test_what_was_read_together_is_opened_as_if_it_had_come_one_by_one(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sent = packets(60)
    last = packets(1, seed=3)[0][:700]
    records = cut(sealed(sender, sent[:40])) + cut(sealed(sender, [*sent[40:], last]))
    size = len(records[0])
    assert opened(receiver, [DatagramRun(b"".join(records[:21]), size), DatagramRun(b"".join(records[21:]), size)]) == [
        *sent,
        last,
    ]


def test_forged_datagrams_read_together_with_genuine_ones_spoil_nothing(ends: tuple[Records, Records]) -> None:
    """An attacker who guesses both ends' ports has his datagrams joined with the peer's where the lengths are equal."""
    sender, receiver = ends
    sent = packets(90)
    genuine = cut(sealed(sender, sent[:40])) + cut(sealed(sender, sent[40:80])) + cut(sealed(sender, sent[80:]))
    size = len(genuine[0])
    chance = random.Random(5)
    joined: list[DatagramRun] = []
    for start in range(0, 90, 9):
        together = genuine[start : start + 9]
        for position in (1, 11, 12, 20, size - 1):
            forged = bytearray(chance.choice(together))
            forged[position] ^= 1 << chance.randrange(8)
            together.insert(chance.randrange(len(together) + 1), bytes(forged))
        joined.append(DatagramRun(b"".join(together), size))
        # Repeated, and the last is cut.
        joined.append(DatagramRun(b"".join(together)[: -chance.randrange(1, size)], size))
    assert opened(receiver, joined) == sent
    assert not receiver.closed


def test_the_end_of_a_session_is_seen_and_nothing_is_sealed_after_it(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sender._connection.shutdown()
    opened(receiver, runs([sender.answers()]))
    assert receiver.closed
    with pytest.raises(DtlsClosedError):
        sender.seal(b"late")


def test_a_datagram_of_two_records_brings_both(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sent = packets(2)
    assert opened(receiver, runs([bytes(sealed(sender, sent))])) == sent


def test_the_direct_way_is_taken_where_pyopenssl_has_it() -> None:
    assert isinstance(open_records(shaken()[0]), DirectRecords)

"""Records sealed and opened in batches, both ways that pyOpenSSL offers, with forged ones in between."""

import contextlib
import random

import pytest
from aiortc.rtcdtlstransport import SRTP_PROFILES, RTCCertificate
from OpenSSL import SSL

from transport.sctp.dtls import DirectRecords, DtlsClosedError, Records, first_length, open_records
from transport.sctp.offload import Run


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


def runs(datagrams: list[bytes]) -> list[Run]:
    return [Run(datagram, len(datagram)) for datagram in datagrams]


def packets(count: int, seed: int = 1) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(1400) for _ in range(count)]


def test_many_packets_go_into_one_buffer_and_come_out_the_same(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sent = packets(40)
    sealed = sender.seal(sent)
    records = cut(sealed)
    assert len({len(record) for record in records}) == 1
    assert len(records[0]) == 1400 + sender.overhead
    assert sender.batching
    assert receiver.open(runs(records)) == sent
    assert receiver.answers() == b""


def test_forged_cut_repeated_and_foreign_datagrams_spoil_nothing_beside_them(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    chance = random.Random(2)
    sent = packets(60)
    genuine = cut(sender.seal(sent[:30])) + cut(sender.seal(sent[30:]))
    mixed: list[bytes] = []
    for record in genuine:
        forged = bytearray(record)
        forged[-1] ^= 1
        lying = bytearray(record)
        lying[11:13] = b"\xff\xff"
        noise = bytes([chance.randrange(20, 64)]) + chance.randbytes(chance.randrange(60))
        mixed += [bytes(forged), bytes(lying), record, record, record[:40], noise]
    assert receiver.open(runs(mixed)) == sent
    assert not receiver.closed


def test_what_was_read_together_is_opened_as_if_it_had_come_one_by_one(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sent = packets(60)
    last = packets(1, seed=3)[0][:700]
    records = cut(sender.seal(sent[:40])) + cut(sender.seal([*sent[40:], last]))
    size = len(records[0])
    assert receiver.open([Run(b"".join(records[:21]), size), Run(b"".join(records[21:]), size)]) == [*sent, last]


def test_forged_datagrams_read_together_with_genuine_ones_spoil_nothing(ends: tuple[Records, Records]) -> None:
    """An attacker who guesses both ends' ports has his datagrams joined with the peer's where the lengths are equal."""
    sender, receiver = ends
    sent = packets(90)
    genuine = cut(sender.seal(sent[:40])) + cut(sender.seal(sent[40:80])) + cut(sender.seal(sent[80:]))
    size = len(genuine[0])
    chance = random.Random(5)
    joined: list[Run] = []
    for start in range(0, 90, 9):
        together = genuine[start : start + 9]
        for position in (1, 11, 12, 20, size - 1):
            forged = bytearray(chance.choice(together))
            forged[position] ^= 1 << chance.randrange(8)
            together.insert(chance.randrange(len(together) + 1), bytes(forged))
        joined.append(Run(b"".join(together), size))
        joined.append(Run(b"".join(together)[: -chance.randrange(1, size)], size))  # Repeated, and the last is cut.
    assert receiver.open(joined) == sent
    assert not receiver.closed


def test_the_end_of_a_session_is_seen_and_nothing_is_sealed_after_it(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sender._connection.shutdown()
    receiver.open(runs([sender.answers()]))
    assert receiver.closed
    with pytest.raises(DtlsClosedError):
        sender.seal([b"late"])


def test_a_datagram_of_two_records_brings_both(ends: tuple[Records, Records]) -> None:
    sender, receiver = ends
    sent = packets(2)
    assert receiver.open(runs([bytes(sender.seal(sent))])) == sent


def test_the_direct_way_is_taken_where_pyopenssl_has_it() -> None:
    assert isinstance(open_records(shaken()[0]), DirectRecords)

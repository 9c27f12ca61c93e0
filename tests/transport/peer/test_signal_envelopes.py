"""Sealed envelopes: what the coordinator may carry and cannot change (row F25)."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import SignalError
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from transport.ice.ice import MAX_CANDIDATES
from transport.ice.rtc import RtcConnection
from transport.ice.sdp import MAX_SDP, Description, drop_other_fingerprints, read_description
from transport.peer.signalling import (
    CONTEXT,
    LIFETIME_S,
    MAX_ENVELOPE,
    MAX_REMEMBERED,
    MAX_SKEW_S,
    VERSION,
    EnvelopeReader,
    SignalBody,
    SignalEnvelope,
    SignalKind,
    seal,
)

NOW = 1_800_000_000.0
PRINT = "AB:" * 31 + "CD"
SDP = "".join(
    f"{line}\r\n"
    for line in (
        "v=0",
        "o=- 1 1 IN IP4 0.0.0.0",
        "s=-",
        "t=0 0",
        "a=group:BUNDLE 0",
        "a=msid-semantic:WMS *",
        "m=application 50898 UDP/DTLS/SCTP webrtc-datachannel",
        "c=IN IP4 198.51.100.7",
        "a=mid:0",
        "a=sctp-port:5000",
        "a=max-message-size:262144",
        "a=candidate:f957 1 udp 2130706431 198.51.100.7 50898 typ host",
        "a=candidate:d0bc 1 udp 1694498815 203.0.113.9 4444 typ srflx raddr 198.51.100.7 rport 50898",
        "a=end-of-candidates",
        "a=ice-ufrag:2e7l",
        "a=ice-pwd:r0vaIstqt7qmtzhv7FKVYA",
        f"a=fingerprint:sha-256 {PRINT}",
        "a=setup:actpass",
    )
)


@pytest.fixture
def alice() -> NodeKey:
    return NodeKey(b"a" * 32)


@pytest.fixture
def bob() -> NodeKey:
    return NodeKey(b"b" * 32)


@pytest.fixture
def reader(bob: NodeKey) -> EnvelopeReader:
    return EnvelopeReader(bob.address, loopback=False)


def offer(alice: NodeKey, bob: NodeKey, **changes: object) -> bytes:
    settings: dict[str, object] = {"session": b"s" * 16, "now": NOW, "floor": 1, "description": read(SDP)}
    return seal(alice, SignalKind.OFFER, bob.address, **(settings | changes))  # type: ignore[arg-type]


def read(text: str, *, loopback: bool = False) -> Description:
    return read_description(text, loopback=loopback)


def resigned(key: NodeKey, envelope: bytes, change: Callable[[SignalBody], SignalBody]) -> bytes:
    """A body changed and signed by ``key``: what a node that breaks the rules could send."""
    body: SignalBody = decode(decode(envelope, SignalEnvelope).body, SignalBody)
    raw = encode(change(body))
    return encode(SignalEnvelope(raw, key.sign(CONTEXT, raw)))


def refusal(reader: EnvelopeReader, sender: str, envelope: bytes, now: float = NOW) -> str:
    with pytest.raises(SignalError) as caught:
        reader.open(sender, envelope, now)
    return caught.value.reason


def test_an_offer_opens_once(reader: EnvelopeReader, alice: NodeKey, bob: NodeKey) -> None:
    envelope = offer(alice, bob)
    opened = reader.open(alice.address, envelope, NOW)
    assert opened.description is not None
    assert opened.description.fingerprint == bytes.fromhex("AB" * 31 + "CD")
    assert refusal(reader, alice.address, envelope) == "replayed"


def test_the_same_offer_is_still_known_when_it_could_last_be_opened(
    reader: EnvelopeReader, alice: NodeKey, bob: NodeKey
) -> None:
    envelope = offer(alice, bob)
    reader.open(alice.address, envelope, NOW - MAX_SKEW_S)
    assert refusal(reader, alice.address, envelope, NOW + LIFETIME_S + MAX_SKEW_S) == "replayed"


@pytest.mark.parametrize("late", [-MAX_SKEW_S - 1, LIFETIME_S + MAX_SKEW_S + 1])
def test_an_offer_from_another_time_is_expired(
    reader: EnvelopeReader, alice: NodeKey, bob: NodeKey, late: float
) -> None:
    assert refusal(reader, alice.address, offer(alice, bob), NOW + late) == "expired"


def test_an_offer_for_somebody_else_is_refused(reader: EnvelopeReader, alice: NodeKey) -> None:
    assert refusal(reader, alice.address, offer(alice, NodeKey(b"c" * 32))) == "recipient"


def test_an_offer_under_a_wrong_name_is_refused(reader: EnvelopeReader, alice: NodeKey, bob: NodeKey) -> None:
    assert refusal(reader, NodeKey(b"c" * 32).address, offer(alice, bob)) == "sender"


def test_an_offer_that_another_node_signed_is_refused(reader: EnvelopeReader, alice: NodeKey, bob: NodeKey) -> None:
    forged = resigned(NodeKey(b"m" * 32), offer(alice, bob), lambda body: body)
    assert refusal(reader, alice.address, forged) == "signature"


def test_no_flipped_bit_passes(reader: EnvelopeReader, alice: NodeKey, bob: NodeKey) -> None:
    envelope = offer(alice, bob)
    for at in range(0, len(envelope), 7):
        flipped = bytearray(envelope)
        flipped[at] ^= 1
        with pytest.raises(SignalError):
            reader.open(alice.address, bytes(flipped), NOW)
    reader.open(alice.address, envelope, NOW)


def test_a_signature_for_another_purpose_is_no_signature(reader: EnvelopeReader, alice: NodeKey, bob: NodeKey) -> None:
    envelope = decode(offer(alice, bob), SignalEnvelope)
    other = encode(SignalEnvelope(envelope.body, alice.sign("cottage/other/1", envelope.body)))
    assert refusal(reader, alice.address, other) == "signature"


def changed(body: SignalBody, **changes: object) -> SignalBody:
    return SignalBody(**{name: changes.get(name, getattr(body, name)) for name in body.__struct_fields__})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"fingerprint": bytes(32)}, "fingerprint"),
        ({"fingerprint": b""}, "fingerprint"),
        ({"version": VERSION - 1}, "version"),
        ({"version": VERSION + 1}, "version"),
        ({"kind": SignalKind.REQUEST}, "sdp"),
        ({"sdp": ""}, "fingerprint"),
        ({"floor": 0}, "malformed"),
        ({"nonce": b"short"}, "malformed"),
        ({"session": b"x" * 17}, "malformed"),
        ({"expires": 2**60}, "malformed"),
        ({"recipient": "0OIl" * 9}, "malformed"),
    ],
)
def test_a_node_that_breaks_the_rules_is_refused(
    reader: EnvelopeReader, alice: NodeKey, bob: NodeKey, change: dict[str, object], reason: str
) -> None:
    hostile = resigned(alice, offer(alice, bob), lambda body: changed(body, **change))
    assert refusal(reader, alice.address, hostile) == reason


@pytest.mark.parametrize(
    "path", sorted(Path(__file__).parents[2].glob("corpus/transport/envelopes/*")), ids=lambda path: path.name
)
def test_a_hostile_envelope_is_malformed(reader: EnvelopeReader, alice: NodeKey, path: Path) -> None:
    assert refusal(reader, alice.address, path.read_bytes()) == "malformed"


def test_an_envelope_of_a_megabyte_is_refused_unread(reader: EnvelopeReader, alice: NodeKey) -> None:
    assert refusal(reader, alice.address, bytes(MAX_ENVELOPE + 1)) == "malformed"


def test_one_node_cannot_fill_the_memory_of_another(reader: EnvelopeReader, alice: NodeKey, bob: NodeKey) -> None:
    for _ in range(MAX_REMEMBERED):
        reader.open(alice.address, offer(alice, bob), NOW)
    assert refusal(reader, alice.address, offer(alice, bob)) == "overload"
    carol = NodeKey(b"c" * 32)
    reader.open(carol.address, offer(carol, bob), NOW)
    much_later = NOW + LIFETIME_S + 2 * MAX_SKEW_S + 1
    reader.open(alice.address, offer(alice, bob, now=much_later), much_later)


def test_a_request_carries_no_description(reader: EnvelopeReader, alice: NodeKey, bob: NodeKey) -> None:
    request = seal(alice, SignalKind.REQUEST, bob.address, session=b"s" * 16, now=NOW, floor=7)
    opened = reader.open(alice.address, request, NOW)
    assert opened.description is None
    assert opened.body.floor == 7


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (f"a=fingerprint:sha-256 {PRINT}\r\n", "", "fingerprint"),
        (
            f"a=fingerprint:sha-256 {PRINT}",
            f"a=fingerprint:sha-256 {PRINT}\r\na=fingerprint:sha-256 {PRINT}",
            "fingerprint",
        ),
        ("a=fingerprint:sha-256", "a=fingerprint:sha-1", "sdp"),
        ("a=fingerprint:sha-256", f"a=fingerprint:sha-512 {PRINT}\r\na=fingerprint:sha-256", "sdp"),
        ("a=setup:actpass", "a=setup:actpass\r\na=setup:active", "sdp"),
        ("a=setup:actpass", "a=setup:actpass\r\na=ice-lite", "sdp"),
        ("a=setup:actpass", "a=setup:actpass\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0", "sdp"),
        ("a=mid:0", "a=mid:0\r\nm=application 1 UDP/DTLS/SCTP webrtc-datachannel", "sdp"),
        ("a=ice-pwd:r0vaIstqt7qmtzhv7FKVYA", "a=ice-pwd:short", "sdp"),
        ("s=-", "s=\u2028", "sdp"),
        ("v=0", "v=0" + "x" * 600, "sdp"),
        ("v=0", "v=0" * MAX_SDP, "size"),
        ("a=mid:0", "a=mid:0\r\n" + "\r\n".join(["a=candidate:x 1 udp 1 198.51.100.7 9 typ host"] * 63), "size"),
    ],
)
def test_a_description_with_more_or_less_than_agreed_is_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(SignalError) as caught:
        read(SDP.replace(old, new))
    assert caught.value.reason == reason


def test_candidates_that_nobody_should_knock_at_are_dropped() -> None:
    bad = "a=candidate:x 1 udp 1 224.0.0.1 9 typ host\r\na=candidate:y 1 udp 1 127.0.0.1 9 typ host\r\n"
    text = SDP.replace("a=end-of-candidates", bad + "a=end-of-candidates")
    assert read(text).text == SDP
    assert "127.0.0.1 9" in read(text, loopback=True).text
    assert "224.0.0.1" not in read(text, loopback=True).text


PARTS = (
    *SDP.splitlines(),
    "",
    "a=candidate:",
    "m=audio 9 RTP/AVP 0",
    "a=fingerprint:sha-1 00",
    "\x00",
    "\ud800",
    "a=mid:" + "9" * 600,
)


@settings(max_examples=100)
@given(
    lines=st.permutations(SDP.splitlines()).flatmap(
        lambda lines: st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=40)), max_size=6).map(
            lambda more: [*lines[: len(lines) - len(more) // 2], *more]
        )
    ),
    end=st.sampled_from(("\r\n", "\n", "\r")),
)
def test_any_lines_are_a_description_within_its_bounds_or_one_clear_error(lines: list[str], end: str) -> None:
    try:
        found = read(end.join(lines) + end)
    except SignalError:  # Any other error would fail the test.
        return
    assert read(found.text) == found, "what was let through is let through again, unchanged"
    assert len(found.fingerprint) == 32
    assert found.text.count("a=candidate:") <= MAX_CANDIDATES
    assert all(
        line.startswith(("a=candidate:f957", "a=candidate:d0bc"))
        for line in found.text.splitlines()
        if "a=cand" in line
    )


@pytest.mark.parametrize("candidates", [MAX_CANDIDATES + 1, 10_000])
def test_more_candidates_than_a_machine_has_are_refused(candidates: int) -> None:
    many = "".join(f"a=candidate:{n} 1 udp 1 198.51.100.7 {n % 60_000 + 1} typ host\r\n" for n in range(candidates))
    with pytest.raises(SignalError) as caught:
        read(SDP.replace("a=end-of-candidates\r\n", many + "a=end-of-candidates\r\n"))
    assert caught.value.reason == "size"


@pytest.mark.parametrize(
    "ip", ["224.0.0.251", "ff02::fb", "255.255.255.255", "169.254.169.254", "::ffff:127.0.0.1", "0.0.0.0"]
)
def test_no_candidate_leads_to_a_group_a_neighbour_service_or_this_machine(ip: str) -> None:
    text = SDP.replace("a=end-of-candidates", f"a=candidate:x 1 udp 1 {ip} 9 typ host\r\na=end-of-candidates")
    assert read(text).text == SDP


async def test_what_aiortc_offers_passes_and_names_its_certificate() -> None:
    connection = RtcConnection((), loopback=True)
    try:
        description = await connection.offer()
        assert description.text.count("a=fingerprint") == 1
        assert "127.0.0.1" in description.text
        assert read(drop_other_fingerprints(description.text), loopback=True) == description
    finally:
        await connection.close(1)

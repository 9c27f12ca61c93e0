"""A signalling server that lies, and a peer that breaks the rules."""

import asyncio
import os
import signal
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest
from aiortc.rtcsctptransport import parse_packet

from common.errors import ConnectError, PeerUnreachableError
from protocol.codec import decode
from protocol.codec import encode as pack
from protocol.identity import NodeKey
from tests.transport.conftest import Node, Switchboard, until
from transport.ice.rtc import RtcConnection
from transport.ice.sdp import Description, read_description
from transport.ice.stats import LinkState
from transport.messages.framing import Begin, Cancel, Ping, encode
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.direct_upgrade import DirectUpgrade
from transport.peer.signalling import CONTEXT, SignalBody, SignalEnvelope, SignalKind, seal

QUICK = PeerLimits(ping_s=0.1, silent_s=1.0, answer_s=1.0, connect_s=5.0, reach_s=15.0, close_s=1.0)
HASTY = replace(QUICK, reach_s=1.5)
CORPUS = sorted((Path(__file__).parents[2] / "corpus" / "transport" / "frames").iterdir())


def body_of(envelope: bytes) -> SignalBody:
    body: SignalBody = decode(decode(envelope, SignalEnvelope).body, SignalBody)
    return body


def with_fingerprint(description: Description, fingerprint: bytes) -> Description:
    old, new = (":".join(f"{byte:02X}" for byte in value) for value in (description.fingerprint, fingerprint))
    assert old in description.text
    return read_description(description.text.replace(old, new), loopback=True)


def swap_fingerprint(envelope: bytes, key: NodeKey | None) -> bytes:
    """What a man in the middle needs: his own certificate in the envelope; signed by ``key``, or with the old signature."""
    sealed = decode(envelope, SignalEnvelope)
    body = body_of(envelope)
    swapped = with_fingerprint(read_description(body.sdp, loopback=True), os.urandom(32))
    fields = {name: getattr(body, name) for name in body.__struct_fields__}
    raw = pack(SignalBody(**(fields | {"sdp": swapped.text, "fingerprint": swapped.fingerprint})))
    return pack(SignalEnvelope(raw, key.sign(CONTEXT, raw) if key else sealed.signature))


@pytest.mark.parametrize("kind", [SignalKind.OFFER, SignalKind.ANSWER])
@pytest.mark.parametrize("signs", [True, False])
async def test_a_man_in_the_middle_cannot_swap_a_fingerprint(
    switchboard: Switchboard, kind: SignalKind, signs: bool
) -> None:
    a, b = await switchboard.pair(HASTY)
    mallory = NodeKey.generate() if signs else None

    def tamper(sender: str, recipient: str, envelope: bytes) -> list[tuple[str, str, bytes]]:
        attacked = body_of(envelope).kind is kind
        return [(sender, recipient, swap_fingerprint(envelope, mallory) if attacked else envelope)]

    switchboard.tamper = tamper
    with pytest.raises(PeerUnreachableError):
        await a.net.send(b.address, Lane.CONTROL, b"secret")
    victim = b if kind is SignalKind.OFFER else a
    assert victim.net.refused["signature"] >= 1
    assert b.received == []


async def test_a_man_in_the_middle_cannot_speak_as_himself_under_another_name(switchboard: Switchboard) -> None:
    """The server drops the true offer and puts in one of its own node, as if it were the peer's."""
    a, b = await switchboard.pair(HASTY)
    mallory = NodeKey.generate()
    connection = RtcConnection((), loopback=True)
    own = await connection.offer()

    def tamper(sender: str, recipient: str, envelope: bytes) -> list[tuple[str, str, bytes]]:
        body = body_of(envelope)
        forged = seal(mallory, body.kind, recipient, session=bytes(16), now=body.expires, floor=1, description=own)
        return [(sender, recipient, forged)]

    switchboard.tamper = tamper
    with pytest.raises(PeerUnreachableError):
        await a.net.send(b.address, Lane.CONTROL, b"secret")
    assert b.net.refused["sender"] >= 1
    await connection.close(1)


@pytest.mark.parametrize("liar", ["offerer", "answerer"])
async def test_another_certificate_than_the_signed_one_ends_the_handshake(liar: str) -> None:
    """Someone on the path who knows the ICE password but has not the certificate: each side checks the other."""
    a, b = (RtcConnection((), loopback=True) for _ in range(2))
    signed = os.urandom(32)
    offer = await a.offer()
    shown = with_fingerprint(offer, signed) if liar == "offerer" else offer
    answer = await b.answer(shown)
    await a.accept(with_fingerprint(answer, signed) if liar == "answerer" else answer)
    victim = b if liar == "offerer" else a
    try:
        with pytest.raises(ConnectError, match="another certificate"):
            await asyncio.wait_for(victim.opened(signed), 10)
    finally:
        await asyncio.gather(a.close(1), b.close(1))


async def test_the_certificate_is_compared_with_the_signed_one_besides_what_aiortc_checks() -> None:
    a, b = (RtcConnection((), loopback=True) for _ in range(2))
    offer = await a.offer()
    answer = await b.answer(offer)
    await a.accept(answer)
    try:
        await asyncio.wait_for(asyncio.gather(a.opened(answer.fingerprint), b.opened(offer.fingerprint)), 10)
        for connection in (a, b):
            with pytest.raises(ConnectError, match="another certificate"):
                await connection.opened(os.urandom(32))
    finally:
        await asyncio.gather(a.close(1), b.close(1))


async def test_replayed_envelopes_change_nothing(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await b.net.send(a.address, Lane.CONTROL, b"x")
    for sender, recipient, envelope in list(switchboard.log):
        await switchboard.nodes[recipient].net.on_signal(sender, envelope)
    assert a.net.refused["replayed"] + b.net.refused["replayed"] == len(switchboard.log) == 3
    await a.net.send(b.address, Lane.CONTROL, b"y")
    assert a.net.stats()[b.address].links == 1


async def test_an_envelope_for_another_node_is_refused(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    sender, _, envelope = switchboard.log[0]
    carol = switchboard.join(limits=QUICK)
    await carol.net.allow({a.address})
    await carol.net.on_signal(sender, envelope)
    assert carol.net.refused == {"recipient": 1}


@pytest.mark.parametrize("kind", [SignalKind.OFFER, SignalKind.UPGRADE])
async def test_the_wrong_side_may_not_offer(switchboard: Switchboard, kind: SignalKind) -> None:
    a, b = await switchboard.pair(QUICK)
    connection = RtcConnection((), loopback=True)
    clock = switchboard.nodes[a.address].net._context.clock
    offer = seal(
        b.key, kind, a.address, session=bytes(16), now=clock.time(), floor=1, description=await connection.offer()
    )
    await a.net.on_signal(b.address, offer)
    assert a.net.refused == {"role": 1}
    await connection.close(1)


async def test_a_direct_way_that_leads_nowhere_leaves_the_link_as_it_is(switchboard: Switchboard) -> None:
    """A proposal before there is a link is forgotten; one whose connection never comes up costs the link nothing."""
    a, b = await switchboard.pair(QUICK)
    proposals = [RtcConnection((), loopback=True) for _ in range(2)]
    sealed = [
        seal(
            a.key,
            SignalKind.UPGRADE,
            b.address,
            session=a.net._sessions[b.address]._negotiation._session,
            now=b.net._context.clock.time(),
            floor=1,
            description=await connection.offer(),
        )
        for connection in proposals
    ]
    await b.net.on_signal(a.address, sealed[0])
    await a.net.send(b.address, Lane.CONTROL, b"x")
    answers = len(switchboard.log)
    await b.net.on_signal(a.address, sealed[1])
    await until(lambda: len(switchboard.log) == answers + 1)
    assert body_of(switchboard.log[-1][2]).reply_to == body_of(sealed[1]).nonce
    for _ in range(50):
        await a.net.send(b.address, Lane.BULK, b"y", bytes(1000))
    assert not a.net.refused
    assert [node.net.stats()[peer.address].links for node, peer in ((a, b), (b, a))] == [1, 1]
    await asyncio.gather(*(connection.close(1) for connection in proposals))


async def test_a_link_moves_over_to_a_better_connection_between_any_two_frames(
    switchboard: Switchboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every link here counts as relayed, so each is left for the next one, again and again, under load both ways."""
    look = DirectUpgrade.better
    monkeypatch.setattr(DirectUpgrade, "better", lambda self, *, relayed: look(self, relayed=True))
    a, b = await switchboard.pair(replace(QUICK, upgrade_s=0.05))
    heard = await asyncio.gather(
        *(
            one.net.send(other.address, lane, bytes([number]), bytes([number]) * size)
            for number in range(60)
            for one, other in ((a, b), (b, a))
            for lane, size in ((Lane.CONTROL, 10), (Lane.ACTIVATIONS, 60_000), (Lane.BULK, 900_000))
        )
    )
    assert len(heard) == 360
    for node in (a, b):
        assert sorted((message.lane, message.header) for message in node.received) == [
            (lane, bytes([number])) for lane in Lane for number in range(60)
        ]
        assert all(set(message.payload) == set(message.header) for message in node.received)
    assert a.net.stats()[b.address].links > 3


def raw(node: Node, peer: Node) -> RtcConnection:
    """The connection beneath a live link, to send what an honest node never would."""
    link = node.net._sessions[peer.address]._link
    assert link is not None
    return link._connection


def floods() -> Iterator[tuple[str, Lane, list[bytes]]]:
    yield "an eager window", Lane.BULK, [encode(Begin(ident, 4 << 20, True, b"")) for ident in range(50, 60)]
    yield "small messages", Lane.BULK, [encode(Begin(ident, 1, True, b"")) for ident in range(50, 1200)]
    yield "large messages", Lane.BULK, [encode(Begin(ident, 500 << 20, False, b"")) for ident in range(50, 150)]
    yield "ids out of reach", Lane.BULK, [encode(Cancel(1 << 40))]
    yield "steering on a message lane", Lane.BULK, [encode(Ping(1, 1))]


@pytest.mark.parametrize(("lane", "frames"), [pytest.param(lane, frames, id=name) for name, lane, frames in floods()])
async def test_a_peer_that_oversteps_a_window_loses_its_link(
    switchboard: Switchboard, lane: Lane, frames: list[bytes]
) -> None:
    a, b = await switchboard.pair(PeerLimits(close_s=1.0))
    await a.net.send(b.address, Lane.CONTROL, b"x")
    stuck = raw(a, b).lanes[lane]
    for frame in frames:
        stuck.send(frame)
    await until(lambda: b.net.stats()[a.address].state is LinkState.IDLE)
    assert b.memory_held == 0
    await asyncio.wait_for(a.net.send(b.address, Lane.CONTROL, b"and can come back"), 10)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
async def test_a_hostile_frame_closes_the_link(
    switchboard: Switchboard, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    raw(a, b).lanes[Lane.BULK].send(path.read_bytes())
    await until(lambda: b.net.stats()[a.address].state is LinkState.IDLE)
    assert "broke the rules" in caplog.text


async def test_a_channel_that_nobody_agreed_on_closes_the_link(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    raw(a, b)._pc.createDataChannel("extra")
    await until(lambda: b.net.stats()[a.address].state is LinkState.IDLE)


async def test_a_frame_without_end_closes_the_link(switchboard: Switchboard, caplog: pytest.LogCaptureFixture) -> None:
    """A stock association would gather its fragments for as long as they come."""
    a, b = await switchboard.pair(replace(QUICK, fragments=1 << 20))
    await a.net.send(b.address, Lane.CONTROL, b"x")
    connection = raw(a, b)
    assert connection._pc.sctp is not None
    connection._pc.sctp._remote_max_message_size = 0
    connection.lanes[Lane.BULK].send(bytes(32 << 20))
    await until(lambda: b.net.stats()[a.address].state is LinkState.IDLE)
    assert "an unfinished message of" in caplog.text


async def test_questions_without_reading_the_answers_close_the_link(
    switchboard: Switchboard, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await switchboard.pair(replace(QUICK, buffered_high=-1))  # b's answers never leave its queue
    await b.net.allow({a.address})
    sending = asyncio.create_task(a.net.send(b.address, Lane.CONTROL, b"x"))
    await until(
        lambda: b.net.stats()[a.address].state is LinkState.UP and a.net.stats()[b.address].state is LinkState.UP
    )
    connection = raw(a, b)
    for number in range(5000):
        connection.lanes[Lane.CONTROL].send(encode(Ping(number, 1)))
    # What a still has to send opens the link anew at once, so b's state is no lasting sign of the end.
    await until(lambda: "answers waiting and does not read them" in caplog.text)
    sending.cancel()


def sixteen_bytes() -> bytes:
    """A whole SCTP packet whose only chunk says that it is zero bytes long: older aiortc reads it for ever."""
    packet = struct.pack("!HHLL", 5000, 5000, 0, 0) + struct.pack("!BBH", 0, 0, 0)
    return packet[:8] + struct.pack("<L", google_crc32c.value(packet)) + packet[12:]


def test_a_packet_of_sixteen_bytes_does_not_hang_the_parser() -> None:
    def too_long(*_: object) -> None:
        raise TimeoutError("aiortc reads a chunk of length zero for ever: at least 1.15 is needed")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, 5)
    try:
        with pytest.raises(ValueError, match="length"):
            parse_packet(sixteen_bytes())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def test_a_packet_of_sixteen_bytes_does_not_hang_a_link(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    sctp = raw(a, b)._pc.sctp
    assert sctp is not None
    await sctp.transport._send_data(sixteen_bytes())
    await asyncio.wait_for(a.net.send(b.address, Lane.CONTROL, b"y"), 5)
    assert len(b.received) == 2

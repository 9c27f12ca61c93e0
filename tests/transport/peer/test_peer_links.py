"""Nodes talking over real WebRTC links on loopback."""

import asyncio
import hashlib
import logging
import os
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from common.errors import (
    BadAddressError,
    ConnectError,
    DeliveryFailedError,
    MessageLimitError,
    MessageRefusedError,
    PeerNotAllowedError,
    PeerUnreachableError,
)
from protocol.identity import NodeKey
from tests.transport.conftest import Node, Received, Switchboard, until
from transport.ice.ice import IceServer
from transport.ice.rtc import MAX_EARLY_FRAMES, RtcConnection
from transport.ice.stats import LinkState
from transport.messages.framing import MAX_HEADER
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.peer import MAX_PEER_ORDERS, MAX_STRANGERS
from transport.peer.signalling import MAX_ENVELOPE
from transport.sctp.allowance import Allowance

QUICK = PeerLimits(ping_s=0.1, silent_s=1.0, answer_s=2.0, connect_s=5.0, reach_s=15.0, close_s=1.0)
HASTY = replace(QUICK, reach_s=1.0)


def digest(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest()


async def test_messages_go_both_ways_on_all_lanes_at_once(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair()
    jobs, sent = [], []
    for sender, receiver in ((a, b), (b, a)):
        for lane in Lane:
            for size in (0, 1, 1024, 70_001, 1 << 20):
                payload = os.urandom(size)
                header = digest(payload)
                sent.append((receiver.address, lane, header))
                jobs.append(sender.net.send(receiver.address, lane, header, payload))
    await asyncio.gather(*jobs)
    arrived = [
        (node.address, m.lane, m.header) for node in (a, b) for m in node.received if digest(m.payload) == m.header
    ]
    assert sorted(arrived) == sorted(sent)


@pytest.mark.parametrize("first", [0, 1])
async def test_either_side_can_begin(switchboard: Switchboard, first: int) -> None:
    """The node with the larger address asks the other for an offer."""
    pair = await switchboard.pair()
    sender, receiver = pair[first], pair[1 - first]
    await sender.net.send(receiver.address, Lane.CONTROL, b"hello")
    assert [m.header for m in receiver.received] == [b"hello"]


async def test_both_sides_beginning_at_once_make_one_link(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair()
    await asyncio.gather(a.net.send(b.address, Lane.CONTROL, b"1"), b.net.send(a.address, Lane.CONTROL, b"2"))
    assert a.net.stats()[b.address].links == b.net.stats()[a.address].links == 1


async def test_control_passes_bulk_that_does_not_leave_its_queue(switchboard: Switchboard) -> None:
    """What is handed to the wire waits there while the window is closed; a small message must not wait behind it."""
    a, b = await switchboard.pair()
    await a.net.send(b.address, Lane.CONTROL, b"up")
    link = a.net._sessions[b.address]._link
    assert link is not None
    lanes, data = link._connection.lanes, link._connection._sctp._data
    assert data is not None
    data._choose = lambda now: []  # type: ignore[method-assign]  # Nothing leaves any more.
    bulk = asyncio.create_task(a.net.send(b.address, Lane.BULK, b"", os.urandom(4 << 20)))
    await until(lambda: lanes[Lane.BULK].buffered > 16 << 10 and not link._wake.is_set())
    waiting = lanes[Lane.BULK].buffered
    control = asyncio.create_task(a.net.send(b.address, Lane.CONTROL, b"now", bytes(100)))
    await until(lambda: lanes[Lane.CONTROL].buffered > 100)
    assert lanes[Lane.BULK].buffered == waiting
    del data._choose
    data.wake()
    await asyncio.gather(bulk, control)
    assert [m.header for m in b.received if m.lane is Lane.CONTROL] == [b"up", b"now"]


async def test_three_nodes_talk_in_a_ring(switchboard: Switchboard) -> None:
    nodes = [switchboard.join() for _ in range(3)]
    for node in nodes:
        await node.net.allow({other.address for other in nodes} - {node.address})
    payload = os.urandom(1 << 20)
    pairs = [(nodes[i], nodes[(i + 1) % 3]) for i in range(3)]
    await asyncio.gather(*(x.net.send(y.address, Lane.ACTIVATIONS, b"", payload) for x, y in pairs))
    assert [[(m.peer, m.payload == payload) for m in y.received] for _, y in pairs] == [
        [(x.address, True)] for x, _ in pairs
    ]


async def test_send_returns_when_the_handler_has_finished(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair()
    finish = asyncio.Event()
    begun = asyncio.Event()

    async def handler(message: Received) -> None:
        begun.set()
        await finish.wait()

    b.handler = handler
    sending = asyncio.create_task(a.net.send(b.address, Lane.BULK, b"slow"))
    await asyncio.wait_for(begun.wait(), 10)
    assert not sending.done()
    finish.set()
    await sending
    assert len(b.received) == 1


async def test_a_blocked_lane_does_not_stop_another(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair()
    finish = asyncio.Event()

    async def handler(message: Received) -> None:
        if message.lane is Lane.BULK:
            await finish.wait()

    b.handler = handler
    bulk = asyncio.create_task(a.net.send(b.address, Lane.BULK, b"", bytes(100_000)))
    await asyncio.wait_for(a.net.send(b.address, Lane.CONTROL, b"past it"), 10)
    assert not bulk.done()
    finish.set()
    await bulk


async def test_a_failing_handler_is_told_to_the_sender(
    switchboard: Switchboard, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await switchboard.pair()

    async def handler(message: Received) -> None:
        raise RuntimeError("secret inside")

    b.handler = handler
    with caplog.at_level(logging.ERROR), pytest.raises(DeliveryFailedError, match="handler failed") as caught:
        await a.net.send(b.address, Lane.CONTROL, b"x")
    assert "secret" not in str(caught.value)
    assert "secret inside" in caplog.text
    b.handler = None
    await a.net.send(b.address, Lane.CONTROL, b"the link lives on")


async def test_limits_are_checked_before_anything_is_sent(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair()
    with pytest.raises(MessageLimitError):
        await a.net.send(b.address, Lane.CONTROL, bytes(MAX_HEADER + 1))
    assert switchboard.log == []


async def test_any_bytes_like_payload_will_do(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair()
    numbers = memoryview(bytearray(range(16))).cast("I")
    for payload in (b"bytes", bytearray(b"bytearray"), numbers):
        await a.net.send(b.address, Lane.BULK, b"", payload)
    assert [m.payload for m in b.received] == [b"bytes", b"bytearray", bytes(range(16))]


async def test_a_stranger_can_neither_send_nor_be_sent_to(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(HASTY)
    mallory = switchboard.join(limits=HASTY)
    await mallory.net.allow({a.address})
    with pytest.raises(PeerNotAllowedError, match="allow it first"):
        await a.net.send(mallory.address, Lane.CONTROL, b"x")
    with pytest.raises(PeerUnreachableError):
        await mallory.net.send(a.address, Lane.CONTROL, b"x")
    assert a.net.refused["stranger"] >= 1
    assert a.received == []
    assert set(a.net.stats()) == {b.address}


@pytest.mark.parametrize("first", [0, 1])
async def test_a_peer_whose_plan_came_first_need_not_knock_twice(switchboard: Switchboard, first: int) -> None:
    """The other node refuses it, and remembers its knock until its own plan comes."""
    pair = await switchboard.pair(replace(QUICK, answer_s=3600, reach_s=3600))
    early, late = pair[first], pair[1 - first]
    await late.net.allow(set())
    sending = asyncio.create_task(early.net.send(late.address, Lane.CONTROL, b"early"))
    await until(lambda: late.net.refused["stranger"] == 1)
    await late.net.allow({early.address})
    await asyncio.wait_for(sending, 10)


async def test_strangers_cannot_fill_the_memory(switchboard: Switchboard) -> None:
    node = switchboard.join()
    for number in range(3 * MAX_STRANGERS):
        await node.net.on_signal(str(number), bytes(1000))
        await node.net.on_signal(str(number), bytes(MAX_ENVELOPE + 1))
    assert len(node.net._strangers) == MAX_STRANGERS
    assert all(len(envelope) == 1000 for envelope in node.net._strangers.values())


async def test_frames_that_come_before_the_link_is_up_are_kept() -> None:
    a, b = (RtcConnection((), loopback=True) for _ in range(2))
    offer = await a.offer()
    answer = await b.answer(offer)
    await a.accept(answer)
    await asyncio.wait_for(asyncio.gather(a.opened(answer.fingerprint), b.opened(offer.fingerprint)), 10)
    early: list[bytes] = []
    late: list[bytes] = []
    try:
        for number in range(3):
            a.lanes[Lane.BULK].send(bytes([number]))
        a.lanes[Lane.CONTROL]._channel.send("text is no frame")
        await until(lambda: len(b.lanes[Lane.BULK]._early) == 3)
        b.lanes[Lane.BULK].attach(early.append, lambda: None)
        b.lanes[Lane.CONTROL].attach(late.append, lambda: None)
        await until(lambda: early == [b"\0", b"\1", b"\2"] and late == [b""])
        for _ in range(MAX_EARLY_FRAMES + 2):
            a.lanes[Lane.ACTIVATIONS].send(b"x")
        await until(lambda: b.failed)  # more than any honest node sends unasked
        assert len(b.lanes[Lane.ACTIVATIONS]._early) == MAX_EARLY_FRAMES
    finally:
        await asyncio.gather(a.close(1), b.close(1))
    with pytest.raises(ConnectError, match="data channel is clos"):
        a.lanes[Lane.BULK].send(b"x")


@pytest.mark.parametrize("waits", ["sctp", "dtls", "ice"])
@pytest.mark.parametrize("how", ["out of time", "cancelled", "failed"])
async def test_a_connection_that_cannot_end_in_order_leaves_nothing_behind(
    waits: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = asyncio.all_tasks()
    a, b = (RtcConnection((), loopback=True) for _ in range(2))
    offer = await a.offer()
    answer = await b.answer(offer)
    await a.accept(answer)
    await asyncio.wait_for(asyncio.gather(a.opened(answer.fingerprint), b.opened(offer.fingerprint)), 10)
    sockets = [protocol.transport for protocol in a._ice_connection()._protocols]
    dtls = a._sctp.transport
    part: Any = {"sctp": a._sctp, "dtls": dtls, "ice": dtls.transport}[waits]

    async def stop() -> None:
        if how == "failed":
            raise ConnectionError("its socket is broken")
        await asyncio.Event().wait()

    monkeypatch.setattr(part, "stop", stop)
    closing = asyncio.create_task(a.close(0.2 if how == "out of time" else 1.0))
    if how == "cancelled":
        await asyncio.sleep(0.2)
        closing.cancel()
    ends: Any = {"cancelled": pytest.raises(asyncio.CancelledError), "failed": pytest.raises(ConnectionError)}
    with ends.get(how, nullcontext()):
        await asyncio.wait_for(closing, 5)
    assert a.failed
    assert sockets
    assert all(socket.is_closing() for socket in sockets)
    await b.close(1)
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_peer_that_leaves_the_plan_is_cut_off_at_once(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    b.handler = lambda message: asyncio.Event().wait()  # type: ignore[assignment, return-value]
    waiting = asyncio.create_task(a.net.send(b.address, Lane.CONTROL, b"never handled"))
    await until(lambda: b.net.stats()[a.address].lanes[Lane.CONTROL].messages_received == 2)
    await a.net.allow(set())
    with pytest.raises(PeerNotAllowedError, match="no longer in the plan"):
        await waiting
    await until(lambda: b.net.stats()[a.address].state is not LinkState.UP)


async def test_a_peer_that_comes_back_into_the_plan_is_heard_again(switchboard: Switchboard) -> None:
    """Message numbers start anew with it, and the other side, which never forgot, must not take them for repeats."""
    a, b = await switchboard.pair(QUICK)
    for number in range(3):
        await a.net.send(b.address, Lane.CONTROL, str(number).encode())
    await a.net.allow(set())
    await a.net.allow({b.address})
    for number in range(3, 6):
        await a.net.send(b.address, Lane.CONTROL, str(number).encode())
    await b.net.send(a.address, Lane.CONTROL, b"heard")
    assert [m.header for m in b.received] == [b"0", b"1", b"2", b"3", b"4", b"5"]


async def test_who_may_be_allowed_has_bounds(switchboard: Switchboard) -> None:
    node = switchboard.join(limits=replace(QUICK, max_peers=2))
    with pytest.raises(PeerNotAllowedError, match="at most 2"):
        await node.net.allow({NodeKey.generate().address for _ in range(3)})
    with pytest.raises(PeerNotAllowedError):
        await node.net.allow({node.address})


async def test_a_peer_that_is_not_there_is_unreachable_in_time(switchboard: Switchboard) -> None:
    a = switchboard.join(limits=HASTY)
    absent = NodeKey.generate().address
    await a.net.allow({absent})
    with pytest.raises(PeerUnreachableError, match="no link"):
        await a.net.send(absent, Lane.CONTROL, b"x")
    with pytest.raises(PeerUnreachableError, match=r"within 0\.2 s"):
        await a.net.send(absent, Lane.CONTROL, b"x", timeout=0.2)


async def test_a_signalling_server_that_fails_is_tried_again(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair()
    failures = iter([OSError("down"), RuntimeError("closing")])

    def fail_twice(sender: str, recipient: str, envelope: bytes) -> list[tuple[str, str, bytes]]:
        for error in failures:
            raise error
        return [(sender, recipient, envelope)]

    switchboard.tamper = fail_twice
    await a.net.send(b.address, Lane.CONTROL, b"x")
    assert len(b.received) == 1


async def test_closing_fails_what_waits_and_is_seen_by_the_peer(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    b.handler = lambda message: asyncio.Event().wait()  # type: ignore[assignment, return-value]
    waiting = asyncio.create_task(a.net.send(b.address, Lane.BULK, b"x"))
    await until(lambda: b.net.stats()[a.address].lanes[Lane.BULK].messages_received == 1)
    await a.net.aclose()
    with pytest.raises(PeerUnreachableError, match="closing"):
        await waiting
    with pytest.raises(PeerNotAllowedError):
        await a.net.allow({b.address})
    await until(lambda: b.net.stats()[a.address].state is LinkState.IDLE, 0.9)  # sooner than silence would tell


async def test_the_counters_tell_what_went_over_the_wire(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.ACTIVATIONS, b"header", bytes(200_000))
    stats = a.net.stats()[b.address]
    lane = stats.lanes[Lane.ACTIVATIONS]
    assert (stats.state, stats.links, stats.pair) == (LinkState.UP, 1, "host/host")
    assert (lane.messages_sent, lane.payload_sent) == (1, 200_000)
    assert 200_000 < lane.framed_sent < 201_000
    await until(lambda: stats.wire_sent > 200_000 and stats.rtt_s is not None)
    assert stats.wire_sent < 260_000
    assert 0 < (stats.rtt_s or 0) < 1
    other = b.net.stats()[a.address].lanes[Lane.ACTIVATIONS]
    assert (other.messages_received, other.payload_received) == (1, 200_000)


async def test_a_consumer_that_stops_bounds_what_the_sender_hands_over(switchboard: Switchboard) -> None:
    limits = replace(
        QUICK, eager_message=100_000, eager_window=400_000, memory_per_peer=1_000_000, memory_total=1_000_000
    )
    a, b = await switchboard.pair(limits)
    resume = asyncio.Event()
    peak = 0

    async def handler(message: Received) -> None:
        nonlocal peak
        await resume.wait()
        peak = max(peak, b.memory_held)

    b.handler = handler
    small = [asyncio.create_task(a.net.send(b.address, Lane.ACTIVATIONS, b"", bytes(100_000))) for _ in range(20)]
    large = [asyncio.create_task(a.net.send(b.address, Lane.BULK, b"", bytes(400_000))) for _ in range(8)]
    lanes = a.net.stats()[b.address].lanes
    await until(lambda: lanes[Lane.ACTIVATIONS].payload_sent == 400_000 and lanes[Lane.BULK].payload_sent == 800_000)
    await until(lambda: b.memory_held == 800_000)
    pings = lanes[Lane.CONTROL].framed_sent
    await until(lambda: lanes[Lane.CONTROL].framed_sent > pings + 50)  # several pings later nothing more has gone
    assert lanes[Lane.ACTIVATIONS].payload_sent == 400_000
    assert lanes[Lane.BULK].payload_sent == 800_000
    resume.set()
    await asyncio.gather(*small, *large)
    assert len(b.received) == 28
    assert peak <= 1_000_000
    assert b.memory_held == 0


@pytest.mark.slow
async def test_sixty_four_megabytes_beside_a_busy_control_lane(switchboard: Switchboard) -> None:
    resource = pytest.importorskip("resource", reason="only Unix says how much memory a process held at most")
    a, b = await switchboard.pair()
    payload = os.urandom(1 << 20) * 64
    told = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def chat(bulk: asyncio.Task[None]) -> None:
        nonlocal told
        while not bulk.done():
            await a.net.send(b.address, Lane.CONTROL, b"still there?")
            told += 1

    bulk = asyncio.create_task(a.net.send(b.address, Lane.BULK, b"", payload))
    await chat(bulk)
    await bulk
    (big,) = [m for m in b.received if m.lane is Lane.BULK]
    assert digest(big.payload) == digest(payload)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown_mb < 64 * 2 + 60  # the receiver's copy, the test's own copy, and queues
    assert told > 5  # each overtook what was left of the bulk


async def test_all_links_take_from_one_allowance(switchboard: Switchboard) -> None:
    keys = [NodeKey.generate() for _ in range(3)]
    allowance = Allowance()
    hub, *others = (switchboard.join(key, QUICK, allowance=allowance if key is keys[0] else None) for key in keys)
    await hub.net.allow({other.address for other in others})
    for other in others:
        await other.net.allow({hub.address})
        await hub.net.send(other.address, Lane.BULK, b"", bytes(200_000))
    assert allowance.usage.used > 400_000
    used = allowance.usage.used
    await others[0].net.send(hub.address, Lane.BULK, b"", bytes(200_000))
    await until(lambda: allowance.usage.used > used + 200_000)


async def test_politeness_changes_while_links_are_up(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)
    await a.net.send(b.address, Lane.CONTROL, b"x")
    link = a.net._sessions[b.address]._link
    assert link is not None
    assert not link._connection.polite
    for polite in (True, False):
        a.net.set_polite(polite)
        await until(lambda polite=polite: link._connection.polite is polite)  # type: ignore[misc]


async def test_a_peer_may_have_relays_of_its_own(switchboard: Switchboard) -> None:
    own, common = IceServer("turn:own.example:3478", "u", "p"), IceServer("stun:all.example:3478")
    node, peer, other = switchboard.join(), NodeKey.generate().address, NodeKey.generate().address
    servers = node.net._context.ice_servers
    node.net.set_ice_servers([common])
    node.net.set_peer_ice_servers(peer, [own, common])  # May come before the plan.
    await node.net.allow({peer, other})
    assert servers(peer) == (own, common)
    assert servers(other) == (common,)
    node.net.set_peer_ice_servers(peer, [])
    assert servers(peer) == (common,)
    node.net.set_peer_ice_servers(peer, [own])
    await node.net.allow({other})
    assert servers(peer) == (common,)
    with pytest.raises(BadAddressError):
        node.net.set_peer_ice_servers("nobody", [own])


async def test_relay_orders_are_bounded(switchboard: Switchboard) -> None:
    node = switchboard.join()
    addresses = [NodeKey.generate().address for _ in range(MAX_PEER_ORDERS + 1)]
    for address in addresses:
        node.net.set_peer_ice_servers(address, [IceServer("stun:one.example:3478")])
    assert [bool(node.net._context.ice_servers(address)) for address in addresses] == [False] + [True] * MAX_PEER_ORDERS


async def test_a_message_is_refused_with_a_reason(switchboard: Switchboard) -> None:
    a, b = await switchboard.pair(QUICK)

    async def handler(message: Received) -> None:
        raise MessageRefusedError("no worker for stage 3")

    b.handler = handler
    with pytest.raises(DeliveryFailedError, match="no worker for stage 3"):
        await a.net.send(b.address, Lane.CONTROL, b"x")


def test_a_node_is_its_key(switchboard: Switchboard) -> None:
    key = NodeKey.generate()
    node: Node = switchboard.join(key)
    assert node.net.address == key.address

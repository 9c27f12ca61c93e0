"""Messages across links that break anywhere: each arrives whole and once, or its sender is told; nothing is left behind."""

import asyncio
import mmap
import random
import resource
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.errors import DeliveryFailedError, MalformedFrameError, StreamBrokenError
from common.peer_memory import MemoryBudget
from tests.transport.message_wire import LIMITS, Wire, content, poll
from transport.messages.framing import MAX_FRAME, MAX_PAYLOAD, Ack, Begin, Fail, Grant, More
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.messages.message_source import Chunks
from transport.messages.outbox import OutgoingMessage
from transport.messages.stream import IncomingStream

Move = tuple[str, int, Lane]

VERBS = {
    "put": st.integers(0, 120_000),
    "stream": st.integers(0, 120_000),
    "move": st.integers(1, 12),
    "feed": st.integers(1, 4),
    "send": st.integers(1, 6),
    "receive": st.integers(1, 6),
    "answer": st.integers(1, 3),
    "handle": st.integers(1, 3),
    "read": st.integers(1, 4),
    "leave": st.integers(0, 1),
    "cancel": st.integers(0, 20),
    "cut": st.just(1),
    "expire": st.just(1),
}


def moves(*verbs: str) -> st.SearchStrategy[list[Move]]:
    choices = [st.tuples(st.just(verb), VERBS[verb], st.sampled_from(Lane)) for verb in verbs]
    return st.lists(st.one_of(choices), max_size=80)


class Game:
    """Plays moves on a wire and keeps count."""

    def __init__(self, *, streams: bool = True, seed: int | None = None) -> None:
        self.wire = Wire(streams=streams, chance=None if seed is None else random.Random(seed))
        self.sent: list[tuple[OutgoingMessage, bytes]] = []
        self.left: set[bytes] = set()

    def play(self, verb: str, number: int, lane: Lane) -> None:
        wire = self.wire
        header = str(len(self.sent)).encode()
        match verb:
            case "put":
                payload = content(len(self.sent), number)
                self.sent.append((wire.put(payload, lane, header), payload))
            case "stream":
                payload = content(len(self.sent), number)
                producer = wire.put_stream(payload, lane, header, piece=1 + number % 9000)
                self.sent.append((producer.message, payload))
            case "cancel" if number < len(self.sent) and not self.sent[number][0].done.done():
                wire.outbox.cancel(self.sent[number][0])
            case "cut":
                wire.cut()
            case "expire":
                wire.cut(expired=True)
            case "restart":
                wire.cut(restarted=True)
            case "leave" if wire.readers:
                self.left.add(wire.readers[0].stream.header)
                wire.leave(wire.readers[0], "enough" if number else None)
            case _:
                for _ in range(number):
                    self._step(verb, lane)
        self.check()

    def _step(self, verb: str, lane: Lane) -> None:
        wire = self.wire
        match verb:
            case "send":
                wire.send_one(frame_bytes=lane * 20_000)
            case "receive":
                wire.receive_one(lane)
            case "answer":
                wire.answer_one()
            case "handle":
                wire.handle_one()
            case "move":
                for part in ("feed", "send", "receive", "answer"):
                    self._step(part, lane)
            case "feed":
                for producer in wire.producers:
                    wire.feed_one(producer)
            case "read":
                for reader in list(wire.readers):
                    wire.read_one(reader)

    def check(self) -> None:
        """What holds at any moment."""
        assert self.wire.budget.held <= LIMITS.memory_per_peer
        for producer in self.wire.producers:
            kept = producer.source.end - producer.source.base
            assert kept < LIMITS.stream_window + producer.piece
            if producer.message.done.done():
                assert not producer.source._kept

    def finish(self, *, restarted: bool = False) -> None:
        """Move until nothing moves, then settle accounts."""
        wire = self.wire
        wire.run_dry()
        wire.inbox.on_floor(wire.outbox.floor)
        assert wire.is_empty()
        payloads = {str(index).encode(): payload for index, (_, payload) in enumerate(self.sent)}
        for header, payload in wire.seen:
            arrived_whole = payloads[header] == payload  # In an assertion pytest would spell out all that differs.
            assert arrived_whole, header
        seen = Counter(header for header, _ in wire.seen)
        for index, (message, _) in enumerate(self.sent):
            self._check_end(str(index).encode(), message, seen, restarted=restarted)

    def _check_end(self, header: bytes, message: OutgoingMessage, seen: Counter[bytes], *, restarted: bool) -> None:
        assert restarted or seen[header] <= 1
        assert message.done.done()
        if message.done.cancelled():
            return
        error = message.done.exception()
        if error is None:
            assert seen[header] or header in self.left
        else:
            assert isinstance(error, StreamBrokenError | DeliveryFailedError)
            assert message.stream


SEEDS = st.none() | st.integers(0, 99)
"""In which order frames of unordered lanes arrive; None: as they were sent."""


async def _play(script: list[Move], seed: int | None, *, streams: bool = True) -> Game:
    game = Game(streams=streams, seed=seed)
    for move in script:
        game.play(*move)
    game.finish(restarted=any(verb == "restart" for verb, _, _ in script))
    return game


PLAIN = ("put", "move", "send", "receive", "answer", "handle", "cancel", "cut", "expire")


@settings(max_examples=150, deadline=None)
@given(moves(*PLAIN), SEEDS)
def test_every_message_arrives_once_through_any_cuts(script: list[Move], seed: int | None) -> None:
    game = asyncio.run(_play(script, seed))
    assert all(message.done.cancelled() or message.done.exception() is None for message, _ in game.sent)


@settings(max_examples=200, deadline=None)
@given(moves(*PLAIN, "stream", "feed", "read", "leave"), SEEDS)
def test_every_stream_arrives_whole_or_fails_clearly_through_any_cuts(script: list[Move], seed: int | None) -> None:
    asyncio.run(_play(script, seed))


@settings(max_examples=100, deadline=None)
@given(moves(*PLAIN, "stream", "feed"), SEEDS)
def test_a_stream_that_is_put_together_arrives_like_any_message(script: list[Move], seed: int | None) -> None:
    asyncio.run(_play(script, seed, streams=False))


VERBS["restart"] = st.just(1)


@settings(max_examples=100, deadline=None)
@given(moves(*PLAIN, "stream", "feed", "read", "leave", "restart"), SEEDS)
@example([("stream", 90_000, Lane.BULK), ("restart", 1, Lane.BULK)], None)
def test_a_restarted_receiver_gets_everything_anew_or_the_sender_is_told(script: list[Move], seed: int | None) -> None:
    asyncio.run(_play(script, seed))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_streams_and_messages_survive_a_link_that_is_cut_every_few_frames(seed: int | None) -> None:
    """No expiry, no restart, no cancel: then everything arrives, and hardly a byte is sent twice."""

    async def play() -> None:
        game, chance = Game(seed=seed), random.Random(7)
        for number in range(12):
            game.play(("put", "stream")[number % 2], 20_000 + 8_000 * number, list(Lane)[number % 3])
        for _ in range(100_000):
            before = sum(len(lane) for lane in game.wire.lanes.values())
            moved = game.wire.step()
            if not moved and not before:
                break
            if chance.random() < 0.03:
                game.play("cut", 1, Lane.BULK)
        game.finish()
        payload = sum(len(data) for _, data in game.sent)
        assert all(message.done.result() is None for message, _ in game.sent)
        sent_again = game.wire.inbox.progress - payload
        if seed is None:
            assert sent_again == 0  # Whatever reached the receiver once was never asked for again.
        else:
            assert 0 <= sent_again < payload  # But for what came before an earlier piece.
        assert game.wire.outbox.resumed > 5

    asyncio.run(play())


@pytest.fixture
def wire() -> Wire:
    return Wire()


def move(wire: Wire, steps: int) -> None:
    for _ in range(steps):
        wire.send_one(), wire.receive_one(Lane.BULK), wire.answer_one()


async def test_a_message_goes_on_where_the_receiver_has_it(wire: Wire) -> None:
    wire.put(content(0, 100_000))
    move(wire, 8)
    have = wire.inbox.progress
    assert 20_000 < have < 80_000
    wire.cut()
    wire.send_one(), wire.receive_one(Lane.BULK)
    assert list(wire.answers) == [Grant(1, have, 100_000)]
    wire.answer_one()
    wire.send_one()
    more = wire.lanes[Lane.BULK][0]
    assert isinstance(more, More)
    assert more.offset == have
    assert wire.run_dry() == [content(0, 100_000)]
    assert wire.outbox.resumed == 1


async def test_an_eager_message_goes_on_too(wire: Wire) -> None:
    wire.put(content(0, 40_000))
    move(wire, 3)
    wire.cut()
    assert wire.run_dry() == [content(0, 40_000)]
    assert wire.inbox.progress == 40_000


async def test_what_arrived_keeps_its_memory_until_it_expires(wire: Wire) -> None:
    wire.put(content(0, 100_000))
    move(wire, 5)
    wire.inbox.end_link()
    assert wire.budget.held == 100_000
    assert wire.inbox.awaits_link
    wire.inbox.drop_partial()
    assert wire.budget.held == 0
    assert not wire.inbox.awaits_link
    wire.cut()
    assert wire.run_dry() == [content(0, 100_000)]


async def test_a_stream_whose_beginning_is_gone_ends_clearly() -> None:
    """The receiver put it together and has lost that; the sender has forgotten what was acknowledged."""
    wire = Wire(streams=False)
    producer = wire.put_stream(content(0, 100_000))
    while not producer.source.base:
        wire.step()
    wire.cut(expired=True)
    wire.run_dry()
    with pytest.raises(StreamBrokenError, match=r"lost the stream after \d+ of 100000 bytes"):
        await producer.message.done
    wire.inbox.on_floor(wire.outbox.floor)
    assert wire.is_empty()


async def test_a_stream_to_a_peer_that_restarted_ends_clearly_once_its_beginning_is_gone(wire: Wire) -> None:
    old, young = (
        wire.put_stream(content(0, 100_000), header=b"old"),
        wire.put_stream(content(1, 20_000), header=b"young"),
    )
    while not old.source.base:
        wire.step()
    assert not young.source.base
    wire.opened.clear()
    wire.cut(restarted=True)
    assert wire.run_dry() == [content(1, 20_000)]
    with pytest.raises(StreamBrokenError, match="send it anew"):
        await old.message.done
    assert young.message.done.result() is None
    assert wire.opened == [b"young"]


async def test_to_a_peer_that_restarted_everything_is_new(wire: Wire) -> None:
    """A small message follows its announcement at once, and the new process cannot claim what the old one had."""
    wire.put(content(0, 40_000), Lane.ACTIVATIONS)
    wire.put(content(1, 100_000))
    move(wire, 12)
    wire.lanes[Lane.ACTIVATIONS].clear()
    wire.cut(restarted=True)
    for _ in range(8):
        wire.send_one()
    assert [type(frame) for frame in wire.lanes[Lane.ACTIVATIONS]][:3] == [Begin, More, More]
    assert wire.lanes[Lane.BULK][0] == Begin(2, 100_000, False, b"")
    with pytest.raises(MalformedFrameError, match="does not wait for it"):
        wire.outbox.on_grant(Grant(2, 8000, 100_000))


async def test_a_message_that_waits_for_memory_waits_on_over_a_new_link(wire: Wire) -> None:
    first, second = wire.put(content(0, 100_000)), wire.put(content(1, 100_000))
    for _ in range(4):
        move(wire, 1)
    wire.cut()
    wire.send_one(), wire.send_one()
    wire.receive_one(Lane.BULK), wire.receive_one(Lane.BULK)
    (grant,) = wire.answers
    assert isinstance(grant, Grant)
    assert grant.id == 1
    assert sorted(wire.run_dry()) == sorted([content(0, 100_000), content(1, 100_000)])
    assert first.done.done()
    assert second.done.done()


async def test_a_handler_may_leave_before_its_stream_is_announced_again(wire: Wire) -> None:
    producer = wire.put_stream(content(0, 100_000))
    while not wire.readers or not wire.inbox.progress:
        wire.step()
    wire.cut()
    wire.leave(wire.readers[0])
    wire.answers.clear()  # As if the answer were for a link that is not there yet.
    wire.run_dry()
    assert producer.message.done.result() is None
    assert wire.is_empty()


async def test_the_handler_of_a_stream_hears_that_the_rest_will_not_come(wire: Wire) -> None:
    producer = wire.put_stream(content(0, 100_000))
    for _ in range(6):
        wire.step()
    (reader,) = wire.readers
    wire.inbox.end_link()
    wire.inbox.drop_partial()
    with pytest.raises(StreamBrokenError, match=r"of 100000 bytes of a stream: no link"):
        await anext(reader.stream)
    wire.cut()
    wire.inbox.finished(reader.stream, "it broke")
    wire.readers.clear()
    wire.run_dry()
    with pytest.raises(DeliveryFailedError, match="it broke"):
        await producer.message.done
    assert wire.budget.held == 0


async def test_a_link_must_not_bring_bytes_of_a_message_that_it_did_not_announce(wire: Wire) -> None:
    wire.put(content(0, 100_000))
    move(wire, 4)
    have = wire.inbox.progress
    wire.cut()
    with pytest.raises(MalformedFrameError, match="out of turn"):
        wire.inbox.on_more(Lane.BULK, More(1, have, b"x"))


@pytest.mark.parametrize(
    "begin",
    [
        Begin(1, 100_000, False, b"", again=False),
        Begin(1, 99_999, False, b"", again=True),
        Begin(1, 100_000, False, b"", stream=True, again=True),
    ],
    ids=["as if new", "another length", "another kind"],
)
async def test_a_message_that_comes_again_must_be_the_same(wire: Wire, begin: Begin) -> None:
    wire.put(content(0, 100_000))
    move(wire, 4)
    wire.cut()
    with pytest.raises(MalformedFrameError, match="out of order"):
        wire.inbox.on_begin(Lane.BULK, begin)


async def test_a_message_is_announced_once_over_a_link(wire: Wire) -> None:
    wire.inbox.on_begin(Lane.BULK, Begin(1, 100_000, False, b""))
    with pytest.raises(MalformedFrameError, match="out of order"):
        wire.inbox.on_begin(Lane.BULK, Begin(1, 100_000, False, b"", again=True))
    wire.inbox.on_begin(Lane.BULK, Begin(2, 0, True, b""))
    with pytest.raises(MalformedFrameError, match="twice"):
        wire.inbox.on_begin(Lane.BULK, Begin(2, 0, True, b""))


async def test_a_peer_that_holds_messages_up_over_a_new_link_is_seen(wire: Wire) -> None:
    """It has memory here and does not announce again what it began: the link's stall limit must see it."""
    producer = wire.put_stream(content(0, 100_000))
    for _ in range(4):
        wire.step()
    assert not wire.inbox.awaits_bytes  # A stream's producer may take its time.
    wire.inbox.end_link()
    wire.inbox.start_link(wire.inbox.session, wire.outbox.floor)
    assert wire.inbox.awaits_bytes
    assert not producer.message.done.done()


@pytest.mark.parametrize(
    "grant",
    [Grant(1, 90_000, 100_000), Grant(1, 0, 100_001), Grant(2, 0, 1), Grant(2**64 - 1, 0, 0)],
    ids=["never sent", "beyond the end", "unknown", "far away"],
)
async def test_a_peer_that_claims_what_it_never_got_breaks_the_rules(wire: Wire, grant: Grant) -> None:
    wire.put(content(0, 100_000))
    move(wire, 4)
    wire.cut()
    wire.send_one()
    with pytest.raises(MalformedFrameError, match="does not wait for it"):
        wire.outbox.on_grant(grant)


async def test_what_a_peer_holds_never_shrinks_on_one_link(wire: Wire) -> None:
    producer = wire.put_stream(content(0, 100_000))
    while not producer.source.base:
        wire.step()
    message = producer.message
    for have, upto in ((message.have - 1, message.upto), (message.have, message.upto - 1)):
        with pytest.raises(MalformedFrameError):
            wire.outbox.on_grant(Grant(message.id, have, upto))


async def test_an_answer_before_the_announcement_is_malformed(wire: Wire) -> None:
    wire.put(content(0, 100_000))
    move(wire, 4)
    wire.cut()
    with pytest.raises(MalformedFrameError):
        wire.outbox.on_grant(Grant(1, 0, 100_000))


async def test_a_settled_message_that_comes_again_gets_its_answer_and_no_bytes_flow(wire: Wire) -> None:
    taken, failed = wire.put(content(0, 100_000)), wire.put(content(1, 50_000))
    while len(wire.delivered) < 2:
        wire.send_one(), wire.receive_one(Lane.BULK), wire.answer_one()
    wire.handle_one(), wire.handle_one("no room")
    wire.cut()
    for _ in range(4):
        wire.send_one()
    assert [type(frame) for frame in wire.lanes[Lane.BULK]] == [Begin, Begin]
    wire.receive_one(Lane.BULK), wire.receive_one(Lane.BULK)
    assert sorted(map(type, wire.answers), key=lambda kind: kind.__name__) == [Ack, Fail]
    wire.run_dry()
    assert {taken.done.exception() is None, failed.done.exception() is None} == {True, False}


def test_the_game_can_tell_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above would notice a receiver that delivers twice, or a sender that goes on at the wrong byte."""
    script: list[Move] = [("stream", 60_000, Lane.BULK)]
    script += [(verb, 3, Lane.BULK) for _ in range(3) for verb in ("feed", "send", "receive", "answer")]
    script += [("cut", 1, Lane.BULK)]
    asyncio.run(_play(script, None))
    monkeypatch.setattr(
        "transport.messages.message_source.Chunks.read", lambda self, offset, limit: bytes(min(limit, 10))
    )
    with pytest.raises(AssertionError):
        asyncio.run(_play(script, None))


@pytest.mark.long
@pytest.mark.slow
async def test_two_gigabytes_pass_through_a_window_of_sixteen_megabytes() -> None:
    limits = PeerLimits()
    wire = Wire(limits, budget=MemoryBudget(limits.memory_total, limits.memory_per_peer))
    piece, total = bytes(1 << 20), MAX_PAYLOAD
    source = Chunks(total, limits.stream_window)
    message = wire.outbox.put_stream(Lane.BULK, b"state", source, total)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = 0
    while not message.done.done():
        wire.send_one(MAX_FRAME), wire.receive_one(Lane.BULK), wire.answer_one()
        if source.end < total and poll(source.room())[0]:
            source.feed(piece)
            wire.outbox.fed(message)
        for reader in list(wire.readers):
            taken += len(reader.taken)
            reader.taken.clear()
            wire.read_one(reader)
    assert message.done.result() is None
    assert wire.inbox.progress == total
    assert taken == total
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 2 * 16 + 32
    assert wire.is_empty()


@pytest.mark.long
@pytest.mark.slow
async def test_a_message_of_two_gigabytes_is_put_together_where_there_is_memory() -> None:
    limits = PeerLimits()
    wire = Wire(limits, budget=MemoryBudget(limits.memory_total, limits.memory_per_peer))
    with mmap.mmap(-1, MAX_PAYLOAD) as zeros:
        message = wire.outbox.put(Lane.BULK, b"", memoryview(zeros))
        for _ in range(10):
            wire.send_one(MAX_FRAME), wire.receive_one(Lane.BULK), wire.answer_one()
        assert wire.budget.held == MAX_PAYLOAD
        assert wire.inbox.progress > 300_000
        wire.outbox.cancel(message)
        wire.run_dry()
        assert wire.budget.held == 0
        assert wire.is_empty()


@pytest.mark.parametrize("heard", [True, False])
async def test_what_comes_of_an_answered_stream_is_thrown_away(wire: Wire, heard: bool) -> None:
    """The link may die before the sender has heard the answer."""
    producer = wire.put_stream(content(0, 100_000))
    while not wire.readers or not wire.inbox.progress:
        wire.step()
    wire.leave(wire.readers[0])
    progress = wire.inbox.progress
    wire.inbox.on_more(Lane.BULK, More(producer.message.id, producer.message.high, b"x"))
    assert wire.inbox.progress == progress
    if heard:
        while wire.answer_one():
            pass
    wire.cut()
    wire.run_dry()
    assert producer.message.done.result() is None
    assert wire.is_empty()


async def test_a_broken_stream_frees_what_its_handler_has_not_taken() -> None:
    stream = IncomingStream("peer", Lane.BULK, 1, b"", 10, lambda _: None)
    stream.push(memoryview(b"12345"))
    stream.break_off("it was cut")
    with pytest.raises(StreamBrokenError, match="5 of 10 bytes of a stream: it was cut"):
        await anext(stream)


async def test_a_stream_that_is_whole_cannot_break_any_more() -> None:
    stream = IncomingStream("peer", Lane.BULK, 1, b"", 5, lambda _: None)
    stream.push(memoryview(b"12345"))
    stream.break_off("too late")
    assert [bytes(chunk) async for chunk in stream] == [b"12345"]

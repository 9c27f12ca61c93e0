"""Outbox and inbox against each other: windows, order, memory, cancels, and what hostile frames come to."""

import gc
import random
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest

from common.errors import DeliveryFailedError, MalformedFrameError, PeerUnreachableError
from common.peer_memory import MemoryBudget
from tests.transport.message_wire import LIMITS, Wire, content
from transport.messages.framing import CHUNK, MAX_FRAME, MIN_FRAME, Ack, Begin, Fail, More, encode
from transport.messages.inbox import MAX_PIECES, MAX_REMEMBERED_FAILURES, PIECE_COST, MessageInbox
from transport.messages.lanes import Lane
from transport.messages.outbox import MAX_ID_SPAN

WIDE = replace(LIMITS, eager_window=10**9, eager_message=10**8, eager_count=100)


@pytest.fixture
def wire() -> Wire:
    return Wire()


async def test_a_sender_stops_at_the_eager_window(wire: Wire) -> None:
    for _ in range(10):
        wire.put(bytes(30_000))
    while wire.send_one():
        pass
    begun = [frame for frame in wire.lanes[Lane.BULK] if isinstance(frame, Begin)]
    assert len(begun) == 3  # 3 x 30,000 bytes fit in the window of 100,000


@pytest.mark.parametrize("urgent", [Lane.CONTROL, Lane.ACTIVATIONS])
async def test_a_full_window_of_bulk_keeps_no_other_lane_waiting(wire: Wire, urgent: Lane) -> None:
    for _ in range(10):
        wire.put(bytes(30_000))
    while wire.send_one():
        pass
    wire.put(b"now", lane=urgent)
    assert wire.send_one()
    assert any(isinstance(frame, Begin) for frame in wire.lanes[urgent])


async def test_a_receiver_holds_a_sender_to_the_window(wire: Wire) -> None:
    for ident in range(1, 5):
        wire.inbox.on_begin(Lane.BULK, Begin(ident, 1, True, b""))
    with pytest.raises(MalformedFrameError, match="oversteps the window"):
        wire.inbox.on_begin(Lane.BULK, Begin(5, 1, True, b""))


@pytest.mark.parametrize(
    "frame", [Begin(1, 40_001, True, b""), Begin(1, 40_000, False, b""), Begin(3 * MAX_ID_SPAN, 1, True, b"")]
)
async def test_a_receiver_refuses_what_does_not_follow_the_rules(wire: Wire, frame: Begin) -> None:
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_begin(Lane.BULK, frame)


async def test_too_many_large_messages_are_refused(wire: Wire) -> None:
    for ident in (1, 2, 3):
        wire.inbox.on_begin(Lane.BULK, Begin(ident, 100_000, False, b""))
    with pytest.raises(MalformedFrameError, match="large message 4 of 100000 bytes oversteps the window"):
        wire.inbox.on_begin(Lane.BULK, Begin(4, 100_000, False, b""))


@pytest.mark.parametrize(
    "more",
    [More(1, 1, b"xx"), More(1, 0, b"x" * 11), More(2, 0, b"x"), More(1, 2**63, b"x")],
    ids=["gap", "too long", "unknown", "far away"],
)
async def test_bytes_out_of_turn_are_refused_on_the_ordered_lane(wire: Wire, more: More) -> None:
    wire.inbox.on_begin(Lane.CONTROL, Begin(1, 10, True, b""))
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_more(Lane.CONTROL, more)


@pytest.mark.parametrize(
    "more",
    [More(1, 0, b"x" * 11), More(1, 2**63, b"x"), More(1, 2, b"x"), More(1, 0, b"x"), More(3 * MAX_ID_SPAN, 0, b"x")],
    ids=["too long", "far away", "twice ahead", "twice", "absurd id"],
)
async def test_bytes_that_cannot_be_right_are_refused_on_every_lane(wire: Wire, more: More) -> None:
    wire.inbox.on_begin(Lane.BULK, Begin(1, 10, True, b""))
    wire.inbox.on_more(Lane.BULK, More(1, 0, b"x"))
    wire.inbox.on_more(Lane.BULK, More(1, 2, b"x"))
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_more(Lane.BULK, more)


@pytest.mark.parametrize("seed", range(20))
async def test_a_message_is_put_together_in_whatever_order_its_frames_come(seed: int) -> None:
    wire = Wire(WIDE, chance=random.Random(seed), budget=MemoryBudget(10**7, 10**7))
    payloads = [content(index, size) for index, size in enumerate((1, 9_000, 40_000, 90_000, 60_000))]
    messages = [
        wire.put(payload, Lane.BULK if index % 2 else Lane.ACTIVATIONS) for index, payload in enumerate(payloads)
    ]
    while wire.send_one():
        pass
    assert sorted(wire.run_dry()) == sorted(payloads)
    assert all(message.done.done() for message in messages)
    assert wire.is_empty()


async def test_a_late_message_keeps_no_other_waiting(wire: Wire) -> None:
    wire.put(b"late" * 5000)
    wire.put(b"quick")
    while wire.send_one():
        pass
    held_up = wire.lanes[Lane.BULK].popleft()
    while wire.receive_one(Lane.BULK):
        pass
    assert [bytes(delivery.payload) for delivery in wire.delivered] == [b"quick"]
    wire.lanes[Lane.BULK].append(held_up)
    assert sorted(wire.run_dry()) == [b"late" * 5000, b"quick"]
    assert wire.is_empty()


def take_all(inbox: MessageInbox, frames: Iterable[More]) -> None:
    for frame in frames:
        inbox.on_more(Lane.BULK, frame)


async def test_bytes_before_their_announcement_are_bounded(wire: Wire) -> None:
    """By the windows, whether they are few large pieces or many of a single byte."""
    for size in (1, 60_000):
        inbox = Wire().inbox
        frames = (More(1 + number % 7, number, bytes(size)) for number in range(100_000))
        with pytest.raises(MalformedFrameError, match="not announced"):
            take_all(inbox, frames)
        assert sum(len(kept) for kept in inbox._early.values()) * (size + PIECE_COST) < 4 * LIMITS.eager_window


async def test_pieces_ahead_of_a_missing_one_are_bounded() -> None:
    wire = Wire(WIDE)
    wire.inbox.on_begin(Lane.BULK, Begin(1, 10**7, True, b""))
    with pytest.raises(MalformedFrameError, match="out of turn"):
        take_all(wire.inbox, (More(1, 2 * number + 1, b"x") for number in range(MAX_PIECES + 2)))
    assert wire.inbox._pieces == MAX_PIECES
    wire.cut()
    assert wire.inbox._pieces == 0


async def test_a_message_whose_end_overtakes_its_beginning_is_no_mistake(wire: Wire) -> None:
    message = wire.put(b"x" * 9000)
    while wire.send_one():
        pass
    wire.outbox.cancel(message)
    wire.send_one()
    wire.lanes[Lane.BULK].reverse()
    assert wire.run_dry() == []
    assert wire.is_empty()


async def test_bytes_on_another_lane_are_refused(wire: Wire) -> None:
    wire.inbox.on_begin(Lane.BULK, Begin(1, 10, True, b""))
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_more(Lane.CONTROL, More(1, 0, b"x"))


async def test_bytes_before_the_grant_are_refused() -> None:
    wire = Wire()
    for ident in (1, 2):
        wire.inbox.on_begin(Lane.BULK, Begin(ident, 120_000, False, b""))  # There is memory for one.
    wire.inbox.on_more(Lane.BULK, More(1, 0, b"x"))
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_more(Lane.BULK, More(2, 0, b"x"))


async def test_a_message_that_no_budget_can_hold_fails_at_once(wire: Wire) -> None:
    message = wire.put(bytes(160_000))
    wire.run_dry()
    with pytest.raises(DeliveryFailedError, match="160000 bytes are more"):
        await message.done


async def test_a_failure_is_told_again_after_a_cut(wire: Wire) -> None:
    message = wire.put(b"x")
    wire.send_one(), wire.send_one()
    wire.receive_one(Lane.BULK), wire.receive_one(Lane.BULK)
    wire.handle_one("no room")
    wire.cut()
    assert wire.run_dry() == []
    with pytest.raises(DeliveryFailedError, match="no room"):
        await message.done


async def test_a_restarted_receiver_gets_what_was_not_acknowledged(wire: Wire) -> None:
    first, second = wire.put(b"first"), wire.put(b"second" * 9000)
    wire.outbox.cancel(wire.put(b"given up"))
    for _ in range(4):
        wire.send_one()
    wire.cut(restarted=True)
    assert sorted(wire.run_dry()) == [b"first", b"second" * 9000]
    assert first.done.done()
    assert second.done.done()
    assert wire.outbox.floor == wire.outbox._next_id


async def test_a_hole_in_the_ids_closes_with_the_next_floor(wire: Wire) -> None:
    """A message given up while the peer restarted leaves an id that nobody will ever settle."""
    message = wire.put(b"x" * 50_000)
    wire.send_one()
    wire.outbox.cancel(message)
    wire.cut(restarted=True)
    wire.put(b"next")
    wire.run_dry()
    assert wire.inbox._settled == {2}
    wire.inbox.on_floor(wire.outbox.floor)
    assert wire.inbox._settled == set()
    assert wire.inbox._watermark == 3


async def test_a_cancelled_message_frees_its_memory_at_once(wire: Wire) -> None:
    message = wire.put(bytes(50_000))
    for _ in range(3):
        wire.send_one(), wire.receive_one(Lane.BULK), wire.answer_one()
    assert wire.budget.held == 50_000
    wire.outbox.cancel(message)
    wire.send_one(), wire.receive_one(Lane.BULK)
    assert wire.budget.held == 0
    wire.answer_one()
    assert wire.outbox.floor == 2


@pytest.mark.parametrize("end", ["handled", "expired", "cancelled"])
async def test_memory_is_free_without_the_garbage_collector(wire: Wire, end: str) -> None:
    """Half a gigabyte must not wait for a cycle to be found."""
    message = wire.put(bytes(50_000))
    gc.disable()
    try:
        for _ in range(3):
            wire.send_one(), wire.receive_one(Lane.BULK), wire.answer_one()
        (partial,) = wire.inbox._partial.values()
        buffer = weakref.ref(partial.buffer)
        del partial
        match end:
            case "handled":
                wire.run_dry()
            case "expired":
                wire.cut(expired=True)
            case "cancelled":
                wire.outbox.cancel(message)
                wire.run_dry()
        assert buffer() is None
    finally:
        gc.enable()


async def test_a_message_cancelled_in_the_handler_is_confirmed_when_the_handler_is_done(wire: Wire) -> None:
    message = wire.put(b"x")
    while wire.send_one():
        wire.receive_one(Lane.BULK)
    wire.outbox.cancel(message)
    wire.send_one(), wire.receive_one(Lane.BULK)
    assert not wire.answers
    wire.handle_one()
    assert list(wire.answers) == [Ack(1)]


async def test_a_cancellation_that_the_cut_swallowed_is_told_again(wire: Wire) -> None:
    message = wire.put(bytes(30_000))
    wire.send_one(), wire.receive_one(Lane.BULK)
    wire.outbox.cancel(message)
    wire.cut()
    assert wire.run_dry() == []
    assert wire.outbox.floor == 2


async def test_a_message_without_payload_arrives(wire: Wire) -> None:
    message = wire.put(b"", header=b"only a header")
    assert wire.run_dry() == [b""]
    assert message.done.done()


async def test_ids_never_run_far_ahead_of_the_oldest_open_message(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.messages.outbox.MAX_ID_SPAN", 10)
    wire.put(bytes(50_000))
    wire.send_one()
    for _ in range(30):
        wire.put(b"x")
    while wire.send_one():
        wire.receive_one(Lane.BULK), wire.handle_one()
        answer = wire.answers[-1] if wire.answers else None
        if isinstance(answer, Ack):
            wire.answers.pop()
            wire.outbox.on_settled(answer)
    assert wire.outbox._next_id == 11
    assert wire.outbox.floor == 1


async def test_remembered_failures_are_bounded(wire: Wire) -> None:
    for ident in range(1, MAX_REMEMBERED_FAILURES + 100):
        wire.inbox.on_begin(Lane.BULK, Begin(ident, 160_000, False, b""))
    assert len(wire.inbox._failed) == MAX_REMEMBERED_FAILURES


async def test_eager_messages_of_a_lane_go_one_after_the_other_and_large_ones_take_turns() -> None:
    wire = Wire(replace(LIMITS, memory_per_peer=10**6), budget=MemoryBudget(10**6, 10**6))
    for size in (60_000, 60_000):
        wire.put(bytes(size))
    for _ in range(2):
        wire.send_one(), wire.receive_one(Lane.BULK), wire.answer_one()
    for size in (30_000, 30_000):
        wire.put(bytes(size))
    while wire.send_one():
        pass
    chunks = [frame.id for frame in wire.lanes[Lane.BULK] if isinstance(frame, More)]
    assert [ident for ident in chunks if ident > 2] == [3] * 4 + [4] * 4
    assert [ident for ident in chunks if ident < 3][:6] == [1, 2, 1, 2, 1, 2]
    assert {chunks.index(3), chunks.index(4)} < set(range(9))  # Between the frames of the large ones, not after them.


@pytest.mark.parametrize("frame_bytes", [MIN_FRAME, 20_000, MAX_FRAME])
async def test_activations_get_four_fifths_beside_bulk_whatever_the_sizes(frame_bytes: int) -> None:
    wire = Wire(WIDE)
    for _ in range(60):
        wire.put(bytes(100_000), Lane.ACTIVATIONS)
    wire.put(bytes(4_000_000), Lane.BULK)
    sent: Counter[Lane] = Counter()
    while sum(sent.values()) < 4_000_000:
        entry = wire.outbox.next_frame(frame_bytes)
        assert entry is not None
        sent[entry[0]] += len(encode(entry[1]))
    assert sent[Lane.ACTIVATIONS] / sent[Lane.BULK] == pytest.approx(4, rel=0.1)


async def test_control_goes_before_everything() -> None:
    wire = Wire(WIDE)
    for lane in (Lane.BULK, Lane.ACTIVATIONS):
        wire.put(bytes(1_000_000), lane)
    for _ in range(5):
        wire.send_one()
    for number in range(3):
        wire.put(bytes(100), Lane.CONTROL)
        entries = [wire.outbox.next_frame() for _ in range(2)]
        assert [(lane, type(frame)) for lane, frame in filter(None, entries)] == [
            (Lane.CONTROL, Begin),
            (Lane.CONTROL, More),
        ], number


async def test_where_bulk_leaves_no_room_only_control_is_given_out() -> None:
    wire = Wire(WIDE)
    for lane in (Lane.BULK, Lane.ACTIVATIONS):
        wire.put(bytes(1_000_000), lane)
    assert wire.outbox.next_frame(only_control=True) is None
    wire.put(bytes(100), Lane.CONTROL)
    entries = [wire.outbox.next_frame(only_control=True) for _ in range(3)]
    assert [(lane, type(frame)) for lane, frame in filter(None, entries)] == [
        (Lane.CONTROL, Begin),
        (Lane.CONTROL, More),
    ]
    assert wire.outbox.next_frame() is not None  # The others have lost nothing.


@pytest.mark.parametrize("seed", range(5))
async def test_a_lane_that_sent_long_frames_goes_on_with_short_ones(seed: int) -> None:
    """The line has turned out to be slow: what the long frames took on credit must not stop the lane."""
    wire, chance = Wire(WIDE), random.Random(seed)
    for lane in (Lane.ACTIVATIONS, Lane.BULK):
        wire.put(content(0, 1_000_000), lane)
    while wire.send_one(chance.choice((MIN_FRAME, MAX_FRAME))):
        pass
    assert (
        sum(len(frame.data) for lane in wire.lanes.values() for frame in lane if isinstance(frame, More)) == 2_000_000
    )


async def test_nobody_waits_for_a_lane_that_has_nothing_to_send() -> None:
    wire = Wire(WIDE)
    wire.put(bytes(1_000_000), Lane.BULK)
    assert wire.run_dry() == [bytes(1_000_000)]


@pytest.mark.parametrize(
    ("asked", "given"), [(1, MIN_FRAME), (MIN_FRAME, MIN_FRAME), (10_000, 10_000), (1 << 20, MAX_FRAME)]
)
async def test_frames_are_as_long_as_the_link_asks_within_bounds(asked: int, given: int) -> None:
    wire = Wire(WIDE)
    wire.put(content(0, 200_000))
    lengths = []
    while wire.send_one(asked):
        lengths.append(len(encode(wire.lanes[Lane.BULK][-1])))
    assert set(lengths[1:-1]) == {given}
    assert max(lengths) == given <= MAX_FRAME
    assert wire.run_dry() == [content(0, 200_000)]


async def test_a_message_of_one_frame_is_handed_on_without_a_copy(wire: Wire) -> None:
    data = content(0, 20_000)
    wire.inbox.on_begin(Lane.BULK, Begin(1, len(data), True, b""))
    wire.inbox.on_more(Lane.BULK, More(1, 0, data))
    assert wire.delivered[0].payload.obj is data


async def test_a_large_message_is_cut_without_copies(wire: Wire) -> None:
    data = content(0, 2 * CHUNK)
    wire.put(data)
    wire.send_one(), wire.receive_one(Lane.BULK), wire.answer_one()
    entry = wire.outbox.next_frame()
    assert entry is not None
    assert isinstance(entry[1], More)
    assert isinstance(entry[1].data, memoryview)
    assert entry[1].data.obj is data


@pytest.mark.parametrize("answer", [Ack(1), Fail(2**64 - 1, "x")])
async def test_an_answer_to_nothing_is_malformed(wire: Wire, answer: Ack | Fail) -> None:
    with pytest.raises(MalformedFrameError):
        wire.outbox.on_settled(answer)


async def test_a_second_answer_changes_nothing(wire: Wire) -> None:
    message = wire.put(b"x")
    wire.run_dry()
    wire.outbox.on_settled(Fail(1, "late"))
    assert message.done.result() is None


async def test_failing_all_ends_every_caller(wire: Wire) -> None:
    messages = [wire.put(bytes(30_000)) for _ in range(6)]
    for _ in range(5):
        wire.send_one()
    wire.outbox.fail_all(PeerUnreachableError("gone"))
    for message in messages:
        with pytest.raises(PeerUnreachableError, match="gone"):
            await message.done


def test_memory_is_granted_in_order_and_never_beyond_the_limits() -> None:
    budget = MemoryBudget(total=100, per_owner=70)
    granted: list[str] = []
    first = budget.reserve("a", 60, lambda _: granted.append("a1"))
    budget.reserve("a", 20, lambda _: granted.append("a2"))  # over a's own share: lets others pass
    big = budget.reserve("b", 50, lambda _: granted.append("b"))  # over the total: the rest waits behind it
    budget.reserve("c", 10, lambda _: granted.append("c"))
    assert granted == ["a1"]
    budget.give_up(big)
    assert granted == ["a1", "c"]
    budget.give_up(first)
    assert granted == ["a1", "c", "a2"]
    assert budget.held == 30
    assert budget.fits(70)
    assert not budget.fits(71)


def test_a_reservation_of_nothing_is_given_back_like_any_other() -> None:
    budget = MemoryBudget(total=10, per_owner=10)
    tickets = [budget.reserve("a", 0, lambda ticket: None) for _ in range(2)]
    budget.give_up(tickets[0])
    budget.give_up(tickets[1])
    assert budget.held == 0

"""Outbox and inbox against each other: every message once, within the windows, however often the link breaks."""

import asyncio
import gc
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport.budget import MemoryBudget
from transport.errors import DeliveryFailedError, MalformedFrameError, PeerUnreachableError
from transport.framing import Ack, Begin, Cancel, Fail, Frame, Grant, More, checksum
from transport.inbox import MAX_REMEMBERED_FAILURES, Delivery, Inbox
from transport.lane import Lane
from transport.limits import PeerLimits
from transport.outbox import MAX_ID_SPAN, Outbox, Outgoing

LIMITS = PeerLimits(
    eager_message=40_000,
    eager_window=100_000,
    eager_count=4,
    large_count=2,
    memory_per_peer=150_000,
    memory_total=200_000,
)
SESSION = b"s" * 16


@dataclass
class Wire:
    """Both sides of one direction; each lane and the answers keep their order, nothing else does."""

    limits: PeerLimits = LIMITS
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(LIMITS.memory_total, LIMITS.memory_per_peer))

    def __post_init__(self) -> None:
        self.outbox = Outbox(self.limits)
        self.delivered: deque[Delivery] = deque()
        self.answers: deque[Frame] = deque()
        self.lanes: dict[Lane, deque[Frame]] = {lane: deque() for lane in Lane}
        self.inbox = Inbox(self.limits, self.budget, self.delivered.append, self.answers.append)
        self.inbox.start_link(SESSION, self.outbox.floor)

    def put(self, payload: bytes, lane: Lane = Lane.BULK, header: bytes = b"") -> Outgoing:
        return self.outbox.put(lane, header, memoryview(payload), checksum(header, payload))

    def send_one(self) -> bool:
        entry = self.outbox.next_frame()
        if entry is not None:
            self.lanes[entry[0]].append(entry[1])
        return entry is not None

    def receive_one(self, lane: Lane) -> bool:
        if not self.lanes[lane]:
            return False
        frame = self.lanes[lane].popleft()
        if isinstance(frame, More):
            self.inbox.on_more(lane, frame)
        elif isinstance(frame, Begin):
            self.inbox.on_begin(lane, frame)
        else:
            assert isinstance(frame, Cancel)
            self.inbox.on_cancel(frame)
        return True

    def answer_one(self) -> bool:
        if not self.answers:
            return False
        frame = self.answers.popleft()
        if isinstance(frame, Grant):
            self.outbox.on_grant(frame.id)
        else:
            assert isinstance(frame, Ack | Fail)
            self.outbox.on_settled(frame)
        return True

    def handle_one(self, failure: str | None = None) -> bool:
        if not self.delivered:
            return False
        delivery = self.delivered.popleft()
        self.inbox.finished(delivery, failure)
        return True

    def cut(self, *, restarted: bool = False) -> None:
        """The link is lost and a new one comes up; with ``restarted`` the receiver has forgotten everything."""
        floor = self.outbox.floor  # goes in the envelope, before the bookkeeping starts again
        self.answers.clear()
        for lane in self.lanes.values():
            lane.clear()
        self.inbox.drop_partial()
        if restarted:
            for delivery in self.delivered:
                self.inbox.finished(delivery, None)
            self.delivered.clear()
            self.answers.clear()
            self.inbox = Inbox(self.limits, self.budget, self.delivered.append, self.answers.append)
        self.outbox.rewind(new_session=restarted)
        self.inbox.start_link(SESSION, floor)

    def run_dry(self) -> list[bytes]:
        """Move everything until nothing moves; returns the payloads that reached the handler."""
        seen: list[bytes] = []
        moved = True
        while moved:
            moved = self.send_one()
            for lane in Lane:
                moved |= self.receive_one(lane)
            if self.delivered:
                seen.append(bytes(self.delivered[0].payload))
                moved |= self.handle_one()
            moved |= self.answer_one()
        return seen


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 120_000), st.sampled_from(Lane)),
        st.tuples(st.just("send"), st.integers(1, 6), st.just(Lane.CONTROL)),
        st.tuples(st.just("receive"), st.integers(1, 6), st.sampled_from(Lane)),
        st.tuples(st.just("answer"), st.integers(1, 3), st.just(Lane.CONTROL)),
        st.tuples(st.just("handle"), st.integers(1, 3), st.just(Lane.CONTROL)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(Lane.CONTROL)),
        st.tuples(st.just("cut"), st.just(1), st.just(Lane.CONTROL)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(MOVES)
def test_every_message_arrives_once_through_any_cuts(moves: list[tuple[str, int, Lane]]) -> None:
    asyncio.run(_play(moves))


async def _play(moves: list[tuple[str, int, Lane]]) -> None:
    wire = Wire()
    sent: list[Outgoing] = []
    seen: Counter[bytes] = Counter()
    for verb, number, lane in moves:
        _move(wire, sent, seen, verb, number, lane)
        assert wire.budget.held <= LIMITS.memory_per_peer
    for payload in wire.run_dry():
        seen[_name(payload)] += 1
    for index, message in enumerate(sent):
        count = seen[str(index).encode()]
        assert message.done.cancelled() or (message.done.done() and count == 1)
        assert count <= 1
    assert wire.budget.held == 0
    assert not wire.outbox.wanted
    assert list(wire.outbox.pending) == []
    assert wire.outbox.floor == wire.outbox._next_id


def _name(payload: bytes | memoryview) -> bytes:
    return bytes(payload[:8]).split(b":")[0]


def _move(wire: Wire, sent: list[Outgoing], seen: Counter[bytes], verb: str, number: int, lane: Lane) -> None:
    match verb:
        case "put":
            sent.append(wire.put(f"{len(sent)}:".encode().ljust(number, b"x"), lane))
        case "cancel" if number < len(sent) and not sent[number].done.done():
            wire.outbox.cancel(sent[number])
        case "cut":
            wire.cut()
        case "handle":
            for _ in range(min(number, len(wire.delivered))):
                seen[_name(wire.delivered[0].payload)] += 1
                wire.handle_one()
    steps: dict[str, Callable[[], bool]] = {
        "send": wire.send_one,
        "answer": wire.answer_one,
        "receive": partial(wire.receive_one, lane),
    }
    for _ in range(number if verb in steps else 0):
        steps[verb]()


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


async def test_a_receiver_holds_a_sender_to_the_window(wire: Wire) -> None:
    for ident in range(1, 5):
        wire.inbox.on_begin(Lane.BULK, Begin(ident, 1, 0, True, b""))
    with pytest.raises(MalformedFrameError, match="oversteps the window"):
        wire.inbox.on_begin(Lane.BULK, Begin(5, 1, 0, True, b""))


@pytest.mark.parametrize(
    "frame", [Begin(1, 40_001, 0, True, b""), Begin(1, 40_000, 0, False, b""), Begin(3 * MAX_ID_SPAN, 1, 0, True, b"")]
)
async def test_a_receiver_refuses_what_does_not_follow_the_rules(wire: Wire, frame: Begin) -> None:
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_begin(Lane.BULK, frame)


async def test_too_many_large_messages_are_refused(wire: Wire) -> None:
    for ident in (1, 2):
        wire.inbox.on_begin(Lane.BULK, Begin(ident, 100_000, 0, False, b""))
    with pytest.raises(MalformedFrameError, match="large messages are open"):
        wire.inbox.on_begin(Lane.BULK, Begin(3, 100_000, 0, False, b""))


@pytest.mark.parametrize(
    "more",
    [More(1, 1, b"xx"), More(1, 0, b"x" * 11), More(2, 0, b"x"), More(1, 2**63, b"x")],
    ids=["gap", "too long", "unknown", "far away"],
)
async def test_bytes_out_of_turn_are_refused(wire: Wire, more: More) -> None:
    wire.inbox.on_begin(Lane.BULK, Begin(1, 10, 0, True, b""))
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_more(Lane.BULK, more)


async def test_bytes_on_another_lane_are_refused(wire: Wire) -> None:
    wire.inbox.on_begin(Lane.BULK, Begin(1, 10, 0, True, b""))
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_more(Lane.CONTROL, More(1, 0, b"x"))


async def test_bytes_before_the_grant_are_refused() -> None:
    wire = Wire(budget=MemoryBudget(100, 100_000_000))
    wire.inbox.on_begin(Lane.BULK, Begin(1, 50_000, 0, False, b""))
    with pytest.raises(MalformedFrameError):
        wire.inbox.on_more(Lane.BULK, More(1, 0, b"x"))


async def test_a_damaged_message_is_never_delivered(wire: Wire) -> None:
    wire.inbox.on_begin(Lane.BULK, Begin(1, 3, checksum(b"h", b"abc"), True, b"h"))
    with pytest.raises(MalformedFrameError, match="damaged"):
        wire.inbox.on_more(Lane.BULK, More(1, 0, b"abd"))
    assert not wire.delivered


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


@pytest.mark.parametrize("end", ["handled", "cut", "cancelled"])
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
            case "cut":
                wire.cut()
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
    monkeypatch.setattr("transport.outbox.MAX_ID_SPAN", 10)
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
        wire.inbox.on_begin(Lane.BULK, Begin(ident, 160_000, 0, False, b""))
    assert len(wire.inbox._failed) == MAX_REMEMBERED_FAILURES


async def test_messages_of_one_lane_take_turns(wire: Wire) -> None:
    wire.put(b"a" * 40_000)
    wire.put(b"b" * 40_000)
    while wire.send_one():
        pass
    chunks = [frame.id for frame in wire.lanes[Lane.BULK] if isinstance(frame, More)]
    assert chunks[:4] == [1, 2, 1, 2]


async def test_a_busy_lane_leaves_the_others_their_share(wire: Wire) -> None:
    limits = replace(LIMITS, eager_window=10**9, eager_message=10**8)
    wire = Wire(limits)
    for lane in Lane:
        wire.put(bytes(16_000 * 400), lane)
    order = []
    for _ in range(130):
        entry = wire.outbox.next_frame()
        assert entry is not None
        order.append(entry[0])
    assert Counter(order) == {Lane.CONTROL: 80, Lane.ACTIVATIONS: 40, Lane.BULK: 10}


@pytest.mark.parametrize("answer", [Ack(1), Fail(2**64 - 1, "x")])
async def test_an_answer_to_nothing_is_malformed(wire: Wire, answer: Ack | Fail) -> None:
    with pytest.raises(MalformedFrameError):
        wire.outbox.on_settled(answer)
    with pytest.raises(MalformedFrameError):
        wire.outbox.on_grant(answer.id)


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
    first = budget.reserve("a", 60, lambda: granted.append("a1"))
    budget.reserve("a", 20, lambda: granted.append("a2"))  # over a's own share: lets others pass
    big = budget.reserve("b", 50, lambda: granted.append("b"))  # over the total: the rest waits behind it
    budget.reserve("c", 10, lambda: granted.append("c"))
    assert granted == ["a1"]
    budget.give_up(big)
    assert granted == ["a1", "c"]
    budget.give_up(first)
    assert granted == ["a1", "c", "a2"]
    assert budget.held == 30
    assert budget.fits(70)
    assert not budget.fits(71)

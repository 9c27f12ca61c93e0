"""What arrives for, and what leaves from, the computing thread."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from protocol.task import AbandonRound, ApplyRound, BeginRound, OpenStep, Progress
from protocol.worker import PeerSend, TensorName, WorkerReport
from tests.trainer.router import make_plan
from trainer.errors import AbandonedError
from trainer.worker.inbox import MAX_WAITING_AUDITS, WorkerInbox
from trainer.worker.outbox import WorkerOutbox

WAIT = 10.0


def name(round_index: int = 0, epoch: int = 0, step: int = 0, micro: int = 0) -> TensorName:
    return TensorName("activation", epoch, round_index, step, micro)


def begin(round_index: int, epoch: int = 0) -> BeginRound:
    return BeginRound(make_plan([(0, 1)], [0], epoch), round_index, 0, 1, 1)


def opening(index: int = 0) -> OpenStep:
    return OpenStep(f"{index:032x}", 0, 0, 0)


def nobody(*_: Any) -> None:
    raise AssertionError("no audit is due")


def begun(key: tuple[int, int] = (0, 0), serve: Callable[..., None] = nobody) -> WorkerInbox:
    inbox = WorkerInbox(serve)
    inbox.begin(key)
    return inbox


class Waiting:
    """A call in a thread, whose end can be waited for."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call: Callable[[], Any]) -> None:
        try:
            self.result = call()
        except AbandonedError as error:
            self.error = error

    def end(self) -> "Waiting":
        self._thread.join(WAIT)
        assert not self._thread.is_alive()
        return self


def test_a_payload_is_taken_once_whether_it_came_before_or_comes_after() -> None:
    inbox = begun()
    assert inbox.payload(name(), b"early")
    assert inbox.take(name()) == b"early"
    waiting = Waiting(lambda: inbox.take(name(step=1)))
    assert inbox.payload(name(step=1), b"late")
    assert waiting.end().result == b"late"


def test_a_duplicate_a_stale_and_a_far_payload_are_dropped() -> None:
    inbox = begun((2, 5))
    assert inbox.payload(name(5, 2), b"x")
    assert not inbox.payload(name(5, 2), b"y")
    assert not inbox.payload(name(4, 2), b"stale round")
    assert not inbox.payload(name(9, 1), b"stale epoch")
    assert not inbox.payload(name(7, 2), b"two rounds ahead")
    assert inbox.payload(name(6, 2), b"the next round")
    assert inbox.payload(name(0, 3), b"a newer epoch")
    assert inbox.take(name(5, 2)) == b"x"


def test_what_waits_is_bounded_in_bytes_and_room_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.worker.inbox.MAX_WAITING_BYTES", 100)
    inbox = begun()
    assert inbox.payload(name(), bytes(60))
    assert not inbox.payload(name(micro=1), bytes(60))
    assert not inbox.contribution((0, 0), 1, bytes(60))
    inbox.take(name())
    assert inbox.payload(name(micro=1), bytes(60))
    inbox.begin((0, 1))
    assert inbox.payload(name(1, micro=2), bytes(100))


@pytest.mark.parametrize(
    "order", [AbandonRound(0, 3), ApplyRound(0, 3, {}), begin(4), begin(3, epoch=1), begin(0, epoch=1)], ids=repr
)
def test_the_end_of_a_round_interrupts_its_steps(order: Any) -> None:
    inbox = begun((0, 3))
    waiting = Waiting(lambda: inbox.take(name(3)))
    inbox.order(order, b"")
    assert isinstance(waiting.end().error, AbandonedError)
    with pytest.raises(AbandonedError):
        inbox.between_steps()
    assert inbox.next_order() == (order, b"", 0)


@pytest.mark.parametrize("order", [AbandonRound(0, 3), begin(4), begin(3, epoch=1)], ids=repr)
def test_the_end_of_a_round_that_was_not_begun_yet_interrupts_it_too(order: Any) -> None:
    inbox = begun((0, 2))
    inbox.order(begin(3), b"")
    inbox.order(order, b"")
    assert inbox.next_order() == (begin(3), b"", 0)
    inbox.begin((0, 3))
    with pytest.raises(AbandonedError):
        inbox.take(name(3))


@pytest.mark.parametrize("order", [AbandonRound(0, 2), ApplyRound(0, 2, {}), begin(3), begin(2)], ids=repr)
def test_what_belongs_to_the_past_interrupts_nothing(order: Any) -> None:
    inbox = begun((0, 3))
    inbox.order(order, b"")
    inbox.between_steps()
    assert inbox.payload(name(3), b"x")
    assert inbox.take(name(3)) == b"x"


def test_an_audit_is_served_while_a_payload_is_awaited() -> None:
    served = threading.Event()
    inbox = begun(serve=lambda *_: served.set())
    waiting = Waiting(lambda: inbox.take(name()))
    assert inbox.audit(opening(), b"")
    assert served.wait(WAIT)
    inbox.payload(name(), b"x")
    assert waiting.end().result == b"x"


def test_audits_that_wait_are_bounded_and_never_twice_the_same() -> None:
    inbox = begun()
    assert all(inbox.audit(opening(index), b"") for index in range(MAX_WAITING_AUDITS))
    assert not inbox.audit(opening(MAX_WAITING_AUDITS), b"")
    other = begun()
    assert other.audit(opening(1), b"")
    assert not other.audit(opening(1), b"")


def test_contributions_are_awaited_by_digest() -> None:
    inbox = begun()
    assert inbox.contribution((0, 0), 0, b"mine")
    mine = inbox.holding()[0]
    other = begun()
    other.contribution((0, 0), 1, b"yours")
    wanted = {0: mine, 1: other.holding()[1]}
    waiting = Waiting(lambda: inbox.contributions(wanted))
    assert not inbox.contribution((0, 0), 0, b"mine again")
    assert inbox.contribution((0, 0), 1, b"yours")
    assert waiting.end().result == {0: b"mine", 1: b"yours"}


def test_a_round_that_begins_anew_ends_the_wait_for_contributions() -> None:
    inbox = begun()
    waiting = Waiting(lambda: inbox.contributions({1: "0" * 64}))
    inbox.order(ApplyRound(0, 0, {1: "0" * 64}), b"")  # Said twice: nothing changes.
    inbox.order(begin(0, epoch=1), b"")
    assert isinstance(waiting.end().error, AbandonedError)
    inbox.order(begin(0, epoch=2), b"")
    orders = [inbox.next_order() for _ in range(2)]
    assert (begin(0, epoch=1), b"", 0) in orders, "the new round is still to be obeyed"


def test_contributions_of_the_next_round_wait_for_it() -> None:
    inbox = begun()
    assert inbox.contribution((0, 1), 1, b"early")
    assert inbox.holding() == {}
    inbox.begin((0, 1))
    assert set(inbox.holding()) == {1}
    assert not inbox.contribution((0, 0), 1, b"late")


def test_closing_ends_every_wait() -> None:
    inbox = begun()
    calls = [lambda: inbox.take(name()), lambda: inbox.contributions({1: "0" * 64}), inbox.next_order]
    waiting = [Waiting(call) for call in calls]
    inbox.close()
    ends = [each.end() for each in waiting]
    assert isinstance(ends[0].error, AbandonedError)
    assert isinstance(ends[1].error, AbandonedError)
    assert ends[2].result is None


# --- outbox -----------------------------------------------------------------------------------------------------------


def send(micro: int) -> PeerSend:
    return PeerSend(1, 0, name(micro=micro))


async def test_messages_leave_in_order() -> None:
    outbox = WorkerOutbox(asyncio.get_running_loop())
    Waiting(lambda: [outbox.put(send(micro), bytes(micro)) for micro in range(5)]).end()
    outbox.report(Progress(0, 0, 1, 2))
    outbox.close()
    assert [await outbox.get() for _ in range(5)] == [(send(micro), (bytes(micro),)) for micro in range(5)]
    assert await outbox.get() == (WorkerReport(Progress(0, 0, 1, 2)), ())
    assert await outbox.get() is None


async def test_a_full_outbox_makes_the_sender_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.worker.outbox.MAX_OUTGOING_BYTES", 100)
    outbox = WorkerOutbox(asyncio.get_running_loop())
    outbox.put(send(0), bytes(500))  # One message always fits, however large.
    waiting = Waiting(lambda: outbox.put(send(1), bytes(10)))
    async with asyncio.timeout(WAIT):
        assert await outbox.get() == (send(0), (bytes(500),))
        assert await outbox.get() == (send(1), (bytes(10),))
    waiting.end()


async def test_a_closed_outbox_takes_nothing_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.worker.outbox.MAX_OUTGOING_BYTES", 100)
    outbox = WorkerOutbox(asyncio.get_running_loop())
    outbox.put(send(0), bytes(100))
    waiting = Waiting(lambda: outbox.put(send(1), bytes(100)))
    outbox.close()
    waiting.end()
    assert await outbox.get() == (send(0), (bytes(100),))
    assert await outbox.get() is None


async def test_memory_that_is_shown_may_change_once_who_sends_it_asks_for_more() -> None:
    outbox = WorkerOutbox(asyncio.get_running_loop())
    left: Future[None] = Future()
    outbox.show(Progress(0, 0, 1, 2), [memoryview(b"shown")], left)
    outbox.put(send(0))
    assert await outbox.get() == (WorkerReport(Progress(0, 0, 1, 2)), (b"shown",))
    assert not left.done(), "it is being sent"
    assert await outbox.get() == (send(0), ())
    assert left.done()

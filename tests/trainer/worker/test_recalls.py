"""What a worker lets go once its agent has it on the disk comes back for an audit, to the same bytes, or is said to be lost."""

import queue
import weakref
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from protocol.task import OpenOuter, OpenStep, StepOpened
from protocol.worker import RecordKept, RecordPart, RecordRecall
from tests.trainer.outer.test_methods_live import METHODS
from tests.trainer.router import MakeRouter, Place, Router
from tests.trainer.small import commit_round, job, pipeline, training
from tests.trainer.worker.drawn import audit
from tests.trainer.worker.test_restored import OTHERS, PLAN, STEPS, TOTAL, openings, restored, train
from trainer.data.data import TokenFile
from trainer.data.folder import open_files
from trainer.files.inputs import InputFolder
from trainer.files.tensors import Piece, parts_of
from trainer.outer import OuterState
from trainer.stage.stage import Stage
from trainer.worker.arriving_state import ArrivingState
from trainer.worker.inbox import ReturnedRecord, WorkerInbox
from trainer.worker.opening_service import OpeningService
from trainer.worker.recalls import Recalls

PLACE: Place = (1, 1)
LEAN: dict[str, dict[str, Any]] = {
    "lean": {"memory": "lean", "precision": "bf16"},
    "lean, coarse": {"memory": "lean", "precision": "bf16", "pseudo_gradient": "coarse", "outer_momentum": 0.5},
    "lean, muon, streaming": {
        "memory": "lean",
        "precision": "bf16",
        "optimizer": "muon",
        "outer": "streaming",
        "fragments": 2,
    },
}


@asynccontextmanager
async def third_round(
    routed: MakeRouter, changes: dict[str, Any], keeping: bool = True
) -> AsyncIterator[tuple[Router, dict[int, tuple[bytes, bytes]]]]:
    """Two whole rounds, and a third one that waits in its first step."""
    spec = job(inner_steps=STEPS, **({"commit_every": STEPS} | changes))
    async with routed(spec, recording=True) as router:
        router.keeping = keeping
        starts = await train(router, 2, PLACE)
        router.deliver = lambda source, to, message, payload: None
        await router.begin(PLAN, 2, 2 * STEPS, STEPS, TOTAL)
        yield router, starts


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, *OTHERS, *LEAN])
async def test_what_comes_back_opens_to_the_bytes_that_memory_opens_to(method: str, routed: MakeRouter) -> None:
    changes = (METHODS | OTHERS | LEAN)[method]
    async with third_round(routed, changes, keeping=False) as (router, _):
        alive = await openings(router, PLACE, [0, 1])
        assert router.recalls == []
    async with third_round(routed, changes) as (router, starts):
        assert await openings(router, PLACE, [0, 1]) == alive
        assert {(recall.round, recall.kind) for _, recall in router.recalls} == {
            (number, kind) for number in (0, 1) for kind in ("steps", "outer")
        }
        parts = restored(router, PLACE, starts)
        await router.kill(PLACE)
        router.artifacts.clear()
        await router.start(PLAN, [PLACE], restored=parts)
        assert await openings(router, PLACE, [0, 1]) == alive


@pytest.mark.slow
async def test_a_round_of_which_more_states_are_kept_than_come_back_stays(routed: MakeRouter) -> None:
    async with third_round(routed, {"commit_every": 1}) as (router, _):
        await openings(router, PLACE, [0, 1])
        assert {recall.kind for _, recall in router.recalls} == {"outer"}


@pytest.mark.slow
async def test_a_round_that_is_under_way_is_all_there(routed: MakeRouter) -> None:
    async with routed(job(inner_steps=STEPS, commit_every=STEPS), recording=True) as router:
        router.keeping = True
        await train(router, 2, PLACE)
        await openings(router, PLACE, [1])
        assert router.recalls == []


@pytest.mark.slow
async def test_what_a_disk_has_lost_is_said_to_be_lost_and_the_worker_goes_on(routed: MakeRouter) -> None:
    async with third_round(routed, {}) as (router, _):
        records = router.records[PLACE]
        router.records[PLACE] = [(part, data[:-1]) for part, data in records if (part.round, part.kind) != (0, "outer")]
        for command in (OpenStep("1" * 32, 0, 1, 2), OpenOuter("2" * 32, 0, 0)):
            await router.command(PLACE, command)
            await router.until(lambda name=command.audit: router.of(PLACE, StepOpened, audit=name))
            [opened] = router.of(PLACE, StepOpened, audit=command.audit)
            assert opened.opening is None
            assert "was on the disk" in opened.reason
        router.records[PLACE] = records
        await openings(router, PLACE, [1])


@pytest.mark.slow
async def test_an_auditor_has_the_anchor_back_that_it_let_go(routed: MakeRouter) -> None:
    async with third_round(routed, LEAN["lean"]) as (router, _):
        report = await audit(router, (1, 0), 1, 0, PLACE, anchor_in="auditor")
        assert report.verdict == "match", report.detail
        assert [recall.kind for place, recall in router.recalls if place == PLACE] == ["state"]
        router.starts[PLACE, 1]["state"] = b"lost"
        await router.command(PLACE, OpenStep("c" * 32, 0, 1, 0))
        await router.until(lambda: router.of(PLACE, StepOpened, audit="c" * 32))
        assert router.of(PLACE, StepOpened, audit="c" * 32)[0].opening is None


class Socket:
    """Stands for an ``Outbox``."""

    def __init__(self) -> None:
        self.records: dict[str, bytearray] = {}
        self.said: list[object] = []
        self.openings: queue.Queue[bytes] = queue.Queue()

    def put(self, message: object, *pieces: Piece) -> None:
        if isinstance(message, RecordPart):
            self.records[message.kind] = bytearray(b"".join(parts_of(pieces)))
        else:
            self.said.append(message)

    def show(self, body: object, pieces: list[Piece], left: "Future[None]") -> None:
        self.openings.put(b"".join(parts_of(pieces)))
        left.set_result(None)


def opened_by(
    stage: Stage, folder: Path, socket: Socket, inbox: WorkerInbox | None = None
) -> tuple[OpeningService, Recalls]:
    """What opens rounds of a stage, and what has them back for it."""
    inbox = inbox or WorkerInbox(lambda *_: None)
    service = OpeningService(stage, open_files(InputFolder(folder), job()), 0, socket)  # type: ignore[arg-type]
    return service, Recalls(service, stage, socket, inbox)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [{}, LEAN["lean, coarse"]], ids=["float32", "lean"])
def test_the_memory_is_free_meanwhile_and_a_later_segment_is_run_up_to(
    method: dict[str, Any], folder: Path, tokens: TokenFile
) -> None:
    line, socket = pipeline("llama", 2, tokens, training(commit_every=2, **method)), Socket()
    stage = line.stages[1]
    openings, recalls = opened_by(stage, folder, socket)
    done = commit_round(line, 1, 6, TOTAL)
    due = done.opening(3)
    done.trace.states = {0: done.trace.states[0]}
    openings.records, openings.initial = True, OuterState.first(done.trace.anchor, done.spec)
    held = [weakref.ref(vector) for vector in (done.trace.anchor, done.trace.states[0].first_moment)]
    openings.keep((0, 0), done.trace, TOTAL, done.position)
    del done
    draw = OpenStep("a" * 32, 0, 0, 3)
    openings.on_disk(RecordKept(0, 0, "steps"))
    assert openings.let_go((0, 0)) == []
    assert openings.recall_for(draw) is None, "the round is under way"
    assert len(openings.let_go((0, 1))) == 1
    stage.load(torch.zeros(stage.size))
    assert [vector() for vector in held] == [None, None]
    assert recalls.holds(draw, b"", b"")
    assert recalls.holds(draw, b"", b"")
    assert socket.said == [RecordRecall(0, 0, "steps")], "both wait for the same"
    state = ArrivingState(stage, momentum=False)
    written = socket.records.pop("state")
    for start in range(0, len(written), 1000):
        state.take(written[start : start + 1000])
    back = ReturnedRecord(RecordRecall(0, 0, "steps"), socket.records, state)
    recalls.serve(back, lambda command, *_: openings.open_step(command))  # type: ignore[arg-type]
    assert [socket.openings.get(timeout=30) for _ in range(2)] == [due, due]
    assert openings.recall_for(draw) is not None
    assert back.parts == {}


def test_what_comes_back_is_served_before_main_memory_is_wanted_otherwise_and_nothing_else_is() -> None:
    served: list[Any] = []
    inbox = WorkerInbox(lambda command, *_: served.append(command))
    inbox.audit(OpenStep("a" * 32, 0, 0, 0), b"")
    back = ReturnedRecord(RecordRecall(0, 0, "steps"), None)
    inbox.returned(back)
    assert inbox.serve_returned()
    assert served == [back]
    inbox.close()
    assert not inbox.serve_returned(), "who ends waits for nothing"


def test_beside_a_card_one_round_is_asked_for_at_a_time(
    folder: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stage, "makes_room", property(lambda _: True))
    line, socket = pipeline("llama", 2, tokens, training(commit_every=2, **LEAN["lean, coarse"])), Socket()
    stage = line.stages[1]
    recalls: Recalls
    inbox = WorkerInbox(lambda back, *_: recalls.serve(back, lambda *_: None))  # type: ignore[arg-type]
    openings, recalls = opened_by(stage, folder, socket, inbox)
    openings.recalled = recalls.settle
    for number in range(2):
        done = commit_round(line, 1, 2, TOTAL, 2 * number)
        done.trace.states = {0: done.trace.states[0]}
        openings.keep((0, number), done.trace, TOTAL, done.position)
        openings.on_disk(RecordKept(0, number, "steps"))
    openings.let_go((0, 2))
    asked = [RecordRecall(0, number, "steps") for number in range(2)]
    for number in range(2):
        assert recalls.holds(OpenStep(str(number) * 32, 0, number, 0), b"", b"")
    assert socket.said == asked[:1]
    monkeypatch.setattr(Socket, "report", lambda *_: inbox.returned(ReturnedRecord(asked[1], None)), raising=False)
    monkeypatch.setattr(Socket, "closed", True, raising=False)
    inbox.returned(ReturnedRecord(asked[0], None))
    openings.settle()
    assert socket.said == asked, "the second one comes when the first has been served, and who settles waits for both"

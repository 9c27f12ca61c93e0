"""A member's openings leave beside its computing, and what they are read from is let be until they have left."""

import hashlib
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load

from coordinator.domain.audits import answer_time as due
from protocol.audit import KEPT_ROUNDS
from protocol.boundary import comparable_across
from protocol.models.model import inspect_config
from protocol.task import Layers, OpenOuter, OpenStep, StepOpened, TaskFailed, TaskReport
from tests.trainer.audit.test_replay import AUDIT, TOTAL, auditor, command
from tests.trainer.small import VOCABULARY, Committed, commit_round, config_of, cuts, job, pipeline, training
from trainer.data.data import TokenFile
from trainer.data.folder import open_files
from trainer.files.inputs import InputFolder
from trainer.outer import OuterState
from trainer.stage.stage import Stage, StageState
from trainer.worker import opening_service
from trainer.worker.opening_service import OpeningService

LONG = 30.0  # Seconds.


class Socket:
    """Stands for an ``Outbox``; no opening leaves before there is ``room``."""

    def __init__(self) -> None:
        self.room = threading.Event()
        self.said: list[tuple[TaskReport, bytes]] = []
        self.heard = threading.Semaphore(0)

    def report(self, body: TaskReport) -> None:
        self.said.append((body, b""))
        self.heard.release()

    def show(self, body: TaskReport, pieces: Sequence[memoryview], left: "Future[None]") -> None:
        assert self.room.wait(LONG)
        self.said.append((body, b"".join(pieces)))
        left.set_result(None)
        self.heard.release()

    def next(self) -> tuple[TaskReport, bytes]:
        assert self.heard.acquire(timeout=LONG)
        return self.said.pop(0)


class Shown:
    """Stage 1 of a pipeline with two stages, with rounds that it committed to."""

    def __init__(self, folder: Path, tokens: TokenFile, **changes: Any) -> None:
        self.line = pipeline("llama", 2, tokens, training(**changes))
        self.socket = Socket()
        stage = self.line.stages[1]
        self.openings = OpeningService(stage, open_files(InputFolder(folder), job()), 0, self.socket)  # type: ignore[arg-type]

    def round(self, index: int) -> tuple[Committed, list[Any]]:
        done = commit_round(self.line, 1, 2, TOTAL, 2 * index)
        return done, self.openings.keep((0, index), done.trace, TOTAL, done.position)


@pytest.fixture
def shown(folder: Path, tokens: TokenFile) -> Shown:
    return Shown(folder, tokens)


def draw(round_index: int, step: int = 1) -> OpenStep:
    return OpenStep(AUDIT, 0, round_index, step)


def test_an_opening_leaves_while_the_member_computes_and_is_the_one_that_was_committed_to(
    shown: Shown, folder: Path
) -> None:
    done, gone = shown.round(0)
    assert gone == []
    shown.openings.open_step(draw(0))  # Comes back though nothing can leave.
    shown.line.step(2, TOTAL)
    assert shown.socket.said == []
    shown.socket.room.set()
    report, opening = shown.socket.next()
    assert isinstance(report, StepOpened)
    assert report.opening == hashlib.sha256(opening).hexdigest()
    verdict = auditor(folder, training()).judge(command(done, 1), opening)
    assert verdict.verdict == "match", verdict.detail
    assert opening == done.opening(1)


def test_the_memory_of_a_round_is_not_given_back_while_its_opening_leaves(shown: Shown) -> None:
    oldest, _ = shown.round(0)
    for index in range(1, KEPT_ROUNDS):
        assert shown.round(index)[1] == []
    shown.openings.open_step(draw(0))
    assert shown.round(KEPT_ROUNDS)[1] == [], "who takes the memory would write into what is read"
    shown.socket.room.set()
    assert shown.socket.next()[1] == oldest.opening(1)
    shown.openings.open_step(draw(0))
    report, _ = shown.socket.next()
    assert isinstance(report, StepOpened)
    assert report.opening is None
    assert "not kept" in report.reason


def test_the_memory_of_a_round_is_given_back_once_its_openings_have_left(shown: Shown) -> None:
    oldest, _ = shown.round(0)
    shown.openings.open_step(draw(0))
    shown.socket.room.set()
    shown.socket.next()
    for index in range(1, KEPT_ROUNDS):
        assert shown.round(index)[1] == []
    gone = shown.round(KEPT_ROUNDS)[1]
    assert [state.digest() for state in gone] == [state.digest() for state in oldest.trace.states.values()]


@pytest.mark.parametrize("ending", [False, True])
def test_a_step_whose_state_was_not_kept_is_run_up_to_and_shown_all_the_same(shown: Shown, *, ending: bool) -> None:
    done, _ = shown.round(0)
    due = done.opening(1, ending=ending)
    del done.trace.states[1]
    shown.socket.room.set()
    shown.openings.open_step(OpenStep(AUDIT, 0, 0, 1, ending=ending))
    assert shown.socket.next()[1] == due


@pytest.mark.parametrize("ending", [False, True])
def test_on_a_lean_card_it_is_run_up_to_in_the_stages_place(
    folder: Path, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch, *, ending: bool
) -> None:
    monkeypatch.setattr(Stage, "makes_room", property(lambda _: True))
    shown, twin = (Shown(folder, tokens, memory="lean", precision="bf16", optimizer="muon") for _ in range(2))
    done, _ = shown.round(0)
    twin.round(0)
    due = done.opening(1, ending=ending)
    del done.trace.states[1]
    stage, sizes, restore = shown.line.stages[1], [], Stage.restore

    def watched(scratch: Stage, state: StageState) -> None:
        sizes.append(stage.gradients.numel() if scratch is not stage else 0)
        restore(scratch, state)

    monkeypatch.setattr(Stage, "restore", watched)
    shown.socket.room.set()
    shown.openings.open_step(OpenStep(AUDIT, 0, 0, 1, ending=ending))
    assert shown.socket.next()[1] == due
    assert sizes[0] == 0
    assert len(sizes) > 1, "the member's own stage was away, and is back"
    monkeypatch.undo()
    assert shown.line.step(2, TOTAL) == twin.line.step(2, TOTAL)
    assert stage.state_digest() == twin.line.stages[1].state_digest()


def test_an_outer_step_is_opened_the_same_way(shown: Shown) -> None:
    state = shown.line.stages[1].state()
    before = OuterState(state.parameters, state.first_moment)
    shown.openings.keep_outer((0, 0), before, {"contribution.0": b"given", "contribution.1": b"given, too"})
    shown.openings.open_outer(OpenOuter(AUDIT, 0, 0))
    assert shown.socket.said == []
    shown.socket.room.set()
    report, opening = shown.socket.next()
    assert isinstance(report, StepOpened)
    assert b"given, too" in opening


@pytest.mark.parametrize(
    "method", [{}, {"activations": "aq4"}, {"outer": "gradients"}, {"outer": "streaming", "fragments": 2}]
)
@pytest.mark.parametrize("ending", [False, True])
def test_no_opening_is_larger_than_arithmetic_says(
    folder: Path, tokens: TokenFile, method: dict[str, Any], *, ending: bool
) -> None:
    spec = training(**method)
    done = commit_round(pipeline("llama", 2, tokens, spec), 1, 2, TOTAL)
    if ending and not comparable_across(spec):
        return  # Nobody asks for it.
    shape, cut = inspect_config(config_of()), cuts(3, 2)[1]
    most = due.opening_bytes(shape, spec, Layers(cut.first, cut.last), 3, spec.commit_every) - due.HEAD_BYTES
    vectors_and_payloads = sum(
        value.nelement() * value.element_size()
        for name, value in load(done.opening(1, ending=ending)).items()
        if name != "head"
    )
    assert most / 4 < vectors_and_payloads <= most


def test_a_step_that_the_round_does_not_have_is_refused(shown: Shown) -> None:
    shown.round(0)
    shown.openings.open_step(draw(0, step=VOCABULARY))
    report, _ = shown.socket.next()
    assert isinstance(report, StepOpened)
    assert report.opening is None
    assert str(VOCABULARY) in report.reason


def test_an_opening_that_cannot_be_written_is_heard_of(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> bytes:
        raise MemoryError("no room for an opening")

    monkeypatch.setattr(opening_service, "write_opening", full)
    shown.round(0)
    shown.openings.open_step(draw(0))
    report, _ = shown.socket.next()
    assert isinstance(report, TaskFailed)
    assert "no room for an opening" in report.reason

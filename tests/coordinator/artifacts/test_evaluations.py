"""Finished models are tried with tasks: what is offered, in what order, what is kept, and that nothing waits for it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from coordinator.assembly import CoordinatorParts
from coordinator.cli import main
from coordinator.config import OfferedTasks
from coordinator.domain.job import Job, JobState
from coordinator.errors import ConflictError, NotFoundError, TookTooLongError, UnavailableError
from coordinator.services.artifacts import harness
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.evaluations import AGAIN_S, MAX_ROWS, Evaluations
from coordinator.store.ports import col
from coordinator.store.records import EventRecord
from protocol.codec import MessageError, convert
from protocol.evaluation import EvaluationRow, EvaluationSpec, EvaluationView, TaskResult, rows_of
from protocol.ids import Digest
from protocol.job.job import JobSpec
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import digest, spec
from tests.support.wait import HANGS_S

OFFERED = OfferedTasks(("arc", "lambada"), ())
ASKED = EvaluationSpec(("arc", "lambada"), 50)
ADA, BOB = "a" * 32, "b" * 32


class Folders:
    """What there is of each job's models; an error where a call is to raise one."""

    def __init__(self) -> None:
        self.no_start: Exception | None = None
        self.no_model: Exception | None = None

    async def start(self, job: str) -> str:
        if self.no_start is not None:
            raise self.no_start
        return digest("start", job)

    async def model(self, job: str) -> str:
        if self.no_model is not None:
            raise self.no_model
        return digest("model", job)


class Runner:
    """Says half of a task's value of a model that training began with; ``held``: waits there; ``error``: ends there."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.at_once = 0
        self.most = 0
        self.held: asyncio.Event | None = None
        self.error: Exception | None = None
        self.lines: list[Mapping[str, Any]] | None = None

    async def try_tasks(
        self, archive: str, asked: EvaluationSpec, tasks: OfferedTasks, seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        assert tasks == OFFERED
        assert seconds == CONFIG.evaluation_seconds
        self.tried.append(archive)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            for number, name in enumerate(asked.tasks):
                if number and self.held is not None:
                    await self.held.wait()
                if number and self.error is not None:
                    raise self.error
                await asyncio.sleep(0)
                if self.lines is not None:
                    yield self.lines[number]
                else:
                    value = 0.25 if len(self.tried) % 2 else 0.5
                    yield {"task": name, "results": msgspec.to_builtins([TaskResult(name, "acc", value, 0.1, 50)])}
        finally:
            self.at_once -= 1


class House:
    """A bench whose coordinator offers tasks."""

    def __init__(self, offers: OfferedTasks = OFFERED) -> None:
        self.bench = Bench(dataclasses.replace(CONFIG, evaluation=offers))
        self.folders, self.runner = Folders(), Runner()
        self.service = self.made()

    @property
    def parts(self) -> CoordinatorParts:
        return self.bench.parts

    def made(self) -> Evaluations:
        """As a coordinator begins."""
        return Evaluations(self.parts.context, self.parts.desk, cast(Checkpoints, self.folders), self.runner)

    async def settled(self, account: str = ADA, asked: EvaluationSpec | None = ASKED, **changes: Any) -> str:
        job = await self.bench.job(msgspec.structs.replace(spec(1, 1), evaluation=asked))
        self.bench.clock.t += 1
        own = {"state": JobState.SETTLED, "model": Digest("e" * 64), "ended": self.bench.clock.t, "account_id": account}
        async with self.bench.store.transaction() as tx:
            await tx.update(msgspec.structs.replace(await tx.get(Job, job), **(own | changes)))
        return job

    async def view(self, job: str) -> EvaluationView | None:
        return (await self.parts.jobs.get(job)).evaluation

    async def told(self, job: str) -> list[str]:
        async with self.bench.store.transaction() as tx:
            found = await tx.find(EventRecord, col(EventRecord.job).equals(job))
        return [event.text for event in found if event.kind == "evaluation"]


async def test_both_models_are_tried_once_the_job_is_settled_and_the_rows_stand_with_it() -> None:
    house = House()
    job = await house.settled(state=JobState.VERIFYING)
    assert not await house.service.evaluate(), "its settlement comes first"
    assert await house.view(job) == EvaluationView("waiting")
    async with house.parts.desk.open(job) as work:
        work.change(state=JobState.SETTLED)
    assert await house.service.evaluate()
    assert house.runner.tried == [digest("start", job), digest("model", job)]
    rows = tuple(EvaluationRow(name, "acc", 0.25, 0.1, 0.5, 0.1, 50) for name in ASKED.tasks)
    assert await house.view(job) == EvaluationView("done", rows)
    assert await house.told(job) == ["the model was evaluated"]
    assert not await house.service.evaluate(), "once"
    async with house.bench.store.transaction() as tx:
        stored = await tx.get(Job, job)
    assert (stored.state, stored.paid) == (JobState.SETTLED, 0), "nothing else of it has changed"


async def test_a_job_that_asks_for_nothing_or_has_no_model_is_left_alone() -> None:
    house = House()
    plain, failed = await house.settled(asked=None), await house.settled(state=JobState.FAILED, model=None)
    assert not await house.service.evaluate()
    assert await house.view(plain) is None
    assert await house.view(failed) is None, "it will never have a model"


async def test_how_far_it_is_shows_and_after_a_restart_it_begins_anew() -> None:
    house = House()
    job = await house.settled()
    house.runner.held = asyncio.Event()
    running = asyncio.create_task(house.service.evaluate())
    async with asyncio.timeout(HANGS_S):
        while not (found := await house.view(job)) or "task 2" not in found.note:
            await asyncio.sleep(0.01)
    assert found.state == "running"
    assert found.note == "task 2 of 2, the model that it started from"
    assert found.rows == (EvaluationRow("arc", "acc", 0.25, 0.1, None, None, 50),)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert house.runner.at_once == 0, "what worked for it has ended"
    found = await house.view(job)
    assert found is not None
    assert found.state == "running"
    house.runner.held, house.runner.tried = None, []
    anew = house.made()
    await anew.recover()
    assert await house.view(job) == EvaluationView("waiting")
    assert await anew.evaluate()
    found = await house.view(job)
    assert found is not None
    assert found.state == "done"
    assert house.runner.tried == [digest("start", job), digest("model", job)]
    assert len(found.rows) == 2


async def test_one_job_at_a_time_and_accounts_take_turns() -> None:
    house = House()
    first, second, third = await house.settled(ADA), await house.settled(ADA), await house.settled(BOB)
    while await house.service.evaluate():
        house.bench.clock.t += 1
    assert house.runner.most == 1
    assert house.runner.tried[1::2] == [digest("model", job) for job in (first, third, second)]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (TookTooLongError("evaluating the model took longer than 5 s"), "evaluating the model took longer than 5 s"),
        (UnavailableError("evaluating the model needs more memory"), "evaluating the model needs more memory"),
    ],
)
async def test_a_failure_is_one_sentence_and_neither_the_job_nor_the_next_one_has_it(
    error: Exception, note: str
) -> None:
    house = House()
    job, other = await house.settled(), await house.settled()
    house.runner.error = error
    assert await house.service.evaluate()
    assert await house.view(job) == EvaluationView("failed", note=note)
    assert await house.told(job) == [f"the model could not be evaluated: {note}"]
    assert (await house.parts.jobs.get(job)).state == "settled"
    house.runner.error = None
    assert await house.service.evaluate()
    found = await house.view(other)
    assert found is not None
    assert found.state == "done"


async def test_random_weights_have_nothing_before_and_that_is_said() -> None:
    house = House()
    job = await house.settled()
    house.folders.no_start = NotFoundError("it started from random weights: there is no model before it")
    await house.service.evaluate()
    found = await house.view(job)
    assert found is not None
    assert (found.state, found.note) == ("done", "it started from random weights: there is no model before it")
    assert [(row.before, row.after) for row in found.rows] == [(None, 0.25)] * 2


async def test_a_task_that_cannot_be_run_is_named_beside_the_others_results() -> None:
    house = House()
    job = await house.settled()
    results = msgspec.to_builtins([TaskResult("arc", "acc", 0.5)])
    problem = "task lambada could not be run: KeyError"
    house.runner.lines = [{"task": "arc", "results": results}, {"task": "lambada", "problem": problem}]
    await house.service.evaluate()
    found = await house.view(job)
    assert found is not None
    assert (found.state, found.note, len(found.rows)) == ("done", problem, 1)
    other = await house.settled()
    house.runner.lines = [{"task": name, "problem": f"task {name} could not be run"} for name in ASKED.tasks]
    await house.service.evaluate()
    found = await house.view(other)
    assert found == EvaluationView("failed", note="task arc could not be run; task lambada could not be run")


async def test_what_cannot_be_read_is_the_jobs_failure_and_the_loops_end_is_none() -> None:
    house = House()
    job = await house.settled()
    house.runner.lines = [{"task": "arc", "results": [{"task": "arc", "metric": "acc", "value": "much"}]}] * 2
    assert await house.service.evaluate()
    found = await house.view(job)
    assert found is not None
    said = "the coordinator's log says why: tell its operator"
    assert (found.state, found.note) == ("failed", said)
    house.runner.lines, house.runner.error = None, OSError(28, "No space left on device: /srv/secret")
    other = await house.settled()
    assert await house.service.evaluate()
    assert await house.view(other) == EvaluationView("failed", note=said), "and no path of this machine"


async def test_of_very_many_results_the_first_are_kept_and_that_is_said() -> None:
    house = House()
    job = await house.settled(asked=EvaluationSpec(("arc",)))
    many = msgspec.to_builtins([TaskResult(f"arc_{number}", "acc", 0.5) for number in range(MAX_ROWS + 5)])
    house.runner.lines = [{"task": "arc", "results": many}]
    await house.service.evaluate()
    found = await house.view(job)
    assert found is not None
    assert (found.state, len(found.rows)) == ("done", MAX_ROWS)
    assert found.note == f"of {MAX_ROWS + 5} results the first {MAX_ROWS} are kept"


async def test_a_model_that_may_not_be_handed_out_yet_is_tried_later() -> None:
    house = House()
    job = await house.settled()
    house.folders.no_model = ConflictError("its work is not paid")
    assert await house.service.evaluate()
    assert not await house.service.evaluate(), "not again and again"
    assert await house.view(job) == EvaluationView("waiting")
    house.folders.no_model = None
    house.bench.clock.t += AGAIN_S + 1
    assert await house.service.evaluate()
    found = await house.view(job)
    assert found is not None
    assert found.state == "done"


async def test_tasks_that_are_not_offered_any_more_are_not_run() -> None:
    house = House()
    job = await house.settled()
    house.bench = Bench(dataclasses.replace(CONFIG, evaluation=OfferedTasks(("arc",))), store=house.bench.store)
    assert await house.made().evaluate()
    found = await house.view(job)
    assert found is not None
    assert (found.state, house.runner.tried) == ("failed", [])
    assert "lambada, which is not offered here: choose among arc" in found.note


# --- at the door --------------------------------------------------------------------------------------------------------


def asking(*tasks: str) -> JobSpec:
    return msgspec.structs.replace(spec(1, 1), evaluation=EvaluationSpec(tasks))


async def test_a_document_that_asks_for_what_is_not_offered_is_refused_with_the_way_out() -> None:
    closed, open_ = Bench(), House().bench
    said = (await closed.parts.jobs.quote(asking("arc"))).problems
    assert any("leave evaluation out, and run lm_eval on the downloaded folder" in text for text in said)
    assert (await open_.parts.jobs.quote(asking("arc", "lambada"))).problems == (
        await open_.parts.jobs.quote(spec(1, 1))
    ).problems
    said = (await open_.parts.jobs.quote(asking("arc", "etc.passwd"))).problems
    assert "evaluation.tasks has etc.passwd, which is not offered here: choose among arc, lambada" in said
    assert (await open_.parts.network.view()).evaluation_tasks == OFFERED.names


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"tasks": []}, "tasks"),
        ({"tasks": ["arc", "arc"]}, "has arc twice"),
        ({"tasks": ["../arc.yaml"]}, "tasks"),
        ({"tasks": ["arc"], "limit": 0}, "limit"),
        ({"tasks": [{"task": "mine", "process_docs": "!function x.y"}]}, "tasks"),
    ],
)
def test_a_task_is_a_name_and_never_a_file_or_its_content(document: dict[str, Any], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        convert(document, EvaluationSpec)


def test_what_an_operator_names_needs_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert harness.offered([]) == OfferedTasks(), "nothing is looked for where nothing is offered"
    monkeypatch.setattr(harness, "find_spec", lambda _name: None)
    with pytest.raises(UnavailableError, match=r'is not installed here.*pip install "cottage\[evaluate\]"'):
        harness.offered(["arc_easy"])


def test_serve_says_at_the_start_that_the_library_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "find_spec", lambda _name: None)
    words = ["--data", str(tmp_path), "--ledger-url", "http://ledger.test", "--check-config"]
    assert main([*words, "--evaluation-tasks", "arc_easy"]) == 2
    assert "--evaluation-tasks: lm-evaluation-harness is not installed here" in capsys.readouterr().err
    assert main(words) == 0, "nobody needs it who offers nothing"


def test_rows_of_two_models_stand_side_by_side() -> None:
    one, two = TaskResult("a", "acc", 0.1, 0.01, 10), TaskResult("a", "acc", 0.2, None, 12)
    only = TaskResult("b", "f1", 0.3)
    assert rows_of((one, only), (two,)) == (
        EvaluationRow("a", "acc", 0.1, 0.01, 0.2, None, 12),
        EvaluationRow("b", "f1", 0.3, None, None, None, None),
    )

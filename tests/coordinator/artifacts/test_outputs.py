"""What a job leaves: checkpoints that open, a log that is bounded and found again, a model that answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, cast

import msgspec
import pytest

from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.errors import NotFoundError, TooManyError, UnavailableError
from coordinator.services.accounts.budgets import MAX_TRIALS
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.inference import InferenceTrials
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.core import logs
from coordinator.services.core.logs import JobLogs
from coordinator.store.ports import col
from coordinator.store.records import LogRecord
from protocol.job.job import LoraSpec
from protocol.rest.api import TrialRequest
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from protocol.task import MAX_LOG_LINES, WorkerLog, WorkerLogLine
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import FakeModels, digest
from tests.sim.test_everybody_leaves import calm, until_rounds
from tests.sim.test_faults import gather_nodes, submit

LEASE = Lease("l", "7" * 32, "node", "payout", 1, 0, 1, 0.0)


class Files:
    """Artifacts whose bytes are their own name."""

    async def has(self, name: str) -> bool:
        return True

    async def size(self, name: str) -> int:
        return len(name)


async def test_stored_states_are_listed_with_their_sizes_losses_and_whether_they_were_looked_at() -> None:
    world = calm(1, nodes=5)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until_rounds(world, job, 9)
    assert world.parts is not None
    models = FakeModels()
    found = Checkpoints(world.parts.context, cast(ArtifactStore, Files()), cast(ModelWorkshop, models))
    newest, older = await found.list(job)
    assert (newest.round, older.round) == (8, 4), "the coordinator stores every fourth"
    assert (newest.step, newest.tokens) == (16, 8 * 2 * 512)
    assert older.verified
    assert older.train_loss == 5.0 / 4
    assert [part.stage for part in newest.parts] == [0, 1]
    assert newest.bytes == sum(part.bytes for part in newest.parts) == 2 * 64
    assert await found.part(job, 8, 1) == newest.parts[1].sha256
    first = await found.folder(job)
    assert await found.folder(job, 8) == first
    assert models.assembled == [tuple(part.sha256 for part in newest.parts)], "an archive is made once"
    assert (await found.list(job))[0].model == first
    with pytest.raises(NotFoundError, match="has no checkpoint 5: there is 4, 8"):
        await found.folder(job, 5)
    with pytest.raises(NotFoundError, match="has 2 stages"):
        await found.part(job, 8, 2)
    with pytest.raises(NotFoundError, match="there is no job"):
        await found.list("0" * 32)


async def test_a_folder_that_is_being_made_is_made_to_its_end_where_whoever_asked_leaves() -> None:
    world = calm(1, nodes=5)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until_rounds(world, job, 9)
    assert world.parts is not None
    begun, ready = asyncio.Event(), asyncio.Event()

    class Slow(FakeModels):
        async def assemble(self, job: Job, checkpoints: Sequence[str], *more: Any) -> str:
            begun.set()
            await ready.wait()
            return await super().assemble(job, checkpoints, *more)

    models = Slow()
    found = Checkpoints(world.parts.context, cast(ArtifactStore, Files()), cast(ModelWorkshop, models))
    impatient = asyncio.create_task(found.folder(job))
    await begun.wait()
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    again, older = asyncio.create_task(found.folder(job)), asyncio.create_task(found.folder(job, 4))
    for _ in range(20):
        await asyncio.sleep(0)
    older.cancel()
    await asyncio.gather(older, return_exceptions=True)
    ready.set()
    assert await again
    assert len(models.assembled) == 1, "once, and nothing for who left before it began"


# --- logs ---------------------------------------------------------------------------------------------------------------


async def lines_of(bench: Bench, log: JobLogs, job: str, **wanted: Any) -> list[str]:
    asked = {"after": 0, "before": None, "search": "", "level": "debug", "limit": 200} | wanted
    return [line.text for line in await log.page(job, **asked)]


async def flushed(bench: Bench, log: JobLogs) -> None:
    async with bench.store.transaction() as tx:
        lines = await log.flush(tx)
    log.flushed(lines)


async def test_a_log_has_the_coordinators_words_and_the_workers_and_is_searched_and_turned() -> None:
    bench = Bench()
    log = JobLogs(bench.parts.context)
    job = await bench.job()
    now = bench.clock.time()
    written = WorkerLog(
        (WorkerLogLine(now, "info", "round 1: 2 steps"), WorkerLogLine(now, "warning", "Slow disk\x1b[2J\n")), 3
    )
    log.offer(msgspec.structs.replace(LEASE, job=job), written)
    assert log.waiting
    await flushed(bench, log)
    text = await lines_of(bench, log, job)
    assert text[0].startswith("the job is submitted; its price is")
    assert text[1:] == ["3 lines of this worker were too many", "round 1: 2 steps", "Slow disk\ufffd[2J "]
    assert await lines_of(bench, log, job, search="sLOW") == ["Slow disk\ufffd[2J "]
    assert await lines_of(bench, log, job, search="%") == [], "a wildcard is a character like others"
    assert len(await lines_of(bench, log, job, level="warning")) == 2
    newest = await log.page(job, 0, None, "", "debug", 2)
    assert [line.text for line in newest] == text[2:], "without a place the newest, in their order"
    assert await lines_of(bench, log, job, before=newest[0].id) == text[:2]
    assert await lines_of(bench, log, job, after=newest[0].id) == text[3:]
    assert (newest[0].stage, newest[0].replica) == (0, 1)


async def test_a_talkative_worker_pushes_out_its_oldest_lines_and_no_other_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "MAX_LINES", 10)
    bench = Bench()
    log = JobLogs(bench.parts.context)
    other = msgspec.structs.replace(LEASE, job="8" * 32)
    log.offer(other, WorkerLog((WorkerLogLine(0.0, "info", "quiet"),)))
    for part in range(5):
        log.offer(LEASE, WorkerLog(tuple(WorkerLogLine(0.0, "info", f"line {part}.{n}") for n in range(5))))
        await flushed(bench, log)
    async with bench.store.transaction() as tx:
        kept = await tx.find(LogRecord, col(LogRecord.job).equals(LEASE.job))
        assert [line.text for line in kept] == [f"line {part}.{n}" for part in (3, 4) for n in range(5)]
        assert all(line.time == bench.clock.time() for line in kept), "a clock that is far off is not believed"
        assert len(await tx.find(LogRecord, col(LogRecord.job).equals(other.job))) == 1


async def test_a_flood_of_one_node_leaves_the_lines_of_others() -> None:
    """A node with a lease could push out all that a job's log had within seconds, and keep every other line from it."""
    bench = Bench()
    log = JobLogs(bench.parts.context)
    flood = WorkerLog(tuple(WorkerLogLine(0.0, "info", "\u2588" * 1_000) for _ in range(MAX_LOG_LINES)))
    quiet = msgspec.structs.replace(LEASE, id="8" * 32, node="quiet")
    for _ in range(100):
        log.offer(LEASE, flood)
    log.offer(quiet, WorkerLog((WorkerLogLine(0.0, "error", "out of memory"),)))
    await flushed(bench, log)
    async with bench.store.transaction() as tx:
        kept = await tx.find(LogRecord, col(LogRecord.job).equals(LEASE.job))
    assert sum(line.node == LEASE.node for line in kept) == logs.LINES
    assert kept[-1].text == "out of memory"
    bench.clock.t += 60.0
    log.offer(LEASE, flood)
    await flushed(bench, log)
    async with bench.store.transaction() as tx:
        kept = await tx.find(LogRecord, col(LogRecord.job).equals(LEASE.job), col(LogRecord.node).equals(LEASE.node))
    assert len(kept) == logs.LINES + MAX_LOG_LINES, "an honest worker's packet of a minute fits"


# --- trying the model ---------------------------------------------------------------------------------------------------


class Echo:
    """A model that waits to be let go on."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.running = 0
        self.archives: list[str] = []

    def before(self, archive: str) -> int:
        return self.running

    async def generate(
        self, archive: str, command: GenerateCommand, seconds: float
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        self.running += 1
        self.archives.append(archive)
        await self.go.wait()
        yield TextReport("1", command.prompt)
        self.running -= 1
        yield AnsweredReport("1", "length", 2, 1)


async def trial(
    trials: InferenceTrials, job: str, prompt: str = "to be", start: bool = False
) -> list[Mapping[str, Any]]:
    return [piece async for piece in trials.generate(job, None, TrialRequest(prompt, start=start))]


async def test_who_waits_for_a_model_is_told_and_a_long_queue_is_refused() -> None:
    world = calm(1, nodes=5)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until_rounds(world, job, 5)
    assert world.parts is not None
    files, models = cast(ArtifactStore, Files()), cast(ModelWorkshop, FakeModels())
    echo = Echo()
    trials = InferenceTrials(
        world.parts.context, Checkpoints(world.parts.context, files, models), echo, world.parts.homes
    )
    with pytest.raises(UnavailableError, match="cannot try models"):
        await trial(
            InferenceTrials(
                world.parts.context, Checkpoints(world.parts.context, files, models), None, world.parts.homes
            ),
            job,
        )
    waiting = [asyncio.create_task(trial(trials, job)) for _ in range(MAX_TRIALS)]
    for _ in range(200):
        await asyncio.sleep(0)
    with pytest.raises(TooManyError, match="trials of models wait already"):
        await trial(trials, job)
    echo.go.set()
    first, *rest = await asyncio.gather(*waiting)
    assert first == [{"checkpoint": 4}, {"text": "to be"}, {"done": "length", "tokens": 1}]
    assert [pieces[1] for pieces in rest] == [{"waiting": n} for n in range(1, MAX_TRIALS)]
    assert await trial(trials, job) == first, "the queue is free again"
    with pytest.raises(NotFoundError, match="started from random weights"):
        await trial(trials, job, start=True)
    async with world.parts.desk.open(job) as work:
        adapting = msgspec.structs.replace(work.job.spec.training, lora=LoraSpec())
        model = msgspec.structs.replace(work.job.spec.model, weights=digest("weights"))
        work.change(spec=msgspec.structs.replace(work.job.spec, training=adapting, model=model))
    assert (await trial(trials, job))[-1] == {"done": "length", "tokens": 1}
    assert echo.archives[-1] == digest("merged", job), "an adapter speaks with the model that it adapts"
    await trial(trials, job, start=True)
    assert echo.archives[-1] == digest("start", work.job.files["config.json"])

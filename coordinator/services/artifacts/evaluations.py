"""Trying finished models with tasks: one job at a time, in a process with limits, beside everything else.

A job's settlement waits for nothing here. What was begun when the coordinator ended is begun anew.
"""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Protocol

from common.untrusted_text import untrusted
from coordinator.config import OfferedTasks
from coordinator.domain.job import Evaluated, Job, JobState
from coordinator.errors import ConflictError, CottageError, FilesAwayError, NotFoundError, StoreAwayError
from coordinator.services.artifacts import harness
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.store.ports import col
from protocol.codec import convert
from protocol.evaluation import EvaluationSpec, TaskResult, rows_of

LOOK_S = 5.0
AGAIN_S = 60.0  # At a job whose files cannot be had now.
MAX_LOOKED_AT = 256
MAX_ROWS = 200  # They come with every view of the job; mmlu has 62.
MAX_NOTE = 1_000

LOG = logging.getLogger(__name__)


class TaskRunner(Protocol):
    """Runs tasks somewhere else: the coordinator never imports torch."""

    def try_tasks(
        self, archive: str, asked: EvaluationSpec, tasks: OfferedTasks, seconds: float
    ) -> AsyncIterator[Mapping[str, Any]]:
        """A line for each task, as it ends: ``trainer.export.harness``."""


class Evaluations:
    """Takes one job after the other, of another account each time where several wait."""

    def __init__(self, context: Context, desk: JobDesk, checkpoints: Checkpoints, runner: TaskRunner | None) -> None:
        self._context = context
        self._desk = desk
        self._checkpoints = checkpoints
        self._runner = runner
        self._served: dict[str, float] = {}  # When each account's last job was taken.
        self._later: dict[str, float] = {}  # Until when a job is left alone.

    async def run(self) -> None:
        """Evaluate for ever."""
        await self.recover()
        while True:
            if not await self.evaluate():
                await self._context.clock.sleep(LOOK_S)

    async def recover(self) -> None:
        """Have what was begun wait again."""
        async with self._context.store.transaction() as tx:
            begun = await tx.find(Job, col(Job.evaluating).equals("running"))
        for job in begun:
            await self._keep(job, "waiting")

    async def evaluate(self) -> bool:
        """Try the model of one job that waits; whether there was any."""
        job = await self._next()
        if job is None:
            return False
        self._served[job.account_id] = self._context.clock.time()
        await self._keep(job, "running")
        try:
            await self._evaluate(job)
        except StoreAwayError as error:
            if not isinstance(error, FilesAwayError):
                raise
            await self._put_off(job)
        except ConflictError:  # Its work is not paid, and may not be: nothing is made of its model meanwhile.
            await self._put_off(job)
        except CottageError as error:
            await self._end(job, "failed", note=error.detail)
        except Exception:  # A full disk, or lines that cannot be read: this job's end alone, and the next one's turn.
            LOG.exception("the model of job %s could not be evaluated", job.id)
            await self._end(job, "failed", note="the coordinator's log says why: tell its operator")
        return True

    async def _next(self) -> Job | None:
        now = self._context.clock.time()
        self._later = {job: until for job, until in self._later.items() if until > now}
        where = (col(Job.evaluating).equals("waiting"), col(Job.state).equals(JobState.SETTLED))
        async with self._context.store.transaction() as tx:
            waiting = await tx.find(Job, *where, limit=MAX_LOOKED_AT)
        due = [job for job in waiting if job.id not in self._later]
        return min(due, key=lambda job: (self._served.get(job.account_id, 0.0), job.ended or 0.0), default=None)

    async def _evaluate(self, job: Job) -> None:
        """Both models, the one of before first."""
        asked = job.spec.evaluation
        assert asked is not None
        refused = harness.problem(job.spec, self._context.config.evaluation.names)
        if refused or self._runner is None or job.model is None:
            await self._end(job, "failed", note=refused or "there is no model that could be evaluated")
            return
        notes: list[str] = []
        before: tuple[TaskResult, ...] = ()
        try:
            start = await self._checkpoints.start(job.id)
        except NotFoundError as error:
            notes.append(error.detail)
        else:
            before = await self._try(job, start, asked, notes, None)
        archive = await self._checkpoints.model(job.id)
        after = await self._try(job, archive, asked, notes, before)
        rows = rows_of(before, after)
        if len(rows) > MAX_ROWS:
            notes.append(f"of {len(rows)} results the first {MAX_ROWS} are kept")
        await self._end(job, "done" if after else "failed", Evaluated(rows), "; ".join(dict.fromkeys(notes)))

    async def _try(
        self, job: Job, archive: str, asked: EvaluationSpec, notes: list[str], before: tuple[TaskResult, ...] | None
    ) -> tuple[TaskResult, ...]:
        """What one model comes to; ``notes`` takes what went wrong. ``before``: of the other model; None: this is that one."""
        assert self._runner is not None
        config, found, done = self._context.config, tuple[TaskResult, ...](), 0
        await self._show(job, asked, done, before, found)
        lines = self._runner.try_tasks(archive, asked, config.evaluation, config.evaluation_seconds)
        async with aclosing(lines) as pieces:  # type: ignore[type-var]
            async for line in pieces:
                done += 1
                if "problem" in line:
                    notes.append(str(line["problem"]))
                else:
                    found += convert(line["results"], tuple[TaskResult, ...])
                if done < len(asked.tasks):
                    await self._show(job, asked, done, before, found)
        return found

    async def _show(
        self,
        job: Job,
        asked: EvaluationSpec,
        done: int,
        before: tuple[TaskResult, ...] | None,
        found: tuple[TaskResult, ...],
    ) -> None:
        which = "the model that it started from" if before is None else "the finished model"
        rows = rows_of(found, ()) if before is None else rows_of(before, found)
        note = f"task {done + 1} of {len(asked.tasks)}, {which}"
        await self._keep(job, "running", Evaluated(rows[:MAX_ROWS], untrusted(note)))

    async def _put_off(self, job: Job) -> None:
        self._later[job.id] = self._context.clock.time() + AGAIN_S
        await self._keep(job, "waiting")

    async def _end(self, job: Job, state: str, found: Evaluated | None = None, note: str = "") -> None:
        kept = Evaluated((found or Evaluated()).rows[:MAX_ROWS], untrusted(note[:MAX_NOTE]))
        said = "the model was evaluated" if state == "done" else f"the model could not be evaluated: {note[:MAX_NOTE]}"
        await self._keep(job, state, kept, said)

    async def _keep(self, job: Job, state: str, found: Evaluated | None = None, said: str = "") -> None:
        with suppress(NotFoundError):  # Whoever it belonged to is gone, and so is the job.
            async with self._desk.open(job.id) as work:
                work.change(evaluating=state, evaluated=found)
                if said:
                    work.note("evaluation", said)

"""Trying a model: what the newest checkpoint makes of a prompt, piece by piece."""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any, Protocol

import msgspec

from coordinator.domain.job import Job
from coordinator.domain.serving import AdapterPoint, ModelPoint, ServedFiles, context_of
from coordinator.errors import NotFoundError, UnableError
from coordinator.services.accounts.budgets import (
    MAX_COMPLETIONS,
    MAX_COMPLETIONS_EACH,
    MAX_TRIALS,
    MAX_TRIALS_EACH,
    LaneBudget,
)
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.core.context import Context
from coordinator.services.serving.refusals import check_asked
from coordinator.store.ports import col
from protocol.asking import template_text
from protocol.models.model import inspect_config
from protocol.rest.api import TrialRequest
from protocol.serving import (
    AnswerCheck,
    AnswerReport,
    AskCommand,
    CheckedReport,
    EmbeddedReport,
    GenerateCommand,
    ProveCommand,
    ProvenReport,
    Sampling,
    TextReport,
)

SECONDS = 120.0  # For loading the model and all its tokens.
ANSWER_S = 600.0  # The same for programs: their clients wait for so long.


class Generator(Protocol):
    """Runs a model somewhere else: the coordinator never imports torch."""

    def before(self, archive: str) -> int:
        """How many wait for room for this model, this one among them; 0: there is room."""

    def generate(self, archive: str, command: AskCommand, seconds: float) -> AsyncIterator[AnswerReport]:
        """Pieces of text as they come, then how it ended."""

    async def check(self, held: ServedFiles, command: AnswerCheck, seconds: float) -> CheckedReport:
        """Whether a model gives an answer."""

    async def prove(self, held: ServedFiles, command: ProveCommand, seconds: float) -> ProvenReport:
        """Whether no rounding explains an answer that it does not give."""


class NodeAnswers(Protocol):
    """Asks the nodes of a deployment."""

    def generate(self, job: Job, command: AskCommand, seconds: float) -> AsyncIterator[AnswerReport]:
        """As ``Generator``."""


class InferenceTrials:
    """Requests of people who look at a job."""

    def __init__(
        self, context: Context, checkpoints: Checkpoints, generator: Generator | None, homes: NodeAnswers
    ) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._homes = homes
        self._generator = generator
        self._lane = LaneBudget("trials of models", MAX_TRIALS_EACH, MAX_TRIALS, SECONDS / 2)
        self._programs = LaneBudget("answers of models", MAX_COMPLETIONS_EACH, MAX_COMPLETIONS, 10.0)

    async def complete(self, job: str, point: ModelPoint, command: AskCommand) -> AsyncIterator[AnswerReport]:
        """An answer for a program, or embeddings, piece by piece.

        Args:
            point: which of the job's models.
        Raises:
            CottageError: as ``generate``.
        """
        if (deployment := await self._deployment(job)) is not None:
            command = msgspec.structs.replace(command, adapter=_number_of(deployment, point))
            check_asked(command, _context_of(deployment), await self._template(deployment, point))
            async with aclosing(self._homes.generate(deployment, command, ANSWER_S)) as reports:  # type: ignore[type-var]
                async for report in reports:
                    yield report
            return
        if isinstance(point, AdapterPoint):
            raise NotFoundError(f"job {job} is no deployment: leave out what stands behind the colon", "model")
        generator = self._there()
        stored, _, found = await self._checkpoints.point(job, None if point == "start" else point)
        check_asked(command, _context_of(stored), await self._template(stored))
        with self._programs.enter(stored.account_id):
            archive = await self._archive(job, found.base.done, point == "start")
            async with aclosing(generator.generate(archive, command, ANSWER_S)) as reports:  # type: ignore[type-var]
                async for report in reports:
                    yield report

    async def generate(self, job: str, round_: int | None, request: TrialRequest) -> AsyncIterator[Mapping[str, Any]]:
        """``{"waiting": n}`` where others are before it, then what the model says: ``{"text": ...}``, last ``{"done": ...}``.

        Args:
            round_: of the checkpoint; None: the newest.
        Raises:
            NotFoundError: there is no such job or checkpoint, or weights that it started from: they were random, or are not kept
                any more.
            UnableError: this machine cannot run models. InvalidError: the model cannot read the prompt.
            TooManyError: too many wait, of the job's account or of all.
        """
        if (deployment := await self._deployment(job)) is not None:
            command = _command(request, _context_of(deployment))
            check_asked(command, _context_of(deployment), await self._template(deployment))
            async with aclosing(self._homes.generate(deployment, command, SECONDS)) as reports:  # type: ignore[type-var]
                async for report in reports:
                    yield _piece(report)
            return
        generator = self._there()
        stored, _, point = await self._checkpoints.point(job, round_)
        command = _command(request, _context_of(stored))
        check_asked(command, _context_of(stored), await self._template(stored))
        with self._lane.enter(stored.account_id):
            yield {"checkpoint": point.base.done}
            archive = await self._archive(job, point.base.done, request.start)
            if before := generator.before(archive):
                yield {"waiting": before}
            async with aclosing(generator.generate(archive, command, SECONDS)) as reports:  # type: ignore[type-var]
                async for report in reports:
                    if not isinstance(report, TextReport) or report.text:
                        yield _piece(report)

    async def _deployment(self, job: str) -> Job | None:
        """The job, if nodes answer for it.

        Raises:
            OtherCellError: the job is another cell's. Whoever names it in a document is led there before anything is done.
        """
        self._context.check_own(job)
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, col(Job.id).equals(job))
        return found[0] if found and found[0].spec.serve is not None else None

    async def _template(self, job: Job, point: ModelPoint = None) -> str:
        """The chat templates of a job's model, or of one of its adapters that brings its own."""
        own = template_text(job.spec.tokenizer.settings)
        if not isinstance(point, AdapterPoint):
            return own
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, col(Job.id).equals(point.job))
        return (template_text(found[0].spec.tokenizer.settings) if found else "") or own

    def _there(self) -> Generator:
        if self._generator is None:
            raise UnableError("this coordinator cannot try models")
        return self._generator

    async def _archive(self, job: str, round_: int, start: bool) -> str:
        return await (self._checkpoints.start(job) if start else self._checkpoints.model(job, round_))


def _number_of(deployment: Job, point: ModelPoint) -> int:
    """Which of a deployment's adapters is meant; NotFoundError: none is."""
    if point is None:
        return 0
    if not isinstance(point, AdapterPoint):
        raise NotFoundError(
            f"deployment {deployment.id} has no checkpoints: leave out what stands behind the @", "model"
        )
    there = [] if deployment.spec.serve is None else [one.job for one in deployment.spec.serve.adapters]
    if point.job not in there:
        way = "GET /v1/models lists those that it has"
        raise NotFoundError(f"deployment {deployment.id} has no adapter of job {point.job}: {way}", "model")
    return there.index(point.job) + 1


def _context_of(job: Job) -> int:
    """Tokens of a prompt with its answer that a job's model reads."""
    serve = job.spec.serve
    return (serve and serve.context) or context_of(inspect_config(job.config), None)


def _command(request: TrialRequest, context: int) -> GenerateCommand:
    """``context``: whoever names no number of tokens is not to be refused one."""
    said = ({"role": "user", "content": request.prompt},) if request.chat else ()
    sampling = Sampling(request.temperature, request.top_k, seed=request.seed)
    return GenerateCommand("1", request.prompt, said, tokens=min(request.tokens, context), sampling=sampling)


def _piece(report: AnswerReport) -> Mapping[str, Any]:
    assert not isinstance(report, EmbeddedReport)
    if isinstance(report, TextReport):
        return {"text": report.text}
    return {"done": "end" if report.reason == "stop" else "length", "tokens": report.tokens}

"""What a job leaves behind, through one door: checkpoints, model folders, the log, its model to try, opened steps."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from coordinator.domain.serving import ModelPoint
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.inference import InferenceTrials
from coordinator.services.artifacts.output_buckets import OutputBuckets
from coordinator.services.artifacts.step_openings import StepOpenings
from coordinator.services.core.logs import JobLogs, Level
from protocol.rest import api
from protocol.rest.records import AuditRecords
from protocol.serving import AnswerReport, AskCommand


class JobOutputs:
    """Implements ``ports.OutputsPort``."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        trials: InferenceTrials,
        logs: JobLogs,
        openings: StepOpenings,
        buckets: OutputBuckets,
    ) -> None:
        self._buckets = buckets
        self._checkpoints = checkpoints
        self._openings = openings
        self._trials = trials
        self._logs = logs

    async def checkpoints(self, job: str) -> Sequence[api.CheckpointView]:
        """Newest first."""
        return await self._checkpoints.list(job)

    async def part(self, job: str, round_: int, stage: int) -> str:
        """The artifact of one stage's file of a checkpoint."""
        return await self._checkpoints.part(job, round_, stage)

    async def records(self, job: str, audit: str) -> AuditRecords:
        """What an audited step was opened with."""
        return await self._openings.records(job, audit)

    async def record(self, job: str, audit: str, name: str) -> str:
        """The artifact of a file of those records."""
        return await self._openings.file(job, audit, name)

    async def folder(self, job: str, round_: int | None = None) -> str:
        """The artifact of a checkpoint's model folder."""
        return await self._checkpoints.folder(job, round_)

    async def model(self, job: str) -> str:
        """The artifact of the newest model as a whole: an adapter is merged into what it adapts."""
        return await self._checkpoints.model(job)

    async def output(self, job: str) -> api.OutputView:
        """The bucket that the job's model goes to."""
        return await self._buckets.get(job)

    async def set_output(self, job: str, account_id: str, wanted: api.NewOutput) -> api.OutputView:
        """Name it, or another one."""
        await self._checkpoints.known(job)
        return await self._buckets.put(job, account_id, wanted)

    async def remove_output(self, job: str) -> None:
        """Send nothing more, and forget its key."""
        await self._buckets.remove(job)

    def generate(self, job: str, round_: int | None, request: api.TrialRequest) -> AsyncIterator[Mapping[str, Any]]:
        """Pieces of text from a checkpoint."""
        return self._trials.generate(job, round_, request)

    def complete(self, job: str, point: ModelPoint, command: AskCommand) -> AsyncIterator[AnswerReport]:
        """An answer, or embeddings, of one of a job's models."""
        return self._trials.complete(job, point, command)

    async def log(
        self, job: str, after: int, before: int | None, search: str, level: Level, limit: int
    ) -> Sequence[api.LogLine]:
        """A page of the log; NotFoundError where there is no such job."""
        await self._checkpoints.known(job)
        return await self._logs.page(job, after, before, search, level, limit)

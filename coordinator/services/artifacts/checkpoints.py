"""What a run has stored of its model: the newest states, each with its stages' files, and as a model folder on demand.

A checkpoint is every stage's state at the beginning of a round, stored by the nodes and named by its SHA-256. The newest
MAX_POINTS of a run are listed. It is *verified* once the audits of all rounds that went into it are over; one that a lie went
into is not listed any more, since the run goes back before it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from coordinator.domain.job import Job, JobState
from coordinator.domain.rounds.run import Run, RunPoint
from coordinator.errors import NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.file_ownership import dataset_name
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.core.context import Context
from coordinator.services.payments.escrows import check_delivery
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import RoundRecord, RunRecord
from protocol.rest import api

MAX_FOLDERS = 64  # Archives that are remembered; one that was forgotten is made again, to the same bytes.
_START = -1  # Stands for a round: before the first.
FOLDER_S = 86_400.0  # And for so long: each takes as much of the disk as the model.


class Checkpoints:
    """Lists and hands out; makes model folders one at a time."""

    def __init__(self, context: Context, artifacts: ArtifactStore, models: ModelWorkshop) -> None:
        self._context = context
        self._artifacts = artifacts
        self._models = models
        self._making = asyncio.Lock()
        self._under_way: asyncio.Task[str] | None = None  # The loop itself keeps none alive.
        self._folders: OrderedDict[tuple[str, int, bool], tuple[str, float]] = OrderedDict()

    async def list(self, job: str) -> Sequence[api.CheckpointView]:
        """Newest first."""
        _, run, rounds = await self._load(job)
        points = () if run is None else run.points
        views = [await self._view(job, point, rounds) for point in reversed(points)]
        return [view for view in views if view is not None]

    async def known(self, job: str) -> None:
        """NotFoundError where there is no such job."""
        await self._load(job)

    async def part(self, job: str, round_: int, stage: int) -> str:
        """The artifact of one stage's file of the checkpoint after ``round_`` rounds, safetensors.

        Raises:
            NotFoundError: there is no such checkpoint or stage.
        """
        _, _, point = await self.point(job, round_)
        if stage >= len(point.checkpoints):
            raise NotFoundError(
                f"the model has {len(point.checkpoints)} stages, counted from 0: none is {stage}", "stage"
            )
        return point.checkpoints[stage]

    async def folder(self, job: str, round_: int | None = None) -> str:
        """The artifact of a Hugging Face folder of the checkpoint, as a zip archive; made when it is first asked for.

        Args:
            round_: rounds that are in it; None: the newest.
        Raises:
            NotFoundError: there is no such checkpoint. UnavailableError: it could not be put together.
        """
        return await self._folder(*await self.point(job, round_), round_)

    async def _folder(self, stored: Job, rounds: Sequence[RoundRecord], point: RunPoint, round_: int | None) -> str:
        if (
            stored.state is JobState.SETTLED
            and stored.model is not None
            and (round_ is None or round_ == stored.rounds_done)
        ):
            return stored.model  # The job is over: its model is made of the newest checkpoint.
        seen = [record for record in rounds if record.number < point.base.done]
        async with self._context.everywhere.transaction() as tx:
            data = await dataset_name(tx, stored)
        return await self._remembered(
            (stored.id, point.base.done, False), lambda: self._models.assemble(stored, point.checkpoints, seen, data)
        )

    async def model(self, job: str, round_: int | None = None) -> str:
        """As ``folder``, but always a whole model: an adapter is merged into the weights that its job started from.

        Raises:
            NotFoundError: as ``folder``, or those weights are not kept any more.
        """
        stored, rounds, point = await self.point(job, round_)
        archive = await self._folder(stored, rounds, point, round_)
        if stored.spec.training.lora is None:
            return archive
        return await self._remembered((job, point.base.done, True), lambda: self._models.merge(stored, archive))

    async def start(self, job: str) -> str:
        """The artifact of the folder of the model that a job started from.

        Raises:
            NotFoundError: there is no such job, its weights began random, or they are not kept any more.
        """
        stored, _, _ = await self.point(job, None)
        if not stored.spec.model.weight_files:
            raise NotFoundError(f"job {job} started from random weights: there is no model before it", "start")
        return await self._remembered((job, _START, True), lambda: self._models.start(stored.spec, stored.files))

    async def _remembered(self, key: tuple[str, int, bool], make: Callable[[], Awaitable[str]]) -> str:
        """What is made goes on where whoever asked for it leaves: who asks again would begin anew, and may never be done."""
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._making)
            known = self._made(key)
            if known is not None and await self._artifacts.has(known):
                return known
            made = self._under_way = asyncio.create_task(self._make(key, make), name="model folder")
            told = asyncio.shield(made)
            # Behind ``told``, so that who asked first goes on first.
            made.add_done_callback(lambda _: self._making.release())
            turn.pop_all()
        return await told

    async def _make(self, key: tuple[str, int, bool], make: Callable[[], Awaitable[str]]) -> str:
        known = await make()
        self._folders[key] = (known, self._context.clock.time())
        self._folders.move_to_end(key)
        while len(self._folders) > MAX_FOLDERS:
            self._folders.popitem(last=False)
        return known

    def folders(self) -> Sequence[str]:
        """Archives that were made lately."""
        return [known for key in tuple(self._folders) if (known := self._made(key)) is not None]

    def _made(self, key: tuple[str, int, bool]) -> str | None:
        known, at = self._folders.get(key, (None, 0.0))
        return known if self._context.clock.time() - at < FOLDER_S else None

    async def point(self, job: str, round_: int | None) -> tuple[Job, Sequence[RoundRecord], RunPoint]:
        """A stored point of a run, with the job and its complete rounds.

        Raises:
            NotFoundError: there is none. ConflictError: the job's work is not paid, and could not be any more.
        """
        async with self._context.everywhere.transaction() as tx:
            stored, run, rounds = await _loaded(tx, job)
            await check_delivery(tx, stored, self._context.clock.time())
        points = () if run is None else run.points
        found = [point for point in points if round_ is None or point.base.done == round_]
        if not found:
            there = ", ".join(str(point.base.done) for point in points) or "none yet"
            raise NotFoundError(
                f"job {job} has no checkpoint {'yet' if round_ is None else round_}: there is {there}", "round"
            )
        return stored, rounds, found[-1]

    async def _load(self, job: str) -> tuple[Job, Run | None, Sequence[RoundRecord]]:
        async with self._context.everywhere.transaction() as tx:
            return await _loaded(tx, job)

    async def _view(self, job: str, point: RunPoint, rounds: Sequence[RoundRecord]) -> api.CheckpointView | None:
        """None where a file is gone."""
        try:
            sizes = [await self._artifacts.size(digest) for digest in point.checkpoints]
        except NotFoundError:
            return None
        done = point.base.done
        before = [record for record in rounds if record.number < done]
        # A round validates before it trains: what round ``done`` measured is the loss of this state.
        measured = next((record.validation_loss for record in rounds if record.number == done), None)
        return api.CheckpointView(
            round=done,
            step=sum(record.steps for record in before),
            tokens=sum(record.tokens for record in before),
            time=(before[-1].ended or 0.0) if before else 0.0,
            train_loss=before[-1].train_loss if before else None,
            validation_loss=measured,
            verified=all(record.concluded for record in before),
            bytes=sum(sizes),
            parts=tuple(
                api.CheckpointPart(stage, digest, size)
                for stage, (digest, size) in enumerate(zip(point.checkpoints, sizes, strict=True))
            ),
            model=self._made((job, done, False)),
        )


async def _loaded(tx: Transaction, job: str) -> tuple[Job, Run | None, Sequence[RoundRecord]]:
    where: tuple[Condition, ...] = (col(RoundRecord.job).equals(job), col(RoundRecord.state).equals("complete"))
    jobs = await tx.find(Job, col(Job.id).equals(job))
    if not jobs:
        raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", "job")
    runs = await tx.find(RunRecord, col(RunRecord.job).equals(job))
    rounds = await tx.find(RoundRecord, *where)
    newest = {record.number: record for record in sorted(rounds, key=lambda record: record.epoch)}
    return jobs[0], runs[0].run if runs else None, [newest[number] for number in sorted(newest)]

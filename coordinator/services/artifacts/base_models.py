"""Jobs that start from another job's model, finished or a checkpoint: its config, weights and tokenizer, out of its archive."""

import asyncio
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import msgspec

from coordinator.client.deployments import makes_none
from coordinator.domain.job import Job, JobState
from coordinator.errors import ConflictError, NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.models import Prepared
from coordinator.services.core.context import Context
from coordinator.store.ports import col
from protocol.ids import Digest
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec
from protocol.models.model import ENDS_WITH
from protocol.serving import MODEL_ARCHIVE

FIELD, ROUND = "model.from_job", "model.from_round"
_CONFIG = "config.json"
_GENERATION, _SETTINGS = "generation_config.json", "tokenizer_config.json"


class BaseModels:
    """Finds what a job starts from."""

    def __init__(self, context: Context, artifacts: ArtifactStore, checkpoints: Checkpoints) -> None:
        self._context = context
        self._artifacts = artifacts
        self._checkpoints = checkpoints

    async def of(self, model: ModelSpec) -> Job:
        """The job that ``model`` starts from.

        Raises:
            NotFoundError: there is none of this id, or no such checkpoint. ConflictError: it has no model.
        """
        job = model.from_job or ""
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, col(Job.id).equals(job))
        if not found:
            raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", FIELD)
        if found[0].spec.array is not None:
            raise ConflictError(f"job {job} runs containers and makes no model: name one that trains", FIELD)
        if found[0].spec.serve is not None:
            of = found[0].spec.model.from_job
            way = "name that model's own files" if of is None else f"name that one: {of}"
            raise ConflictError(f"{makes_none(job, of)}: {way}", FIELD)
        if model.from_round is None and (found[0].model is None or found[0].state is not JobState.SETTLED):
            raise ConflictError(
                f"job {job} is {found[0].state} and has no model yet: start from one that is done, or from a checkpoint",
                FIELD,
            )
        if model.from_round is not None:
            try:
                await self._checkpoints.point(job, model.from_round)
            except NotFoundError as error:
                raise NotFoundError(error.detail, ROUND) from error
        return found[0]

    async def tokenizer(self, model: ModelSpec) -> TokenizerSpec:
        """The tokenizer of the model that ``model`` starts from."""
        return _tokenizer(await self.of(model))

    async def started(self, spec: JobSpec) -> JobSpec:
        """The document with config, weights and tokenizer of the job that it starts from, if it starts from one."""
        if spec.model.from_job is None:
            return spec
        job = await self.of(spec.model)
        archive = job.model if spec.model.from_round is None and job.spec.training.lora is None else None
        archive = archive or await self._checkpoints.model(job.id, spec.model.from_round)
        with tempfile.TemporaryDirectory() as folder:
            async with self._artifacts.files(archive) as (packed,):
                files = await asyncio.to_thread(_unpack, packed, Path(folder))
            parts = [await self._artifacts.put_file(path) for path in sorted(Path(folder).glob("*.safetensors"))]
        weights: Digest | tuple[Digest, ...] = parts[0] if len(parts) == 1 else tuple(parts)
        model = msgspec.structs.replace(
            spec.model, preset=None, config=files[_CONFIG], generation=files.get(_GENERATION), weights=weights
        )
        own = _tokenizer(job)
        end = spec.tokenizer.end or own.end
        tokenizer = msgspec.structs.replace(own, end=end, settings=files.get(_SETTINGS))
        return msgspec.structs.replace(spec, model=model, tokenizer=tokenizer)

    async def served(self, model: ModelSpec) -> tuple[Prepared, TokenizerSpec]:
        """The files of a node that answers with a job's model, an adapter merged into it; and its tokenizer.

        Raises:
            NotFoundError, ConflictError: as ``of``.
        """
        job = await self.of(model)
        archive = await self._checkpoints.model(job.id, model.from_round)
        return Prepared({MODEL_ARCHIVE: archive, _CONFIG: job.files[_CONFIG]}, job.config), _tokenizer(job)


def _tokenizer(job: Job) -> TokenizerSpec:
    """That of a job's files; its documents end as the job's did."""
    end = job.config.get(ENDS_WITH)
    settings = job.spec.tokenizer.settings
    return TokenizerSpec(
        "file", file=job.files["tokenizer.json"], end=end if isinstance(end, str) else None, settings=settings
    )


def _unpack(archive: Path, folder: Path) -> dict[str, dict[str, object]]:
    """Weights into ``folder``, and small files by name. The archive is our own (``services.artifacts.models``):
    stored, not compressed.
    """
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            if name.endswith(".safetensors"):
                with packed.open(name) as source, (folder / Path(name).name).open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
        present = {_CONFIG, _GENERATION, _SETTINGS} & set(packed.namelist())
        return {name: json.loads(packed.read(name)) for name in present}

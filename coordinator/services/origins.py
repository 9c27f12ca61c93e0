"""Jobs that start from another job's model, finished or a checkpoint: its config, weights and tokenizer, out of its archive."""

import asyncio
import json
import shutil
import tempfile
import zipfile
from pathlib import Path

import msgspec

from coordinator.domain.job import Job
from coordinator.errors import ConflictError, InvalidError, NotFoundError
from coordinator.services.artifacts import ArtifactStore
from coordinator.services.checkpoints import Checkpoints
from coordinator.services.context import Context
from transport.wire.job import JobSpec, ModelSpec, TokenizerSpec

FIELD, ROUND = "model.from_job", "model.from_round"
_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


class Origins:
    """Finds what a job starts from."""

    def __init__(self, context: Context, artifacts: ArtifactStore, checkpoints: Checkpoints) -> None:
        self._context = context
        self._artifacts = artifacts
        self._checkpoints = checkpoints

    async def of(self, model: ModelSpec) -> Job:
        """The job that ``model`` starts from.

        Raises:
            NotFoundError: there is none of this id, or no such checkpoint. ConflictError: it has no model.
            InvalidError: it trained an adapter.
        """
        job = model.from_job or ""
        async with self._context.store.transaction() as tx:
            found = await tx.find(Job, ("id", "=", job))
        if not found:
            raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", FIELD)
        if model.from_round is None and found[0].model is None:
            raise ConflictError(
                f"job {job} is {found[0].state} and has no model yet: start from one that is done, or from a checkpoint",
                FIELD,
            )
        if found[0].spec.training.lora is not None:
            raise InvalidError(
                f"job {job} trained an adapter, which is no whole model: start from the weights that it adapts", FIELD
            )
        if model.from_round is not None:
            try:
                await self._checkpoints.point(job, model.from_round)
            except NotFoundError as error:
                raise NotFoundError(error.detail, ROUND) from error
        return found[0]

    async def tokenizer(self, model: ModelSpec) -> TokenizerSpec:
        """The tokenizer of the model that ``model`` starts from."""
        return TokenizerSpec("file", file=(await self.of(model)).files["tokenizer.json"])

    async def started(self, spec: JobSpec) -> JobSpec:
        """The document with config, weights and tokenizer of the job that it starts from, if it starts from one."""
        if spec.model.from_job is None:
            return spec
        job = await self.of(spec.model)
        archive = job.model if spec.model.from_round is None else None
        archive = archive or await self._checkpoints.folder(job.id, spec.model.from_round)
        with tempfile.TemporaryDirectory() as folder:
            config = await asyncio.to_thread(_unpack, self._artifacts.path(archive), Path(folder))
            weights = await self._artifacts.put_file(Path(folder) / _WEIGHTS)
        model = msgspec.structs.replace(spec.model, preset=None, config=config, weights=weights)
        tokenizer = TokenizerSpec("file", file=job.files["tokenizer.json"])
        return msgspec.structs.replace(spec, model=model, tokenizer=tokenizer)


def _unpack(archive: Path, folder: Path) -> dict[str, object]:
    """Weights into ``folder``, and the config. The archive is our own (``services.models``): stored, not compressed."""
    with zipfile.ZipFile(archive) as packed:
        with packed.open(_WEIGHTS) as source, (folder / _WEIGHTS).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        config: dict[str, object] = json.loads(packed.read(_CONFIG))
    return config

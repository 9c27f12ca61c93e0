"""Adapters that a deployment answers with beside its model: each of a job that adapted exactly this model."""

import asyncio
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coordinator.domain.job import Job, JobState
from coordinator.errors import ConflictError, NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.models import Prepared
from coordinator.services.core.context import Context
from coordinator.store.ports import col
from protocol.ids import Digest
from protocol.job.job import JobSpec, LoraSpec, ServedAdapter, ServeSpec, TokenizerSpec
from protocol.models.model import ENDS_WITH
from protocol.serving import MODEL_ARCHIVE, adapter_archive

FIELD = "serve.adapters"
_BLOCK = 1 << 20


class AdapterOrigins:
    """Finds the adapters that a document names."""

    def __init__(self, context: Context, artifacts: ArtifactStore, checkpoints: Checkpoints) -> None:
        self._context = context
        self._artifacts = artifacts
        self._checkpoints = checkpoints

    async def described(self, spec: JobSpec) -> JobSpec:
        """The document with what each adapter is called, and how large it is.

        Raises:
            NotFoundError: there is no such job. ConflictError: it has no finished adapter.
        """
        if spec.serve is None or not spec.serve.adapters:
            return spec
        found = []
        for one in spec.serve.adapters:
            job, lora = await self._adapted(one.job)
            found.append(ServedAdapter(one.job, job.name, lora))
        return msgspec.structs.replace(spec, serve=msgspec.structs.replace(spec.serve, adapters=tuple(found)))

    async def files(self, spec: JobSpec, base: Prepared, tokenizer: TokenizerSpec) -> dict[str, Digest]:
        """The adapters' archives, by the names that nodes have them under.

        Args:
            spec: the deployment's document.
            base: the files of its model. tokenizer: of that.
        Raises:
            NotFoundError: as ``described``. ConflictError: as there, or an adapter is of another model.
        """
        serve = spec.serve or ServeSpec()
        if not serve.adapters:
            return {}
        weights = spec.model.weight_files or await self._weights_in(base.files[MODEL_ARCHIVE])
        made = {}
        for number, one in enumerate(serve.adapters, 1):
            job, _ = await self._adapted(one.job)
            if sorted(job.spec.model.weight_files) != sorted(weights):
                way = f"deploy {_base_of(job)} with it"
                raise ConflictError(f"the adapter of job {job.id} is of another model than this one: {way}", FIELD)
            if job.spec.tokenizer.file != tokenizer.file:
                raise ConflictError(
                    f"the adapter of job {job.id} learnt with another tokenizer than this model's: deploy it by itself",
                    FIELD,
                )
            if job.config.get(ENDS_WITH) != base.config.get(ENDS_WITH):
                raise ConflictError(
                    f"the adapter of job {job.id} ends its texts with {job.config.get(ENDS_WITH)}, this model with "
                    f"{base.config.get(ENDS_WITH)}: deploy it by itself",
                    FIELD,
                )
            made[adapter_archive(number)] = await self._checkpoints.folder(job.id)
        return made

    async def _adapted(self, job: str) -> tuple[Job, LoraSpec]:
        async with self._context.everywhere.transaction() as tx:
            found = await tx.find(Job, col(Job.id).equals(job))
        if not found:
            raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", FIELD)
        lora = found[0].spec.training.lora
        if lora is None:
            raise ConflictError(f"job {job} makes no adapter (training.lora): deploy its model by itself", FIELD)
        if found[0].model is None or found[0].state is not JobState.SETTLED:
            raise ConflictError(f"job {job} is {found[0].state} and has no adapter yet: name it once it is done", FIELD)
        return found[0], lora

    async def _weights_in(self, archive: Digest) -> Sequence[Digest]:
        async with self._artifacts.files(archive) as (path,):
            return await asyncio.to_thread(_weight_digests, path)


def _base_of(job: Job) -> str:
    """The model that a job adapted, for whoever wants to deploy it."""
    if job.spec.model.from_job is not None:
        return f"the model of job {job.spec.model.from_job}"
    return job.spec.model.hub or "the model that this job started from"


def _weight_digests(path: Path) -> list[Digest]:
    """Of the files of weights in a model's archive, which a job that starts from it has as files of its own."""
    found = []
    with zipfile.ZipFile(path) as packed:
        for name in packed.namelist():
            if not name.endswith(".safetensors"):
                continue
            hasher = hashlib.sha256()
            with packed.open(name) as file:
                while block := file.read(_BLOCK):
                    hasher.update(block)
            found.append(Digest(hasher.hexdigest()))
    return found

"""A job that starts from another job's model: its config, weights and tokenizer come out of that job's archive."""

import json
import zipfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from coordinator.domain.job import Job, JobState
from coordinator.domain.rounds.run import Base, Run, RunPoint
from coordinator.errors import ConflictError, InvalidError, NotFoundError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.base_models import BaseModels
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.model_files import ModelFiles
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.store.records import RoundRecord, RunRecord
from protocol.job.job import JobSpec, LoraSpec, ModelSpec, TokenizerSpec
from protocol.models.model import ENDS_WITH, resolve
from protocol.rest.api import NewJob
from protocol.task import Layers
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import spec

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "vocab_size": 259,
    "tie_word_embeddings": False,
}
WEIGHTS = {"model.norm.weight": np.arange(16, dtype=np.float32)}


async def finished(bench: Bench, artifacts: ArtifactStore, folder: Path, **changes: Any) -> str:
    """A settled job whose model's archive is there."""
    save_file(WEIGHTS, folder / "model.safetensors")
    with zipfile.ZipFile(folder / "model.zip", "w") as packed:
        packed.write(folder / "model.safetensors", "model.safetensors")
        packed.writestr("config.json", json.dumps(CONFIG))

    async def tokenizer() -> AsyncIterator[bytes]:
        yield b'{"model": {"type": "BPE", "vocab": {"a": 0}}}'

    job = await bench.job()
    files = {"tokenizer.json": await artifacts.put(tokenizer(), None, 1000)}
    model = await artifacts.put_file(folder / "model.zip")
    async with bench.parts.desk.open(job) as work:
        settled = msgspec.structs.replace(
            work.job, state=JobState.SETTLED, model=model, files=files, config=dict(CONFIG)
        )
        work.job = msgspec.structs.replace(settled, **changes)
    return job


class Workshop:
    """Puts an archive together as the trainer would."""

    def __init__(self, artifacts: ArtifactStore, archive: Path) -> None:
        self._artifacts, self._archive = artifacts, archive
        self.of: list[tuple[str, ...]] = []
        self.merged: list[tuple[str, str]] = []

    async def assemble(self, _job: Job, checkpoints: Sequence[str], _rounds: Sequence[RoundRecord], _data: str) -> str:
        self.of.append(tuple(checkpoints))
        return await self._artifacts.put_file(self._archive)

    async def start(self, job: Job) -> str:
        return await self._artifacts.put_file(self._archive)

    async def merge(self, job: Job, adapter: str) -> str:
        self.merged.append((job.id, adapter))
        return await self._artifacts.put_file(self._archive)


def stored(bench: Bench, artifacts: ArtifactStore, workshop: Workshop | None = None) -> Checkpoints:
    return Checkpoints(bench.parts.context, artifacts, cast(ModelWorkshop, workshop))


def starting_from(job: str, round_: int | None = None) -> JobSpec:
    return msgspec.structs.replace(spec(1, 1), model=ModelSpec(from_job=job, from_round=round_))


async def test_config_weights_and_tokenizer_are_those_of_the_finished_model(tmp_path: Path) -> None:
    bench, artifacts = Bench(), DiskArtifacts(tmp_path / "artifacts")
    job = await finished(bench, artifacts, tmp_path)
    origins = BaseModels(bench.parts.context, artifacts, stored(bench, artifacts))
    made = await origins.started(starting_from(job))
    assert made.model.from_job == job
    assert made.model.config == CONFIG
    assert made.tokenizer == await origins.tokenizer(made.model)
    (weights,) = made.model.weight_files
    np.testing.assert_array_equal(load_file(artifacts.path(weights))["model.norm.weight"], WEIGHTS["model.norm.weight"])
    assert resolve(made.model, 259)["vocab_size"] == 259
    assert await origins.started(made) == made, "asked again, the same document"
    plain = spec(1, 1)
    assert await origins.started(plain) is plain


async def test_settings_and_the_end_of_documents_come_along(tmp_path: Path) -> None:
    bench, artifacts = Bench(), DiskArtifacts(tmp_path / "artifacts")
    job = await finished(bench, artifacts, tmp_path, config=CONFIG | {ENDS_WITH: "<end>"})
    settings, generation = {"eos_token": "<turn>", "chat_template": "{{ x }}"}, {"eos_token_id": [5, 6]}
    with zipfile.ZipFile(tmp_path / "model.zip", "a") as packed:
        packed.writestr("tokenizer_config.json", json.dumps(settings))
        packed.writestr("generation_config.json", json.dumps(generation))
    async with bench.parts.desk.open(job) as work:
        work.job = msgspec.structs.replace(work.job, model=await artifacts.put_file(tmp_path / "model.zip"))
    origins = BaseModels(bench.parts.context, artifacts, stored(bench, artifacts))
    made = await origins.started(starting_from(job))
    assert (made.tokenizer.settings, made.model.generation) == (settings, generation)
    assert made.tokenizer.end == (await origins.tokenizer(made.model)).end == "<end>"
    other = msgspec.structs.replace(starting_from(job), tokenizer=TokenizerSpec(end="<turn>"))
    assert (await origins.started(other)).tokenizer.end == "<turn>", "the new job has the first word"


async def test_a_quote_needs_no_archive_to_know_the_models_size(tmp_path: Path) -> None:
    bench, artifacts = Bench(), DiskArtifacts(tmp_path / "artifacts")
    job = await finished(bench, artifacts, tmp_path)
    own = msgspec.structs.replace(spec(1, 1), model=ModelSpec(config=CONFIG), tokenizer=TokenizerSpec("bytes"))
    quote = await bench.parts.jobs.quote(starting_from(job))
    assert quote.problems == ()
    assert quote.parameters == (await bench.parts.jobs.quote(own)).parameters


async def test_a_checkpoint_is_started_from_whatever_became_of_its_job(tmp_path: Path) -> None:
    bench, artifacts = Bench(), DiskArtifacts(tmp_path / "artifacts")
    job = await finished(bench, artifacts, tmp_path, state=JobState.FAILED, model=None)
    points = (RunPoint(Base(2), ("a" * 64,)), RunPoint(Base(4), ("b" * 64,)))
    run = Run(layers=(Layers(0, 4),), replicas=1, total_steps=16, inner_steps=2, evaluate=(), points=points)
    async with bench.store.transaction() as tx:
        await tx.insert(RunRecord(job, run))
    workshop = Workshop(artifacts, tmp_path / "model.zip")
    origins = BaseModels(bench.parts.context, artifacts, stored(bench, artifacts, workshop))
    made = await origins.started(starting_from(job, 2))
    assert workshop.of == [("a" * 64,)], "the one that was asked for, not the newest"
    assert (made.model.from_round, made.model.config) == (2, CONFIG)
    assert made.tokenizer == await origins.tokenizer(made.model)
    (weights,) = made.model.weight_files
    np.testing.assert_array_equal(load_file(artifacts.path(weights))["model.norm.weight"], WEIGHTS["model.norm.weight"])
    with pytest.raises(NotFoundError, match="no checkpoint 3: there is 2, 4") as refused:
        await origins.started(starting_from(job, 3))
    assert refused.value.field == "model.from_round"
    with pytest.raises(ConflictError, match="is failed and has no model yet"):
        await origins.started(starting_from(job))
    with pytest.raises(msgspec.ValidationError, match="name the job in"):
        msgspec.convert(
            {**msgspec.to_builtins(spec(1, 1)), "model": {"preset": "tiny-llama", "from_round": 2}}, JobSpec
        )


async def test_what_is_no_whole_model_yet_cannot_be_started_from(tmp_path: Path) -> None:
    bench, artifacts = Bench(), DiskArtifacts(tmp_path / "artifacts")
    origins = BaseModels(bench.parts.context, artifacts, stored(bench, artifacts))
    with pytest.raises(NotFoundError, match="there is no job"):
        await origins.started(starting_from("0" * 32))
    with pytest.raises(ConflictError, match="has no model yet"):
        await origins.started(starting_from(await bench.job()))


async def test_an_adapter_is_started_from_as_a_whole_model(tmp_path: Path) -> None:
    """In as many files as the model that it adapts has."""
    bench, artifacts = Bench(), DiskArtifacts(tmp_path / "artifacts")
    training = msgspec.structs.replace(spec(1, 1).training, lora=LoraSpec())
    adapted = msgspec.structs.replace(spec(1, 1), model=ModelSpec("tiny-llama", weights="a" * 64), training=training)
    job = await finished(bench, artifacts, tmp_path, spec=adapted)
    whole = tmp_path / "whole.zip"
    with zipfile.ZipFile(whole, "w") as packed:
        packed.writestr("config.json", json.dumps(CONFIG))
        for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
            packed.writestr(name, name)
    workshop = Workshop(artifacts, whole)
    checkpoints = stored(bench, artifacts, workshop)
    points = (RunPoint(Base(4), ("b" * 64,)),)
    run = Run(layers=(Layers(0, 4),), replicas=1, total_steps=16, inner_steps=2, evaluate=(), points=points)
    async with bench.store.transaction() as tx:
        await tx.insert(RunRecord(job, run))
    made = await BaseModels(bench.parts.context, artifacts, checkpoints).started(starting_from(job))
    (adapter,) = {archive for _, archive in workshop.merged}
    assert [of for of, _ in workshop.merged] == [job]
    assert artifacts.path(adapter).read_bytes() == (tmp_path / "model.zip").read_bytes(), "the finished one"
    first, second = made.model.weight_files
    assert artifacts.path(first).read_text() == "model-00001-of-00002.safetensors"
    assert artifacts.path(second).read_text() == "model-00002-of-00002.safetensors"
    assert await checkpoints.model(job) == await checkpoints.model(job)
    assert len(workshop.merged) == 1, "it is made once"


async def test_weights_out_of_an_archive_are_compared_with_its_config_before_a_job_is_made(tmp_path: Path) -> None:
    bench, artifacts = Bench(), DiskArtifacts(tmp_path / "artifacts")
    job = await finished(bench, artifacts, tmp_path)
    jobs = bench.parts.jobs
    jobs._base_models = BaseModels(bench.parts.context, artifacts, stored(bench, artifacts))
    jobs._model_files = ModelFiles(artifacts)
    assert (await jobs.quote(starting_from(job))).problems == (), "a price needs no archive"
    with pytest.raises(InvalidError, match=r"has no tensor model\.embed_tokens\.weight of shape"):
        await jobs.create(NewJob(starting_from(job)))
    assert [view.id for view in await jobs.list(10, None)] == [job]

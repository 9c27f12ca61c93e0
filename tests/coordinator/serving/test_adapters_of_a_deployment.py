"""A deployment with adapters: that they are of its very model, what they take, and how they are asked and checked."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.domain import serving as rules
from coordinator.domain.job import Job, JobState
from coordinator.domain.serving import AdapterPoint, HeldModel, ServedFiles
from coordinator.errors import ConflictError, CottageError, NotFoundError
from coordinator.services.serving.adapters import AdapterOrigins
from protocol.ids import Digest
from protocol.job.job import JobSpec, LoraSpec, ModelSpec, ServedAdapter, ServeSpec, TokenizerSpec, TrainingSpec
from protocol.models.model import ENDS_WITH, inspect_config
from protocol.rest.api import NewJob
from protocol.serving import (
    MODEL_ARCHIVE,
    CheckCommand,
    EmbedCommand,
    GenerateCommand,
    TextReport,
    adapter_archive,
    adapters_of,
)
from protocol.task import Layers
from tests.coordinator.fakes import BUDGET, FakeArtifacts, FakeModels, digest
from tests.coordinator.serving.deployed import Asked, Deployed, Home
from tests.coordinator.serving.small_model import small_model
from tests.coordinator.serving.test_engines import GREEDY, Hall
from tests.coordinator.serving.test_given_models import asked_for, here
from tests.trainer.serve.drawn_adapters import draw_adapter, merged

LORA = LoraSpec(4, 8.0, ("q_proj", "v_proj"))
RANKS = (4, 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("adapted") / "made")


@dataclass
class AdaptedBench:
    """A coordinator whose files and tools are real, a node, a document of a model's files, and jobs that adapted this model."""

    hall: Hall
    bench: Deployed
    home: Home
    document: JobSpec
    end: str | None
    adapters: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    async def trained(self) -> str:
        """A job that is done, whose dataset nobody looks at."""
        jobs: Any = self.bench.parts.jobs
        real = jobs._artifacts, jobs._models
        jobs._artifacts, jobs._models = FakeArtifacts(), FakeModels()
        try:
            return await self.bench.trained()
        finally:
            jobs._artifacts, jobs._models = real

    async def adapted(self, archive: Digest, name: str = "moo adapted", **changed: Any) -> str:
        """A job that is done, whose model is an adapter of the document's."""
        job = await self.trained()
        model = ModelSpec(config=self.document.model.config, weights=self.document.model.weights)
        training = TrainingSpec(lora=LORA)
        made: dict[str, Any] = {"model": model, "tokenizer": self.document.tokenizer, "training": training} | changed
        async with self.bench.desk(job) as work:
            document = msgspec.structs.replace(work.job.spec, name=name, **made)
            config = work.job.config | {ENDS_WITH: self.end}
            work.job = msgspec.structs.replace(work.job, name=name, spec=document, model=archive, config=config)
        return job

    def serving(self, *adapters: str, **more: Any) -> JobSpec:
        serve = ServeSpec(adapters=tuple(map(ServedAdapter, adapters)), **more)
        return msgspec.structs.replace(self.document, serve=serve)

    async def deployed(self, *adapters: str) -> Job:
        """A deployment with its node."""
        job = (await self.bench.parts.jobs.create(NewJob(self.serving(*adapters)))).id
        await self.bench.while_time_moves(self.bench.fund(job))
        await self.bench.turn(job)
        return await self.bench.stored(job)


async def adapted_bench(folder: Path, tmp_path: Path) -> AdaptedBench:
    hall = Hall(tmp_path)
    bench, home = await here(hall)
    jobs: Any = bench.parts.jobs
    jobs._adapters = AdapterOrigins(jobs._context, hall.artifacts, jobs._adapters._checkpoints)
    document = msgspec.structs.replace(await asked_for(hall.artifacts, folder), budget=BUDGET)
    made = AdaptedBench(hall, bench, home, document, (await jobs._model_files.of(document, None, {})).end)
    for number, rank in enumerate(RANKS, 1):
        drawn = draw_adapter(folder, tmp_path / f"drawn-{number}", number, rank, LORA.targets)
        archive = await hall.archive(drawn, tmp_path / f"drawn-{number}.zip")
        made.folders.append(drawn)
        made.adapters.append(await made.adapted(archive, f"moo {number}"))
    return made


async def test_a_node_gets_the_model_once_and_each_adapter_and_an_adapter_is_asked_by_its_number(
    folder: Path, tmp_path: Path
) -> None:
    made = await adapted_bench(folder, tmp_path)
    job = await made.deployed(*made.adapters)
    assert made.home.lease is not None
    names = {MODEL_ARCHIVE, "config.json", adapter_archive(1), adapter_archive(2)}
    assert made.home.lease.files.keys() == names
    models = [(await made.bench.stored(one)).model for one in made.adapters]
    assert list(adapters_of(made.home.lease.files)) == models
    serve = made.home.lease.spec.serve
    assert serve is not None
    assert [(one.job, one.name, one.lora) for one in serve.adapters] == [
        (made.adapters[0], "moo 1", LORA),
        (made.adapters[1], "moo 2", LORA),
    ]
    trials = made.bench.parts.outputs
    texts = EmbedCommand("1", ("a",))
    for adapter, number in ((None, 0), (made.adapters[0], 1), (made.adapters[1], 2)):
        for command in (GenerateCommand("1", "moo", tokens=2), texts):

            async def listen(command: Any = command, adapter: Any = adapter) -> None:
                async for _ in trials.complete(job.id, None if adapter is None else AdapterPoint(adapter), command):
                    pass

            await made.bench.while_time_moves(listen())
            assert made.home.asked[-1].adapter == number  # type: ignore[union-attr]
    for asked_of, point, said in (
        (job.id, AdapterPoint(digest("no")[:32]), "has no adapter of job"),
        (job.id, 3, "no checkpoints"),
        (made.adapters[0], AdapterPoint(made.adapters[1]), "is no deployment"),
    ):
        with pytest.raises(NotFoundError, match=said):
            await anext(aiter(trials.complete(asked_of, point, texts)))


async def test_checks_draw_with_the_adapters_of_the_deployment(folder: Path, tmp_path: Path) -> None:
    made = await adapted_bench(folder, tmp_path)
    job = await made.deployed(*made.adapters)
    async with made.bench.checking():
        asked = Asked(made.bench, job, GenerateCommand("1", "moo", tokens=4, adapter=2))
        await made.bench.pass_time(5.0)
    assert asked.tokens == asked.right
    assert [one.asked.adapter for one in made.bench.checker.checked if one.asked.id] == [2]
    assert made.bench.checker.held, "the first answers of a node are drawn again"
    assert {one.adapters for one in made.bench.checker.held} == {adapters_of(job.files)}
    assert len(adapters_of(job.files)) == 2


@pytest.mark.long
async def test_the_coordinator_s_own_process_draws_with_the_adapter_and_finds_the_model_s_answer(
    folder: Path, tmp_path: Path
) -> None:
    made = await adapted_bench(folder, tmp_path)
    hall, files = made.hall, (await made.deployed(*made.adapters)).files
    asked = GenerateCommand("1", "def function_", tokens=10, sampling=GREEDY)
    whole = await hall.archive(merged(folder, made.folders[1], tmp_path / "whole"), tmp_path / "whole.zip")
    for archive, right in ((whole, True), (files[MODEL_ARCHIVE], False)):
        *texts, end = [one async for one in hall.engines.generate(archive, asked, 120.0)]
        assert all(isinstance(one, TextReport) for one in texts)
        tokens = tuple(token for one in texts for token in one.tokens)  # type: ignore[union-attr]
        said = "".join(one.text for one in texts)  # type: ignore[union-attr]
        second = msgspec.structs.replace(asked, adapter=2)
        check = CheckCommand("1", second, tokens, said, end.reason, end.prompt)  # type: ignore[union-attr]
        held = ServedFiles(files[MODEL_ARCHIVE], adapters=adapters_of(files))
        report = await hall.engines.check(held, check, 120.0)
        assert (report.wrong == "") == right, report
    await hall.engines.close()
    assert not list(hall.scratch.iterdir()), "nothing is left on the disk"


@pytest.mark.long
async def test_an_adapter_of_another_model_or_of_none_is_refused_in_words(folder: Path, tmp_path: Path) -> None:
    made = await adapted_bench(folder, tmp_path)
    archive, own = digest("adapter"), made.document.model
    other = ModelSpec(config=own.config, weights=digest("others"), hub="someone/other@" + "a" * 40)
    foreign = TokenizerSpec("file", file=digest("tokens"))
    running = await made.adapted(archive)
    async with made.bench.desk(running) as work:
        work.job = msgspec.structs.replace(work.job, state=JobState.RUNNING, model=None)
    deployment = (await made.deployed(made.adapters[0])).id
    later = ModelSpec(config=own.config, weights=digest("others"), from_job=made.adapters[0])
    wrong = [
        (await made.adapted(archive, model=other), "of another model than this one: deploy someone/other@aaaa"),
        (await made.adapted(archive, model=later), f"deploy the model of job {made.adapters[0]} with it"),
        (await made.adapted(archive, tokenizer=foreign), "learnt with another tokenizer"),
        (await made.adapted(archive, training=TrainingSpec()), "makes no adapter"),
        (running, "is running and has no adapter yet: name it once it is done"),
        (deployment, "makes no adapter"),
        (digest("nobody")[:32], "there is no job"),
    ]
    made.end = "<|other|>"
    wrong.append((await made.adapted(archive), "ends its texts with"))
    for job, said in wrong:
        with pytest.raises(CottageError, match=said) as refused:
            await made.bench.parts.jobs.create(NewJob(made.serving(made.adapters[0], job)))
        assert refused.value.field == "serve.adapters"
        assert isinstance(refused.value, ConflictError | NotFoundError)


async def test_a_base_that_a_job_made_has_the_weights_that_its_adapters_started_from(
    folder: Path, tmp_path: Path
) -> None:
    made = await adapted_bench(folder, tmp_path)
    archive = await made.hall.archive(folder, tmp_path / "base.zip")
    base = await made.trained()
    async with made.bench.desk(base) as work:
        config = work.job.config | {ENDS_WITH: made.end}
        files = work.job.files | {"tokenizer.json": made.document.tokenizer.file or ""}
        work.job = msgspec.structs.replace(work.job, model=archive, config=config, files=files)
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert made.document.model.weights == weights
    serve = ServeSpec(adapters=(ServedAdapter(made.adapters[0]),))
    document = JobSpec("moo at homes", ModelSpec(from_job=base), BUDGET, serve=serve)
    view = await made.bench.parts.jobs.create(NewJob(document))
    assert (await made.bench.stored(view.id)).files[adapter_archive(1)]
    other = await made.adapted(digest("adapter"), model=ModelSpec(config={}, weights=digest("others")))
    serve = ServeSpec(adapters=(ServedAdapter(other),))
    with pytest.raises(ConflictError, match="of another model"):
        await made.bench.parts.jobs.create(NewJob(msgspec.structs.replace(document, serve=serve)))


async def test_memory_is_counted_by_rank_targets_and_layers(folder: Path, tmp_path: Path) -> None:
    made = await adapted_bench(folder, tmp_path)
    quote = await made.bench.parts.jobs.quote(made.serving(*made.adapters))
    shape = inspect_config((await made.bench.stored(made.adapters[0])).config)
    width = {name: size for name, size in shape.linears if name in LORA.targets}
    assert set(width) == set(LORA.targets)
    assert any(reason.startswith("2 adapters answer beside the model: ") for reason in quote.reasons)
    wide = [ServedAdapter("ab" * 16, lora=LoraSpec(1024, targets=LORA.targets))] * 3
    plain, held = shape, rules.with_adapters(shape, wide)
    assert held.parameters - plain.parameters == 3 * 1024 * sum(width.values()) * shape.layers
    cut = (Layers(0, 2), Layers(2, shape.layers))
    before, after = (rules.needed(HeldModel(one, 64), cut)["card"] for one in (plain, held))
    layers = [one.last - one.first for one in cut]
    assert [later - sooner for sooner, later in zip(before, after, strict=True)] == [
        4 * 3 * 1024 * sum(width.values()) * number for number in layers
    ]

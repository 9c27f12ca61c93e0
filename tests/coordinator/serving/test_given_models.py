"""A model that no job made: its files are uploaded, and nodes answer with it as it is."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.domain.job import JobState
from coordinator.errors import InvalidError, NotFoundError, UnavailableError
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.model_files import ModelFiles
from coordinator.services.serving.chat_templates import ChatTemplates
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, ServeSpec, TokenizerSpec
from protocol.models.weights import WEIGHT_INDEX, WeightIndex
from protocol.rest.api import JobView, NewJob
from protocol.serving import MODEL_ARCHIVE, SMALL_ARCHIVE
from tests.coordinator.fakes import BUDGET, FakeModels, digest
from tests.coordinator.serving.deployed import Deployed, Home
from tests.coordinator.serving.small_model import small_model
from tests.coordinator.serving.test_engines import GREEDY, Hall, ask
from tests.coordinator.serving.test_stages import notes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("given") / "made")


async def asked_for(artifacts: DiskArtifacts, folder: Path, **model: Any) -> JobSpec:
    """The document that has the folder's model answer."""
    weights = await artifacts.put_file(folder / "model.safetensors")
    tokenizer = await artifacts.put_file(folder / "tokenizer.json")
    config = json.loads((folder / "config.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    given = ModelSpec(**{"config": config, "weights": weights} | model)
    return JobSpec(
        "a cow", given, 10**9, tokenizer=TokenizerSpec("file", file=tokenizer, settings=settings), serve=ServeSpec()
    )


async def here(hall: Hall) -> tuple[Deployed, Home]:
    """A bench whose files and tools are real, and a node."""
    bench = Deployed()
    jobs: Any = bench.parts.jobs
    jobs._artifacts, jobs._model_files, jobs._models = hall.artifacts, ModelFiles(hall.artifacts), hall.tools
    jobs._templates = ChatTemplates(hall.tools, jobs._base_models)
    return bench, await bench.come(1)


async def made(hall: Hall, spec: JobSpec) -> JobView:
    bench, _ = await here(hall)
    return await bench.parts.jobs.create(NewJob(spec))


@pytest.mark.long
async def test_uploaded_files_answer_as_the_folder_does_that_they_are_of(folder: Path, tmp_path: Path) -> None:
    hall = Hall(tmp_path)
    spec = await asked_for(hall.artifacts, folder)
    bench, home = await here(hall)
    job = (await bench.parts.jobs.create(NewJob(spec))).id
    await bench.while_time_moves(bench.fund(job))
    await bench.turn(job)
    assert home.lease is not None, "a node holds it"
    archive = home.lease.files[MODEL_ARCHIVE]
    assert home.lease.files.keys() == {MODEL_ARCHIVE, "config.json"}, "all of it, and nothing that only stages need"
    files = (await bench.stored(job)).files
    index = msgspec.json.decode(hall.artifacts.path(files[WEIGHT_INDEX]).read_bytes(), type=WeightIndex)
    assert index.files == (archive,)
    assert await hall.artifacts.size(files[SMALL_ARCHIVE]) < await hall.artifacts.size(archive) / 2
    whole = await hall.archive(folder, tmp_path / "model.zip")
    for prompt in ("def function_", "def f"):
        command = ask(prompt, tokens=12, sampling=GREEDY)
        (text, end), (expected, _) = await hall.said(archive, command), await hall.said(whole, command)
        assert (text, end.tokens) == (expected, 12)
    stored = (await bench.parts.jobs.get(job)).spec
    assert (stored.serve, stored.model.from_job) == (ServeSpec(context=64), None), "as many tokens as it reads"
    await hall.engines.close()


async def test_files_that_are_not_here_or_do_not_fit_are_refused_before_anything_is_paid(
    folder: Path, tmp_path: Path
) -> None:
    hall = Hall(tmp_path)
    spec = await asked_for(hall.artifacts, folder)
    lacking = msgspec.structs.replace(spec, model=msgspec.structs.replace(spec.model, weights=digest("lost")))
    with pytest.raises(NotFoundError, match="no file of weights"):
        await made(hall, lacking)
    config = {**(spec.model.config or {}), "num_hidden_layers": 9}
    with pytest.raises(InvalidError, match="layers"):
        await made(hall, await asked_for(hall.artifacts, folder, config=config))


async def test_a_chat_template_with_which_nobody_can_chat_is_refused_when_its_model_is_deployed(
    folder: Path, tmp_path: Path
) -> None:
    hall = Hall(tmp_path)
    spec = await asked_for(hall.artifacts, folder)

    def with_template(template: str | None) -> JobSpec:
        settings = {**(spec.tokenizer.settings or {}), "chat_template": template}
        return msgspec.structs.replace(spec, tokenizer=msgspec.structs.replace(spec.tokenizer, settings=settings))

    for broken in ("{% for m in messages %}{{ m.content", "{{ messages[0].no.such }}"):
        with pytest.raises(InvalidError, match=r"the chat template of this model .*mend it, or leave it out") as told:
            await made(hall, with_template(broken))
        assert told.value.field == "tokenizer.settings"
        with_price = await priced(hall, with_template(broken))
        assert [said for said in with_price if "chat template" in said] == [told.value.detail], "before money is held"
    assert (await made(hall, with_template(None))).state == "created", "it continues texts"


async def priced(hall: Hall, spec: JobSpec) -> tuple[str, ...]:
    """What the price says against a document."""
    bench, _ = await here(hall)
    found: tuple[str, ...] = ()

    async def ask() -> None:
        nonlocal found
        found = (await bench.parts.jobs.quote(spec)).problems

    await bench.while_time_moves(ask())
    return found


async def test_a_template_is_tried_once_however_often_the_price_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Deployed()
    await bench.come(1)
    asked: list[TokenizerSpec] = []

    async def broken(_models: FakeModels, tokenizer: TokenizerSpec) -> str:
        asked.append(tokenizer)
        if len(asked) == 1:
            raise UnavailableError("reading the chat template failed")
        return "the chat template of this model is broken"

    job = await bench.trained()
    spec = JobSpec("answers", ModelSpec(from_job=job), BUDGET, serve=ServeSpec())
    monkeypatch.setattr(FakeModels, "template_fault", broken)
    assert (await bench.parts.jobs.quote(spec)).problems == (), "nobody knows yet"
    for _ in range(3):
        (problem,) = (await bench.parts.jobs.quote(spec)).problems
        assert problem.startswith(f"the chat template of this model is broken; `cottage download {job}`")
    assert len(asked) == 2


async def test_a_template_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.services.artifacts.models.TEMPLATE_S", 0.01)
    endless = TokenizerSpec("file", file=digest("tokenizer"), settings={"chat_template": "{{ messages }}"})
    with pytest.raises(UnavailableError, match=r"reading the chat template took longer than 0\.01 s"):
        await Hall(tmp_path).tools.template_fault(endless)


async def test_the_template_of_a_job_s_model_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Deployed()
    await bench.come(1)
    asked: list[TokenizerSpec] = []

    async def broken(_models: FakeModels, tokenizer: TokenizerSpec) -> str:
        asked.append(tokenizer)
        return "the chat template of this model is broken"

    monkeypatch.setattr(FakeModels, "template_fault", broken)
    with pytest.raises(InvalidError, match=r"is broken; `cottage download [0-9a-f]+`, mend it") as told:
        await bench.deploy()
    assert told.value.field == "model.from_job"
    assert [one.kind for one in asked] == ["file"], "that of the job's model"


@pytest.mark.parametrize("fault", ["", "the chat template of this model is broken", None])
async def test_a_trained_model_that_cannot_chat_is_told_so_when_it_is_there(
    fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def found(_models: FakeModels, _tokenizer: TokenizerSpec) -> str:
        if fault is None:
            raise UnavailableError("reading the chat template failed")
        return fault

    monkeypatch.setattr(FakeModels, "template_fault", found)
    bench = Deployed()
    await bench.come(1)
    job = await bench.trained()
    async with bench.desk(job) as work:
        work.change(state=JobState.VERIFYING, model=None)
    await bench.parts.upkeep.assemble_next()
    assert (await bench.stored(job)).model is not None, "it is there all the same"
    told = [text for text in await notes(bench, job) if "chat template" in text]
    assert told == ([f"{fault}; the model continues texts, and cannot chat"] if fault else [])


async def test_a_model_that_cannot_be_cut_has_no_files_for_stages(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hall, odd = Hall(tmp_path), tmp_path / "odd"
    shutil.copytree(folder, odd)
    config = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(config | {"rope_theta": "soon"}))
    archive = await hall.archive(odd, tmp_path / "odd.zip")
    assert await hall.tools.stage_files(archive) == {}
    assert "cannot be cut into stages: " in caplog.text
    assert not list(hall.scratch.iterdir())
    whole = await hall.tools.stage_files(await hall.archive(folder, tmp_path / "model.zip"))
    assert whole.keys() == {SMALL_ARCHIVE, WEIGHT_INDEX}


def document(**fields: Any) -> dict[str, Any]:
    files = {"config": {"model_type": "llama"}, "weights": "1" * 64}
    tokenizer = {"kind": "file", "file": "2" * 64}
    return {"name": "a cow", "model": files, "budget": 1, "serve": {}, "tokenizer": tokenizer} | fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"model": {"preset": "tiny-llama"}}, "give weights and config of a model in model"),
        ({"model": {"preset": "tiny-llama", "weights": "1" * 64}}, "give weights and config"),
        ({"tokenizer": {"kind": "bytes"}}, "name its file in tokenizer.file"),
        ({"tokenizer": {"kind": "file"}}, "name its file in tokenizer.file"),
        ({"dataset": msgspec.to_builtins(DatasetSpec("3" * 64))}, "leave the datasets out"),
        ({"training": {"tokens": 9}}, "learns nothing: leave training out"),
        ({"training": {"learning_rate": 0.1}}, "learns nothing: leave training out"),
        ({"parallel": {"stages": 2}}, "leave parallel out, and say serve.stages"),
    ],
)
def test_a_document_says_what_answers(fields: dict[str, Any], said: str) -> None:
    if not said:
        read = msgspec.convert(document(**fields), JobSpec)
        assert read.serve == ServeSpec()
        assert msgspec.json.decode(msgspec.json.encode(read), type=JobSpec) == read, "as it is kept, and sent to nodes"
        return
    with pytest.raises(msgspec.ValidationError, match=said):
        msgspec.convert(document(**fields), JobSpec)

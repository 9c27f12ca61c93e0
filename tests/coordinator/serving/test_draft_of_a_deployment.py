"""A deployment with a draft model: that it has the model's tokens, what it takes, and who is given it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from coordinator.domain import serving as rules
from coordinator.domain.job import Job
from coordinator.domain.serving import HeldModel
from coordinator.domain.wanted import folder_of
from coordinator.errors import ConflictError, CottageError, InvalidError, NotFoundError
from coordinator.services.artifacts.file_ownership import sources
from coordinator.services.artifacts.model_files import read_tokens
from coordinator.services.drivers.node_protocol import _assignment
from coordinator.services.serving.draft_models import DraftOrigins
from protocol.codec import MessageError, convert, encode_json
from protocol.ids import Digest
from protocol.job.job import JobSpec, ModelSpec, ServeSpec, TokenizerSpec
from protocol.models.model import inspect_config
from protocol.models.weights import WEIGHT_INDEX
from protocol.rest.api import NewJob
from protocol.serving import DRAFT_ARCHIVE, MODEL_ARCHIVE, SMALL_ARCHIVE, draft_tokens
from protocol.task import Layers
from tests.coordinator.fakes import digest
from tests.coordinator.serving.deployed import MB, Deployed
from tests.coordinator.serving.small_model import small_model
from tests.coordinator.serving.test_adapters_of_a_deployment import AdaptedBench, adapted_bench
from tests.trainer.serve.stages.early_exit import early_exit

TWO = (Layers(0, 2), Layers(2, 4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("drafted") / "made")


@pytest.fixture
async def made(folder: Path, tmp_path: Path) -> AdaptedBench:
    """A coordinator with real files, a document of a model's files, and a second node."""
    found = await adapted_bench(folder, tmp_path)
    jobs: Any = found.bench.parts.jobs
    jobs._drafts = DraftOrigins(jobs._artifacts, jobs._base_models, jobs._models, jobs._model_files)
    await found.bench.come(2)
    return found


async def small_job(made: AdaptedBench, folder: Path, tmp_path: Path, **changed: Any) -> str:
    """A job that is done, whose model is the first layer of the document's."""
    archive = await made.hall.archive(early_exit(folder, 1, tmp_path / "small"), tmp_path / "small.zip")
    job = await made.trained()
    async with made.bench.desk(job) as work:
        config = {**work.job.config, **(made.document.model.config or {}), "num_hidden_layers": 1} | changed
        files = work.job.files | {"tokenizer.json": made.document.tokenizer.file or ""}
        work.job = msgspec.structs.replace(work.job, model=archive, config=config, files=files)
    return job


def drafted(made: AdaptedBench, draft: ModelSpec, **more: Any) -> JobSpec:
    return msgspec.structs.replace(made.document, serve=ServeSpec(**({"stages": 2} | more), draft=draft))


async def deployed(made: AdaptedBench, document: JobSpec) -> Job:
    job = (await made.bench.parts.jobs.create(NewJob(document))).id
    await made.bench.while_time_moves(made.bench.fund(job))
    await made.bench.turn(job)
    return await made.bench.stored(job)


async def test_the_first_of_several_nodes_alone_is_given_the_draft_model(
    made: AdaptedBench, folder: Path, tmp_path: Path
) -> None:
    draft = await small_job(made, folder, tmp_path)
    job = await deployed(made, drafted(made, ModelSpec(from_job=draft)))
    leases = {home.lease.stage: home.lease for home in made.bench.homes.values() if home.lease is not None}
    shared = {"config.json", SMALL_ARCHIVE, WEIGHT_INDEX}
    assert leases[0].files.keys() == {*shared, DRAFT_ARCHIVE}
    assert leases[1].files.keys() == shared
    assert leases[0].files[DRAFT_ARCHIVE] == (await made.bench.stored(draft)).model
    serve = job.spec.serve
    assert serve is not None
    assert serve.draft is not None
    assert (serve.draft.from_job, (serve.draft.config or {})["num_hidden_layers"]) == (draft, 1)


async def test_files_of_a_draft_model_do_as_well_and_one_node_answers_without_it(
    made: AdaptedBench, folder: Path, tmp_path: Path
) -> None:
    small = early_exit(folder, 1, tmp_path / "small")
    weights = await made.hall.artifacts.put_file(small / "model.safetensors")
    config = {**(made.document.model.config or {}), "num_hidden_layers": 1}
    document = drafted(made, ModelSpec(config=config, weights=weights), stages=None)
    quote = await made.bench.parts.jobs.quote(document)
    assert quote.stages == 1
    assert any("answers without the draft model" in reason for reason in quote.reasons)
    job = await deployed(made, document)
    assert job.files[DRAFT_ARCHIVE]
    held = [home.lease.files.keys() for home in made.bench.homes.values() if home.lease is not None]
    assert held == [{MODEL_ARCHIVE, "config.json"}]
    lost = ModelSpec(config=config, weights=digest("lost"))
    with pytest.raises(NotFoundError, match="no file of weights") as refused:
        await made.bench.parts.jobs.create(NewJob(drafted(made, lost)))
    assert refused.value.field == "serve.draft"
    deeper = ModelSpec(config={**config, "num_hidden_layers": 2}, weights=weights)
    with pytest.raises(InvalidError):
        await made.bench.parts.jobs.create(NewJob(drafted(made, deeper)))


@pytest.mark.long
async def test_files_whose_head_is_their_embedding_draft_as_well(
    made: AdaptedBench, folder: Path, tmp_path: Path
) -> None:
    file = early_exit(folder, 1, tmp_path / "small") / "model.safetensors"
    save_file({name: one for name, one in load_file(file).items() if name != "lm_head.weight"}, tmp_path / "tied")
    weights = await made.hall.artifacts.put_file(tmp_path / "tied")
    config = {**(made.document.model.config or {}), "num_hidden_layers": 1, "tie_word_embeddings": True}
    job = await deployed(made, drafted(made, ModelSpec(config=config, weights=weights), stages=None))
    assert job.files[DRAFT_ARCHIVE]


async def test_a_draft_model_of_other_tokens_is_refused_in_words(
    made: AdaptedBench, folder: Path, tmp_path: Path
) -> None:
    draft = await small_job(made, folder, tmp_path, vocab_size=77)
    with pytest.raises(CottageError, match=r"serve\.draft knows 77 tokens and the model"):
        await made.bench.parts.jobs.create(NewJob(drafted(made, ModelSpec(from_job=draft))))
    text = (folder / "tokenizer.json").read_text()
    first, second = list(read_tokens(folder / "tokenizer.json", "").ids)[-3:-1]
    for name, other, right in (
        ("swapped", text.replace(f'"{first}"', f'"{second} "'), False),
        ("same", text + "\n", True),
    ):
        (tmp_path / name).write_text(other)
        file = await made.hall.artifacts.put_file(tmp_path / name)
        async with made.bench.desk(draft) as work:
            config = work.job.config | {"vocab_size": (made.document.model.config or {})["vocab_size"]}
            files = work.job.files | {"tokenizer.json": file}
            work.job = msgspec.structs.replace(work.job, config=config, files=files)
        document = NewJob(drafted(made, ModelSpec(from_job=draft)))
        told = [one for one in (await made.bench.parts.jobs.quote(document.spec)).problems if "tokenizer" in one]
        assert bool(told) is not right, "the price says so, before anything large is sent"
        if right:
            assert (await made.bench.parts.jobs.create(document)).state == "created", "its numbers count, and no spaces"
        else:
            with pytest.raises(ConflictError, match="has another tokenizer") as refused:
                await made.bench.parts.jobs.create(document)
            assert refused.value.field == "serve.draft"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("of_job", [True, False])
async def test_files_of_a_draft_name_their_tokenizer_and_its_tokens_count(
    made: AdaptedBench, folder: Path, tmp_path: Path, of_job: bool
) -> None:
    """``of_job``: the model is a job's, and its files are not named in the document."""
    small = early_exit(folder, 1, tmp_path / "small")
    weights = await made.hall.artifacts.put_file(small / "model.safetensors")
    draft = ModelSpec(config={**(made.document.model.config or {}), "num_hidden_layers": 1}, weights=weights)
    text = (folder / "tokenizer.json").read_text()
    first, second = list(read_tokens(folder / "tokenizer.json", "").ids)[-3:-1]
    cases = {
        "another version's": (text.replace('"version": "1.0"', '"version": "1.1"') + "\n", ""),
        "swapped": (text.replace(f'"{first}"', f'"{second} "'), "has another tokenizer"),
        "odd": ('{"model":{"vocab":{"a":0}},"added_tokens":[{"content":"x","id":1e999}]}', "no table of tokens"),
    }
    job = await made.trained() if of_job else None
    for name, (written, said) in cases.items():
        (tmp_path / name).write_text(written)
        file = await made.hall.artifacts.put_file(tmp_path / name)
        document = drafted(made, draft, draft_tokenizer=file)
        if job is not None:
            async with made.bench.desk(job) as work:
                config = work.job.config | {"vocab_size": (made.document.model.config or {})["vocab_size"]}
                files = work.job.files | {"tokenizer.json": made.document.tokenizer.file or ""}
                work.job = msgspec.structs.replace(work.job, config=config, files=files)
            document = msgspec.structs.replace(document, model=ModelSpec(from_job=job), tokenizer=TokenizerSpec())
        told = [one for one in (await made.bench.parts.jobs.quote(document)).problems if "token" in one]
        assert len(told) == bool(said), (name, told)
        assert said in "".join(told)
        if said:
            with pytest.raises(CottageError, match=said) as refused:
                await made.bench.parts.jobs.create(NewJob(document))
            assert refused.value.field == "serve.draft"
    lost = drafted(made, draft, draft_tokenizer=digest("lost"))
    assert not [one for one in (await made.bench.parts.jobs.quote(lost)).problems if "token" in one]
    with pytest.raises(NotFoundError) as missing:
        await made.bench.parts.jobs.create(NewJob(lost))
    assert missing.value.field == "serve.draft"
    assert ("serve.draft_tokenizer", digest("lost")) in sources(lost), "whose it is, is looked at"


async def test_nodes_are_not_told_of_a_drafts_tokenizer_which_those_of_before_do_not_know() -> None:
    assert b"draft_tokenizer" not in encode_json(ServeSpec())
    bench = Deployed()
    await bench.come(1, memory_mb=MB)
    job = await bench.deploy()
    await bench.turn(job, 5)
    async with bench.desk(job) as work:
        weights = ModelSpec(config={"model_type": "llama"}, weights=digest("draft"))
        serve = ServeSpec(draft=weights, draft_tokenizer=digest("tokens"))
        work.job = msgspec.structs.replace(work.job, spec=msgspec.structs.replace(work.job.spec, serve=serve))
        told = _assignment(work, next(iter(work.leases.values()))).spec.serve
        assert told == ServeSpec(draft=weights)


async def test_a_job_without_a_model_drafts_nothing(made: AdaptedBench) -> None:
    with pytest.raises(NotFoundError, match="there is no job") as refused:
        await made.bench.parts.jobs.create(NewJob(drafted(made, ModelSpec(from_job=digest("nobody")[:32]))))
    assert refused.value.field == "serve.draft"


@pytest.mark.parametrize(
    ("serve", "said"),
    [
        ({"draft": {"preset": "nano"}}, "a model that has learnt"),
        ({"draft": {}}, "name a job in serve.draft.from_job"),
        ({"draft": {"from_job": "ab" * 16}, "stages": 1}, "serve.stages is 1"),
        ({"draft": {"from_job": "ab" * 16}, "draft_tokenizer": "a" * 64}, r"serve\.draft_tokenizer is of weights"),
        ({"draft_tokenizer": "a" * 64}, r"serve\.draft_tokenizer is of weights"),
    ],
)
def test_a_document_whose_draft_cannot_be_is_refused(serve: dict[str, Any], said: str) -> None:
    with pytest.raises(MessageError, match=said):
        convert(serve, ServeSpec)


def test_its_memory_is_counted_for_the_first_of_several_nodes(folder: Path) -> None:
    config = msgspec.json.decode((folder / "config.json").read_bytes())
    shape = inspect_config(config)
    draft = inspect_config(config | {"num_hidden_layers": 1})
    with_it, without = HeldModel(shape, 64, draft=draft), HeldModel(shape, 64)
    cut = (Layers(0, 1), Layers(1, shape.layers))
    found, plain = rules.needed(with_it, cut), rules.needed(without, cut)
    token = 2 * draft.kv_heads * draft.head_dim * 4
    weights, cache = rules.draft_bytes(draft, 64)
    assert (weights, cache) == (4 * draft.parameters, token * draft_tokens(token, 64))
    assert found["card"][0] - plain["card"][0] == weights + cache
    assert found["main"][0] - plain["main"][0] == int(1.25 * weights) + cache
    assert found["beside"][0] - plain["beside"][0] == int(1.25 * weights)
    assert [found[kind][1] for kind in found] == [plain[kind][1] for kind in plain]
    whole = (Layers(0, shape.layers),)
    assert rules.needed(with_it, whole) == rules.needed(without, whole)


async def test_who_is_given_which_files() -> None:
    bench = Deployed()
    await bench.come(1, memory_mb=MB)
    job = await bench.stored(await bench.deploy())
    files = {name: digest(name) for name in ("config.json", MODEL_ARCHIVE, SMALL_ARCHIVE, WEIGHT_INDEX, DRAFT_ARCHIVE)}
    job = msgspec.structs.replace(job, files=files)
    got: dict[tuple[int, int], set[str]] = {
        (stages, stage): set(folder_of(job, stages, stage)) for stages in (1, 2, 3) for stage in range(stages)
    }
    assert {seat for seat, names in got.items() if DRAFT_ARCHIVE in names} == {(2, 0), (3, 0)}
    cut = msgspec.structs.replace(job, files={"config.json": Digest("a" * 64), DRAFT_ARCHIVE: Digest("b" * 64)})
    assert set(folder_of(cut, 1, 0)) == {"config.json"}

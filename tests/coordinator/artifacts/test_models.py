"""The trainer's tools as processes: real preparation, and clear words when data cannot be used."""

import hashlib
import json
import sys
import zipfile
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tokenizers import Tokenizer, models, pre_tokenizers

from common.clock import SystemClock
from coordinator.client.errors import ProblemError
from coordinator.client.line import is_passing
from coordinator.errors import InvalidError, TookTooLongError, UnavailableError
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.file_ownership import FileOwnership, sources
from coordinator.services.artifacts.model_archives import pack
from coordinator.services.artifacts.model_cards import card_facts
from coordinator.services.artifacts.models import TrainerTools
from coordinator.store.memory import MemoryStore
from coordinator.store.records import RoundRecord
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TokenizerSpec
from protocol.models.model import ENDS_WITH, PRESETS
from protocol.models.weights import WeightIndex
from protocol.rest.api import NewUpload
from protocol.rest.dataset import CheckRequest
from protocol.task import PreferenceScore
from tests.coordinator.fakes import spec
from tests.coordinator.jobs.test_standing import JOB
from tests.support.special_tokens import KNOWN, written
from trainer.data.marks import BEGINS, UNLEARNT
from trainer.export.metrics_export import write_curve


def tools(tmp_path: Path, seconds: float = 60.0) -> tuple[DiskArtifacts, TrainerTools]:
    artifacts = DiskArtifacts(tmp_path / "artifacts")
    return artifacts, TrainerTools(artifacts, tmp_path / "scratch", seconds, 4096)


async def document(artifacts: ArtifactStore, tmp_path: Path, content: bytes) -> JobSpec:
    path = tmp_path / "data.txt"
    path.write_bytes(content)
    return msgspec.structs.replace(spec(), dataset=DatasetSpec(await artifacts.put_file(path)))


def test_the_curve_of_a_finished_model_lies_over_all_tokens_until_each_round(tmp_path: Path) -> None:
    first = RoundRecord(JOB.id, 1, 0, "complete", None, 0, 1, 2, 0.0, ended=1.0, tokens=40, train_loss=3.0)  # type: ignore[arg-type]
    rounds = [
        msgspec.structs.replace(first, number=number, tokens=tokens) for number, tokens in enumerate((40, 40, 20))
    ]
    told = card_facts(JOB, rounds)["rounds"]
    assert [row["tokens"] for row in told] == [40, 80, 100]
    write_curve(told, tmp_path)
    read = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert [point.step for point in read.Scalars("loss/train")] == [40, 80, 100]
    assert "accuracy" not in told[0]


def test_a_finished_model_says_how_it_tells_held_out_answers_apart(tmp_path: Path) -> None:
    score = PreferenceScore(0.875, 1.25)
    over = RoundRecord(JOB.id, 1, 0, "complete", None, 0, 1, 2, 0.0, ended=1.0, tokens=40, preference=score)  # type: ignore[arg-type]
    told = card_facts(msgspec.structs.replace(JOB, preference=score), [over])
    assert (told["accuracy"], told["margin"]) == (0.875, 1.25)
    write_curve(told["rounds"], tmp_path, answers=True)
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["accuracy"], row["margin"]) == (0.875, 1.25)
    read = EventAccumulator(str(tmp_path / "logs")).Reload()
    assert [(p.step, p.value) for p in read.Scalars("accuracy/validation")] == [(40, 0.875)]
    assert [p.value for p in read.Scalars("margin/validation")] == [1.25]


@pytest.mark.parametrize(("called", "name"), [("my own.json", "my own.json"), ("", "the tokenizer's file")])
async def test_a_tokenizer_that_is_none_is_told_of_by_its_name(tmp_path: Path, called: str, name: str) -> None:
    artifacts, workshop = tools(tmp_path)
    asked = await document(artifacts, tmp_path, b"all work and no play\n" * 500)
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    file = await artifacts.put_file(tmp_path / "tokenizer.json")
    asked = msgspec.structs.replace(asked, tokenizer=TokenizerSpec("file", file=file))
    with pytest.raises(InvalidError) as refused:
        await workshop.prepare(asked, "data.txt", {file: called})
    assert refused.value.detail.startswith(f"{name} is no tokenizer.json: it has no vocabulary")
    with pytest.raises(InvalidError, match=r"^the tokenizer's file is no tokenizer\.json: it has no vocabulary"):
        await workshop.inspect(CheckRequest(asked.dataset, asked.tokenizer), lambda _: None, "data.txt")


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        (models.WordLevel({"all": 0, "work": 1}, unk_token="[UNK]"), "the word 'and'"),
        (models.WordPiece({"all": 0, "work": 1}, unk_token="[UNK]"), "the word 'and'"),
        (models.Unigram([("all", -1.0), ("work", -2.0), ("a", -3.0)]), "the character 'l' (U+006C)"),
        (models.BPE({"a": 0, "l": 1}, [], unk_token="[UNK]"), "the character 'w' (U+0077)"),
    ],
)
async def test_a_tokenizer_without_a_token_for_unknown_words_is_told_as_that(
    tmp_path: Path, model: models.Model, unknown: str
) -> None:
    artifacts, workshop = tools(tmp_path)
    asked = await document(artifacts, tmp_path, b"all work and no play\n" * 500)
    made = Tokenizer(model)
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    file = await artifacts.put_file(tmp_path / "tokenizer.json")
    asked = msgspec.structs.replace(asked, tokenizer=TokenizerSpec("file", file=file))
    with pytest.raises(InvalidError) as refused:
        await workshop.prepare(asked, "data.txt", {file: "mine.json"})
    assert refused.value.detail == (
        f"mine.json has no token for {unknown} in document 1 ('all work and no play all work and no pla…'), and none for "
        "unknown words: add one to its vocabulary and name it as unk_token (unk_id), take such documents out, or choose "
        "another tokenizer, such as tokenizer.kind bytes"
    )


CRASHES = {
    "echo 'File \"/srv/secret/prepare.py\", line 150' >&2; echo 'Exception: oh' >&2; exit 1": "making the dataset ready failed, "
    "and the coordinator's log says why: try again, choose other files, or tell its operator",
    "echo '  /srv/secret/prepare.py' >&2; echo MemoryError >&2; exit 1": "making the dataset ready needs more memory than there "
    "is for it here: try a smaller file or another tokenizer, or ask the operator",
    "echo '/srv/secret/prepare.py memory allocation of 8589934592 bytes failed' >&2; kill -6 $$": "making the dataset ready "
    "needs more memory than there is for it here: try a smaller file or another tokenizer, or ask the operator",
    "echo /srv/secret/prepare.py >&2; kill -9 $$": "making the dataset ready needs more memory than there is for it here: "
    "try a smaller file or another tokenizer, or ask the operator",
}


@pytest.mark.parametrize("script", CRASHES)
async def test_a_tool_that_crashes_is_told_in_a_sentence_and_the_log_has_the_rest(
    tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    artifacts, workshop = tools(tmp_path)
    asked = await document(artifacts, tmp_path, b"all work and no play\n" * 500)
    (tmp_path / "tool").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "tool").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "tool"))
    with pytest.raises((UnavailableError, InvalidError)) as failed:
        await workshop.prepare(asked)
    again = "emory" not in script  # The same files would want as much memory: no client asks for that by itself.
    assert isinstance(failed.value, UnavailableError if again else InvalidError)
    assert failed.value.detail == CRASHES[script]
    assert "/srv/secret/prepare.py" in caplog.text


@pytest.mark.parametrize("verb", ["prepare", "check"])
async def test_a_tool_whose_time_is_over_says_what_takes_less_and_is_not_asked_again(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts, workshop = tools(tmp_path, seconds=0.05)
    asked = await document(artifacts, tmp_path, b"all work and no play\n" * 500)
    (tmp_path / "tool").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "tool").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "tool"))
    said = r"the dataset.* took longer than 0\.05 s.*: take a smaller part of the file, choose a ready .*dataset\.format npy"
    looking = workshop.inspect(CheckRequest(asked.dataset, TokenizerSpec("bytes")), lambda _read: None)
    with pytest.raises(TookTooLongError, match=said) as late:
        await (looking if verb == "check" else workshop.prepare(asked))
    looking.close()
    problem = ProblemError(late.value.status, late.value.code, late.value.detail)
    assert (problem.status, problem.code, late.value.field) == (422, "took_too_long", "dataset")
    assert not is_passing(problem)


async def test_a_dataset_becomes_the_files_of_every_worker(tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    prepared = await workshop.prepare(await document(artifacts, tmp_path, b"all work and no play\n" * 500))
    assert set(prepared.files) == {"train.bin", "heldout.bin", "tokenizer.json", "config.json"}
    assert all([await artifacts.has(digest) for digest in prepared.files.values()])
    written = json.loads(artifacts.path(prepared.files["config.json"]).read_bytes())
    assert written == prepared.config
    assert written["vocab_size"] == 259
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_several_datasets_become_one_with_their_weights_and_one_is_held_out(tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    asked = await document(artifacts, tmp_path, b"all work and no play\n" * 500)
    digests = []
    for name in ("second", "judged", "none"):
        content = [b"second\n", b"judged\n", bytes(range(256))][len(digests)]
        (tmp_path / name).write_bytes(content * 300)
        digests.append(await artifacts.put_file(tmp_path / name))
    second, judged, none = digests
    both = msgspec.structs.replace(
        asked, more_datasets=(DatasetSpec(second, weight=2.0),), heldout_dataset=DatasetSpec(judged)
    )
    prepared = await workshop.prepare(both)
    train, heldout = (artifacts.path(prepared.files[name]).read_bytes() for name in ("train.bin", "heldout.bin"))
    assert (len(train), len(heldout)) == (4 * (21 * 500 + 2 * 7 * 300), 4 * 7 * 300)
    assert {digest for _, digest in sources(both)} == {asked.dataset.artifact, second, judged}
    wrong = msgspec.structs.replace(asked, more_datasets=(DatasetSpec(none),))
    with pytest.raises(InvalidError, match=r"mine\.bin"):
        await workshop.prepare(wrong, "data.txt", {none: "mine.bin"})


@pytest.mark.parametrize("name", ["llama 2", "qwen 2.5 instruct"])
async def test_the_config_says_which_token_ended_the_documents(name: str, tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    asked = await document(artifacts, tmp_path, b'{"text": "all work and no play"}\n' * 500)
    known = KNOWN[name]
    file = written(known, tmp_path / "tokenizer")
    config = dict(PRESETS["tiny-llama"]) | known.ids(known.make(), known.config)
    tokenizer = TokenizerSpec("file", file=await artifacts.put_file(file), settings=known.settings)
    prepared = await workshop.prepare(
        msgspec.structs.replace(asked, model=ModelSpec(config=config), tokenizer=tokenizer)
    )
    assert prepared.config[ENDS_WITH] == known.end
    tokens = np.fromfile(artifacts.path(prepared.files["train.bin"]), "<u4")
    held = np.fromfile(artifacts.path(prepared.files["heldout.bin"]), "<u4")
    assert np.count_nonzero(np.concatenate([tokens, held]) == known.make().token_to_id(known.end)) == 500


@pytest.mark.one_in(2)
@pytest.mark.parametrize("learn", ["answers", "all"])
async def test_conversations_become_files_with_marks_within_the_tools_memory(learn: str, tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    talk = [{"role": "user", "content": "Work?"}, {"role": "assistant", "content": "All work and no play."}]
    rows = b"".join(json.dumps({"messages": talk, "n": n}).encode() + b"\n" for n in range(500))
    asked = await document(artifacts, tmp_path, rows)
    known = KNOWN["qwen 2.5 instruct"]
    file = await artifacts.put_file(written(known, tmp_path / "tokenizer"))
    dataset = msgspec.structs.replace(asked.dataset, learn=learn)
    tokenizer = TokenizerSpec("file", file=file, settings=known.settings)
    asked = msgspec.structs.replace(asked, dataset=dataset, tokenizer=tokenizer)
    prepared = await workshop.prepare(asked)
    tokens = np.fromfile(artifacts.path(prepared.files["train.bin"]), "<u4")
    assert tokens[0] & BEGINS
    report = await workshop.inspect(CheckRequest(dataset, tokenizer, asked.training.sequence), lambda _: None)
    assert (report.content, report.problem) == ("conversations", "")
    held = np.fromfile(artifacts.path(prepared.files["heldout.bin"]), "<u4")
    assert report.learnt == sum(int((one & UNLEARNT == 0).sum()) for one in (tokens, held))
    bare = msgspec.structs.replace(asked, tokenizer=TokenizerSpec("bytes"))
    with pytest.raises(
        InvalidError, match="is a conversation, and the tokenizer has no chat template to write it with"
    ):
        await workshop.prepare(bare)


async def test_weights_of_two_shards_become_an_index_for_every_node(tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    asked = await document(artifacts, tmp_path, b"all work and no play\n" * 500)
    files, norm = [], "model.layers.{}.input_layernorm.weight"
    for number in range(2):
        (tmp_path / "shard").write_bytes(save({norm.format(number): np.full(192, number, np.float32)}))
        files.append(await artifacts.put_file(tmp_path / "shard"))
    config = dict(PRESETS["tiny-llama"]) | {"vocab_size": 300}
    prepared = await workshop.prepare(
        msgspec.structs.replace(asked, model=ModelSpec(config=config, weights=tuple(files)))
    )
    index = msgspec.json.decode(artifacts.path(prepared.files["weights.json"]).read_bytes(), type=WeightIndex)
    assert index.files == tuple(files)
    for number in range(2):
        tensor = index.tensors[norm.format(number)]
        stored = artifacts.path(index.files[tensor.file]).read_bytes()[tensor.begin : tensor.end]
        assert stored == np.full(192, number, np.float32).tobytes()
        assert hashlib.sha256(stored).hexdigest() == tensor.sha256


async def test_parquet_is_read_within_the_tools_memory(tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    pq.write_table(pa.table({"text": ["all work and no play"] * 500}), tmp_path / "data.parquet")
    dataset = DatasetSpec(await artifacts.put_file(tmp_path / "data.parquet"), "parquet")
    prepared = await workshop.prepare(msgspec.structs.replace(spec(), dataset=dataset))
    assert artifacts.path(prepared.files["train.bin"]).stat().st_size > 1000


@pytest.mark.one_in(2)
@pytest.mark.parametrize("content", [b"", b"\x00\x01\x02" * 100, b"short", b"\xff\xfe bad" * 50])
async def test_data_that_cannot_be_used_is_refused_in_the_tools_words(tmp_path: Path, content: bytes) -> None:
    artifacts, workshop = tools(tmp_path)
    with pytest.raises(InvalidError) as refused:
        await workshop.prepare(await document(artifacts, tmp_path, content))
    assert len(refused.value.detail) > 10
    assert list((tmp_path / "scratch").iterdir()) == []


async def test_a_fault_is_told_with_the_name_that_its_owner_gave_the_file(tmp_path: Path) -> None:
    artifacts, workshop = tools(tmp_path)
    job = await document(artifacts, tmp_path, b'{"text": "fine"}\n{"text": NaN}\n' * 99)
    for name, said in (("my stories.jsonl", "my stories.jsonl"), ("", "the dataset")):
        with pytest.raises(InvalidError) as refused:
            await workshop.prepare(job, name)
        assert refused.value.detail.startswith(f"row 2 of {said} has a number in the field 'text', not text")
        request = CheckRequest(DatasetSpec(job.dataset.artifact, "csv"), TokenizerSpec("bytes"))
        with pytest.raises(InvalidError, match=f"^{said} is JSON lines, not a table"):
            await workshop.inspect(request, lambda _: None, name)


async def test_a_file_has_the_name_that_each_account_gave_it_without_what_cannot_be_shown() -> None:
    files = FileOwnership(MemoryStore(), SystemClock())
    await files.keep("one", "a" * 64, NewUpload(5, "stories\x1b[31m.txt"))
    await files.keep("two", "a" * 64, NewUpload(5, "x" * 200))
    assert await files.name("one", "a" * 64) == "stories\N{REPLACEMENT CHARACTER}[31m.txt"
    assert await files.name("two", "a" * 64) == "x" * 80
    assert await files.name("three", "a" * 64) == ""


def test_the_same_folder_makes_the_same_archive(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(3000))
    pack(folder, tmp_path / "one.zip")
    pack(folder, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert zipfile.ZipFile(tmp_path / "one.zip").namelist() == ["config.json", "model.safetensors"]

"""What stands between documents: one end, found in the job, in the model's files, or known by its spelling."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.job.end_tokens import MAX_CHOICES, ends_of
from protocol.job.job import DatasetSpec, ModelSpec, TokenizerSpec
from protocol.rest.dataset import CheckRequest, DatasetReport
from tests.support.special_tokens import KNOWN, Known, marked, written
from trainer.check.report import check
from trainer.data.prepare import DatasetManifest, prepare
from trainer.errors import DataError
from trainer.formats.source import Dataset

DOCUMENTS = 380
FILE = TokenizerSpec("file")
ODD = Known(("<a>", "<b>", "<c>"), "<b>", {})


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    rows = [{"text": f"document {number} of a quick brown fox"} for number in range(DOCUMENTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def made(
    data: Path, tokenizer: Path | None, spec: TokenizerSpec = FILE, config: dict[str, Any] | None = None
) -> tuple[DatasetManifest, np.ndarray[Any, Any]]:
    """The manifest, and all tokens, those held out last."""
    out, ends = data.parent / "out", ends_of(ModelSpec(config=config))
    manifest = prepare(Dataset.of(data, "jsonl"), spec, tokenizer, 0.1, 16, out, ends)
    return manifest, np.concatenate([np.fromfile(out / f"{name}.bin", "<u4") for name in ("train", "heldout")])


def report(data: Path, tokenizer: Path, spec: TokenizerSpec = FILE, ends: tuple[int, ...] = ()) -> DatasetReport:
    dataset = DatasetSpec("0" * 64, "jsonl")
    asked = CheckRequest(dataset, spec, 16, ends)
    return check(Dataset(data, dataset, data.name), asked, tokenizer, data.parent, lambda _: None)


def doubts(found: DatasetReport) -> list[str]:
    return [str(finding.text) for finding in found.findings if finding.kind == "ends"]


@pytest.mark.parametrize("told", ["nothing", "config", "settings"])
@pytest.mark.parametrize("name", KNOWN)
def test_each_document_gets_the_end_of_its_tokenizer_once(name: str, told: str, data: Path, tmp_path: Path) -> None:
    known = KNOWN[name]
    file = written(known, tmp_path / "tokenizer")
    tokenizer = Tokenizer.from_file(str(file))
    spec = TokenizerSpec("file", settings=known.settings) if told == "settings" else FILE
    config = known.ids(tokenizer, known.config) if told == "config" else None
    manifest, tokens = made(data, file, spec, config)
    end = tokenizer.token_to_id(known.end)
    assert manifest.end == known.end
    assert np.count_nonzero(tokens == end) == DOCUMENTS
    assert tokens[-1] == end
    others = {tokenizer.token_to_id(token) for token in known.special if token != known.end}
    assert not np.isin(tokens, [*others]).any()
    texts = [tokenizer.decode(part.tolist()).strip() for part in np.split(tokens, np.flatnonzero(tokens == end) + 1)]
    assert sorted(filter(None, texts)) == sorted(f"document {n} of a quick brown fox" for n in range(DOCUMENTS))
    found = report(data, file, spec, ends_of(ModelSpec(config=config)))
    assert doubts(found) == []
    assert found.tokens == len(tokens)


def test_tokenizers_of_our_own_end_documents_as_they_always_did(data: Path) -> None:
    for spec, end in ((TokenizerSpec("bytes"), 256), (TokenizerSpec("bpe", 300), 0)):
        manifest, tokens = made(data, None, spec, {"eos_token_id": 5})
        assert manifest.end == "<|endoftext|>"
        assert np.count_nonzero(tokens == end) == DOCUMENTS


def test_the_job_has_the_first_word(data: Path, tmp_path: Path) -> None:
    file = written(KNOWN["qwen 2.5"], tmp_path / "tokenizer")
    manifest, tokens = made(data, file, TokenizerSpec("file", end="<|im_end|>"), {"eos_token_id": 0})
    assert manifest.end == "<|im_end|>"
    assert np.count_nonzero(tokens == 2) == DOCUMENTS


def test_what_the_config_names_goes_before_what_the_tokenizer_might_mean(data: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    file = tmp_path / "tokenizer" / "tokenizer.json"
    marked(KNOWN["llama 2"].make(), "<|stop|>").save(str(file))
    stop = Tokenizer.from_file(str(file)).token_to_id("<|stop|>")
    assert made(data, file, FILE, {"eos_token_id": stop})[0].end == "<|stop|>"
    assert made(data, file, TokenizerSpec("file", settings={"eos_token": {"content": "<|stop|>"}}))[0].end == "<|stop|>"
    assert made(data, file, FILE, {"eos_token_id": 10_000})[0].end == "</s>"
    assert made(data, file, FILE, {"eos_token_id": 200})[0].end == "</s>", "an ordinary token ends nothing"


def test_an_end_among_the_other_tokens_is_taken_where_config_and_spelling_agree(data: Path, tmp_path: Path) -> None:
    file = written(Known(("<unk>", "</s>"), "</s>", {}), tmp_path / "tokenizer")
    document = json.loads(file.read_text())
    document["added_tokens"] = []
    file.write_text(json.dumps(document))
    number = document["model"]["vocab"]["</s>"]
    manifest, tokens = made(data, file, config={"eos_token_id": [number, 10**6]})
    assert manifest.end == "</s>"
    assert np.count_nonzero(tokens == number) == DOCUMENTS
    for other in ({}, {"eos_token_id": number + 1}):  # The default of a class names a token that is none.
        manifest, _ = made(data, file, config=other)
        assert manifest.end is None


def test_an_end_that_the_tokenizer_has_not_is_refused_with_those_that_it_has(data: Path, tmp_path: Path) -> None:
    file = written(ODD, tmp_path / "tokenizer")
    with pytest.raises(DataError, match=r"tokenizer.end '<eos>' is no token .*special tokens are '<a>', '<b>', '<c>'"):
        made(data, file, TokenizerSpec("file", end="<eos>"))


def test_where_no_end_is_known_somebody_is_told_before_the_price(data: Path, tmp_path: Path) -> None:
    file = written(ODD, tmp_path / "tokenizer")
    (doubt,) = doubts(report(data, file))
    assert doubt.startswith("no token is known to end a document")
    assert "tokenizer.end" in doubt
    assert "'<a>', '<b>', '<c>'" in doubt
    assert made(data, file)[0].end is None
    assert doubts(report(data, file, TokenizerSpec("file", end="<b>"))) == []
    many = marked(ODD.make(), *(f"<{n}>" for n in range(1000)))
    many.save(str(file))
    assert f"and {1003 - MAX_CHOICES} more" in doubts(report(data, file))[0]


def test_where_several_fit_or_only_turns_end_somebody_is_told(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    marked(KNOWN["llama 2"].make(), "<|endoftext|>").save(str(file))
    (doubt,) = doubts(report(data, file))
    assert "'<|endoftext|>'" in doubt
    assert "'</s>'" in doubt
    assert doubts(report(data, file, ends=(2,))) == [], "the config says which"
    Known(("<|im_start|>", "<|im_end|>"), "<|im_end|>", {}).make().save(str(file))
    assert "ends a turn" in doubts(report(data, file))[0]
    assert made(data, file)[0].end == "<|im_end|>"


def test_a_document_that_has_its_end_already_gets_no_second_one(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"text": f"a quick brown fox {n}</s>"}) + "\n" for n in range(DOCUMENTS)))
    file = written(KNOWN["llama 2"], tmp_path / "tokenizer")
    _, tokens = made(data, file)
    assert np.count_nonzero(tokens == 2) == DOCUMENTS
    assert report(data, file).tokens == len(tokens)


def test_documents_are_not_cut_to_the_length_of_somebody_elses_batches(data: Path, tmp_path: Path) -> None:
    file = written(KNOWN["gpt-2"], tmp_path / "tokenizer")
    _, whole = made(data, file)
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(file))
    _, tokens = made(data, file)
    assert tokens.tolist() == whole.tolist()
    assert (data.parent / "out/tokenizer.json").read_bytes() == file.read_bytes(), "it leaves as it came"

"""Datasets made ready, and every way in which one can be unusable."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from protocol.job.job import TokenizerSpec, TrainingSpec
from trainer.__main__ import EXIT_BAD_INPUT, main
from trainer.data.data import MAX_HELDOUT_TOKENS, TokenFile, heldout_parts, micro_batches, sample_starts
from trainer.data.prepare import DatasetManifest, make_tokenizer, prepare
from trainer.data.text import pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset

TEXT = "".join(f"def function_{i}(argument):\n    return argument + {i}\n\n" for i in range(2000))
BYTES = TokenizerSpec(kind="bytes")


def run(tmp_path: Path, content: bytes | str, form: Any = "text", **options: Any) -> DatasetManifest:
    path = tmp_path / "data"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    values: dict[str, Any] = {"tokenizer": BYTES, "tokenizer_file": None, "heldout": 0.05, "sequence": 32}
    asked = {name: options.pop(name) for name in ("text_field", "encoding") if name in options}
    return prepare(Dataset.of(path, form, **asked), out=tmp_path / "out", **(values | options))


def rows(*texts: str) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def test_the_same_data_gives_the_same_files(tmp_path: Path) -> None:
    names = ("train.bin", "heldout.bin", "tokenizer.json", "manifest.json")
    seen = []
    for _ in range(2):
        run(tmp_path, TEXT, tokenizer=TokenizerSpec(vocabulary=400))
        seen.append([(tmp_path / "out" / name).read_bytes() for name in names])
    assert seen[0] == seen[1]


def test_nothing_of_the_text_is_lost(tmp_path: Path) -> None:
    manifest = run(tmp_path, TEXT + "é漢🙂")
    decode = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).decode
    texts = [decode(np.fromfile(tmp_path / "out" / f"{name}.bin", "<u4").tolist()) for name in ("train", "heldout")]
    assert sum(map(len, texts)) == len(TEXT) + 3 == manifest.characters
    assert (tmp_path / "out" / "train.bin").stat().st_size == 4 * manifest.train_tokens


def test_the_byte_tokenizer_has_259_tokens(tmp_path: Path) -> None:
    assert run(tmp_path, TEXT).vocabulary == 259


def test_a_trained_tokenizer_has_the_vocabulary_that_was_asked_for(tmp_path: Path) -> None:
    manifest = run(tmp_path, TEXT, tokenizer=TokenizerSpec(vocabulary=320))
    assert manifest.vocabulary == 320
    assert int(np.fromfile(tmp_path / "out" / "train.bin", "<u4").max()) < 320


def test_an_uploaded_tokenizer_is_taken(tmp_path: Path) -> None:
    run(tmp_path, TEXT)
    uploaded = (tmp_path / "out" / "tokenizer.json").rename(tmp_path / "mine.json")
    manifest = run(tmp_path, TEXT, tokenizer=TokenizerSpec(kind="file"), tokenizer_file=uploaded)
    assert manifest.vocabulary == 259


def test_held_out_text_comes_from_all_over_the_file(tmp_path: Path) -> None:
    manifest = run(tmp_path, TEXT, heldout=0.1)
    share = manifest.heldout_tokens / (manifest.heldout_tokens + manifest.train_tokens)
    assert share == pytest.approx(0.1, abs=0.05)
    decode = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json")).decode
    held = decode(np.fromfile(tmp_path / "out" / "heldout.bin", "<u4").tolist())
    thousands = {
        int(word) // 500 for word in held.replace("function_", " ").replace("(", " ").split() if word.isdigit()
    }
    assert thousands == {0, 1, 2, 3}


def test_documents_of_jsonl_end_with_the_end_of_text(tmp_path: Path) -> None:
    manifest = run(tmp_path, rows(*["hello there, this is a row"] * 100), "jsonl")
    assert manifest.rows == 100
    assert np.fromfile(tmp_path / "out" / "train.bin", "<u4").tolist().count(256) == 95


def test_another_field_can_be_named(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"body": "words enough for a row", "text": 5}) + "\n" for _ in range(100))
    assert run(tmp_path, lines, "jsonl", text_field="body").rows == 100


@pytest.mark.parametrize(
    ("content", "form", "code", "words"),
    [
        (b"", "text", "empty-dataset", "is empty"),
        (b"", "jsonl", "empty-dataset", "is empty"),
        (b"\n\n\n", "jsonl", "empty-dataset", "no text"),
        (b"\xef\xbb\xbf", "text", "empty-dataset", "no text"),
        (b"\x7fELF\0\0\0\1" * 100, "text", "binary-dataset", "a program, not text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40, "text", "binary-dataset", "a picture, not text"),
        (b"text\1\2\3\4\5\6" * 100, "text", "binary-dataset", "binary"),
        (
            TEXT.encode() + b"caf\xe9 \n" + TEXT.encode(),
            "text",
            "bad-encoding",
            "line 6,001 of data is not UTF-8: byte 4 of it is E9",
        ),
        (TEXT.encode() + b"\xe2\x82", "text", "bad-encoding", "UTF-8"),
        ("too short", "text", "too-short", "tokens"),
        (rows("fine") + "{broken\n", "jsonl", "bad-row", "row 2"),
        (rows("fine", "fine") + "[1, 2]\n", "jsonl", "bad-row", "row 3"),
        (rows("fine") + '{"body": "x"}\n', "jsonl", "no-field", "its fields are 'body'"),
        (rows("fine") + '{"text": 5}\n', "jsonl", "bad-row", "row 2"),
        (b'{"text": "caf\xe9"}\n', "jsonl", "bad-encoding", "row 1"),
        (b'{"text": "\0\xff"}\n', "jsonl", "bad-encoding", "row 1"),
        ("[" * 200_000, "jsonl", "bad-row", "row 1"),
    ],
)
def test_an_unusable_dataset_is_named(tmp_path: Path, content: bytes | str, form: str, code: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        run(tmp_path, content, form)
    assert caught.value.code == code
    assert not list(tmp_path.glob("out/*.bin*")), "nothing is left half done"


def test_a_gigantic_row_is_refused_before_it_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.formats.documents.MAX_ROW_BYTES", 1000)
    monkeypatch.setattr("trainer.formats.rows.MAX_ROW_BYTES", 1000)
    with pytest.raises(DataError, match=r"row 2 .* more than 1,000 bytes"):
        run(tmp_path, rows("fine", "x" * 2000), "jsonl")


def test_a_gigantic_dataset_is_refused_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.formats.source.MAX_DATASET_BYTES", 1000)
    with pytest.raises(DataError, match="at most 1,000 are taken") as caught:
        run(tmp_path, TEXT)
    assert caught.value.code == "too-large"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere cannot be read") as caught:
        prepare(Dataset.of(tmp_path / "nowhere", "text"), BYTES, None, 0.05, 32, tmp_path / "out")
    assert caught.value.code == "missing-file"


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"model": {"type": "Nonsense"}}'])
def test_a_broken_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(DataError) as caught:
        run(tmp_path, TEXT, tokenizer=TokenizerSpec(kind="file"), tokenizer_file=tmp_path / "t.json")
    assert caught.value.code == "bad-tokenizer"
    assert caught.value.detail.startswith("t.json is no tokenizer.json: ")


@pytest.mark.parametrize(
    ("content", "lack"),
    [
        (b'{"model": {"type": "BPE", "voc', "it is not JSON, or was cut"),
        (b'{"chat_template": ""}', "it has no vocabulary under 'model'"),
        (b'{"model": {"type": "Nonsense"}}', "a part of it is incomplete, or of a kind that is not known here"),
    ],
)
def test_a_broken_tokenizer_is_called_as_its_owner_calls_it(tmp_path: Path, content: bytes, lack: str) -> None:
    file = tmp_path / ("5a" * 32)
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        make_tokenizer(TokenizerSpec(kind="file"), file, lambda: iter(()), called="my own.json")
    assert caught.value.detail.startswith(f"my own.json is no tokenizer.json: {lack}")
    assert not re.search(r"5a5a|line \d|column \d|variant", caught.value.detail)


def test_a_long_text_without_line_ends_is_cut_all_the_same(tmp_path: Path) -> None:
    manifest = run(tmp_path, "word " * 100_000)
    assert manifest.rows > 20


def test_the_command_line_answers_bad_data_with_code_3_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    arguments = ["prepare", "--dataset", str(tmp_path / "empty"), "--sequence", "8", "--out", str(tmp_path / "o")]
    assert main(arguments) == EXIT_BAD_INPUT == 3
    assert json.loads(capsys.readouterr().err) == {
        "code": "empty-dataset",
        "detail": "empty is empty: upload a file with text in it",
    }


def test_the_command_line_takes_the_jobs_tokenizer_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, TEXT)
    uploaded = (tmp_path / "out" / "tokenizer.json").rename(tmp_path / "mine.json")
    arguments = ["prepare", "--dataset", str(tmp_path / "data"), "--sequence", "8", "--out", str(tmp_path / "out")]
    for section, vocabulary in [
        ({"kind": "file", "path": str(uploaded)}, 259),
        ({"kind": "bpe", "vocabulary": 310}, 310),
    ]:
        (tmp_path / "spec.json").write_text(json.dumps(section))
        assert main([*arguments, "--tokenizer", str(tmp_path / "spec.json")]) == 0
        assert json.loads(capsys.readouterr().out)["vocabulary"] == vocabulary
    (tmp_path / "spec.json").write_text('{"kind": "words"}')
    assert main([*arguments, "--tokenizer", str(tmp_path / "spec.json")]) == EXIT_BAD_INPUT


def test_preparing_never_imports_torch() -> None:
    code = "import sys, trainer.__main__, trainer.data.prepare, trainer.export.assemble; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# --- token files ------------------------------------------------------------------------------------------------------


def test_samples_follow_from_seed_step_and_replica_alone(tokens: TokenFile) -> None:
    windows, digest = tokens.sample(7, 3, 1, 4)
    again, same = tokens.sample(7, 3, 1, 8)
    assert windows.shape == (4, 17)
    assert np.array_equal(windows, again[:4])
    assert digest != same
    others = {tokens.sample(*key, 4)[1] for key in [(8, 3, 1), (7, 4, 1), (7, 3, 0), (7, 31, 1)]}
    assert len(others | {digest}) == 5


def test_samples_are_the_same_for_ever() -> None:
    assert sample_starts(7, 3, 1, 4, 1000).tolist() == [349, 733, 1, 625]  # Another order would void every replay.


def test_samples_cover_all_positions() -> None:
    starts = np.concatenate([sample_starts(0, step, 0, 64, 10) for step in range(50)])
    assert np.bincount(starts, minlength=10).min() > 250


@pytest.mark.parametrize(
    ("batch", "parts", "sizes"), [(16, 4, [4] * 4), (5, 3, [1, 2, 2]), (2, 8, [1, 1]), (1, 1, [1])]
)
def test_micro_batches_are_near_equal_and_never_empty(batch: int, parts: int, sizes: list[int]) -> None:
    cuts = micro_batches(TrainingSpec(batch=batch, micro_batches=parts))
    assert [cut.stop - cut.start for cut in cuts] == sizes
    assert [cut.start for cut in cuts[1:]] == [cut.stop for cut in cuts[:-1]]


def test_held_out_windows_do_not_overlap_and_are_bounded(tmp_path: Path) -> None:
    np.arange(200_000, dtype="<u4").tofile(tmp_path / "h")
    windows = TokenFile(tmp_path / "h", 128, 200_000).heldout()
    assert windows.shape == (MAX_HELDOUT_TOKENS // 128, 129)
    assert bool((np.diff(windows[:, 0]) >= 128).all())
    assert sum(len(part) for part in heldout_parts(TokenFile(tmp_path / "h", 128, 200_000), TrainingSpec())) == 128


def _short(path: Path) -> None:
    np.arange(16, dtype="<u4").tofile(path)


def _odd(path: Path) -> None:
    path.write_bytes(b"\0" * 101)


def _missing(path: Path) -> None:
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(("make", "code"), [(_short, "too-short"), (_odd, "too-short"), (_missing, "missing-file")])
def test_an_unusable_token_file_is_named(tmp_path: Path, make: Callable[[Path], None], code: str) -> None:
    make(tmp_path / "tokens.bin")
    with pytest.raises(DataError, match=r"tokens\.bin") as caught:
        TokenFile(tmp_path / "tokens.bin", 16, 300)
    assert caught.value.code == code


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    np.full(100, 300, dtype="<u4").tofile(tmp_path / "t")
    with pytest.raises(DataError, match="token 300, the vocabulary has 300"):
        TokenFile(tmp_path / "t", 16, 300).sample(0, 0, 0, 4)


@settings(deadline=None, max_examples=60)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=3000), size=st.integers(1, 200))
def test_pieces_put_together_are_the_text(text: str, size: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("text") / "data"
    path.write_text("x" + text, "utf-8", newline="")
    parts = list(pieces(Dataset.of(path, "text"), size))
    assert "".join(parts) == "x" + text
    assert all(0 < len(part) <= 2 * size for part in parts)


@settings(deadline=None, max_examples=100)
@given(noise=st.binary(max_size=400), form=st.sampled_from(["text", "jsonl"]))
def test_any_bytes_are_text_or_refused_in_words(
    noise: bytes, form: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("noise") / "data"
    path.write_bytes(noise)
    code = "none"
    try:
        assert all(pieces(Dataset.of(path, form)))
    except DataError as error:
        code = error.code
    assert code in {
        "none",
        "empty-dataset",
        "binary-dataset",
        "bad-encoding",
        "bad-row",
        "no-field",
        "wrong-format",
        "bad-archive",
        "bad-character",
    }

"""Several datasets as one: how often each row is taken, what is held out, and what may not stand beside each other."""

import hashlib
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from protocol.job.job import TokenizerSpec
from trainer.data.marks import BEGINS, ids_of
from trainer.data.prepare import DatasetManifest, prepare
from trainer.errors import DataError
from trainer.formats.source import Dataset

SEQUENCE = 16
BYTES = TokenizerSpec(kind="bytes")


def rows(folder: Path, name: str, texts: list[str], **wanted: Any) -> Dataset:
    path = folder / name
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Dataset.of(path, "jsonl", **wanted)


def talks(folder: Path, name: str, said: list[str], **wanted: Any) -> Dataset:
    path = folder / name
    path.write_text("".join(json.dumps({"prompt": "q", "completion": one}) + "\n" for one in said))
    return Dataset.of(path, "jsonl", **wanted)


def made(folder: Path, *datasets: Dataset, heldout: float = 0.1, **more: Any) -> DatasetManifest:
    first, *others = datasets
    return prepare(first, BYTES, None, heldout, SEQUENCE, folder / "out", more=others, **more)


def counted(folder: Path, name: str) -> Counter[str]:
    """How often each document is in a file."""
    tokenizer = Tokenizer.from_file(str(folder / "out/tokenizer.json"))
    ids = np.fromfile(folder / f"out/{name}.bin", dtype="<u4").astype(np.int64)
    text = tokenizer.decode(ids_of(ids).tolist(), skip_special_tokens=False)
    if ids[0] & BEGINS:
        starts = [*np.flatnonzero(ids & BEGINS).tolist(), len(ids)]
        parts = [tokenizer.decode(ids_of(ids[a:b]).tolist()) for a, b in pairwise(starts)]
        return Counter(part for part in parts if "text" in part)  # And not what fills a window.
    return Counter(part for part in text.split("<|endoftext|>") if part)


def some(letter: str, count: int) -> list[str]:
    return [f"{letter}{number:03} of a text" for number in range(count)]


def test_one_dataset_of_weight_one_has_the_bytes_that_it_had(tmp_path: Path) -> None:
    manifest = made(tmp_path, rows(tmp_path, "a", some("a", 200)))
    train, held = counted(tmp_path, "train"), counted(tmp_path, "heldout")
    assert set(train.values()) == set(held.values()) == {1}
    assert list(held) == [f"a{number:03} of a text" for number in range(5, 200, 10)]
    assert (manifest.rows, len(train)) == (200, 180)
    text = "".join(f"a{number:03} of a text<|endoftext|>" for number in range(200) if number % 10 != 5)
    tokenizer = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    expected = np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype="<u4").tobytes()
    assert manifest.train_sha256 == hashlib.sha256(expected).hexdigest()


@pytest.mark.parametrize("kind", [rows, talks], ids=["texts", "conversations"])
@pytest.mark.parametrize("weight", [0.25, 0.5, 1.0, 2.0, 2.5])
def test_a_weight_is_how_often_rows_are_taken_and_those_held_out_are_once(
    kind: Any, weight: float, tmp_path: Path
) -> None:
    first = kind(tmp_path, "a", some("a", 200))
    manifest = made(tmp_path, first, kind(tmp_path, "b", some("b", 100), weight=weight))
    train, held = counted(tmp_path, "train"), counted(tmp_path, "heldout")
    own = Counter({text: count for text, count in train.items() if "b" in text.split(" ")[0]})
    assert sum(own.values()) == int(90 * weight)
    assert set(own.values()) <= {int(weight) or 1, int(np.ceil(weight))}
    assert sum(train.values()) - sum(own.values()) == 180
    assert sum(held.values()) == 30
    assert not train.keys() & held.keys()
    assert manifest.rows == 30 + 180 + min(90, int(90 * weight)), "a row counts once"


def test_a_share_is_taken_from_everywhere(tmp_path: Path) -> None:
    made(tmp_path, rows(tmp_path, "a", some("a", 100), weight=0.5))
    numbers = sorted(int(text[1:4]) for text in counted(tmp_path, "train"))
    assert len(numbers) == 45
    assert max(np.diff(numbers)) <= 4


@pytest.mark.parametrize("kind", [rows, talks], ids=["texts", "conversations"])
def test_a_dataset_of_its_own_is_judged_and_nothing_of_it_is_learnt(kind: Any, tmp_path: Path) -> None:
    judged = kind(tmp_path, "held", [*some("h", 20), "a007 of a text"])
    made(tmp_path, kind(tmp_path, "a", some("a", 100), weight=2.0), judged=judged)
    train, held = counted(tmp_path, "train"), counted(tmp_path, "heldout")
    assert sum(held.values()) == 21
    assert all(count == 1 for count in held.values())
    assert sum(train.values()) == 2 * 99, "what is judged is left out of the others"
    assert not any("a007" in text for text in train)


def test_token_ids_are_mixed_too(tmp_path: Path) -> None:
    names = []
    for name, start, weight in (("a.bin", 0, 1.0), ("b.bin", 100, 2.0)):
        np.arange(start, start + 100, dtype="<u2").repeat(64).tofile(tmp_path / name)
        names.append(Dataset.of(tmp_path / name, "uint16", weight=weight))
    made(tmp_path, *names)
    train = np.fromfile(tmp_path / "out/train.bin", dtype="<u4")
    assert int((train >= 100).sum()) == 2 * int((train < 100).sum()) > 0


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (talks, "a has texts, and b has conversations"),
        (lambda folder, name, _: Dataset.of(_ids(folder / name), "uint16"), "a has texts, and b has token ids"),
    ],
)
def test_rows_of_two_kinds_are_refused_by_the_names_of_their_files(other: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=words):
        made(tmp_path, rows(tmp_path, "a", some("a", 100)), other(tmp_path, "b", some("b", 50)))
    with pytest.raises(DataError, match=words):
        made(tmp_path, rows(tmp_path, "a", some("a", 100)), judged=other(tmp_path, "b", some("b", 50)))
    assert not (tmp_path / "out" / "train.bin").exists()


def _ids(path: Path) -> Path:
    np.zeros(500, dtype="<u2").tofile(path)
    return path


def test_a_row_that_cannot_be_read_is_named_with_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "b").write_text('{"text": "one"}\n{"other": "two"}\n')
    with pytest.raises(DataError, match=r"(row|line) 2 of b"):
        made(tmp_path, rows(tmp_path, "a", some("a", 100)), Dataset.of(tmp_path / "b", "jsonl"))

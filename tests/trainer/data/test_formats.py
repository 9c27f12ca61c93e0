"""Datasets beside text and JSONL: Parquet and token ids, whole and hostile."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coordinator.errors import InvalidError
from coordinator.services.artifacts.datasets import check_form
from protocol.job.job import DatasetFormat, TokenizerSpec
from trainer.data.prepare import DatasetManifest, prepare
from trainer.data.text import pieces
from trainer.data.tokens import PIECE_TOKENS, id_pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset

IDS = np.random.default_rng(1).integers(0, 259, 30_000)
TEXTS = [f"line {number} of a story\n" for number in range(2000)]


def made(path: Path, form: DatasetFormat, folder: Path, kind: Any = "bytes") -> DatasetManifest:
    return prepare(Dataset.of(path, form), TokenizerSpec(kind=kind), None, 0.1, 16, folder)


def tokens(folder: Path) -> list[int]:
    files = [np.fromfile(folder / name, "<u4") for name in ("train.bin", "heldout.bin")]
    return sorted(np.concatenate(files).tolist())


def write_ids(path: Path) -> None:
    path.write_text("".join(json.dumps(part.tolist()) + "\n" for part in np.array_split(IDS, 60)))


WRITERS: dict[DatasetFormat, Callable[[Path], object]] = {
    "uint16": lambda path: IDS.astype("<u2").tofile(path),
    "uint32": lambda path: IDS.astype("<u4").tofile(path),
    "npy": lambda path: np.save(path.open("wb"), IDS),
    "ids": write_ids,
}


@pytest.mark.parametrize("form", WRITERS)
def test_token_ids_of_every_format_arrive_unchanged(form: DatasetFormat, tmp_path: Path) -> None:
    WRITERS[form](tmp_path / "data")
    check_form(tmp_path / "data", form)
    manifest = made(tmp_path / "data", form, tmp_path / "out")
    assert tokens(tmp_path / "out") == sorted(IDS.tolist())
    assert manifest.train_tokens + manifest.heldout_tokens == len(IDS)
    assert 0.05 < manifest.heldout_tokens / len(IDS) < 0.2
    assert manifest.vocabulary == 259


@pytest.mark.parametrize("form", ["uint16", "uint32", "npy"])
def test_held_out_pieces_come_from_all_over_the_file(form: DatasetFormat, tmp_path: Path) -> None:
    counting = np.arange(200_000) % 259
    (np.save if form == "npy" else lambda path, ids: ids.astype({"uint16": "<u2"}.get(form, "<u4")).tofile(path))(
        tmp_path / "data.npy", counting
    )
    found = list(id_pieces(Dataset.of(tmp_path / "data.npy", form), 259))
    assert [len(piece) for piece in found[:-1]] == [PIECE_TOKENS] * (len(found) - 1)
    assert np.array_equal(np.concatenate(found), counting)


@pytest.mark.parametrize("dtype", ["i8", "u1", "i2", "u8", ">u2"])
def test_any_whole_numbers_of_numpy_are_read(dtype: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", (IDS % 100).reshape(300, 100).astype(dtype))
    assert np.array_equal(np.concatenate(list(id_pieces(Dataset.of(tmp_path / "a.npy"), 259))), IDS % 100)


def npy_bytes(header: str) -> bytes:
    text = header.encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\0" * 64


@pytest.mark.parametrize(
    ("form", "data", "code"),
    [
        ("uint16", b"", "empty-dataset"),
        ("uint16", b"abc", "bad-length"),
        ("uint32", b"abcdef", "bad-length"),
        ("uint16", b"\xff\xff" * 100, "bad-token"),
        ("npy", b"nonsense, really", "wrong-format"),
        ("npy", b"\x93NUMPY\x09\x00", "bad-npy"),
        ("npy", npy_bytes("{'descr': '|O', 'fortran_order': False, 'shape': (8,), }"), "bad-npy"),
        ("npy", npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (16,), }"), "bad-npy"),
        ("npy", npy_bytes("{'descr': '<u4', 'fortran_order': False, 'shape': (99999999999999,), }"), "bad-npy"),
        ("npy", npy_bytes("{'descr': '<u4', 'fortran_order': False, 'shape': (-16,), }"), "bad-npy"),
        ("npy", npy_bytes("{'descr': '<u4', 'fortran_order': True, 'shape': (4, 4), }"), "bad-npy"),
        ("npy", npy_bytes("{'descr': [('a', '<u4')], 'fortran_order': False, 'shape': (16,), }"), "bad-npy"),
        ("npy", npy_bytes("__import__('os').abort()"), "bad-npy"),
        ("ids", b"{}\n", "wrong-format"),
        ("ids", b"[1, 2.5]\n", "bad-row"),
        ("ids", b"[1, true]\n", "bad-row"),
        ("ids", b"[1, -1]\n", "bad-token"),
        ("ids", b"[1, 99999999999999999999999]\n", "bad-row"),
        ("ids", b"[1, 300]\n", "bad-token"),
        ("ids", b"[" * 100_000 + b"\n", "bad-row"),
        ("ids", b"\xff\xfe\n", "bad-row"),
        ("ids", b"\n\n", "empty-dataset"),
    ],
)
def test_ids_that_cannot_be_are_refused_by_name(form: DatasetFormat, data: bytes, code: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(data)
    with pytest.raises(DataError) as caught:
        made(tmp_path / "data", form, tmp_path / "out")
    assert caught.value.code == code
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_ids_need_the_tokenizer_that_made_them(tmp_path: Path) -> None:
    WRITERS["uint16"](tmp_path / "data")
    with pytest.raises(DataError, match=r"tokenizer\.kind file"):
        made(tmp_path / "data", "uint16", tmp_path / "out", "bpe")


# --- Parquet ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_the_texts_of_parquet_are_those_of_jsonl(kind: pa.DataType, tmp_path: Path) -> None:
    table = pa.table({"other": list(range(2000)), "text": pa.array(TEXTS, pa.string()).cast(kind)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=300)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    check_form(tmp_path / "a.parquet", "parquet")
    one, two = (made(tmp_path / f"a.{form}", form, tmp_path / form) for form in ("parquet", "jsonl"))
    assert (one.train_sha256, one.heldout_sha256, one.rows) == (two.train_sha256, two.heldout_sha256, two.rows)


def test_nulls_and_empty_texts_are_left_out(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", None, "", "b"]}), tmp_path / "a.parquet")
    assert list(pieces(Dataset.of(tmp_path / "a.parquet"))) == ["a", "b"]


@pytest.mark.parametrize("before", [b"\n", b"\r\n\n\n"])
def test_empty_lines_before_the_names_of_columns_are_skipped(before: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(before + b"id,text\n1,one\n2,two\n")
    assert list(pieces(Dataset.of(tmp_path / "a.csv", "csv"))) == ["one", "two"]


def test_a_first_line_without_names_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b",\nx,y\n")
    with pytest.raises(DataError) as refused:
        list(pieces(Dataset.of(tmp_path / "a.csv", "csv")))
    assert refused.value.detail == "a.csv names no column in its first line: write the names there, 'text' among them"


def test_another_column_can_hold_the_text(tmp_path: Path) -> None:
    pq.write_table(pa.table({"content": ["a", "b"], "text": [1, 2]}), tmp_path / "a.parquet")
    assert list(pieces(Dataset.of(tmp_path / "a.parquet", text_field="content"))) == ["a", "b"]
    with pytest.raises(DataError, match="holds numbers, not text"):
        list(pieces(Dataset.of(tmp_path / "a.parquet")))
    with pytest.raises(DataError, match="those with text are 'content'"):
        list(pieces(Dataset.of(tmp_path / "a.parquet", text_field="story")))


@pytest.mark.parametrize("damage", ["cut", "middle", "footer", "nothing", "words"])
def test_a_broken_parquet_file_is_refused(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS}), path, compression="snappy")
    data = bytearray(path.read_bytes())
    match damage:
        case "cut":
            data = data[: len(data) // 2]
        case "middle":
            data[50:2000] = b"\xff" * 1950
        case "footer":
            data[-200:-8] = b"\x7f" * 192
        case "nothing":
            data = bytearray()
        case "words":
            data = bytearray(b"PAR1 and then words that are no Parquet PAR1")
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        list(pieces(Dataset.of(path, "parquet")))
    assert caught.value.code in ("bad-parquet", "empty-dataset")


@pytest.mark.parametrize(
    ("form", "data", "words"),
    [
        ("parquet", b"PAR1" + b"x" * 20, "does not end with PAR1: it is cut"),
        ("parquet", b"x", "plain text, not Parquet"),
        ("npy", b"12345678", "plain text, not a NumPy array"),
        ("ids", b'{"text": 1}', "is JSON lines, not token ids"),
        ("uint16", b"123", "whole number"),
        ("uint32", b"PAR1" + b"x" * 20, "choose the format parquet"),
        ("text", b"%PDF-1.7 x", "this is a PDF: extract its text first"),
        ("auto", b"%PDF-1.7 x", "this is a PDF: extract its text first"),
        ("auto", b" \n\t", "no text"),
        ("jsonl", b'[{"text": "a"}]', "choose the format json, or auto"),
    ],
)
def test_the_door_says_what_a_file_is_not(form: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(data)
    with pytest.raises(InvalidError, match=words):
        check_form(tmp_path / "data", form)

"""Every cell of the table in docs/reference/datasets.md: what each format of a dataset can."""

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from protocol.datasets.file_formats import HEAD_BYTES, recognise, remarks, settle
from protocol.job.job import TOKENISED, TokenizerSpec
from protocol.rest.dataset import CheckRequest, DatasetReport
from tests.support.dataset_files import FEATURES, KINDS, PACK, PACKED_ENDINGS, Kind, cells, parquet_bytes, rendered
from trainer.check.report import check
from trainer.data.text import numbered, pieces
from trainer.data.tokens import id_pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "datasets.md"
TEXTS = [f"Row {number} of a story, with words; and a few more of them." for number in range(60)]
IDS = [np.random.default_rng(number).integers(0, 60_000, 50) for number in range(60)]


def each(feature: str, long: Sequence[str] = ()) -> pytest.MarkDecorator:
    assert feature in FEATURES
    kinds = [pytest.param(kind, marks=[pytest.mark.long] * (kind.words in long)) for kind in cells(feature)]
    return pytest.mark.parametrize("kind", kinds, ids=lambda kind: kind.words)


def content(kind: Kind) -> Sequence[Any]:
    return IDS if kind.form in TOKENISED else TEXTS


def read(path: Path, kind: Kind, **wanted: Any) -> list[Any]:
    """What is in a file, whatever it is called; formats that nothing in a file tells are named."""
    form = kind.form if "found by its content" in kind.lacks else "auto"
    dataset = Dataset.of(path, form, **wanted)  # type: ignore[arg-type]
    if kind.form in TOKENISED:
        return np.concatenate(list(id_pieces(dataset, 60_000))).tolist()
    return list(pieces(dataset))


def is_all(found: list[Any], kind: Kind) -> bool:
    if kind.form in TOKENISED:
        return bool(found == np.concatenate(IDS).tolist())
    return "".join(found).split("\n")[:-1] == TEXTS if kind.form == "text" else found == TEXTS


def report(path: Path, **wanted: Any) -> DatasetReport:
    dataset = Dataset.of(path, **wanted)
    (scratch := path.parent / "scratch").mkdir(exist_ok=True)
    return check(dataset, CheckRequest(dataset.spec, TokenizerSpec("bytes"), 16), None, scratch, lambda _: None)


def test_the_table_of_the_docs_is_the_one_that_is_tried_here() -> None:
    assert rendered() in DOCS.read_text()


@each("found by its content")
@pytest.mark.parametrize("name", ["{}{}", "{}", "{}.dat"])
def test_a_format_is_found_by_its_content_whatever_its_file_is_called(kind: Kind, name: str, tmp_path: Path) -> None:
    path = tmp_path / name.format("data", kind.ending)
    path.write_bytes(kind.write(content(kind)))
    assert is_all(read(path, kind), kind)


@each("told where its ending is wrong")
def test_a_wrong_ending_is_told_and_the_right_format_used(kind: Kind, tmp_path: Path) -> None:
    wrong = ".npy" if kind.form != "npy" else ".csv"
    data = kind.write(content(kind))
    found = recognise(data[:HEAD_BYTES], len(data) <= HEAD_BYTES, f"data{wrong}")
    said = "found by its content" in kind.lacks or kind.form == "text"  # Text may be anything that was spoilt.
    form = settle(found, f"data{wrong}", kind.form if said else "auto")
    assert form == kind.form
    assert [said for said in remarks(found, f"data{wrong}", form) if "whatever its ending says" in said]
    assert not remarks(found, f"data{kind.ending}", form)


@pytest.mark.parametrize(
    ("packing", "kind"),
    [(packing, kind) for packing in PACK for kind in cells(packing)],
    ids=lambda one: str(getattr(one, "words", one)),
)
def test_what_is_packed_reads_as_what_is_not(packing: str, kind: Kind, tmp_path: Path) -> None:
    data = kind.write(content(kind))
    half = len(data) // 2
    path = tmp_path / f"data{kind.ending}{PACKED_ENDINGS[packing]}"
    path.write_bytes(PACK[packing](data))
    assert is_all(read(path, kind), kind)
    path.write_bytes(PACK[packing](data[:half]) + PACK[packing](data[half:]))
    assert is_all(read(path, kind), kind), "one packed part after another"
    whole = PACK[packing](data)
    path.write_bytes(PACK[packing](data[:half]) + bytes(200_000) + PACK[packing](data[half:]) + bytes(512))
    assert is_all(read(path, kind), kind), "padding between and behind"
    path.write_bytes(whole + bytes(3) + b"<html>")
    with pytest.raises(DataError, match=f"end at byte {len(whole):,}, and '<html>' follows.*head -c {len(whole)}"):
        read(path, kind)
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(DataError, match=rf"{path.name}.* (damaged|cut)"):
        read(path, kind)


@pytest.mark.one_in(2)
@each("larger than memory", long=("token ids, JSON lines", "JSON: an object with a list", "JSON: rows by name"))
def test_a_file_is_read_in_a_fraction_of_its_size(kind: Kind, tmp_path: Path) -> None:
    if kind.form in TOKENISED:
        data, count = kind.write([np.arange(100_000) % 60_000] * 100), 10_000_000
    elif kind.form == "parquet":  # A row group at a time.
        table = pa.table({"text": [f"{number} " * 100 for number in range(60_000)]})
        data, count = parquet_bytes(table, row_group_size=1000, use_dictionary=False), 60_000
        del table
    else:
        data, count = kind.write([f"{number} " * 100 for number in range(60_000)]), 60_000
    path = tmp_path / "data"
    path.write_bytes(data)
    assert len(data) > 19_000_000 or kind.form == "parquet"
    dataset = Dataset.of(path, kind.form)  # type: ignore[arg-type]
    native = most = seen = 0
    tracemalloc.start()
    if kind.form in TOKENISED:
        seen = sum(map(len, id_pieces(dataset, 60_000)))
    else:
        for row in numbered(dataset):
            seen = row.number
            native = max(native, pa.total_allocated_bytes() if kind.form == "parquet" else 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen == count
    assert most + native < 14_000_000


@each("field within a field")
def test_a_field_within_a_field_is_named_with_a_dot(kind: Kind, tmp_path: Path) -> None:
    rows = [{"id": number, "content": {"text": text, "lang": "en"}} for number, text in enumerate(TEXTS)]
    path = tmp_path / "data"
    if kind.form == "parquet":
        path.write_bytes(parquet_bytes(pa.Table.from_pylist(rows)))
    else:
        path.write_text(nested(kind, rows))
    assert read(path, kind, text_field="content.text") == TEXTS
    with pytest.raises(DataError, match=r"'content\.text'"):
        read(path, kind, text_field="content.body")


def nested(kind: Kind, rows: Sequence[Any]) -> str:
    if kind.form == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    if kind.words == "JSON: rows by name":
        return json.dumps({f"id {number}": row for number, row in enumerate(rows)})
    return json.dumps(rows if kind.words == "JSON: a list" else {"data": rows})


@each("field's name composed or not")
@pytest.mark.parametrize("name", ["texte\u0301", "\u200btexté", " texté\xa0", "\ufefftexté", "te\u2060xte\u0301"])
def test_a_field_is_found_by_how_its_name_looks(kind: Kind, name: str, tmp_path: Path) -> None:
    rows = [{"n": 1, name: text} for text in TEXTS]
    path = tmp_path / f"data{kind.ending}"
    if kind.form == "parquet":
        path.write_bytes(parquet_bytes(pa.Table.from_pylist(rows)))
    elif kind.form == "csv":
        path.write_bytes(kind.write(TEXTS).replace(b"text", name.encode(), 1))
    else:
        path.write_text(nested(kind, rows))
    assert read(path, kind, text_field="texté") == TEXTS
    with pytest.raises(DataError, match=r"'Texté': did you mean .*\? (Its|Those)"):
        read(path, kind, text_field="Texté")


@each("null is empty")
def test_null_is_an_empty_row_and_no_error(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(kind.write([*TEXTS[:30], None, "", *TEXTS[30:]]))
    assert read(path, kind) == TEXTS
    found = {one.kind: one for one in report(path).findings}
    assert [place.row for place in found["empty"].places] == [31, 32]
    assert (found["empty"].severity, report(path).usable) == ("warning", 60)
    assert not {"bad-row", "no-field"} & set(found)


SPOILT = {
    "text": lambda data: data.replace(b"Row 7 of", b"Row \xff7 of"),
    "jsonl": lambda data: data.replace(b'"Row 7 of', b'"Row \xff7 of').replace(b'"text": "Row 9 ', b'"body": "Row 9 '),
    "json": lambda data: data.replace(b'"Row 7 of', b'"Row \xff7 of').replace(b'"text": "Row 9 ', b'"body": "Row 9 '),
    "csv": lambda data: data.replace(b"Row 7 of", b"Row \xff7 of").replace(b"\r\n9", b"\r\nnothing"),
}


@each("bad rows named and left out")
def test_bad_rows_are_named_by_file_and_number_and_can_be_left_out(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "stories"
    if kind.form == "parquet":
        texts = [text.encode() for text in TEXTS]
        texts[7] = b"Row \xff7"
        path.write_bytes(parquet_bytes(pa.table({"text": pa.array(texts, pa.binary())})))
    else:
        path.write_bytes(SPOILT[kind.form](kind.write(TEXTS)))
    with pytest.raises(DataError, match=r"(row|line) 8 of stories is not UTF-8: byte .* is FF"):
        read(path, kind)
    found = read(path, kind, faulty="skip")
    lost = [7, 9] if kind.form in ("jsonl", "json") else [7]
    kept = [text for number, text in enumerate(TEXTS) if number not in lost]
    if kind.form == "csv":
        assert len(found) in (59, 60)
    else:
        assert ("".join(found).split("\n")[:-1] if kind.form == "text" else found) == kept
    asked = report(path)
    assert next(one for one in asked.findings if one.kind == "bad-encoding").places[0].row == 8
    assert "stories" not in str(asked), "a report is of one file"


@each("line ends and quotes within a text")
def test_texts_may_hold_what_separates_them(kind: Kind, tmp_path: Path) -> None:
    texts = [*TEXTS, 'He said: "one, two;\tthree"\nand\r\nleft|there, {"a": [1]}', '"', ",;\t\n"]
    path = tmp_path / "data"
    path.write_bytes(kind.write(texts))
    assert read(path, kind) == texts


@each("UTF-16 and UTF-32, with a mark or without")
@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32", "utf-32-le", "utf-32-be"]
)
def test_the_mark_or_the_zeros_of_a_file_tell_its_encoding(kind: Kind, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / f"data{kind.ending}"
    path.write_bytes(kind.write(TEXTS).decode().encode(encoding))
    assert is_all(read(path, kind), kind)
    told = [one.text for one in report(path).findings if one.kind == "format"]
    assert [text for text in told if "UTF-16" in text or "UTF-32" in text] or encoding == "utf-8-sig"


@each("another encoding")
def test_another_encoding_is_offered_with_how_it_reads_and_taken_when_it_is_named(kind: Kind, tmp_path: Path) -> None:
    texts = [f"Le café numéro {number} était déjà fermé, où êtes-vous allés ?" for number in range(60)]
    path = tmp_path / f"data{kind.ending}"
    data = kind.write(texts) if kind.form != "json" else nested(kind, [{"text": text} for text in texts]).encode()
    if kind.form == "json":
        data = data.decode("unicode_escape").encode("latin-1").decode("latin-1").encode()
    path.write_bytes(data.decode().encode("windows-1252"))
    asked = report(path)
    assert "60 of 60 rows are not UTF-8" in asked.problem or "61 of 61" in asked.problem
    assert "in windows-1252 one reads 'Le café numéro 0 était" in asked.problem
    assert "left out" not in asked.problem
    assert "leave" not in asked.problem
    found = read(path, kind, encoding="windows-1252")
    assert ("".join(found).split("\n")[:-1] if kind.form == "text" else found) == texts


def test_every_feature_is_tried() -> None:
    tried = Path(__file__).read_text()
    for feature in FEATURES:
        assert f'@each("{feature}"' in tried or feature in PACK
    assert len(KINDS) == 14

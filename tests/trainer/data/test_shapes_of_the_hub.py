"""Datasets as the Hub has them: conversations, names with dots, rows that are all written wrong, files of other tools."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from protocol.datasets.file_formats import recognise, remarks
from trainer.data.text import numbered, pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset
from trainer.formats.talk import ChatMessages

TEXTS = [f"Row {number}: the fox ran over {number * 7} hills" for number in range(40)]
OPENAI = [{"role": "user", "content": TEXTS[0]}, {"role": "assistant", "content": TEXTS[1]}]
SHAREGPT = [{"from": "human", "value": TEXTS[0]}, {"from": "gpt", "value": TEXTS[1]}]


def parquet(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("field", ["text", "talk", "talk.content", "talk.0.content"])
@pytest.mark.parametrize("talk", [OPENAI, SHAREGPT], ids=["roles", "from"])
def test_conversations_are_found_whatever_field_is_named(talk: Any, field: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"id": "x", "talk": talk}) + "\n" for _ in TEXTS))
    stored = parquet(tmp_path / "data.parquet", {"id": ["x"], "talk": [talk]})
    for path in (tmp_path / "data.jsonl", stored):
        assert next(numbered(Dataset.of(path, text_field=field))).talk == ChatMessages(OPENAI)


def test_a_row_with_a_text_beside_its_conversation_is_read(tmp_path: Path) -> None:
    rows = [{"text": text, "messages": OPENAI, "tags": [{"role": "a"}]} for text in TEXTS]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stored = parquet(tmp_path / "data.parquet", {"text": TEXTS, "messages": [OPENAI] * len(TEXTS)})
    assert [list(pieces(Dataset.of(one))) for one in (tmp_path / "data.jsonl", stored)] == [TEXTS, TEXTS]


@pytest.mark.parametrize(
    ("field", "column", "value"),
    [
        ("a.b", "a.b", lambda text: text),
        ("a.b.c", "a", lambda text: {"b.c": text}),
        ("a.b.c", "a.b", lambda text: {"c": text, "d": 1}),
        ("a.b.c.d", "a", lambda text: {"b.c": {"d": text}}),
    ],
)
def test_names_with_dots_are_found_in_parquet_as_in_json(
    field: str, column: str, value: Callable[[str], Any], tmp_path: Path
) -> None:
    values = [value(text) for text in TEXTS]
    stored = parquet(tmp_path / "data.parquet", {"z": TEXTS[::-1], column: values})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({column: one}) + "\n" for one in values))
    for path in (stored, tmp_path / "data.jsonl"):
        assert list(pieces(Dataset.of(path, text_field=field))) == TEXTS


@pytest.mark.parametrize(
    ("row", "stands"),
    [
        ('{"text": "TEXT", "ok": True}', "'True}'"),
        ('{"text": "TEXT", "score": undefined}', "'undefined}'"),
        ('{"text": "TEXT",}', "'}'"),
        ('{"text": "TEXT", "path": "C:\\data"}', "'\\\\data\"}'"),
    ],
)
def test_lines_that_are_all_written_wrong_are_json_lines_each_with_its_fault(
    row: str, stands: str, tmp_path: Path
) -> None:
    (tmp_path / "data.jsonl").write_text("".join(row.replace("TEXT", text) + "\n" for text in TEXTS))
    dataset = Dataset.of(tmp_path / "data.jsonl")
    assert dataset.format(dataset.look()) == "jsonl"
    found = [row.text for row in numbered(dataset)]
    assert len(found) == len(TEXTS)
    assert isinstance(found[0], DataError)
    assert stands in found[0].detail


def test_objects_over_several_lines_and_several_in_a_line_stay_one_document(tmp_path: Path) -> None:
    for content in (
        "\n".join(json.dumps({"text": text}, indent=1) for text in TEXTS),
        "\n".join(
            json.dumps({"text": one}) + json.dumps({"text": two})
            for one, two in zip(TEXTS[::2], TEXTS[1::2], strict=True)
        ),
        '{\n"rows": [\n' + ",\n".join(json.dumps({"text": text}) for text in TEXTS) + "\n]\n}",
    ):
        (tmp_path / "data.json").write_text(content)
        assert list(pieces(Dataset.of(tmp_path / "data.json"))) == TEXTS


def test_files_of_other_tools_are_called_what_they_are() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("text", pa.string())])) as stream:
        stream.write_table(pa.table({"text": TEXTS}))
    noise = bytes(range(256)) * 8
    for head, words in (
        (sink.getvalue().to_pybytes(), "an Arrow stream"),
        (b"\x1f\x9d\x90" + noise, "a file of compress"),
        (b"LZIP\x01" + noise, "an lzip archive"),
        (b"\x5d\x00\x00\x80" + noise, "an old LZMA file"),
        (b"\x89LZO\x00" + noise, "an lzop archive"),
        (b"\xff\x06\x00\x00sNaPpY" + noise, "a Snappy file"),
    ):
        assert f"this is {words}" in recognise(head, True, "data").problem
    for begin, words in (("{\\rtf1\\ansi", "RTF"), ("%!PS-Adobe-3.0", "PostScript"), ("WARC/1.0\r\n", "WARC")):
        content = recognise(f"{begin} a story".encode(), True, "data.txt")
        assert any(words in said for said in remarks(content, "data.txt", "text"))

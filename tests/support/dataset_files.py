"""Datasets in every format, and the table of what each format can, as ``docs/reference/datasets.md`` shows it."""

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

PACK: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
PACKED_ENDINGS = {"gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", "xz": ".xz"}


@dataclass(frozen=True)
class Kind:
    """A format as files have it.

    Attributes:
        words: in the table.
        form: what a document calls it.
        ending: what its files are called.
        write: texts, or for ids lists of them, as bytes.
        lacks: features that it cannot have.
    """

    words: str
    form: str
    ending: str
    write: Callable[[Sequence[Any]], bytes]
    lacks: frozenset[str]


def _lines(rows: Sequence[Any]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _table(delimiter: str, **how: Any) -> Callable[[Sequence[Any]], bytes]:
    def write(texts: Sequence[Any]) -> bytes:
        sheet = io.StringIO(newline="")
        writer = csv.writer(sheet, delimiter=delimiter, **how)
        writer.writerow(["number", "text"])
        writer.writerows(enumerate("" if text is None else text for text in texts))
        return sheet.getvalue().encode()

    return write


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    """A table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def _npy(ids: Sequence[Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.concatenate(ids))
    return sink.getvalue()


GENERAL = ("found by its content", "told where its ending is wrong", *PACK, "larger than memory")
ROWS = (
    "field within a field",
    "field's name composed or not",
    "null is empty",
    "bad rows named and left out",
    "line ends and quotes within a text",
)
ENCODINGS = ("UTF-16 and UTF-32, with a mark or without", "another encoding")
FEATURES = (*GENERAL, *ROWS, *ENCODINGS)
_PLAIN = frozenset(
    {"field within a field", "field's name composed or not", "null is empty", "line ends and quotes within a text"}
)
_TABLE = frozenset({"field within a field", "null is empty"})
_IDS = frozenset({*ROWS, *ENCODINGS})
_RAW = _IDS | {"found by its content"}

KINDS = (
    Kind("plain text", "text", ".txt", lambda texts: "".join(f"{text}\n" for text in texts).encode(), _PLAIN),
    Kind(
        "JSON lines", "jsonl", ".jsonl", lambda texts: _lines([{"n": 1, "text": text} for text in texts]), frozenset()
    ),
    Kind(
        "JSON: a list",
        "json",
        ".json",
        lambda texts: json.dumps([{"text": text} for text in texts]).encode(),
        frozenset(),
    ),
    Kind(
        "JSON: an object with a list",
        "json",
        ".json",
        lambda texts: json.dumps({"version": [1], "data": [{"text": text} for text in texts]}, indent=1).encode(),
        frozenset(),
    ),
    Kind(
        "JSON: rows by name",
        "json",
        ".json",
        lambda texts: json.dumps({f"id {number}": {"text": text} for number, text in enumerate(texts)}).encode(),
        frozenset(),
    ),
    Kind("CSV, commas", "csv", ".csv", _table(","), _TABLE),
    Kind("CSV, semicolons", "csv", ".csv", _table(";"), _TABLE),
    Kind(
        "CSV, quotes with backslashes",
        "csv",
        ".csv",
        _table(",", doublequote=False, escapechar="\\", quoting=csv.QUOTE_NONNUMERIC),
        _TABLE,
    ),
    Kind("TSV", "csv", ".tsv", _table("\t"), _TABLE),
    Kind(
        "Parquet",
        "parquet",
        ".pq",
        lambda texts: parquet_bytes(pa.table({"n": range(len(texts)), "text": pa.array(texts, pa.string())})),
        frozenset(ENCODINGS),
    ),
    Kind("token ids, JSON lines", "ids", ".jsonl", lambda ids: _lines([list(map(int, row)) for row in ids]), _IDS),
    Kind("token ids, NumPy", "npy", ".npy", _npy, _IDS),
    Kind("token ids, 16 bits", "uint16", ".bin", lambda ids: np.concatenate(ids).astype("<u2").tobytes(), _RAW),
    Kind("token ids, 32 bits", "uint32", ".bin", lambda ids: np.concatenate(ids).astype("<u4").tobytes(), _RAW),
)


def cells(feature: str) -> list[Kind]:
    """The formats that have a feature."""
    return [kind for kind in KINDS if feature not in kind.lacks]


def rendered() -> str:
    """The table, as Markdown."""
    heads = [kind.words for kind in KINDS]
    lines = ["| | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]
    for feature in FEATURES:
        marks = ["yes" if feature not in kind.lacks else "–" for kind in KINDS]
        lines.append(f"| {feature} | " + " | ".join(marks) + " |")
    return "\n".join(lines)

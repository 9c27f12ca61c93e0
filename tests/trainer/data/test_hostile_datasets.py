"""Datasets that want to take all of the memory, disk or time, or to have a parser speak to people."""

import bz2
import gzip
import io
import itertools
import json
import lzma
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.job.job import TOKENISED, DatasetFormat, TokenizerSpec
from protocol.rest.dataset import CheckRequest, DatasetReport
from tests.support.dataset_files import KINDS, PACK, parquet_bytes
from trainer.check.report import check
from trainer.data.text import numbered, pieces
from trainer.data.tokens import id_pieces
from trainer.errors import DataError
from trainer.formats import documents, parquet, rows, source, tables
from trainer.formats.source import Dataset

ZEROS = b" " * (96 << 20)
TEXTS = [f"Row {number} of a story, with words; and a few more of them." for number in range(60)]
PARSERS = re.compile(
    r"Expecting|delimiter: line|malformed|truncated|Traceback|codec can't|invalid (start|continuation) byte|Unterminated|"
    r"\bchar \d|[Tt]hrift|Couldn't|zlib|Error\b|LZMA(?! file)|field (larger|limit)|"
    r"end of data|Invalid|deserialize|object at 0x|msgspec|"
    r"utf8|<class|NoneType|[0-9a-f]{64}",
)


def taken(path: Path, form: DatasetFormat = "auto", **wanted: Any) -> list[Any]:
    dataset = Dataset.of(path, form, **wanted)
    if dataset.format(dataset.look()) in TOKENISED:
        return [len(ids) for ids in id_pieces(dataset, 1 << 20)]
    return list(pieces(dataset))


def reported(path: Path, form: DatasetFormat = "auto", **wanted: Any) -> DatasetReport:
    dataset = Dataset.of(path, form, **wanted)
    (scratch := path.parent / "scratch").mkdir(exist_ok=True)
    return check(dataset, CheckRequest(dataset.spec, TokenizerSpec("bytes"), 16), None, scratch, lambda _: None)


@pytest.fixture
def peak() -> Iterator[Callable[[], int]]:
    """Bytes of memory at the most since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.mark.one_in(4)
@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("start", [b'{"text": "a"}\n', b"words\n", b'[{"text": "a"}, ', b"PAR1", b"\x93NUMPY\x01\x00"])
def test_a_bomb_is_refused_before_it_has_gone_off(
    packing: str, start: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peak: Callable[[], int]
) -> None:
    monkeypatch.setattr(source, "FREE_BYTES", 1 << 20)
    monkeypatch.setattr(source, "MAX_SPOOLED", 8 << 20)
    (tmp_path / "bomb").write_bytes(PACK[packing](start) + PACK[packing](ZEROS))
    assert (tmp_path / "bomb").stat().st_size < 200_000
    before = peak()
    with pytest.raises(DataError, match=r"bomb (unpacks to more than|is)") as refused:
        taken(tmp_path / "bomb", {b"P": "parquet", b"\x93": "npy"}.get(start[:1], "auto"))  # type: ignore[arg-type]
    assert refused.value.code in ("too-large", "bad-npy")
    assert peak() - before < 40 << 20


def test_a_file_that_needs_too_much_memory_to_unpack_says_so(tmp_path: Path) -> None:
    text = b"".join(b'{"text": "row %d"}\n' % number for number in range(9000))
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]
    (tmp_path / "a.xz").write_bytes(lzma.compress(text, filters=filters))
    wide = zstandard.ZstdCompressionParameters(window_log=30, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=wide)
    sink = io.BytesIO()
    with packer.stream_writer(sink, closefd=False) as writer:
        writer.write(text)
    (tmp_path / "a.zst").write_bytes(sink.getvalue())
    for name in ("a.xz", "a.zst"):
        with pytest.raises(DataError, match=f"{name}.* (damaged|memory)"):
            taken(tmp_path / name)


def test_a_value_that_a_small_file_repeats_without_end_is_unpacked_once_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200_000, np.int32)), pa.array(["x" * 1_000_000]))
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(pa.table({"text": column})))
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    monkeypatch.setattr(parquet, "FREE_BYTES", 1 << 20)
    before = pa.total_allocated_bytes()
    most = 0
    found = numbered(Dataset.of(tmp_path / "a.parquet"))
    for _ in itertools.islice(found, 4):
        most = max(most, pa.total_allocated_bytes() - before)
    with pytest.raises(DataError, match=r"a\.parquet unpacks to more than [0-9,]+ characters"):
        list(found)
    assert most < 70_000_000, "256 rows of it would be 256 MB"


@pytest.mark.parametrize(
    ("form", "begin", "end"),
    [
        ("jsonl", b'{"text": "', b'"}\n'),
        ("json", b'[{"text": "', b'"}]'),
        ("json", b'{"data": [{"text": "', b'"}]}'),
        ("csv", b'text,n\n"', b'",1\n'),
        ("csv", b"text,n\n", b",1\n"),
        ("text", b"", b"\n"),
    ],
)
def test_a_row_without_end_takes_no_more_memory_than_the_longest_that_is_taken(
    form: DatasetFormat,
    begin: bytes,
    end: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    peak: Callable[[], int],
) -> None:
    for module in (rows, documents, tables):
        monkeypatch.setattr(module, "MAX_ROW_BYTES", 1 << 20)
    with gzip.open(tmp_path / "a.gz", "wb", 1) as file:
        file.write(begin)
        for _ in range(64):
            file.write(b"words " * 175_000)
        file.write(end)
    found: list[Any] = []
    try:
        found = [row.text for row in numbered(Dataset.of(tmp_path / "a.gz", form))]
    except DataError as error:
        found = [error]
    assert form == "text" or any(isinstance(one, DataError) and one.code == "long-row" for one in found)
    assert peak() < (100 << 20 if form == "text" else 24 << 20)


@pytest.mark.parametrize("form", ["jsonl", "json", "ids"])
@pytest.mark.parametrize("used", [True, False])
def test_brackets_within_brackets_are_a_row_that_cannot_be_read(
    form: DatasetFormat, used: bool, tmp_path: Path
) -> None:
    deep = "[" * 200_000 + "]" * 200_000
    row = f'{{"text": "fine", "other": {deep}}}' if used else f'{{"text": {deep}}}'
    good = '{"text": "good"}'
    content = {"jsonl": f"{good}\n{row}\n", "json": f"[{good}, {row}]", "ids": f"[1]\n{deep}\n"}[form]
    (tmp_path / "a").write_text(content)
    with pytest.raises(DataError, match=r"row 2 of a has brackets within brackets"):
        taken(tmp_path / "a", form)


# --- what nobody uses does not matter -------------------------------------------------------------------------------------


UNUSED = (
    "NaN",
    "-Infinity",
    '"\\ud83d"',
    '"\\udc00 x"',
    "1" * 5000,
    "1e999",
    '{"a": [NaN, {"b": "\\ud800"}]}',
    '"\x01\0"',
    '"\there"',
)


@pytest.mark.parametrize("unused", UNUSED)
@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_what_is_wrong_in_a_field_that_nobody_uses_does_not_matter(form: str, unused: str, tmp_path: Path) -> None:
    texts = [f"row {number} {'and more words ' * 30}" for number in range(30)]
    lines = [f'{{"score": {unused}, "text": "{text}"}}' for text in texts]
    (tmp_path / "a").write_text("\n".join(lines) if form == "jsonl" else f"[{','.join(lines)}]")
    assert taken(tmp_path / "a") == texts


@pytest.mark.parametrize("escape", ["\\ud83d", "\\ude00", "a\\ud83d b", "\\ud83d\\ud83d\\ude00"])
@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_half_a_character_is_named_in_words(form: str, escape: str, tmp_path: Path) -> None:
    lines = ['{"text": "fine"}', f'{{"text": "{escape}"}}'] * 10
    (tmp_path / "tweets").write_text("\n".join(lines) if form == "jsonl" else f"[{','.join(lines)}]")
    with pytest.raises(
        DataError, match=r"row 2 of tweets has half a character \(\\ud[0-9a-f]{3}\): its other half was cut"
    ):
        taken(tmp_path / "tweets")
    assert len(taken(tmp_path / "tweets", faulty="skip")) == 10
    found = {one.kind: one for one in reported(tmp_path / "tweets").findings}
    assert (found["bad-character"].rows, found["bad-character"].severity) == (10, "error")


def test_a_whole_character_of_two_halves_is_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"text": "\\ud83d\\ude00", "n": NaN}\n' * 3)
    assert taken(tmp_path / "a") == ["😀"] * 3


def test_a_zero_is_the_same_whether_it_is_written_out_or_not_and_in_every_format(tmp_path: Path) -> None:
    text = f"zero \0 here {'and words ' * 20}"
    written = {
        "a.txt": f"{text}\n" * 30,
        "raw.jsonl": f'{{"text": "{text}"}}\n' * 30,
        "escaped.jsonl": (json.dumps({"text": text}) + "\n") * 30,
        "a.json": json.dumps([{"text": text}] * 30),
        "a.csv": "n,text\n" + f"1,{text}\n" * 30,
    }
    for name, content in written.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(pa.table({"text": [text] * 30})))
    for path in [*(tmp_path / name for name in written), tmp_path / "a.parquet"]:
        assert "".join(taken(path)).replace("\n", "") == text * 30
        found = {one.kind: one for one in reported(path).findings}
        assert (found["control"].rows, found["control"].severity) == (30, "warning"), path.name
        assert not reported(path).problem or "few" in reported(path).problem


# --- nobody hears a parser ------------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[bytes, str]] = {
    "cut.jsonl": (b'{"text": "a"}\n{"text": "b', "row 2 of cut.jsonl is not JSON: it breaks off before its end"),
    "word.jsonl": (
        b'{"text": "a"}\n{"text": word}\n',
        "row 2 of word.jsonl is not JSON: at character 10 stands 'word}'",
    ),
    "list.jsonl": (b'{"text": "a"}\n{"text": "a"}\n["b"]\n', "row 3 of list.jsonl is a list, not an object"),
    "number.jsonl": (b'{"text": 5}\n{"text": 6}\n', "row 1 of number.jsonl has a number in the field 'text', not text"),
    "lists.jsonl": (b'{"text": ["a"]}\n{"text": ["b"]}\n', "row 1 of lists.jsonl has a list in the field 'text'"),
    "field.jsonl": (
        b'{"body": "a", "meta": {"title": "b"}}\n' * 2,
        "row 1 of field.jsonl has no field 'text': its fields are 'body', 'meta.title'",
    ),
    "latin.jsonl": (b'{"text": "caf\xe9"}\n' * 2, "row 1 of latin.jsonl is not UTF-8: byte 14 of it is E9"),
    "cut.json": (
        b'[{"text": "a"},\n {"text": "b"}',
        "cut.json is not JSON: at byte 31 the file ends, where , or ] should be",
    ),
    "commas.json": (b'[{"text": "a"} {"text": "b"}]', "commas.json is not JSON: at byte 16 stands"),
    "two.json": (
        b'{"train": [{"text": "a"}], "test": [{"text": "b"}]}',
        "two.json has several lists of rows, 'train', 'test'",
    ),
    "trailing.json": (b'[{"text": "a"}]\nand more', "trailing.json is not JSON: at byte 17 stands 'and more'"),
    "column.csv": (b"id,body\n1,a\n2,b\n", "column.csv has no column 'text': its first line names 'id', 'body'"),
    "null.parquet": (
        parquet_bytes(pa.table({"text": pa.nulls(3)})),
        "column 'text' of null.parquet holds nothing (every row is null), not text: name another column",
    ),
    "twice.csv": (b"text,text,n\na,b,1\na,b,1\n", "twice.csv has several columns 'text'"),
    "width.csv": (b"id,text\n" + b"1,fine\n" * 9 + b"2,a, b\n", "row 10 of width.csv has 3 fields, the first line 2"),
    "open.csv": (
        b"id,text\n" + b"1,fine\n" * 9 + b'2,"never closed\n',
        "row 10 of open.csv opens a quote that nothing closes",
    ),
    "quote.csv": (
        b"id,text\n" + b"1,fine\n" * 9 + b'2,"a "b" c"\n',
        "row 10 of quote.csv has a quote within a quoted field",
    ),
    "cut.parquet": (
        parquet_bytes(pa.table({"text": ["a"] * 99}))[:-30],
        "is no Parquet file, or is cut or damaged: its index",
    ),
    "kind.parquet": (
        parquet_bytes(pa.table({"text": [1, 2]})),
        "column 'text' of kind.parquet holds numbers, not text",
    ),
    "name.parquet": (
        parquet_bytes(pa.table({"body": ["a"], "meta": [{"title": "b"}]})),
        "name.parquet has no column 'text': those with text are 'body', 'meta.title'",
    ),
    "cut.txt.gz": (gzip.compress(b"words and words\n" * 99, mtime=0)[:-12], "damaged, or were cut: pack it again"),
    "bad.txt.bz2": (bz2.compress(b"words and words\n" * 9999)[:-9], "damaged"),
    "film.txt": (b"\0\0\0\x18ftypmp42" + bytes(99), "film.txt: this is a film, not text"),
    "book.pdf": (b"%PDF-1.7\n", "book.pdf: this is a PDF: extract its text first"),
    "sheet.xlsx": (b"PK\x03\x04" + bytes(99), "sheet.xlsx: this is a zip archive (such as .zip, .xlsx or .docx)"),
    "data.tar": (b"a.txt".ljust(257, b"\0") + b"ustar\0" + bytes(300), "data.tar: this is a tar archive"),
    "data.pkl": (b"\x80\x04\x95" + bytes(99), "data.pkl: this is a Python pickle, which is never opened here"),
    "ids.bin": (np.arange(9000, dtype="<u2").tobytes(), "ids.bin can be uint16 (16-bit token ids) or uint32"),
    "pairs.txt": (
        b"".join(b"hello %d\thallo %d\n" % (n, n) for n in range(30)),
        "pairs.txt can be csv (a table (CSV)) or text",
    ),
    "half.u16": (bytes(range(1, 100)) * 3, "half.u16 ends in the middle of an id of uint16"),
    "bad.npy": (
        b"\x93NUMPY\x01\x00\x10\x00nonsense        ",
        "bad.npy is no .npy file of version 1 or 2, or its header",
    ),
    "ids.jsonl": (b"[1, 2]\n[3, 4.5]\n", "row 2 of ids.jsonl has something else than whole numbers"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_names_the_file_by_its_own_name_the_place_and_the_way_out(name: str, tmp_path: Path) -> None:
    content, says = BROKEN[name]
    stored = tmp_path / ("0123456789abcdef" * 4)  # As artifacts lie there.
    stored.write_bytes(content)
    form: DatasetFormat = "ids" if name == "ids.jsonl" else "auto"
    with pytest.raises(DataError) as refused:
        taken(stored, form, name=name)
    detail = refused.value.detail
    assert says in detail
    assert name in detail
    assert not PARSERS.search(detail)
    assert re.search(r"[:;,] \w+", detail), "a way out"


def test_what_a_report_finds_is_in_our_words_too(tmp_path: Path) -> None:
    content = [b'{"text": "%d and words"}' % number for number in range(40)]
    content[3:8] = [b'{"text": "caf\xe9"}', b'{"text": ', b'{"text": "\\ud800"}', b'{"body": "x"}', b'{"text": [1]}']
    (tmp_path / ("f" * 64)).write_bytes(b"\n".join(content))
    report = reported(tmp_path / ("f" * 64), name="stories.jsonl")
    shown = [f"{one.text} {place.shown}" for one in report.findings for place in one.places] + [report.problem]
    assert len(shown) >= 5
    assert not [text for text in shown if PARSERS.search(text)]
    assert report.format == "jsonl"


FORMS: list[DatasetFormat] = ["auto", "text", "jsonl", "json", "csv", "parquet", "ids", "npy", "uint16"]


@settings(deadline=None, max_examples=300)
@given(
    kind=st.sampled_from(KINDS),
    form=st.sampled_from(FORMS),
    packing=st.sampled_from(["", *PACK]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6)), max_size=4),
    cut=st.floats(0.2, 1),
    skip=st.booleans(),
)
def test_however_a_file_is_damaged_nothing_but_our_own_words_comes_out(
    kind: Any, form: Any, packing: str, changes: Any, cut: float, skip: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(kind.write(TEXTS if kind.form not in TOKENISED else [np.arange(200)] * 9))
    data = bytearray(PACK[packing](bytes(data))) if packing else data
    for place, content in changes:
        at = int(place * len(data))
        data[at : at + len(content)] = content
    folder = tmp_path_factory.mktemp("damaged")
    (folder / ("e" * 64)).write_bytes(data[: max(1, int(cut * len(data)))])
    said: list[str] = []
    wanted: Any = {"name": "stories.dat", "faulty": "skip" if skip else "refuse"}
    for use in (taken, reported):
        try:
            use(folder / ("e" * 64), form, **wanted)
        except DataError as error:
            said.append(error.detail)
    for detail in said:
        assert not PARSERS.search(detail)
        assert "stories.dat" in detail

"""Files as other programs leave them: what follows packed data, old encodings, JSON by name, quotes with backslashes."""

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import zstandard
from tokenizers import Tokenizer, models, pre_tokenizers

from protocol.datasets.file_formats import recognise, remarks
from protocol.job.job import TokenizerSpec
from protocol.rest.dataset import CheckRequest
from tests.support.dataset_files import PACK
from trainer.check.report import check
from trainer.data.text import numbered, pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset

TEXTS = [f"Row {number}: the fox ran over {number * 7} hills, déjà vu" for number in range(40)]
ROWS = [{"text": text} for text in TEXTS]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
JAPANESE = "".join(f'{{"text": "今日は、世界。{number}"}}\n' for number in range(40))


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, form: Any = "auto", field: str = "text") -> list[str]:
    return list(pieces(Dataset.of(path, form, text_field=field)))


def refused(path: Path, form: Any = "auto", field: str = "text") -> str:
    with pytest.raises(DataError) as error:
        read(path, form, field)
    return error.value.detail


# --- packed ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("rows", [40, 40_000])
def test_data_that_are_damaged_say_how_much_of_them_was_whole(packing: str, rows: int, tmp_path: Path) -> None:
    first = PACK[packing]((LINES * (rows // 40)).encode())
    digests = (hashlib.sha256(b"%d" % number).hexdigest() for number in range(9999))
    second = bytearray(PACK[packing]("".join(f'{{"text": "{one}"}}\n' for one in digests).encode()))
    second[len(second) // 2 :] = bytes(len(second) - len(second) // 2)
    path = written(tmp_path / "data.jsonl", first + bytes(second))
    whole = len(LINES.encode()) * rows // 40
    found = re.search(r"are damaged or cut after ([0-9,]+) bytes", refused(path, "jsonl"))
    assert found is not None
    assert int(found[1].replace(",", "")) >= whole


def test_data_that_were_packed_with_a_dictionary_say_so(tmp_path: Path) -> None:
    made = zstandard.train_dictionary(4096, [(text * 3).encode() for text in TEXTS * 30])
    packed = zstandard.ZstdCompressor(dict_data=made).compress(LINES.encode())
    assert "is packed with a dictionary (zstd -D)" in refused(written(tmp_path / "data.jsonl.zst", packed))


# --- encodings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["iso-2022-jp", "iso-2022-jp-2", "iso-2022-kr"])
@pytest.mark.parametrize("name", ["data.jsonl", "data.txt", "data"])
def test_encodings_with_escape_sequences_are_named_with_the_way_out(encoding: str, name: str, tmp_path: Path) -> None:
    text = JAPANESE if "jp" in encoding else JAPANESE.replace("今日は、世界。", "안녕하세요 세계")
    said = refused(written(tmp_path / name, text.encode(encoding)))
    known = encoding.upper().removesuffix("-2")
    assert said == (
        f"{name}: its characters are in {known}, which is not read here: convert it first (iconv -f {known} -t UTF-8)"
    )


def test_what_a_terminal_was_told_is_no_encoding(tmp_path: Path) -> None:
    path = written(tmp_path / "log.txt", "\x1b[31mred\x1b[0m and $B words\n" * 40)
    assert "".join(read(path)) == path.read_text()


@pytest.mark.parametrize("page", ["cp037", "cp500", "cp273"])
def test_a_mainframes_characters_are_told_as_that(page: str, tmp_path: Path) -> None:
    path = written(tmp_path / "data.txt", "".join(f"{text}\n" for text in TEXTS).encode(page))
    assert "its characters are in EBCDIC" in refused(path)
    assert "iconv -f IBM037 -t UTF-8" in refused(path)


def test_gb18030_with_a_mark_is_read(tmp_path: Path) -> None:
    text = "\ufeff" + JAPANESE.replace("は", "好")
    assert read(written(tmp_path / "data.jsonl", text.encode("gb18030")))[0] == "今日好、世界。0"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LINES.replace("{", "").encode("utf-7"), "looks like UTF-7"),
        (JAPANESE.replace("は", "好").encode("hz"), "looks like HZ-GB-2312"),
        (LINES.encode().decode("cp1252").encode(), "has 'Ã©' for 'é': it was read as Windows-1252 once"),
        (b"1+1=2 and C++ is a+b+c ~{}\n" * 40, ""),
        (LINES.encode(), ""),
        ("Ã© is é, twice".encode() * 40, ""),
    ],
)
def test_letters_that_are_spelt_out_are_remarked_on(content: bytes, said: str) -> None:
    found = recognise(content, True, "data")
    told = remarks(found, "data", found.formats[0])
    assert [one for one in told if said in one and "trained on" in one] if said else not told


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32-le"])
def test_ids_of_bytes_are_no_text_in_wide_characters(encoding: str) -> None:
    ids = [byte - 33 if 33 <= byte < 127 else 220 for byte in " ".join(TEXTS).encode()]
    data = b"".join(struct.pack("<H" if encoding == "utf-16-le" else "<I", number) for number in ids)
    assert set(recognise(data, True, "data").formats) == {"uint16", "uint32"}


@pytest.mark.parametrize("text", ["hello \ud83d\ude00", "zero \0"])
def test_characters_as_java_writes_them_are_told_as_that(text: str, tmp_path: Path) -> None:
    data = f'{{"text": "{text}"}}\n'.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
    assert "row 1 of a.jsonl has characters as Java writes them" in refused(written(tmp_path / "a.jsonl", data * 9))


# --- names of fields ------------------------------------------------------------------------------------------------------


def test_of_two_fields_that_look_the_same_none_is_taken(tmp_path: Path) -> None:
    row = json.dumps({"texte\u0301": "a", "\u200btexté": "b"}, ensure_ascii=False)
    said = refused(written(tmp_path / "a.jsonl", f"{row}\n" * 9), field="texté")
    assert r"did you mean" in said
    assert r"'texte\u0301'" in said
    assert r"'\u200btexté'" in said
    assert read(written(tmp_path / "a.jsonl", f"{row}\n" * 9), field="texte\u0301") == ["a"] * 9


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_a_field_of_another_case_is_offered_and_not_taken(form: str, tmp_path: Path) -> None:
    path, table = tmp_path / f"data.{form}", pd.DataFrame({"id": range(40), "Text": TEXTS})
    write: Mapping[str, Callable[[], None]] = {
        "jsonl": lambda: table.to_json(path, orient="records", lines=True),
        "csv": lambda: table.to_csv(path, index=False),
        "parquet": lambda: table.to_parquet(path),
    }
    write[form]()
    assert "'text': did you mean 'Text'? " in refused(path)
    assert read(path, field="Text") == TEXTS


# --- JSON -----------------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(4)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("orient", ["records", "index", "columns", "split", "table"])
def test_all_ways_in_which_pandas_writes_a_table_with_names_are_read(
    orient: Any, indent: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "data.json"
    pd.DataFrame({"id": range(40), "text": TEXTS, "n": 1.5}).to_json(path, orient=orient, indent=indent)
    assert read(path) == TEXTS
    for texts in (TEXTS, TEXTS * 300, [text * 10 for text in TEXTS * 40]):  # Looks end within a name, or within a text.
        pd.Series(texts).to_json(path, indent=indent)
        assert read(path) == texts


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("document", "field"),
    [
        (
            {f"k{n}": {"text": text, "x": [{}]} for n, text in enumerate(TEXTS)},
            "text",
        ),
        ({"version": 1, "data": {f"k{n}": {"text": text} for n, text in enumerate(TEXTS)}}, "text"),
        ({split: {f"k{n}": {"t": text} for n, text in enumerate(TEXTS)} for split in ("test", "train")}, "train.t"),
        ({f"k{n}": {"body": {"text": text}} for n, text in enumerate(TEXTS)}, "body.text"),
        ({"text": [None, *TEXTS], "id": [None] * 41}, "text"),
        ({"name": "x", "text": "about it", "data": ROWS}, "text"),
    ],
    ids=["by name", "by name within", "one of two", "field within", "null first", "text beside"],
)
def test_rows_with_names_are_rows(document: Any, field: str, indent: int | None, tmp_path: Path) -> None:
    assert read(written(tmp_path / "data.json", json.dumps(document, indent=indent)), field=field) == TEXTS


def test_an_object_with_objects_stays_a_row_where_they_have_no_such_text(tmp_path: Path) -> None:
    for content, field in (
        ({"content": {"text": "a"}}, "content.text"),
        ({"text": "a", "meta": {"x": {"text": "no"}}}, "text"),
        ({"text": "a", "tags": [{"name": "b"}]}, "text"),
        ({"text": "a"}, "text"),
    ):
        for indent in (None, 1):
            path = written(tmp_path / "data.json", json.dumps(content, indent=indent))
            assert read(path, field=field) == ["a"], content


def test_a_row_with_a_name_that_has_no_text_is_told_by_its_number(tmp_path: Path) -> None:
    rows = {str(number): row for number, row in enumerate(ROWS)} | {"7": {"body": "a"}, "9": [1]}
    found = list(numbered(Dataset.of(written(tmp_path / "data.json", json.dumps(rows, indent=1)))))
    assert len(found) == 40
    assert "row 8 of data.json has no field 'text': its fields are 'body'" in refused(tmp_path / "data.json")


def test_documents_one_after_another_are_all_read(tmp_path: Path) -> None:
    half = len(ROWS) // 2
    for shape in (lambda rows: rows, lambda rows: {"page": 1, "rows": rows}):
        pages = [json.dumps(shape(rows), indent=1) for rows in (ROWS[:half], ROWS[half:])]
        assert read(written(tmp_path / "data.json", "\n".join(pages))) == TEXTS
    pages.append('{"page": 3, "error": "gone"}')
    said = refused(written(tmp_path / "data.json", "\n".join(pages)))
    assert "row 41 of data.json should be in the list 'rows', which a later object of the file has not" in said


@pytest.mark.parametrize("indent", [None, 1])
def test_a_sequence_of_json_texts_is_read(indent: int | None, tmp_path: Path) -> None:
    records = [f"\x1e{json.dumps(row, indent=indent)}\n" for row in ROWS]
    for name in ("data.jsonseq", "data.json", "data"):
        assert read(written(tmp_path / name, "\x1e" + "".join(records))) == TEXTS
    if indent is None:
        records[3] = '\x1e{"text": "cut\n'
        assert "row 4 of data.jsonl is not JSON" in refused(written(tmp_path / "data.jsonl", "".join(records)))


def test_lines_of_texts_are_rows(tmp_path: Path) -> None:
    content = "".join(json.dumps(text) + "\n" for text in TEXTS)
    assert read(written(tmp_path / "data.jsonl", content)) == TEXTS
    assert "data can be jsonl (JSON lines) or text" in refused(written(tmp_path / "data", content))
    assert read(tmp_path / "data", "text")[0].startswith('"Row 0')
    twice = "".join(json.dumps(json.dumps(row)) + "\n" for row in ROWS)
    assert "row 1 of data.jsonl is JSON within a text: it was made JSON twice" in refused(
        written(tmp_path / "data.jsonl", twice)
    )


def test_room_that_a_crash_left_behind_lines_is_a_row_that_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "data.jsonl", LINES + "\0" * 4096)
    found = list(numbered(Dataset.of(path)))
    assert [row.text for row in found[:-1]] == TEXTS
    assert "row 41 of data.jsonl is not JSON" in refused(path)


# --- tables ---------------------------------------------------------------------------------------------------------------

SAID = [f'He said "{text}", and "left"' for text in TEXTS]


def escaped(text: str) -> str:
    return text.replace('"', '\\"')


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("name", ["data.csv", "data.tsv", "data"])
def test_quotes_with_backslashes_are_quotes(name: str, delimiter: str, tmp_path: Path) -> None:
    path = written(
        tmp_path / name,
        f"id{delimiter}text\n" + "".join(f'{n}{delimiter}"{escaped(text)}"\n' for n, text in enumerate(SAID)),
    )
    assert read(path) == SAID
    content = Dataset.of(path).look()
    assert [one for one in remarks(content, name, "csv") if 'has \\" for quotes within its texts' in one]


def test_quotes_that_go_over_lines_of_a_table_with_tabs_are_told(tmp_path: Path) -> None:
    """Such a table is one both ways; which one was meant, only its owner knows."""
    both = "text\tlabel\n" + "".join(f'"said {n}\tand\nwent"\t{n}\n' for n in range(20))
    path = written(tmp_path / "data.tsv", both)
    assert len(read(path)) == 40, "a row in each line, as the format has it"
    assert [one for one in remarks(Dataset.of(path).look(), "data.tsv", "csv") if "each line is read as a row" in one]
    for plain in (
        "text\tlabel\n" + "".join(f'"he said {n}\t{n}\n' for n in range(20)),  # Quotes that nothing closes.
        "text\tlabel\n" + "".join(f'"said {n}"\t{n}\n' for n in range(20)),
    ):
        path = written(tmp_path / "data.tsv", plain)
        assert remarks(Dataset.of(path).look(), "data.tsv", "csv") == []
        assert len(read(path)) == 20


def test_other_backslashes_of_a_table_stand_as_they_are(tmp_path: Path) -> None:
    paths = [f"C:\\new\\{number}\\" for number in range(40)]
    plain = "id,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(paths))
    assert read(written(tmp_path / "data.csv", plain)) == paths
    assert remarks(Dataset.of(tmp_path / "data.csv").look(), "data.csv", "csv") == []
    mixed = "id,text\n" + "".join(f'{n},"\\"a\\" {text}\\"\n' for n, text in enumerate(paths))
    assert read(written(tmp_path / "data.csv", mixed)) == [f'"a" {text}' for text in paths]
    lines = "id,text\n" + "".join(f'{n},"\\"a\\"\nb\\\nc ""d"""\n' for n in range(40))
    assert read(written(tmp_path / "data.csv", lines)) == ['"a"\nb\\\nc "d"'] * 40


def test_a_backslash_before_a_quote_beyond_the_look_is_refused_and_no_row_swallowed(tmp_path: Path) -> None:
    rows = [f'{n},"{text} {"w" * 100}"\n' for n, text in enumerate(TEXTS * 60)]
    path = written(tmp_path / "data.csv", "id,text\n" + "".join(rows) + '9,"say \\"a, b\\""\n')
    assert "row 2,401 of data.csv has a quote within a quoted field" in refused(path)


def test_lines_of_blanks_before_a_table_are_nothing(tmp_path: Path) -> None:
    table = "\n  \n\nid,text\n" + "".join(f'{n},"{text}"\n' for n, text in enumerate(TEXTS))
    assert read(written(tmp_path / "data.csv", table)) == TEXTS


# --- what is no dataset ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"/annex/objects/SHA256E-s12--ab.jsonl\n", "a pointer of git-annex, .*git annex get"),
        (b"outs:\n- md5: a304afb96060aad90176268345e10355\n  path: data.jsonl\n", "a pointer of DVC, .*dvc pull"),
        (zlib.compress(LINES.encode()), "a zlib stream: pack it with gzip"),
        (struct.pack("<Q", 64) + b'{"w": {"dtype": "F32"}}'.ljust(64) + bytes(64), "weights of a model"),
        (b"PARE" + bytes(range(64)), "encrypted Parquet: write it without a key"),
        (b"RIFF\x24\0\0\0WAVEfmt " + bytes(64), "sound, a picture or a film"),
        (b"ID3\x04\0" + bytes(64), "sound, not text"),
        (b"II*\0" + bytes(64), "a picture, not text"),
    ],
)
def test_more_files_of_other_tools_are_called_what_they_are(head: bytes, words: str) -> None:
    assert re.search(words, recognise(head, True, "data").problem)
    ids = b"x\x9c" + b"".join(struct.pack("<H", 100 * number) for number in range(400))
    assert set(recognise(ids, True, "data").formats) == {"uint16", "uint32"}


# --- tokenizers -----------------------------------------------------------------------------------------------------------


def reported(tmp_path: Path, model: models.Model, texts: list[str]) -> Any:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = written(tmp_path / "data.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    dataset = Dataset.of(path)
    request = CheckRequest(dataset.spec, TokenizerSpec("file", file="0" * 64), 4)
    return check(dataset, request, tmp_path / "tokenizer.json", tmp_path, lambda _: None, "mine.json")


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        (models.WordLevel({"hello": 0, "world": 1}, unk_token="[UNK]"), "the word '☃'"),
        (models.Unigram([(one, -1.0) for one in "helowrd"]), "the character '☃' (U+2603)"),
    ],
)
def test_the_check_names_what_a_tokenizer_has_no_token_for(model: models.Model, unknown: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        reported(tmp_path, model, ["hello world", "", "hello ☃"])
    assert (
        f"mine.json has no token for {unknown} in row 3 ('hello ☃'), and none for unknown words" in error.value.detail
    )


def test_characters_that_merges_leave_out_are_a_finding(tmp_path: Path) -> None:
    letters = {one: number for number, one in enumerate("helowrd")}
    texts = ["hello world", "hello ☃", "hello"]
    found = {one.kind: one for one in reported(tmp_path, models.BPE(letters, []), texts).findings}
    assert (found["unknown"].severity, found["unknown"].rows) == ("warning", 1)
    assert (found["unknown"].places[0].row, found["unknown"].places[0].shown) == (2, "the character '☃' (U+2603)")
    known = models.BPE(letters | {"?": 7}, [], unk_token="?")
    assert "unknown" not in {one.kind for one in reported(tmp_path, known, texts).findings}

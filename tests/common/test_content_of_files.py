"""What a file is, by how it begins: what is told apart, what is left open, and what is not taken for something else."""

import json
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datasets.file_formats import HEAD_BYTES, ContentError, recognise, remarks, settle

ROWS = "".join(json.dumps({"text": f"row {number}, with words"}) + "\n" for number in range(50))
CHANCE = random.Random(3)
GPT_IDS = b"".join(struct.pack("<H", min(50_256, int(CHANCE.expovariate(1 / 3000)))) for _ in range(20_000))
WIDE_IDS = b"".join(struct.pack("<I", CHANCE.randrange(128_000)) for _ in range(20_000))
LETTERS = b"".join(struct.pack("<H", CHANCE.randrange(65)) for _ in range(20_000))


@pytest.mark.parametrize(
    ("content", "name", "formats"),
    [
        (ROWS.encode(), "", "jsonl"),
        (b'{"text": "one row"}', "", "jsonl"),
        (json.dumps({"text": "x" * 400_000}).encode() + b"\n", "", "jsonl"),
        (b"{broken\n" + ROWS.encode(), "a.jsonl", "jsonl"),
        (json.dumps({"data": [{"text": "x" * 100}] * 9000}).encode(), "", "json"),
        (json.dumps([{"text": "x" * 100}] * 9000, indent=2).encode(), "", "json"),
        (b'["one", "two"]', "", "json"),
        (b"[1, 2]\n[3]\n", "", "ids"),
        (json.dumps(list(range(200_000))).encode(), "", "ids"),
        (b"id,text\n1,hello\n", "", "csv"),
        (b"id;text\r\n1;hello, you\r\n", "", "csv"),
        (b"sep=;\r\nid;text\r\n1;a\r\n", "a.csv", "csv"),
        (b"text\nhello\nworld\n", "a.csv", "csv"),
        (b"hello\nworld\n", "a.csv", "csv text"),
        (b"".join(b"hello %d\thallo %d\n" % (n, n) for n in range(30)), "", "csv text"),
        (b"".join(b"hello %d\thallo %d\n" % (n, n) for n in range(30)), "a.tsv", "csv"),
        (b"Once upon a time\nthere was, as they say,\na fox\n", "", "text"),
        (b"a, b\nc, d\ne, f\n", "poem.txt", "text"),
        (b"Ada, Lovelace\n" * 20, "names.txt", "text"),
        (b"[1] Some reference\n[2] Another\n", "", "text"),
        (b"{ int x = 3; }\n", "", "text"),
        (b'"Well," he said.\n"Yes?"\n', "", "text"),
        (b"ORC and elf met at dawn.\n" * 9, "", "text"),
        (b"MZ is a magic number of two letters.\n" * 9, "", "text"),
        (b"BZh is none.\n" * 9, "", "text"),
        (b"GGUF files hold models.\n" * 9, "", "text"),
        ((b"a zero \0 in a text of some length is a zero" + b" and so on" * 20 + b"\n") * 9, "", "text"),
        (GPT_IDS, "train.bin", "uint16 uint32"),
        (GPT_IDS, "", "uint16 uint32"),
        (LETTERS, "", "uint16 uint32"),
        (WIDE_IDS, "train.bin", "uint32 uint16"),
        (GPT_IDS, "train.u16", "uint16"),
        (b"", "", "text"),
        (b"", "a.jsonl", "text"),
        (b"{'text': 'one'}\n{'text': 'two'}\n", "a.jsonl", "text jsonl"),
        (b"// made by us\n" + ROWS.encode(), "a.jsonl.gz", "text jsonl"),
        (b'"one text"\n', "a.json", "text json"),
        (b'[["one", "two"], ["three", "four"]]', "a.json", "text json"),
        (b"<!DOCTYPE html><p>Sign in</p>\n", "a.parquet", "text parquet"),
        (b"Entry not found", "a.npy", "text npy"),
        (b"Once upon a time\n", "a.md", "text"),
        (b"Once upon a time\n", "a.story", "text"),
    ],
)
def test_a_file_is_what_its_beginning_says(content: bytes, name: str, formats: str) -> None:
    found = recognise(content[:HEAD_BYTES], len(content) <= HEAD_BYTES, name)
    assert (" ".join(found.formats), found.problem) == (formats, "")


@pytest.mark.parametrize(
    ("text", "encodings"),
    [
        ("Hello, wörld of words\n", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"]),
        ("Все люди рождаются свободными и равными\n", ["utf-16", "utf-16-le", "utf-16-be"]),
        ("人人生而自由,在尊严和权利上一律平等。\n", ["utf-16", "utf-16-le", "utf-16-be"]),
        ("모든 인간은 태어날 때부터 자유로우며\n", ["utf-16", "utf-16-le", "utf-16-be"]),
        (ROWS, ["utf-16", "utf-16-le", "utf-16-be"]),
    ],
)
def test_utf_16_and_32_are_read_with_a_mark_and_utf_16_without(text: str, encodings: list[str]) -> None:
    for encoding in encodings:
        found = recognise((text * 30).encode(encoding), True)
        assert found.encoding.replace("-le", "").replace("-be", "") in (encoding[:6], "utf-8")
        assert found.formats == (("jsonl",) if text is ROWS else ("text",))


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.txt", ""])
def test_a_pointer_of_git_lfs_is_no_dataset(name: str) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    with pytest.raises(ContentError, match="a pointer of Git LFS, not the file"):
        settle(recognise(pointer, True, name), name)


def test_an_encoding_that_was_named_is_looked_through() -> None:
    table = '番号,text\n1,"表,示"\n2,そして\n'.encode("shift_jis")
    assert recognise(table, True, "a.csv", "text", "shift_jis").formats == ("csv",)
    short = "ab".encode("utf-16-be")
    assert recognise(short, True).formats == ("text",)
    assert recognise(short * 99, True, "", "text", "utf-16-be").formats == ("text",)


def test_what_is_certainly_another_format_is_refused_and_what_may_be_meant_is_not() -> None:
    lines, document, words = (
        recognise(ROWS.encode(), True),
        recognise(b'[{"text": "a"}]', True),
        recognise(b"words\n", True),
    )
    assert settle(lines, "a", "text") == "text"
    assert remarks(lines, "a", "text") == ["a looks like JSON lines: as plain text its syntax is trained on, too"]
    assert settle(lines, "a", "json") == "json", "one object after another"
    assert settle(words, "a", "csv") == "csv", "one column"
    for content, wanted in ((document, "jsonl"), (lines, "csv"), (words, "parquet"), (lines, "npy"), (lines, "ids")):
        with pytest.raises(ContentError, match="choose the format"):
            settle(content, "a", wanted)


@given(
    st.binary(max_size=300),
    st.booleans(),
    st.sampled_from(["", "a.csv", "a.json", "a.txt", "a.bin", "a.txt.gz", "a.zst"]),
)
def test_any_beginning_is_looked_at_without_a_fault(head: bytes, whole: bool, name: str) -> None:
    for start in (
        b"",
        b"\x1f\x8b\x08",
        b"\x28\xb5\x2f\xfd",
        b"BZh91AY&SY",
        b"\xfd7zXZ\x00",
        b"{",
        b"[",
        b'{"text":',
        b"a,b\n",
    ):
        found = recognise(start + head, whole, name)
        assert found.formats or found.problem or found.packing

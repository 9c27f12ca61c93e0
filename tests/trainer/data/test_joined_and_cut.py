"""Files that other programs put together, and files that lost their end: read, or told in words what is wrong with them."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from protocol.datasets.file_formats import recognise, remarks
from protocol.job.job import TokenizerSpec
from protocol.rest.dataset import CheckRequest, DatasetReport
from trainer.check.report import check
from trainer.data.text import pieces
from trainer.data.tokens import id_pieces
from trainer.errors import DataError
from trainer.formats.source import BLOCK, Dataset

TEXTS = [f"Row {number} of a story, with words; Bäume [and] {{more}}," for number in range(40)]
MARK = "\ufeff"
LINES = [json.dumps({"text": text}, ensure_ascii=False) for text in TEXTS]
SKIPPED = struct.pack("<II4s", 0x184D2A50, 4, b"size")
LONG_SKIPPED = struct.pack("<II", 0x184D2A5F, 400_000) + b"x" * 400_000
ROWS = "".join(line + "\n" for line in LINES).encode()


def written(path: Path, content: str | bytes, encoding: str = "utf-8") -> Dataset:
    data = content if isinstance(content, bytes) else content.encode(encoding, "surrogatepass")
    path.write_bytes(data)
    return Dataset.of(path)


def report(dataset: Dataset) -> DatasetReport:
    (scratch := dataset.path.parent / "scratch").mkdir()
    return check(dataset, CheckRequest(dataset.spec, TokenizerSpec("bytes"), 16), None, scratch, lambda _: None)


@pytest.mark.parametrize("ending", ["jsonl.zst", "dat"])
@pytest.mark.parametrize(
    "frames",
    [
        [SKIPPED, ROWS],
        [SKIPPED, SKIPPED, ROWS],
        [LONG_SKIPPED, ROWS],
        [ROWS[:500], SKIPPED, ROWS[500:], SKIPPED],
        [SKIPPED, ROWS[:500], SKIPPED, ROWS[500:]],
    ],
    ids=["pzstd", "two", "beyond the look", "between", "before each"],
)
def test_frames_of_zstandard_that_are_to_be_skipped_are(frames: list[bytes], ending: str, tmp_path: Path) -> None:
    packed = b"".join(one if one in (SKIPPED, LONG_SKIPPED) else zstandard.compress(one) for one in frames)
    dataset = written(tmp_path / f"data.{ending}", packed)
    if frames[0] != LONG_SKIPPED:
        assert dataset.format(dataset.look()) == "jsonl"
    else:
        dataset = Dataset.of(dataset.path, "jsonl")
    assert list(pieces(dataset)) == TEXTS


def test_what_comes_after_a_skipped_frame_is_named() -> None:
    assert "an LZ4 archive" in recognise(SKIPPED + b"\x04\x22\x4d\x18" + b"0" * 40, True).problem
    assert recognise(b"", True).packing == ""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "content",
    [
        "".join(f"{MARK}{line}\n" for line in LINES),
        f"{MARK}{LINES[0]}\r\n{MARK}{MARK}\n" + "\n".join(LINES[1:]),
        MARK + "\n".join(LINES[:20]) + f"\n{MARK}" + "\n".join(LINES[20:]),
        ",\n".join(LINES) + ",\n",
        ",\r\n".join(LINES),
        "".join(f"{MARK}{json.dumps({'text': text}, indent=1, ensure_ascii=False)}\n" for text in TEXTS),
        f"{MARK}[{', '.join(LINES)},\n]",
        f'{MARK}{{"rows": [{", ".join(LINES)}, ]}}',
        MARK + "n,text\n" + "".join(f'{MARK if n % 7 == 0 else ""}{n},"{text}"\n' for n, text in enumerate(TEXTS)),
        MARK + "text;n\n" + "".join(f'{MARK}"{text}";{n}\n' for n, text in enumerate(TEXTS)),
    ],
    ids=[
        "lines",
        "empty",
        "two files",
        "commas",
        "commas between",
        "documents",
        "array",
        "member",
        "csv",
        "csv quoted",
    ],
)
def test_marks_of_joined_files_and_commas_too_many_mean_nothing(content: str, encoding: str, tmp_path: Path) -> None:
    assert [text for text in pieces(written(tmp_path / "data", content, encoding)) if text] == TEXTS


def test_a_mark_at_any_place_of_a_block_is_gone_past(tmp_path: Path) -> None:
    first = json.dumps({"text": "a" * 100}, indent=1)
    for before in range(4):
        blanks = " " * (BLOCK - len(first) - before)
        dataset = Dataset.of(written(tmp_path / "data", f"{first}{blanks}{MARK}{first}").path, "json")
        assert list(pieces(dataset)) == ["a" * 100] * 2


def test_ids_have_marks_and_commas_too(tmp_path: Path) -> None:
    dataset = Dataset.of(written(tmp_path / "data", f"{MARK}[1, 2],\n{MARK}[3],\n").path, "ids")
    assert np.concatenate(list(id_pieces(dataset, 10))).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "data.jsonl",
            '["a text"]\n["another"]\n',
            'row 1 of data.jsonl is a list, not an object such as {"text": "..."}: write one there',
        ),
        (
            "data",
            '[{"text": "a"}]\n[{"text": "b"}]\n',
            'row 1 of data is a list, not an object such as {"text": "..."}: write one there',
        ),
        ("code.txt", '{\n  "text": "1"\n}\nfunction foo() { return 1; }\n', "or choose the format text if it is none"),
    ],
)
def test_what_is_no_row_is_told_what_to_do(name: str, content: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as refused:
        list(pieces(written(tmp_path / name, content)))
    assert words in refused.value.detail


def test_source_code_that_begins_as_json_does_is_told_of_the_format_text(tmp_path: Path) -> None:
    dataset = written(tmp_path / "code.txt", '{\n  "a": 1\n}\nfunction foo() { return 1; }\n')
    content = dataset.look()
    said = "; if it is a text as it stands, choose the format text"
    (remark,) = remarks(content, "code.txt", dataset.format(content))
    assert remark == f"code.txt is one JSON document, whatever its ending says, and is read as that{said}"
    (other,) = remarks(content, "code.csv", "json")
    assert said not in other
    assert "".join(pieces(Dataset.of(dataset.path, "text"))) == dataset.path.read_text()


def test_a_list_of_texts_over_several_lines_is_one_document(tmp_path: Path) -> None:
    assert list(pieces(written(tmp_path / "data", '["a text",\n"another"]\n'))) == ["a text", "another"]
    assert list(pieces(written(tmp_path / "more", f'{{"rows": [\n{",".join(LINES)}\n]}}'))) == TEXTS


PLAIN = "".join(f"{text.replace(';', '').replace(',', '')}\n" for text in TEXTS)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("form", ["text", "jsonl", "csv"])
@pytest.mark.parametrize("fault", ["odd byte", "half at the end", "half within"])
def test_text_in_utf_16_says_where_it_is_cut(encoding: str, form: Any, fault: str, tmp_path: Path) -> None:
    if fault == "half at the end" and encoding == "utf-32-le":
        pytest.skip("UTF-32 has no halves that wait for more")
    half = "\ud83d" if fault == "half at the end" else "\ud83dx and\n" if fault == "half within" else ""
    body = {"text": PLAIN, "jsonl": "\n".join(LINES) + "\n", "csv": "n,text\n" + PLAIN.replace("Row", "1,Row")}[form]
    before = {"text": "last ", "jsonl": '{"text": "last ', "csv": "1,last "}[form]
    after = '"}\n' if (form, fault) == ("jsonl", "half within") else ""
    data = (MARK + body + before + half.rstrip("\n" if form == "jsonl" else "") + after).encode(
        encoding, "surrogatepass"
    )
    dataset = written(tmp_path / "data", data + b"\x20" * (fault == "odd byte"))
    dataset = Dataset.of(dataset.path, form)
    place = f"{'line' if form == 'text' else 'row'} 41"
    if fault == "half within":
        words = f"{place} has half a character, in {encoding}: its other half was cut off"
    else:
        words = f"{place} breaks off within a character: the file, in {encoding}, is cut at its end; fetch it anew"
    found = report(dataset)
    assert found.problem.startswith(f"1 of 41 rows cannot be read: {words}")
    (fault_found,) = [one for one in found.findings if one.severity == "error"]
    assert (fault_found.kind, fault_found.rows, fault_found.places[0].row) == ("bad-character", 1, 41)
    assert "windows" not in json.dumps([str(one) for one in found.findings])
    with pytest.raises(DataError) as refused:
        list(pieces(dataset))
    assert words.replace(" breaks", " of data breaks").replace(" has half", " of data has half") in refused.value.detail

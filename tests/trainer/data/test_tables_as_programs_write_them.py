"""Tables as pandas, Excel and databases write them, and data packed bit by bit: read, or told how much a fault takes along."""

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from tokenizers import Tokenizer

from protocol.datasets.file_formats import MAX_FRAMES
from protocol.job.job import TokenizerSpec
from trainer.data.prepare import prepare
from trainer.data.text import numbered, pieces
from trainer.errors import DataError
from trainer.formats.source import Dataset

TEXTS = [f"Row {number}: the fox ran over {number * 7} hills" for number in range(40)]
QUOTED = [f'"Go {number}" he said' for number in range(40)]


def written(path: Path, content: str | bytes) -> Dataset:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return Dataset.of(path)


def read(dataset: Dataset, column: str = "text") -> list[str]:
    assert dataset.format(dataset.look()) == "csv"
    return list(pieces(Dataset.of(dataset.path, text_field=column)))


@pytest.mark.parametrize(
    "table",
    [
        ",text\n" + "".join(f"{number},{text}\n" for number, text in enumerate(TEXTS)),
        ",,text\n" + "".join(f"a,{number},{text}\n" for number, text in enumerate(TEXTS)),
        ";text\n" + "".join(f"{number};{text}\n" for number, text in enumerate(TEXTS)),
        "id,text,\n" + "".join(f"{number},{text},\n" for number, text in enumerate(TEXTS)),
        "id, text\n" + "".join(f'{number}, "{text}"\n' for number, text in enumerate(TEXTS)),
    ],
    ids=["index", "two indices", "semicolons", "a delimiter at the end", "blanks"],
)
def test_columns_without_names_and_blanks_after_delimiters(table: str, tmp_path: Path) -> None:
    assert read(written(tmp_path / "data.csv", table)) == TEXTS


def test_marks_that_end_no_line_of_a_table_stand_in_its_texts(tmp_path: Path) -> None:
    texts = [f"{text}\x0bthen\x0c \x85and\u2028on" for text in TEXTS]
    assert (
        read(written(tmp_path / "data.csv", "id,other\n" + "".join(f"1,{text}\n" for text in texts)), "other") == texts
    )


def test_a_first_row_longer_than_the_look_keeps_the_table(tmp_path: Path) -> None:
    texts = ["a whole book " * 40_000, *TEXTS]
    assert read(written(tmp_path / "data.csv", "id;text\n" + "".join(f"1;{text}\n" for text in texts))) == texts


def test_rows_of_another_width_are_told_one_by_one_in_a_table_that_names_its_text(tmp_path: Path) -> None:
    rows = "".join(f"{number},{text}" + (",x\n" if number % 2 else "\n") for number, text in enumerate(TEXTS))
    dataset = written(tmp_path / "data.csv", "id,text,note\n" + rows)
    found = list(numbered(dataset))
    assert [row.text for row in found if isinstance(row.text, str)] == TEXTS[1::2]
    first = found[0].text
    assert isinstance(first, DataError)
    assert first.detail == (
        "row 1 of data.csv has 2 fields, the first line 3: put texts that have the delimiter in quotes"
    )


def test_quotes_of_a_table_with_tabs_are_letters_where_they_enclose_no_fields(tmp_path: Path) -> None:
    table = "id\ttext\n" + "".join(f"{number}\t{text}\n" for number, text in enumerate(QUOTED))
    assert read(written(tmp_path / "data.tsv", table)) == QUOTED
    alone = ['"So it begins', *TEXTS[1:]]
    table = "id\ttext\n" + "".join(f"{number}\t{text}\n" for number, text in enumerate(alone))
    assert read(written(tmp_path / "open.tsv", table)) == alone


def test_quotes_of_a_table_with_tabs_enclose_fields_where_lines_ends_are_within(tmp_path: Path) -> None:
    texts = [f'He said\n"{text}" and\twent' if len(text) % 2 else f'"{text}"\n' for text in TEXTS]
    doubled = (text.replace('"', '""') for text in texts)
    table = "id\ttext\n" + "".join(f'{number}\t"{text}"\n' for number, text in enumerate(doubled))
    assert read(written(tmp_path / "data.tsv", table)) == texts


def test_a_quote_that_nothing_closes_says_how_many_lines_it_takes_along(tmp_path: Path) -> None:
    rows = [f"{number},{chr(34) if number == 30 else ''}{text}\n" for number, text in enumerate(TEXTS)]
    *good, last = numbered(written(tmp_path / "data.csv", "id,text\n" + "".join(rows)))
    assert [row.text for row in good] == TEXTS[:30]
    assert isinstance(last.text, DataError)
    assert (
        "row 31 of data.csv opens a quote that nothing closes; 9 more lines are read as a part of it"
        in last.text.detail
    )


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": zstandard.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("rows", [0, 1, 2 * MAX_FRAMES], ids=["nothing first", "the first line alone", "row by row"])
def test_a_table_is_found_however_little_each_packed_part_holds(rows: int, packer: str, tmp_path: Path) -> None:
    texts = (TEXTS * 8)[: 4 * MAX_FRAMES]
    lines = ["id;text\n", *(f"{number};{text}\n" for number, text in enumerate(texts))]
    parts = ["", "".join(lines)] if rows == 0 else [*lines[:rows], "".join(lines[rows:])]
    packed = b"".join(PACKERS[packer](part.encode()) for part in parts)
    assert read(written(tmp_path / f"data.csv.{packer}", packed)) == texts


def test_what_stands_behind_packed_data_and_is_none_is_refused_when_it_is_read(tmp_path: Path) -> None:
    packed = gzip.compress("".join(f'{{"text": "{text}"}}\n' for text in TEXTS).encode())
    dataset = written(tmp_path / "data.jsonl.gz", packed + b"<html>")
    assert dataset.format(dataset.look()) == "jsonl"
    with pytest.raises(DataError, match=r"end at byte \d+, and .<html>. follows, which is none: cut the file there"):
        list(pieces(dataset))


def test_merges_that_are_left_out_by_chance_are_not(tmp_path: Path) -> None:
    dataset = written(tmp_path / "data.txt", "\n".join(TEXTS * 20))
    own = prepare(dataset, TokenizerSpec("bpe", 400), None, 0.1, 16, tmp_path / "own")
    made = Tokenizer.from_file(str(tmp_path / "own/tokenizer.json"))
    made.model.dropout = 0.5
    made.save(str(tmp_path / "tokenizer.json"))
    spec = TokenizerSpec("file", file="0" * 64)
    again = prepare(dataset, spec, tmp_path / "tokenizer.json", 0.1, 16, tmp_path / "again")
    assert again.train_sha256 == own.train_sha256


def test_a_damaged_first_line_is_told_with_the_name_of_its_file(tmp_path: Path) -> None:
    dataset = written(
        tmp_path / "stories.csv", '"id"x,text\n' + "".join(f"{n},{text}\n" for n, text in enumerate(TEXTS))
    )
    with pytest.raises(DataError, match=r"^the first line of stories\.csv has a quote within a quoted field"):
        list(pieces(Dataset.of(dataset.path, "csv")))

"""Every way in which one JSON document holds its rows, cut anywhere between two reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.text import numbered, pieces
from trainer.errors import DataError
from trainer.formats import documents
from trainer.formats.source import Dataset

ROWS = [{"text": "one"}, {"text": "two"}]
SHAPES: dict[str, tuple[str, str]] = {
    "list of objects": (json.dumps(ROWS), "text"),
    "list of texts": ('["one", null, "two"]', "text"),
    "object with a list": (json.dumps({"version": 1, "tags": ["a"], "info": {"x": [1]}, "data": ROWS}), "text"),
    "list before and after": (json.dumps({"ids": [1, 2], "rows": ROWS, "more": [[1], [2]]}), "text"),
    "one of several lists": (json.dumps({"valid": [{"text": "no"}], "train": ROWS}), "train.text"),
    "field within a field": (json.dumps({"data": [{"c": {"text": "one"}}, {"c": {"text": "two"}}]}), "c.text"),
    "name with a dot": (json.dumps([{"c.text": "one"}, {"c.text": "two", "c": {"text": "no"}}]), "c.text"),
    "one object after another": ("\n".join(json.dumps(row, indent=2) for row in ROWS), "text"),
    "one object": (json.dumps({"text": "one two"}, indent=1), "text"),
    "column": (json.dumps({"id": [1, 2], "text": ["one", "two"]}), "text"),
    "pandas' columns": (json.dumps({"id": {"0": 1, "1": 2}, "text": {"0": "one", "1": "two"}}), "text"),
    "empty list": ("[]", "text"),
    "blanks everywhere": (' \n[ {"text" : "one" }\t,\r\n{ "text":"two"} ]\n ', "text"),
}


def texts(path: Path, field: str, form: Any = "auto") -> list[str]:
    return list(pieces(Dataset.of(path, form, text_field=field)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", [1, 2, 7, 1 << 20])
def test_a_document_gives_its_rows_however_it_holds_them(
    shape: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "BLOCK", block)
    content, field = SHAPES[shape]
    (tmp_path / "a.json").write_text(content)
    wanted = {"one object": ["one two"], "empty list": []}.get(shape, ["one", "two"])
    assert texts(tmp_path / "a.json", field, "json") == wanted
    if shape != "empty list":
        assert texts(tmp_path / "a.json", field) == wanted, "and nobody has to say that it is one"


@settings(deadline=None, max_examples=150)
@given(
    rows=st.lists(
        st.dictionaries(
            st.text(max_size=5),
            st.recursive(st.none() | st.text(max_size=9) | st.floats(), st.lists, max_leaves=4),
            max_size=3,
        )
        | st.text(max_size=20),
        min_size=1,
        max_size=8,
    ),
    block=st.integers(1, 50),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
)
def test_any_list_is_cut_into_the_rows_that_a_parser_of_the_whole_finds(
    rows: list[Any], block: int, indent: int | None, ascii_only: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = [row if isinstance(row, str) else {**row, "text": f"row {number}"} for number, row in enumerate(rows)]
    path = tmp_path_factory.mktemp("list") / "a.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=ascii_only), errors="surrogatepass")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents, "BLOCK", block)
        found = [row.text for row in numbered(Dataset.of(path, "json"))]
    assert found == [row if isinstance(row, str) else row["text"] for row in rows]


def test_a_row_that_cannot_be_read_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"text": "one"}, {"text": what}, [1, {"a": "]"}], {"text": "two"}]')
    found = list(numbered(Dataset.of(tmp_path / "a.json")))
    assert [isinstance(row.text, DataError) for row in found] == [False, True, True, False]
    assert "row 2 of a.json is not JSON" in str(found[1].text)
    assert "row 3 of a.json is a list" in str(found[2].text)


def test_several_lists_are_named_as_choices(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"train": ROWS, "test": ROWS}))
    with pytest.raises(DataError, match=r"'train', 'test': name one with its field, such as train\.text"):
        texts(tmp_path / "a.json", "text")

"""What a submitter's own machine says of files and documents before anything is sent."""

from pathlib import Path

import pytest

from common.console import Terminal
from coordinator.client.datasets import DatasetError, format_of


@pytest.mark.parametrize(
    ("wanted", "hint"), [("parket", "did you mean parquet? "), ("JSONL", ""), ("[1]", ""), ("x" * 500, "")]
)
def test_a_format_that_is_none_is_named_with_the_nearest_and_all(tmp_path: Path, wanted: str, hint: str) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "a"}\n')
    with pytest.raises(DatasetError) as refused:
        format_of(file, wanted, "text", Terminal(), ask=False)
    assert str(refused.value) == (
        f"dataset.format is {wanted[:60]!r}, no format: {hint}"
        "There are auto, text, jsonl, json, csv, parquet, ids, npy, uint16, uint32"
    )

"""Every Python file that a document names is there: who looks for the place of a change finds it."""

import re
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from tests.test_banned_calls import ROOMS, ROOT

PAGES = [
    page
    for page in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    if page.name != "CHANGELOG.md" and "decisions" not in page.parts  # Those tell what was.
]
READERS = frozenset({"chats.py"})
"""What a lesson has its reader write."""
_SPAN = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"(?<![\w./{},*-])([\w./{},*-]+\.py)(?![\w}-])")
_CHOICE = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDER = re.compile(r"(?<![A-Za-z])[A-Z]+\.py$")


@cache
def paths() -> tuple[str, ...]:
    """Each with a slash in front."""
    tops = (*ROOMS, "tests", "benchmarks", "examples", "assets")
    found = (file for top in tops for file in (ROOT / top).rglob("*.py"))
    return tuple(f"/{file.relative_to(ROOT)}" for file in found)


def spelt(name: str) -> list[str]:
    """``test_{a,b}.py`` as the names that it stands for."""
    texts = _CHOICE.split(name)[::2]
    chosen = product(*(choice.split(",") for choice in _CHOICE.findall(name)))
    return ["".join(text + word for text, word in zip(texts, (*words, ""), strict=True)) for words in chosen]


def named(text: str) -> list[str]:
    """Files that a text names in backticks, apart from a recipe's ``NAME.py``."""
    said = [name for span in _SPAN.findall(text) for name in _FILE.findall(span) if not _PLACEHOLDER.search(name)]
    return [one for name in said for one in spelt(name)]


def missing(text: str) -> list[str]:
    names = sorted({*named(text)} - READERS)
    return [name for name in names if not any(fnmatchcase(path, f"*/{name.removeprefix('./')}") for path in paths())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    assert missing(page.read_text("utf-8")) == []


def test_a_file_that_is_not_there_is_told() -> None:
    text = (
        "`ledger/money.py` `gone.py` `common/{clock,gone}.py` `tests/test_ro*.py` `python tests/lost.py -x` `a/NAME.py`"
    )
    assert missing(text) == ["common/gone.py", "gone.py", "tests/lost.py"]

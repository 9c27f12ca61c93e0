"""Documents are written in sentences that can be taken in at once; what is long already may only become less.

``python -m tests.cottage.test_docs_read_well`` counts the long ones of each page; with a page's name it shows them.
"""

import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MOST_WORDS = 29
KINDS = ("tutorials", "how-to", "explanation")
PAGES = sorted(page for kind in KINDS for page in (DOCS / kind).rglob("*.md"))
# Sentences that were longer when this test was made. A page that is not here has none; a number only ever falls.
LEFT: dict[str, int] = {
    "explanation/planner.md": 5,
    "explanation/trust.md": 2,
}

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_NOT_PROSE = re.compile(r"^(?: {4}.*|\s*\|.*|#.*|>.*|!\[.*|<!--.*)$", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s")
_END = re.compile(r"(?<=[.!?])[\"')*`]*\s+(?=[\"'(*`\[A-Z0-9])")


def sentences(text: str) -> list[str]:
    """The sentences of Markdown's prose: no code, tables, headings or pictures; a link counts as its words."""
    plain = re.sub(r"\]\([^)]*\)", "]", _NOT_PROSE.sub("\n", _FENCE.sub("\n", text)))
    parts = [" ".join(part.split()) for part in _PARAGRAPH.split("\n" + plain)]
    return [sentence for part in parts if part for sentence in _END.split(part)]


def long_ones(text: str) -> list[str]:
    """Those of more than ``MOST_WORDS`` words; a piece of code is one word."""
    return [one for one in sentences(text) if len(re.sub(r"`[^`]*`", "code", one).split()) > MOST_WORDS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_has_no_sentence_that_is_longer_than_it_may_be(page: Path) -> None:
    found, left = long_ones(page.read_text("utf-8")), LEFT.get(str(page.relative_to(DOCS)), 0)
    assert len(found) <= left, "\n".join(found)
    assert len(found) == left, f"{page.name} has {len(found)} by now: write that into LEFT"


def test_code_tables_and_links_are_no_words() -> None:
    words = "Word " + "word " * 26
    assert long_ones(f"# {words * 2}\n\n```\n{words * 2}\n```\n\n| {words * 2} |\n\n    {words * 2}\n") == []
    assert long_ones(f"{words} [a](b c d) `{words}`. {words} one two.") == []
    assert len(long_ones(f"- short.\n- {words} one two three.\n\nShort. {words} one two three.")) == 2


def _main(names: list[str]) -> None:
    for page in PAGES:
        name, found = str(page.relative_to(DOCS)), long_ones(page.read_text("utf-8"))
        if not names and found:
            sys.stdout.write(f'    "{name}": {len(found)},\n')
        if name in names:
            sys.stdout.writelines(f"{len(one.split())}: {one}\n\n" for one in found)


if __name__ == "__main__":
    _main(sys.argv[1:])

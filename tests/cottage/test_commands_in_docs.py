"""Every ``cottage`` command that README or docs name exists, with each word and option that they give it."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cottage.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "decisions")]
_BLOCK = re.compile(r"^ {4}(cottage .+)$", re.MULTILINE)
_INLINE = re.compile(r"`(cottage [^`\n]+)`")
_WORDY = ("node", "ledger", "accounts", "admin")  # Roles whose first word is one of several.


def commands(page: Path) -> Iterator[str]:
    text = page.read_text("utf-8")
    yield from (found.split(" #")[0].strip() for found in (*_BLOCK.findall(text), *_INLINE.findall(text)))


@cache
def help_of(*words: str) -> str:
    """What the command says of itself; "" where there is no such command."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = main([*words, "--help"])
        except SystemExit as end:
            status = int(end.code or 0)
    return said.getvalue() if status == 0 else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "/".join(page.with_suffix("").parts[-2:]))
def test_every_command_of_a_page_exists_with_its_options(page: Path) -> None:
    for command in commands(page):
        with contextlib.suppress(ValueError):  # A mark in a sentence is no quotation mark.
            command = " ".join(shlex.split(command))
        words = command.split()[1:]
        if not words or not re.fullmatch(r"[a-z]+", words[0]):
            continue
        second = next((word for word in words[1:] if re.fullmatch(r"[a-z]+", word)), "") if words[0] in _WORDY else ""
        said = [help_of(words[0]), *([help_of(words[0], second)] if second else [])]
        assert all(said), f"{page.name}: `{command}`: no such command"
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", command):
            assert re.search(rf"{re.escape(option)}\b", "".join(said)), f"{page.name}: `{command}`: no {option}"

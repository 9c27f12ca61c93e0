"""A stranger finds the room: no folder is a heap of modules, and every package says what it is for."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tests.test_banned_calls import ROOMS, ROOT, parsed

MOST = 25
LINES = 70
GENERATED = {ROOT / "coordinator" / "store" / "migrations" / "versions"}
"""One file a change of the tables, in the order in which they are made."""


def folders(*tops: str) -> list[Path]:
    """Every folder with Python in it."""
    return sorted({file.parent for top in tops for file in (ROOT / top).rglob("*.py")} - GENERATED)


@pytest.mark.parametrize(
    "folder", folders(*ROOMS, "tests", "benchmarks"), ids=lambda folder: str(folder.relative_to(ROOT))
)
def test_a_folder_has_at_most_25_modules(folder: Path) -> None:
    modules = [file.name for file in folder.glob("*.py") if file.name != "__init__.py"]
    assert len(modules) <= MOST, f"{len(modules)} modules: make rooms by subject"


@pytest.mark.parametrize("folder", folders(*ROOMS, "benchmarks"), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_package_says_what_it_is_for(folder: Path) -> None:
    package = folder / "__init__.py"
    if not package.exists():
        pytest.skip("scripts, and no package")
    assert ast.get_docstring(parsed(package)), "say in a sentence what is in this room, and what is not"


def test_a_function_fits_on_a_screen() -> None:
    """A step of the database is a list of what it changes, and nobody changes it afterwards."""
    files = (file for top in (*ROOMS, "tests", "benchmarks") for file in (ROOT / top).rglob("*.py"))
    long = [
        f"{file.relative_to(ROOT)}: {node.name} has {lines} lines"
        for file in files
        if file.parent not in GENERATED
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > LINES
    ]
    assert long == []


def test_code_stands_as_ruff_formats_it() -> None:
    """A table that reads badly then is written otherwise: a comment above, a named part, a text that is split."""
    marks = re.compile(r"# fmt: (?:skip|off)")
    files = (file for top in (*ROOMS, "tests", "benchmarks") for file in (ROOT / top).rglob("*.py"))
    exempt = sum(len(marks.findall(file.read_text())) for file in files if file != Path(__file__))
    assert exempt <= 20, f"{exempt} places are exempt from formatting"


def test_all_that_make_check_names_is_there() -> None:
    said = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = re.findall(r"(?:^|[\s=])(tests/[^\s]+)", said)
    assert len(named) > 10
    assert [path for path in named if not (ROOT / path).exists()] == []

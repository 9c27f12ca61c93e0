"""Which cases of a test with the marker ``one_in`` run each time."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFTEST = """
import pytest
from tests.support import seeds

def pytest_configure(config):
    for name in ("long", "one_in(n)"):
        config.addinivalue_line("markers", name)

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    seeds.thin_out(items)
"""
TEST = """
import pytest

@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", ["a", "b", pytest.param("slow", marks=pytest.mark.long), "c", "d", "e"])
def test_some(case):
    pass

@pytest.mark.parametrize("case", "xy")
def test_all(case):
    pass
"""


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("not long", {"some[a]", "some[d]", "all[x]", "all[y]"}),
        ("long", {"some[b]", "some[slow]", "some[c]", "some[e]"}),
    ],
)
def test_each_third_case_runs_each_time_and_the_others_are_long(asked: str, found: set[str], tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TEST)
    words = ("-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-m", asked)
    done = subprocess.run(
        (sys.executable, *words),
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.partition("::test_")[2] for line in done.stdout.splitlines() if "::" in line} == found

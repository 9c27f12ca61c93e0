"""End-to-end tests beside one another: those that share an engine on one process, in order, whatever else runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CONFTEST = """
import pytest
from tests.support import together
from tests.conftest import pytest_xdist_make_scheduler

def pytest_configure(config):
    config.addinivalue_line("markers", "e2e: whole programs")

def pytest_collection_modifyitems(items):
    together.refuse_strays(items)

@pytest.fixture
def docker_engine():
    return "unix:///engine"
"""
TEST = """
import os, time, pytest

@pytest.mark.e2e
@pytest.mark.parametrize("number", range({number}))
def test_something(number{fixture}):
    with open("told", "a") as told:
        told.write(os.environ.get("PYTEST_XDIST_WORKER", "") + " {name}\\n")
    time.sleep(0.1)
"""


def run(folder: Path, files: dict[str, tuple[int, str]], *words: str) -> subprocess.CompletedProcess[str]:
    """Run tests in ``folder``: for each file, how many and what fixtures they ask for."""
    (folder / "conftest.py").write_text(CONFTEST)
    for name, (number, fixture) in files.items():
        path = folder / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEST.format(number=number, fixture=fixture, name=name))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), *words)
    return subprocess.run(
        command,
        cwd=folder,
        env={**env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
def test_who_shares_an_engine_waits_for_nobody_else_and_runs_on_one_process(tmp_path: Path) -> None:
    files = {
        "e2e/test_alone.py": (4, ""),
        "installer/test_clean_system.py": (3, ", docker_engine"),
        "installer/test_portable_package.py": (3, ""),
    }
    done = run(tmp_path, files, "-n", "2", "--dist", "loadgroup")
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line.split() for line in (tmp_path / "told").read_text().splitlines()]
    assert len(told) == 10
    engine = {process for process, name in told if name.startswith("installer/")}
    assert len(engine) == 1
    assert {process for process, name in told if name == "e2e/test_alone.py"} - engine, "nobody ran beside it"


def test_a_story_where_no_run_looks_for_it_is_refused_by_name(tmp_path: Path) -> None:
    done = run(tmp_path, {"relay/test_stray.py": (1, "")}, "--collect-only")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "tests/relay/test_stray.py::test_something[0] is e2e and in none of the folders" in done.stdout + done.stderr


def test_a_test_that_asks_for_the_engine_elsewhere_is_refused_by_name(tmp_path: Path) -> None:
    done = run(tmp_path, {"e2e/test_stray.py": (1, ", docker_engine")})
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "tests/e2e/test_stray.py::test_something[0] uses docker_engine beside others that do: add it to PLACES" in (
        done.stdout + done.stderr
    )

"""What a hosted CI is told to do, as far as it can be held against something without one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.desktop.parts import PARTS

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / ".github" / "workflows" / "packages.yml"
SYSTEMS = {"ubuntu": "linux", "windows": "win32", "macos": "darwin"}
# What Windows' Python lacks: a test that is run there must do without.
LACKING = ("fcntl", "pwd", "grp", "resource", "termios", "syslog")
COLLECT = f"""
import sys
sys.modules.update(dict.fromkeys({LACKING!r}))
import pytest
sys.exit(pytest.main(["--noconftest", "--collect-only", "-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def workflow() -> Any:
    return yaml.safe_load(FILE.read_text())


def test_the_workflow_is_one_by_the_published_schema() -> None:
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(FILE))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_system_that_there_are_parts_for_is_built_with_options_that_there_are(workflow: Any) -> None:
    rows = workflow["jobs"]["bundle"]["strategy"]["matrix"]["include"]
    assert {SYSTEMS[row["os"].partition("-")[0]] for row in rows} == set(PARTS)
    assert {row["system"] for row in rows if "macos" in row["os"]} == {"macos-arm64", "macos-x86_64"}
    command = (sys.executable, "-m", "installer.desktop.build", "--help")
    known = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    for row in rows:
        assert row["options"] in known.split()


def test_what_is_run_on_every_system_needs_nothing_that_windows_lacks(workflow: Any) -> None:
    command = (sys.executable, "-c", COLLECT, *workflow["env"]["EVERYWHERE"].split())
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:]

"""What a hosted CI is told to do, as far as it can be held against something without one."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from installer.desktop.parts import PARTS

ROOT = Path(__file__).resolve().parents[2]
HOSTED = ROOT / ".github"
FILE = HOSTED / "workflows" / "packages.yml"
# Each file that the host reads, and which of the published schemas it holds by.
SCHEMAS = {
    "vendor.github-workflows": sorted(HOSTED.glob("workflows/*.yml")),
    "vendor.github-issue-forms": sorted(
        set(HOSTED.glob("ISSUE_TEMPLATE/*.yml")) - {HOSTED / "ISSUE_TEMPLATE/config.yml"}
    ),
    "vendor.github-issue-config": [HOSTED / "ISSUE_TEMPLATE/config.yml"],
}
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


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_the_host_reads_is_as_the_published_schema_has_it(schema: str) -> None:
    assert SCHEMAS[schema]
    command = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, SCHEMAS[schema]))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_pull_request_runs_the_checks_and_the_whole_suite() -> None:
    told = yaml.safe_load((HOSTED / "workflows" / "tests.yml").read_text())
    assert "pull_request" in told[True]  # YAML 1.1 reads the key "on" so.
    run = [step.get("run") for job in told["jobs"].values() for step in job["steps"]]
    assert "make check" in run
    assert ".ci/run" in run
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


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

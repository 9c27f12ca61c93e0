"""The unit of systemd for a coordinator: it holds, it is confined, and what it starts is understood."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from coordinator.app import SHUTDOWN_S
from coordinator.cli import main
from tests.coordinator.watching.conftest import ROOM

SERVICE = ROOM / "cottage-coordinator.service"
AUDITOR = ROOM.parent / "auditor" / "cottage-auditor.service"
MOST = 2.0  # Of systemd's own scale from 0, which nothing reaches, to 10.
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def startable(folder: Path) -> Path:
    """The unit, with a program that is here."""
    unit = folder / SERVICE.name
    unit.write_text(SERVICE.read_text().replace("/opt/cottage/bin/cottage", shutil.which("true") or "/bin/true"))
    return unit


@needs_systemd
def test_systemd_takes_it(tmp_path: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", str(startable(tmp_path))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if SERVICE.name in line]


@needs_systemd
def test_it_is_confined_by_systemds_own_measure(tmp_path: Path) -> None:
    words = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(startable(tmp_path))]
    done = subprocess.run(words, capture_output=True, text=True)
    found = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MOST, done.stdout


def test_it_is_confined_as_the_auditor_is() -> None:
    walls = re.compile(
        r"^(?:Protect|Private|Restrict|Lock|NoNew|Capability|RemoveIPC|SystemCall|UMask)\w*=.*$", re.MULTILINE
    )
    assert set(walls.findall(AUDITOR.read_text())) <= set(walls.findall(SERVICE.read_text()))


def test_what_it_starts_is_understood_and_has_time_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = SERVICE.read_text().splitlines()
    (tmp_path / "coordinator.toml").write_text('[serve]\nledger-url = "http://127.0.0.1:8899"\nopen = true\n')
    for key in ("ExecStartPre=", "ExecStart="):
        [line] = [line.removeprefix(key) for line in lines if line.startswith(key)]
        line = line.replace("${STATE_DIRECTORY}", str(tmp_path / "data"))
        program, role, *words = shlex.split(line.replace("/etc/cottage", str(tmp_path)))
        assert (program, role) == ("/opt/cottage/bin/cottage", "serve")
        assert main(["serve", *words, *(["--check-config"] if key == "ExecStart=" else [])]) == 0
        assert "The settings can be used." in capsys.readouterr().out
    [stop] = [float(line.partition("=")[2]) for line in lines if line.startswith("TimeoutStopSec=")]
    assert stop > 2 * SHUTDOWN_S

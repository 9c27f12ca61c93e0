"""Who holds a home is one process, and known; a hold ends with its process, however that ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from desktop.agent.base.config import Home
from desktop.agent.base.file_lock import HeldError, held, holder
from desktop.agent.errors import HomeBusyError

HOLD = """
import sys, time
from pathlib import Path
from desktop.agent.base.file_lock import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_agent_is_told_which_process_runs_and_the_lock_dies_with_that(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    with subprocess.Popen((sys.executable, "-c", HOLD, str(home.lock)), stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert holder(home.lock) == other.pid
        with pytest.raises(HomeBusyError, match=rf"\(process {other.pid}\) already runs with .*another --home"):
            with home.locked():
                raise AssertionError("two agents hold one home")
        assert holder(home.lock) == other.pid  # Who was refused has changed nothing.
        other.kill()
    with home.locked():
        assert holder(home.lock) not in (None, other.pid)


def test_what_is_held_here_is_refused_here_and_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "one.lock"
    assert holder(path) is None
    for _ in range(2):
        with held(path), pytest.raises(HeldError):
            with held(path):
                raise AssertionError("held twice")
    with pytest.raises(KeyError):
        with held(path):
            raise KeyError
    with held(path):
        assert path.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.parametrize("word", ["rules", "limits", "earnings", "settings"])
def test_a_disk_that_takes_nothing_is_told_in_a_sentence(word: str, tmp_path: Path) -> None:
    Home.at(tmp_path)
    command = f"ulimit -f 0; exec {sys.executable} -m cottage node {word} --home {tmp_path}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in ended.stderr
    if word in ("rules", "limits"):
        assert "no agent runs here" in ended.stdout + ended.stderr, "what is read needs no room"
    else:
        assert ended.returncode == 2
        assert ended.stderr.startswith("cottage node: ")

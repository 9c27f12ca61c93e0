"""What a command writes is not taken: nobody reads it any more, the disk is full, or the stream is closed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")

COMMANDS = (["--version"], ["--help"], ["jobs", "--help"], ["completion", "bash"])
PROGRAMS = {
    "cottage": COMMANDS,
    "desktop.agent": (["--help"],),
    "trainer": (["--help"],),
    "ledger.local": (["--help"],),
}
EVERY = [(program, words) for program, many in PROGRAMS.items() for words in many]


def _run(program: str, words: list[str], buffered: bool, **streams: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {} if buffered else {"PYTHONUNBUFFERED": "1"}
    done = [sys.executable, "-m", program, *words]
    return subprocess.run(done, text=True, env=environment, timeout=60, check=False, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(("program", "words"), EVERY)
def test_a_full_disk_is_told_in_one_sentence(program: str, words: list[str], buffered: bool) -> None:
    with Path("/dev/full").open("w") as full:
        done = _run(program, words, buffered, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "cottage: cannot write the output: No space left on device\n")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(("program", "words"), EVERY)
def test_a_reader_who_has_gone_is_nobody_to_complain_to(program: str, words: list[str], buffered: bool) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = _run(program, words, buffered, stdout=writes, stderr=subprocess.PIPE)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_closed_stream_ends_no_command_and_no_file_takes_its_number(number: int) -> None:
    look = "import os; from common.output import guarded; guarded(lambda: print(os.open('/etc/passwd', 0) > 2) or 0)"
    shell = f'exec "$0" "$@" {number}>&-'
    words = ["bash", "-c", shell, sys.executable, "-c", look]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if number == 1 else "True\n")


@pytest.mark.parametrize("words", [["nonsense"], ["jobs", "--server", "http://127.0.0.1:9"]])
def test_a_complaint_that_cannot_be_written_changes_no_exit_status(words: list[str]) -> None:
    said = _run("cottage", words, True, stderr=subprocess.PIPE)
    with Path("/dev/full").open("w") as full:
        assert _run("cottage", words, True, stderr=full).returncode == said.returncode


def test_a_table_of_rich_is_written_or_told_like_any_line() -> None:
    show = "from common.console import Terminal; from common.output import guarded; import sys; "
    show += "sys.exit(guarded(lambda: Terminal().print('a') or 0))"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", show], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "cottage: cannot write the output: No space left on device\n")

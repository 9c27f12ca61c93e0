"""``cottage node``'s small words: what they load, what they advise where no agent answers, and a log that is followed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from desktop.agent.app import support
from desktop.agent.base.config import Home, Settings
from desktop.agent.cli import cli

ROOT = Path(__file__).parents[3]


def test_a_word_loads_neither_the_ledger_nor_what_trains() -> None:
    heavy = ("solana", "solders", "torch", "docker", "aiortc", "PySide6", "tokenizers", "pyarrow")
    code = f"import sys, desktop.agent.cli.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run((sys.executable, "-c", code), cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_where_no_agent_answers_the_advised_command_is_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = Home.at(tmp_path / "my node")
    assert cli.main(["status", "--home", str(home.path)]) == 1
    assert f"`cottage node run --home '{home.path}' --coordinator URL`" in capsys.readouterr().err
    home.remember(Settings(coordinator="http://c.test:8470"))
    assert cli.main(["status", "--home", str(home.path)]) == 1
    assert f"`cottage node run --home '{home.path}'`" in capsys.readouterr().err


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    log = Home.at(tmp_path).log
    log.write_text("2026-01-01 first\n2026-01-01 second\n")
    words = (sys.executable, "-m", "desktop.agent", "logs", "-f", "-n", "1", "--home", str(tmp_path))
    program = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    yield log, program
    program.kill()
    program.communicate()


def test_a_log_is_followed_into_its_next_file(followed: tuple[Path, subprocess.Popen[str]]) -> None:
    log, program = followed
    assert program.stdout is not None
    assert program.stdout.readline() == "2026-01-01 second\n"
    with log.open("a") as file:
        file.write("third, whose end comes la")
        file.flush()
        file.write("ter\n")
    assert program.stdout.readline() == "third, whose end comes later\n"
    os.replace(log, log.with_name(f"{log.name}.1"))
    log.write_text("fourth \x1b]0;owned\x07\n")
    assert program.stdout.readline() == "fourth \N{REPLACEMENT CHARACTER}]0;owned\N{REPLACEMENT CHARACTER}\n"
    program.send_signal(signal.SIGINT)
    assert program.wait(10) == 0


def test_what_is_written_while_the_end_of_a_log_is_shown_is_not_lost(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    home.log.write_text("first\nsecond\n")
    lines = support.followed_lines(home, 1, seconds=0.01)
    assert next(lines) == "second"
    with home.log.open("a") as file:
        file.write("third\nfour")
    assert next(lines) == "third"
    with home.log.open("a") as file:
        file.write("th\n")
    home.log.rename(home.log.with_name(f"{home.log.name}.1"))
    home.log.write_text("fifth\n")
    assert [next(lines), next(lines)] == ["fourth", "fifth"]


def test_a_log_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    home.log.with_name(f"{home.log.name}.1").write_text("old\n")
    lines = support.followed_lines(home, 5, seconds=0.01)
    assert next(lines) == "old\n"
    home.log.write_text("new\n")
    assert next(lines) == "new"

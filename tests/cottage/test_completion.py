"""Completion in the shells themselves: the script is loaded, Tab is pressed, the command answers."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cottage.cli import main

ROOT = Path(__file__).parents[2]
PRESS_TAB = """
source "$1" || exit
complete -p cottage
COMP_LINE=$2; COMP_POINT=${#2}; COMP_TYPE=9; COMP_KEY=9
_python_argcomplete cottage 2>/dev/null
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where ``cottage`` is this tree's."""
    command = tmp_path / "bin" / "cottage"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cottage "$@"\n')
    command.chmod(0o755)
    path = f"{command.parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}


def script_of(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    file = folder / f"cottage.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


def run(argv: list[str], environment: dict[str, str]) -> list[str]:
    if shutil.which(argv[0]) is None:
        pytest.skip(f"{argv[0]} is not installed")
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cottage wat", {"watch"}),
        ("cottage pau", {"pause"}),
        ("cottage nod", {"node"}),
        ("cottage logs --fol", {"--follow"}),
        ("cottage logs --level w", {"warning"}),
        ("cottage completion ", {"bash", "zsh", "fish"}),
        ("cottage upload --purpose to", {"tokenizer"}),
        ("cottage ledger ch", {"check", "challenge"}),
        ("cottage ledger show --sub", {"--submitter"}),
        ("cottage ledger check --al", {"--all"}),
        ("cottage ledger claim --pay", {"--payee"}),
        ("cottage ledger challenge --out", {"--outer"}),
        ("cottage ledger serve --rea", {"--ready-file"}),
        ("cottage ledger entries --ki", {"--kind"}),
    ],
)
def test_bash_completes_words_options_and_their_values(
    line: str, found: set[str], tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = script_of("bash", tmp_path, capsys)
    assert not file.read_text().startswith("#compdef"), "that is the mark of a function of zsh"
    first, *told = run(["bash", "--norc", "--noprofile", "-c", PRESS_TAB, "bash", str(file), line], environment)
    assert first.endswith("-F _python_argcomplete cottage")
    assert {word.strip() for word in told} - {"-h", "--help"} == found


def test_zsh_takes_the_script_as_the_function_that_completes(
    tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    script_of("zsh", tmp_path, capsys).rename(tmp_path / "_cottage")
    load = 'fpath=("$1" $fpath); autoload -Uz compinit; compinit -u -D; print -r -- $_comps[cottage]'
    assert run(["zsh", "-f", "-c", load, "zsh", str(tmp_path)], environment) == ["_cottage"]


def test_zsh_completes_at_its_prompt_when_tab_is_pressed(
    tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script_of("zsh", tmp_path, capsys).rename(tmp_path / "_cottage")
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment | {"TERM": "dumb", "PS1": ""})
    try:
        load = f"fpath=({tmp_path} $fpath); autoload -Uz compinit; compinit -u -D; setopt no_beep; print load'ed'\n"
        os.write(terminal, load.encode())
        read_until(terminal, b"\nloaded")
        os.write(terminal, b"cottage wat\t")
        read_until(terminal, b"cottage watch ")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


def read_until(terminal: int, mark: bytes) -> None:
    """Read what a shell shows until ``mark`` is there."""
    seen = b""
    while mark not in seen:
        ready, _, _ = select.select([terminal], [], [], 120)
        assert ready, f"{mark!r} was awaited; there was {seen[-400:]!r}"
        seen += os.read(terminal, 65536)


def test_fish_completes_words(tmp_path: Path, environment: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    file = script_of("fish", tmp_path, capsys)
    told = run(["fish", "--no-config", "-c", f'source {file}; complete -C "cottage wat"'], environment)
    assert [line.split("\t")[0].strip() for line in told] == ["watch"]
    told = run(["fish", "--no-config", "-c", f'source {file}; complete -C "cottage ledger serve --ready"'], environment)
    assert [line.split("\t")[0].strip() for line in told] == ["--ready-file"]


def test_another_shell_is_refused_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "fish" in capsys.readouterr().err

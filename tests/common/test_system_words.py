"""What the system refuses, options that are no numbers, and terminals that cannot show or take text."""

import argparse
import asyncio
import errno
import io
import os
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common import options
from common.console import Terminal
from common.system_words import in_words, reason
from common.terminal import NobodyAnswersError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "a.yaml"), "a.yaml: there is no such file or folder"),
        (IsADirectoryError(21, "Is a directory", b"data"), "data: it is a folder: name a file"),
        (NotADirectoryError(20, "Not a directory", Path("/dev/null/x")), "/dev/null/x: a part of its path is a file"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full: make room on it"),
        (OSError(errno.EXDEV, "Input/output error", "a"), "a: Invalid cross-device link"),
        (socket.gaierror(-2, "Name or service not known"), "no machine of that name is known"),
        (OSError("in words already"), "in words already"),
        (ValueError("not the system's"), "not the system's"),
    ],
)
def test_the_systems_errors_are_told_in_words(error: Exception, words: str) -> None:
    assert in_words(error).startswith(words)
    assert "Errno" not in in_words(error)


def test_a_file_that_is_not_utf_8_is_told_with_the_place() -> None:
    with pytest.raises(UnicodeDecodeError) as refused:
        b"caf\xe9!".decode()
    assert reason(refused.value) == "it is not UTF-8 at byte 3: write it anew as UTF-8"


def test_a_database_that_cannot_be_used_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database at all " * 99)
    full = sqlite3.connect(tmp_path / "full")
    full.execute("PRAGMA max_page_count = 1")
    holder, other = (sqlite3.connect(tmp_path / "held", timeout=0) for _ in range(2))
    holder.execute("BEGIN EXCLUSIVE")
    for words, use in (
        ("its file cannot be opened or made", lambda: sqlite3.connect(tmp_path).execute("CREATE TABLE one (a)")),
        ("its file is no database", lambda: sqlite3.connect(tmp_path / "text").execute("CREATE TABLE one (a)")),
        ("the disk is full: make room on it", lambda: full.execute("CREATE TABLE one (a)")),
        ("another program uses its file", lambda: other.execute("CREATE TABLE one (a)")),
    ):
        with pytest.raises(sqlite3.Error) as refused:
            use()
        assert in_words(refused.value).startswith(f"a database cannot be used: {words}")
    assert reason(sqlite3.ProgrammingError("Cannot operate on a closed database.")).startswith("Cannot operate")


async def test_a_port_that_is_taken_is_told_with_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError) as refused:
            await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", port)
    assert in_words(refused.value) == (
        f"port {port} of 127.0.0.1 cannot be listened on: another program listens there: end it, or choose another port"
    )


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (options.port, "80x", "80x is no port: choose 0 to 65535"),
        (options.port, "70000", "70000 is no port: choose 0 to 65535"),
        (options.whole, "ten", "'ten' is no whole number: write digits, such as 20"),
        (options.decimal, "a lot", "'a lot' is no number: write it as 20 or 0.5"),
        (options.decimal, "nan", "'nan' is no finite number: write it as 20 or 0.5"),
        (options.network, "10.0.0.1/8", "'10.0.0.1/8' is no network: write it as 192.168.1.0/24"),
        (options.host, "a b", "'a b' is no "),
    ],
)
def test_options_that_are_none_are_told_with_what_they_may_be(
    kind: Callable[[str], Any], text: str, words: str
) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        kind(text)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(("text", "host"), [("[::1]", "::1"), ("::1", "::1"), ("127.0.0.1", "127.0.0.1")])
def test_a_host_is_taken_with_brackets_or_without(text: str, host: str) -> None:
    assert options.host(text) == host


def test_no_command_leaves_a_wrong_number_to_the_library() -> None:
    kinds = re.compile(r"type=(int|float|ipaddress\.\w+)\b")
    rooms = ("coordinator", "desktop", "cottage", "ledger", "installer")
    found = [str(file) for room in rooms for file in (ROOT / room).rglob("*.py") if kinds.search(file.read_text())]
    assert found == []


def cottage(*words: str, closed: str = "", **environment: str) -> tuple[int, str]:
    """Exit status and all output of ``python -m cottage``; ``closed``: what the shell closes, such as ``>&-``."""
    line = f'exec "$0" -m cottage "$@" {closed}'
    asked = ["/bin/sh", "-c", line, sys.executable, *words]
    made = subprocess.run(asked, capture_output=True, env=os.environ | environment, cwd=ROOT, timeout=60, check=False)
    return made.returncode, (made.stdout + made.stderr).decode("latin-1")


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the streams")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "{folder}"], "cottage: {folder} is a folder: name one file in it"),
        (["check", "{folder}/nothing"], "cottage: {folder}/nothing: there is no such file or folder"),
        (["quote", "{folder}/broken.json"], "cottage: {folder}/broken.json: it is no JSON, from line 2 on: '}'"),
        (["quote", "{folder}/nan.json"], "{folder}/nan.json: it holds NaN on line 1: only finite numbers are taken"),
        (["quote", "{folder}/nan.yaml"], "cottage: {folder}/nan.yaml: model.x[1] is nan, no finite number"),
        (["quote", "{folder}/bad.yaml"], "cottage: {folder}/bad.yaml: it is no YAML from line 2, character 1 on"),
        (["serve", "--data", "{folder}", "--port", "80x"], "argument --port: 80x is no port: choose 0 to 65535"),
        (["jobs", "--limit", "x"], "argument --limit: 'x' is no whole number: write digits, such as 20"),
    ],
)
def test_a_wrong_file_or_value_is_told_by_the_command_in_a_sentence(
    words: list[str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.json").write_text('{"name": "a",\n}')
    (tmp_path / "nan.json").write_text('{"model": {"x": NaN}}')
    (tmp_path / "nan.yaml").write_text("model: {x: [1, .nan]}\n")
    (tmp_path / "bad.yaml").write_text("a: [1,\n")
    status, said = cottage(*(word.format(folder=tmp_path) for word in words))
    assert says.replace("{folder}", str(tmp_path)) in said
    assert status == 2
    assert "Errno" not in said
    assert "Traceback" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="HOME is the folder of settings elsewhere")
def test_a_key_that_cannot_be_kept_is_told_with_its_place() -> None:
    status, said = cottage("logout", HOME="/dev/null", XDG_CONFIG_HOME="/dev/null/x")
    assert (status, "a part of its path is a file, no folder: name another place" in said) == (2, True)
    assert "Errno" not in said


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the streams")
def test_a_terminal_that_is_not_utf_8_gets_question_marks_and_json_its_codes() -> None:
    code = (
        "from common.console import Terminal\nfrom common.terminal import say, say_json\n"
        "say('caf\\u00e9 \\u4f60')\nTerminal().print('\\u4f60 \\u00e9', end='\\n')\nsay_json({'a': '\\u4f60\\U0001f600'})\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert made.stderr == b""
    assert made.stdout == b'caf\xe9 ?\n? \xe9\n{"a":"\\u4f60\\ud83d\\ude00"}\n'


@pytest.mark.skipif(sys.platform == "win32", reason="a shell closes the streams")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
@pytest.mark.parametrize("words", [["--version"], ["logout"], ["login", "--server", "http://127.0.0.1:9"], ["nothing"]])
def test_closed_streams_are_no_crash(words: list[str], closed: str, tmp_path: Path) -> None:
    status, said = cottage(*words, closed=closed, COTTAGE_CONFIG=str(tmp_path), COTTAGE_TOKEN="")
    assert "Traceback" not in said
    assert status in (0, 2, 3)


def test_the_window_has_these_words_without_a_database() -> None:
    code = "import sys; sys.modules['sqlite3'] = None; from common.system_words import in_words; print(in_words(ValueError('x')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr


@pytest.mark.parametrize(("typed", "meant"), [("y\n", True), (" YES \n", True), ("n\n", False), ("\n", False)])
def test_a_question_is_shown_with_what_it_takes(
    typed: str, meant: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert Terminal().agrees("Send it?") is meant
    assert capsys.readouterr().out == "Send it? [y/N] "


@pytest.mark.parametrize("stdin", [io.StringIO(), None])
def test_where_nobody_can_be_asked_the_way_out_is_told(
    stdin: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    with pytest.raises(NobodyAnswersError, match=r"^nobody can be asked here: --yes agrees$"):
        Terminal().agrees("Send it?")

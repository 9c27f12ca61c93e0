"""``cottage node pause`` and ``rules``: what people write, and what they read."""

import datetime as dt
import io
import json
import logging
import re
from pathlib import Path

import pytest

from desktop.agent.base import log
from desktop.agent.base.config import Home
from desktop.agent.cli import cli
from desktop.agent.cli.lending_cli import parse_hours, parse_length, show_hours
from desktop.agent.errors import SettingsError
from desktop.agent.lending.keeper import load
from desktop.agent.lending.rules import ALWAYS, Rules

NOON = dt.datetime(2026, 3, 2, 12, 0).astimezone().timestamp()  # A Monday.


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("4h", 14400), ("1.5h", 5400), ("2d", 172800), ("tomorrow", 18 * 3600)]
)
def test_a_pause_has_a_length(text: str, seconds: float) -> None:
    assert parse_length(text, NOON) == seconds


@pytest.mark.parametrize("text", ["", "5", "h", "-1h", "0h", "31d", "99999h", "1 h", "morgen"])
def test_other_lengths_are_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(SettingsError, match="write 30m, 4h, 2d or tomorrow"):
        parse_length(text, NOON)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("always", "at any hour"),
        ("0-24", "at any hour"),
        ("9-17", "every day 9-17"),
        ("22-7", "every day 0-7, 22-24"),
        ("Mon-Fri 20-24, Sat-Sun 0-24", "Mon 20-24; Tue 20-24; Wed 20-24; Thu 20-24; Fri 20-24; Sat 0-24; Sun 0-24"),
        ("Fri 22-2", "Mon never; Tue never; Wed never; Thu never; Fri 22-24; Sat 0-2; Sun never"),
        ("Sun 22-2", "Mon 0-2; Tue never; Wed never; Thu never; Fri never; Sat never; Sun 22-24"),
        ("Sat-Mon 3-4", "Mon 3-4; Tue never; Wed never; Thu never; Fri never; Sat 3-4; Sun 3-4"),
    ],
)
def test_hours_are_read_and_shown(text: str, shown: str) -> None:
    hours = parse_hours(text)
    assert len(hours) == len(ALWAYS)
    assert show_hours(hours) == shown


@pytest.mark.parametrize("text", ["", "25-3", "3-25", "5-5", "Foo 1-2", "Mon- 1-2", "1-2;3-4"])
def test_other_hours_are_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(SettingsError, match="write 22-7"):
        parse_hours(text)


def test_rules_are_kept_where_no_agent_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = ["--home", str(tmp_path)]
    words = [
        "--idle",
        "10",
        "--games",
        "off",
        "--programs",
        "blender, Doom Eternal",
        "--celsius",
        "70",
        "--hours",
        "22-7",
    ]
    assert cli.main(["rules", *home, *words]) == 0
    out = capsys.readouterr().out
    assert "after 10 quiet minutes" in out
    assert "in force from its next start" in out
    kept = load(tmp_path / "lending.json").rules
    assert kept == Rules(10, False, False, ("blender", "Doom Eternal"), 70, hours=parse_hours("22-7"))
    assert cli.main(["rules", *home, "--programs", "none", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rules"]["programs"] == []
    assert cli.main(["rules", *home, "--celsius", "20"]) == 2
    assert "max_celsius" in capsys.readouterr().err


def test_a_pause_needs_an_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pause", "1h", "--home", str(tmp_path)]) == 1
    assert "cottage node run" in capsys.readouterr().err


def test_the_log_is_kept_over_restarts_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = Home.at(tmp_path)
    (tmp_path / "node.log.2").write_text("first\n")
    (tmp_path / "node.log.1").write_text("second\n")
    before = list(logging.getLogger().handlers)
    try:
        log.set_up(as_json=False, stream=io.StringIO(), file=home.log)
        log.LOG.warning("third, with a %s", "turn\x1b[31m")
    finally:
        logging.getLogger().handlers[:] = before
    assert cli.main(["logs", "--home", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["first", "second"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d warning: third, with a turn\ufffd\[31m", lines[2])
    assert cli.main(["logs", "-n", "1", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == lines[2:]


def test_where_nothing_was_said_nothing_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["logs", "--home", str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""

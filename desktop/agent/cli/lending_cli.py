"""``cottage node pause|now|resume|finish|rules``: when this machine lends."""

import argparse
import asyncio
import datetime as dt
import re
import time
from pathlib import Path

from rich.table import Table

from common.console import Terminal
from common.options import decimal, whole
from common.terminal import say, say_json
from desktop.agent.app import status
from desktop.agent.base.config import Home
from desktop.agent.base.log import printable
from desktop.agent.errors import NoAgentError, SettingsError
from desktop.agent.lending.keeper import MAX_PAUSE_S, LendingChange, LendingView, RulesChange, change_kept
from desktop.agent.lending.rules import ALWAYS, Rules
from protocol.codec import encode_json

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_LENGTH = re.compile(r"(?P<number>[0-9]{1,5}(\.[0-9]{1,2})?)(?P<unit>[mhd])")
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0}
_HOURS = re.compile(r"(?:(?P<first>[A-Z][a-z]{2})(?:-(?P<last>[A-Z][a-z]{2}))?\s+)?(?P<begin>\d{1,2})-(?P<end>\d{1,2})")


def add_words(words: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words to ``cottage node``."""
    pause = words.add_parser("pause", help="stop lending for a while; it goes on by itself")
    pause.add_argument("length", nargs="?", default="1h", help="30m, 4h, 2d or tomorrow (1h)")
    now = words.add_parser("now", help="lend for a while although somebody is at this computer")
    now.add_argument("length", nargs="?", default="1h", help="30m, 4h, 2d or tomorrow (1h)")
    resume = words.add_parser("resume", help="end a pause, or a `finish`")
    finish = words.add_parser("finish", help="complete what runs, then stop")
    rules = words.add_parser("rules", help="when this machine lends: shown, or changed at once")
    _add_rules(rules)
    for parser, action in ((pause, _pause), (now, _now), (resume, _resume), (finish, _finish), (rules, _rules)):
        parser.add_argument("--home", type=Path, help="the agent's folder")
        parser.add_argument("--json", action="store_true", help="one JSON document")
        parser.set_defaults(run=action)


def _add_rules(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--idle",
        type=whole,
        metavar="MINUTES",
        help="lend once nobody has touched the computer for so long; 0: always (5)",
    )
    add("--battery", choices=("on", "off"), help="lend on battery (off)")
    add("--games", choices=("on", "off"), help="step aside for full-screen and listed programs (on)")
    add("--programs", metavar="NAMES", help="programs to step aside for, separated by commas; none")
    add("--celsius", type=whole, metavar="DEGREES", help="the GPU's limit (78)")
    add("--band", type=whole, metavar="DEGREES", help="how far below its limit it goes on (6)")
    add("--hours", metavar="HOURS", help="such as 22-7, or 'Mon-Fri 20-8, Sat-Sun 0-24'; always (always)")
    add("--metered", choices=("on", "off"), help="lend over networks that cost by the byte (off)")
    add("--free-disk", type=decimal, metavar="GB", help="what stays free on the disk (10)")
    add("--own-vram", type=decimal, metavar="GB", help="what of the GPU's memory is kept for your own programs (2)")


def _pause(options: argparse.Namespace) -> int:
    return _tell(options, LendingChange(pause_s=parse_length(options.length, time.time())))


def _now(options: argparse.Namespace) -> int:
    return _tell(options, LendingChange(here_s=parse_length(options.length, time.time())))


def _resume(options: argparse.Namespace) -> int:
    return _tell(options, LendingChange(pause_s=0, finish=False))


def _finish(options: argparse.Namespace) -> int:
    return _tell(options, LendingChange(finish=True))


def _tell(options: argparse.Namespace, change: LendingChange) -> int:
    view = asyncio.run(status.ask_lending(Home.at(options.home).socket, change))
    say(encode_json(view).decode() if options.json else view.sentence)
    return 0


def _rules(options: argparse.Namespace) -> int:
    home, change = Home.at(options.home), _change(options)
    asked = LendingChange(rules=change) if change != RulesChange() else None
    try:
        view, running = asyncio.run(status.ask_lending(home.socket, asked)), True
    except NoAgentError:
        view, running = _without_agent(home, change), False
    if options.json:
        say_json(view)
        return 0
    console = Terminal()
    console.print(_table(view.rules))
    console.print(view.sentence if running else "no agent runs here: in force from its next start")
    if not view.bound:
        console.print("this agent was started with --always: it lends whatever the rules say")
    return 0


def _without_agent(home: Home, change: RulesChange) -> LendingView:
    with home.locked():
        return change_kept(home.lending, LendingChange(rules=change), time.time())


def _change(options: argparse.Namespace) -> RulesChange:
    def switch(value: str | None) -> bool | None:
        return None if value is None else value == "on"

    programs = options.programs
    return RulesChange(
        idle_minutes=options.idle,
        on_battery=switch(options.battery),
        for_games=switch(options.games),
        programs=None if programs is None else parse_programs(programs),
        max_celsius=options.celsius,
        band_celsius=options.band,
        hours=None if options.hours is None else parse_hours(options.hours),
        on_metered=switch(options.metered),
        free_disk=options.free_disk,
        own_vram=options.own_vram,
    )


def _table(rules: Rules) -> Table:
    table = Table("It lends", "")
    idle = f"after {rules.idle_minutes} quiet minutes" if rules.idle_minutes else "while somebody works here, too"
    table.add_row("people", idle)
    listed = printable(", ".join(rules.programs)) or "no others"
    table.add_row("games", f"not beside full-screen programs, nor {listed}" if rules.for_games else "beside them")
    table.add_row("battery", "on battery, too" if rules.on_battery else "on mains only")
    table.add_row("heat", f"below {rules.max_celsius} °C, again below {rules.max_celsius - rules.band_celsius} °C")
    table.add_row("hours", show_hours(rules.hours))
    table.add_row("network", "metered ones, too" if rules.on_metered else "not over metered ones")
    table.add_row("disk", f"while {rules.free_disk:g} GB are free")
    table.add_row("GPU memory", f"all but {rules.own_vram:g} GB")
    return table


def parse_programs(text: str) -> tuple[str, ...]:
    """Names of executables; nothing for ``none``."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    return () if names == ("none",) else names


def parse_length(text: str, now: float) -> float:
    """Seconds from ``30m``, ``4h``, ``2d`` or ``tomorrow`` (6:00 local time).

    Raises:
        SettingsError: it is none of them.
    """
    if text == "tomorrow":
        here = dt.datetime.fromtimestamp(now).astimezone()
        return ((here + dt.timedelta(days=1)).replace(hour=6, minute=0, second=0, microsecond=0) - here).total_seconds()
    match = _LENGTH.fullmatch(text)
    seconds = float(match["number"]) * _SECONDS[match["unit"]] if match else 0.0
    if not 0 < seconds <= MAX_PAUSE_S:
        raise SettingsError(f"{text[:40]!r} is no length of a pause: write 30m, 4h, 2d or tomorrow, at most 30d")
    return seconds


def parse_hours(text: str) -> str:
    """A week's hours from ``22-7`` or ``Mon-Fri 20-8, Sat-Sun 0-24``; parts add up, and may pass midnight.

    Raises:
        SettingsError: a part cannot be read.
    """
    if text.strip().lower() == "always":
        return ALWAYS
    week = ["0"] * len(ALWAYS)
    for part in text.split(","):
        match = _HOURS.fullmatch(part.strip())
        begin, end = (int(match["begin"]), int(match["end"])) if match else (99, 99)
        named = [] if match is None else [day for day in (match["first"], match["last"]) if day]
        if begin > 23 or end > 24 or begin == end or any(day not in DAYS for day in named):
            raise SettingsError(
                f"--hours {part.strip()[:40]!r} cannot be read: write 22-7, or 'Mon-Fri 20-8, Sat 0-24'"
            )
        first, last = (DAYS.index(named[0]), DAYS.index(named[-1])) if named else (0, 6)
        length = (end - begin) % 24 or 24
        for day in range(first, first + (last - first) % 7 + 1):
            for hour in range(begin, begin + length):
                week[(day * 24 + hour) % len(week)] = "1"
    return "".join(week)


def show_hours(hours: str) -> str:
    """The week in words, a day each where they differ."""
    if hours == ALWAYS:
        return "at any hour"
    if "1" not in hours:
        return "never"
    days = [_spans(hours[day * 24 : day * 24 + 24]) for day in range(7)]
    if len(set(days)) == 1:
        return f"every day {days[0]}"
    return "; ".join(f"{name} {spans}" for name, spans in zip(DAYS, days, strict=True))


def _spans(day: str) -> str:
    return ", ".join(f"{run.start()}-{run.end()}" for run in re.finditer("1+", day)) or "never"

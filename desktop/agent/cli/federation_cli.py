"""``cottage node join|leave|federations``: take part in federated jobs with data that stays on this computer."""

import argparse
import asyncio
from pathlib import Path
from typing import get_args

from rich.table import Table

from common.console import Terminal
from common.terminal import say, say_json
from desktop.agent.app import status
from desktop.agent.base.config import Home
from desktop.agent.base.log import printable
from desktop.agent.errors import SettingsError
from desktop.agent.federated.joining import (
    CHECK_S,
    FederationsView,
    FederationView,
    JoinOrder,
    LeaveFederationOrder,
    LookOrder,
)
from protocol.job.job import DatasetFormat

JOIN_S = CHECK_S + 120.0
MAX_FILE = 20_000  # Bytes of a file with an invitation in it.


def add_words(words: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words to ``cottage node``."""
    join = words.add_parser("join", help="take part in a federation with data that stays on this computer")
    join.add_argument(
        "federation", metavar="FEDERATION", help="its invitation (cottage://join?...), or a file that holds one"
    )
    join.add_argument("--data", metavar="PATH", help="a folder or a file: texts, or tables with a column of texts")
    join.add_argument("--text-field", default="text", metavar="NAME", help="the column or field with the text (text)")
    join.add_argument("--format", choices=get_args(DatasetFormat), default="auto", help="of its files (as they look)")
    join.add_argument("--tell-rows", action="store_true", help="let the others know how many rows there are")
    join.add_argument("--yes", action="store_true", help="do not ask")
    leave = words.add_parser("leave", help="take no part in a federation any more")
    leave.add_argument("federation", metavar="FEDERATION", help="its invitation, or the beginning of its id")
    joined = words.add_parser("federations", help="which federations this node has joined, and what was spent")
    for parser, action in ((join, _join), (leave, _leave), (joined, _federations)):
        parser.add_argument("--home", type=Path, help="the agent's folder")
        parser.add_argument("--json", action="store_true", help="one JSON document")
        parser.set_defaults(run=action)


def _join(options: argparse.Namespace) -> int:
    home, console = Home.at(options.home), Terminal(stderr=options.json)
    look = LookOrder(_invitation(options.federation))
    seen = asyncio.run(status.ask_for(home.socket, "federation", FederationView, look, status.LONG_TIMEOUT_S))
    assert seen.told.spec is not None
    console.print(f"The federation {printable(seen.told.spec.name)!r} asks:")
    for line in seen.asks:
        console.print(f"  {printable(line)}", soft_wrap=True)
    if options.data is None:
        console.print("Join with --data FOLDER.")
        return 0
    data = str(Path(options.data).expanduser().absolute())
    if not options.yes and not console.agrees(f"Join with {printable(data)}?"):
        return 1
    order = JoinOrder(seen.told.job, seen.terms, data, options.text_field, options.format, options.tell_rows)
    try:
        done = asyncio.run(status.ask_for(home.socket, "federation/join", FederationView, order, JOIN_S))
    except KeyboardInterrupt:  # Else the agent would go on, and join.
        back = LeaveFederationOrder(order.job)
        asyncio.run(status.ask_for(home.socket, "federation/leave", FederationsView, back, status.LONG_TIMEOUT_S))
        raise
    if options.json:
        say_json(done)
        return 0
    for line in done.found:
        console.print(printable(line), soft_wrap=True)
    say(f"joined: this computer takes part once it lends; leave with `cottage node leave {seen.told.job[:8]}`")
    return 0


def _leave(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    joined = asyncio.run(status.ask_for(home.socket, "federations", FederationsView)).joined
    wanted = options.federation
    found = [one.job for one in joined if one.job.startswith(wanted) or (len(wanted) >= 40 and one.job in wanted)]
    if len(found) != 1:
        what = "none" if not found else "more than one"
        raise SettingsError(
            f"{what} of the federations that were joined is {wanted!r}: `cottage node federations` lists them"
        )
    order = LeaveFederationOrder(found[0])
    view = asyncio.run(status.ask_for(home.socket, "federation/leave", FederationsView, order, status.LONG_TIMEOUT_S))
    if options.json:
        say_json(view)
    else:
        say("left: no further round of it begins here")
    return 0


def _federations(options: argparse.Namespace) -> int:
    home = Home.at(options.home)
    view = asyncio.run(status.ask_for(home.socket, "federations", FederationsView))
    if options.json:
        say_json(view)
        return 0
    console, table = Terminal(), Table("Federation", "Name", "Data", "Rounds begun", "Budget")
    for one in view.joined:
        most = "no limit" if one.most is None else str(one.most)
        budget = (
            "none" if one.epsilon is None else f"epsilon {one.epsilon:g} at delta {one.delta:g} for each {one.unit}"
        )
        table.add_row(one.job[:8], printable(one.name), printable(one.data), f"{one.begun} of {most}", budget)
    console.print(table)
    return 0


def _invitation(text: str) -> str:
    """The link, or what a file holds."""
    path = Path(text)
    if "://" not in text and path.is_file():
        if path.stat().st_size > MAX_FILE:
            raise SettingsError(f"{text} is too large for an invitation: name the file that you were sent")
        return path.read_text("utf-8", errors="replace").strip()
    return text

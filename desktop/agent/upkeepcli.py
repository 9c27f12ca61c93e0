"""``cottage node update``: what keeps the program itself in order."""

import argparse
import asyncio
import sys
from pathlib import Path

from desktop.agent import status
from desktop.agent.config import Home
from desktop.agent.errors import UpdateError
from desktop.agent.log import printable
from desktop.agent.updates.keeper import UpdateOrder, UpdateView
from desktop.agent.updates.release import installation
from transport.wire.codec import encode_json


def add_words(words: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the words to ``cottage node``."""
    update = words.add_parser("update", help="look for a new version; packages of apt are updated by apt")
    what = update.add_mutually_exclusive_group()
    what.add_argument(
        "--restart", action="store_true", help="hand over what runs and restart into the version that is ready"
    )
    what.add_argument("--back", action="store_true", help="from the next start on, use the version before this one")
    update.set_defaults(run=_update)
    for parser in (update,):
        parser.add_argument("--home", type=Path, help="the agent's folder")
        parser.add_argument("--json", action="store_true", help="one JSON document")


def _update(options: argparse.Namespace) -> int:
    if options.back:
        _, folder = installation()
        if folder is None:
            raise UpdateError(
                "this installation keeps no earlier version; apt keeps them for packages that it installs"
            )
        sys.stdout.write(f"from the next start on: version {folder.back()}\n")
        return 0
    view = asyncio.run(status.ask_update(Home.at(options.home).socket, UpdateOrder(options.restart)))
    if options.json:
        sys.stdout.write(encode_json(view).decode() + "\n")
    else:
        sys.stdout.write(words_of(view, restarting=options.restart) + "\n")
    return 0


def words_of(view: UpdateView, *, restarting: bool = False) -> str:
    """A view in one sentence."""
    text = printable(view.text)
    if restarting:
        return f"restarting into version {view.version}; `cottage node status` shows when it runs"
    if view.stage == "none" and not text:
        return f"version {view.running} is the newest"
    return f"version {view.version or view.running}: {text or view.stage}"

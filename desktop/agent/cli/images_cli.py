"""``cottage node images``: whose images of array jobs may run here, and which have been asked for."""

import argparse
import time
from pathlib import Path

import msgspec
from rich.table import Table

from common.console import Terminal
from common.terminal import say, say_json
from desktop.agent.base.config import Home
from desktop.agent.base.log import printable
from desktop.agent.images.publishers import KnownImage, Publisher, Publishers
from desktop.agent.updates.release import this_release
from protocol.ids import NodeAddress

NOBODY = "Nobody's images are accepted yet: cottage node images accept KEY --name NAME"


class ImagesSeen(msgspec.Struct, frozen=True):
    """What is accepted, and what was asked for; ``refused``: publishers of these that are not accepted."""

    publishers: tuple[Publisher, ...]
    images: tuple[KnownImage, ...]
    refused: tuple[NodeAddress, ...]


def add_words(words: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the word to ``cottage node``."""
    images = words.add_parser("images", help="whose images of array jobs may run here: list, accept, remove")
    actions = images.add_subparsers(required=True, metavar="WORD")
    shown = actions.add_parser("list", help="publishers that are accepted, and images that jobs have asked for")
    shown.set_defaults(run=_list)
    accept = actions.add_parser("accept", help="let images run here that this key has signed; an agent knows at once")
    accept.add_argument("key", metavar="KEY", help="the publisher's, as `cottage image push` shows it")
    accept.add_argument("--name", required=True, help="what you call the publisher")
    accept.set_defaults(run=_accept)
    remove = actions.add_parser("remove", help="run no further images of a publisher; what has begun goes on")
    remove.add_argument("key", metavar="KEY", help="the key, or the name that you gave it")
    remove.set_defaults(run=_remove)
    for parser in (shown, accept, remove):
        parser.add_argument("--home", type=Path, help="the agent's folder")
        parser.add_argument("--json", action="store_true", help="one JSON document")


def _of(options: argparse.Namespace) -> Publishers:
    return Publishers(Home.at(options.home), this_release().key)


def _list(options: argparse.Namespace) -> int:
    publishers = _of(options)
    accepted, known = publishers.all(), publishers.known()
    refused = dict.fromkeys(one.stated.publisher for one in known if not publishers.accepts(one.stated.publisher))
    if options.json:
        say_json(ImagesSeen(accepted, known, tuple(refused)))
        return 0
    out = Terminal()
    names = {one.key: one.name for one in accepted}
    if not accepted:
        out.print(NOBODY, soft_wrap=True)
    else:
        table = Table("Publisher", "Key", "Since")
        for one in accepted:
            since = time.strftime("%Y-%m-%d", time.localtime(one.since)) if one.since else "always"
            table.add_row(printable(one.name), one.key, since)
        out.print(table)
    if known:
        table = Table("Image", "Publisher", "Size", "Asks for", "Here")
        for image in known:
            stated = image.stated
            size = f"{stated.unpacked / 1e6:,.0f} MB"
            asks = f"{image.memory_mb:,} MB of memory{', the GPU' if image.gpu else ''}; no network, no files"
            who = names.get(stated.publisher)
            here = "yes" if image.layers else "no" if who else "not accepted"
            table.add_row(stated.name, printable(who or stated.publisher), size, asks, here)
        out.print(table)
    for key in refused:
        out.print(
            f"A job wanted to run an image of {key}: cottage node images accept {key} --name NAME", soft_wrap=True
        )
    return 0


def _accept(options: argparse.Namespace) -> int:
    made = _of(options).accept(options.key, options.name, time.time())
    if options.json:
        say_json(made)
    else:
        say(f"images of {printable(made.name)} ({made.key}) may run here: without network, and without your files")
    return 0


def _remove(options: argparse.Namespace) -> int:
    gone = _of(options).remove(options.key)
    if options.json:
        say_json(gone)
    else:
        say(f"no further job runs images of {printable(gone.name)} here; the engine forgets them at the next start")
    return 0

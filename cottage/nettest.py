"""``cottage nettest``: what this home's line is good for.

Exit codes: 0 measured; 1 no relay answers; 2 a wrong option or file; 3 there are no relays to measure against, or the coordinator
does not tell them.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.clock import SystemClock
from common.console import Terminal
from common.errors import IceConfigError, TransportError
from common.own_folders import data_folder, make_folder
from common.system_words import reason
from common.terminal import complain, say, say_json
from desktop.agent.cli.nettest_screen import show, show_link, with_bar
from protocol.codec import MessageError, decode_json
from protocol.identity import NodeKey
from transport.ice.ice import turn_credentials
from transport.nettest.errors import NettestError
from transport.nettest.offer import ask_relays
from transport.nettest.pair import invite, visit
from transport.nettest.phase import TOTAL_S
from transport.nettest.run import run
from transport.nettest.target import Target, targets

EXIT_SILENT = 1
EXIT_USAGE = 2
EXIT_NO_RELAYS = 3
MAX_SECRET = 1024
LISTEN_S = 540.0  # Somebody has to carry a line over; a relayed address lasts ten minutes unless it is renewed.
MAX_SETTINGS = 1 << 20
USER = "nettest"  # Who measures, in a relay's account, where the secret itself is at hand.


class NettestUsageError(Exception):
    """An option or a file cannot be used."""


def main(argv: Sequence[str]) -> int:
    """Measure, and tell; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except (NettestUsageError, IceConfigError) as error:
        complain("cottage nettest", error)
        return EXIT_USAGE
    except TransportError as error:
        complain("cottage nettest", error)
        return EXIT_NO_RELAYS if isinstance(error, NettestError) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_SILENT


def _parser() -> argparse.ArgumentParser:
    home = data_folder() / "node"
    parser = argparse.ArgumentParser(
        prog="cottage nettest",
        description=f"Measure this home's line in under {TOTAL_S + 0.5:.0f} seconds: its router, the way to the relays, "
        "and the rates up and down. The relays are those of the node's coordinator, unless others are named.",
    )
    add = parser.add_argument
    add("--coordinator", metavar="URL", help="ask this one for its relays (the node's own)")
    add("--home", type=Path, default=home, help="the node's folder, for its key and its coordinator (%(default)s)")
    add("--relay", action="append", default=[], metavar="URL", help="turn:HOST:PORT instead; may be repeated")
    add("--relay-secret-file", type=Path, metavar="FILE", help="the secret of those relays")
    add("--json", action="store_true", help="one JSON document")
    add("--listen", action="store_true", help="wait for another machine; prints the line that it needs for --peer")
    add("--peer", metavar="CODE", help="measure the link to the machine that has printed this line")
    add("--no-speed", action="store_true", help="leave the rates out: they take up to four seconds of the whole line")
    return parser


async def _run(options: argparse.Namespace) -> int:
    chosen = await relays(options)
    console = Terminal(stderr=options.json)
    if options.listen or options.peer:
        return await _pair(options, console, chosen)
    test = await with_bar(console, lambda on_phase: run(chosen, speed=not options.no_speed, on_phase=on_phase))
    if options.json:
        say_json(test)
    else:
        show(console, test)
    return 0 if test.reached else EXIT_SILENT


async def _pair(options: argparse.Namespace, console: Terminal, chosen: Sequence[Target]) -> int:
    """The link to one other machine."""
    if options.peer:
        speed = not options.no_speed
        link = await with_bar(
            console, lambda on_phase: visit(chosen, options.peer, SystemClock(), on_phase, speed=speed)
        )
    else:
        link = await invite(chosen, SystemClock(), lambda code: _show_code(console, code), LISTEN_S)
    if options.json:
        say_json(link)
    else:
        show_link(console, link)
    return 0


def _show_code(console: Terminal, code: str) -> None:
    console.print("On the other machine, with the same relays:")
    say(f"cottage nettest --peer {code}", error=console.stderr)  # Unbroken, however narrow the terminal is.


async def relays(options: argparse.Namespace) -> list[Target]:
    """Those that are named, else those of the coordinator.

    Raises:
        UsageError: a file cannot be read, or nothing says where relays are.
        NettestError: the coordinator does not tell.
        IceConfigError: a URL cannot be used.
    """
    if options.relay:
        if options.relay_secret_file is None:
            raise NettestUsageError("--relay needs the relay's secret: give --relay-secret-file")
        username, credential = turn_credentials(_read_secret(options.relay_secret_file), USER, time.time())
        return targets([((url,), username, credential) for url in options.relay])
    coordinator = options.coordinator or _settled_coordinator(options.home)
    try:
        make_folder(options.home)
    except OSError as error:
        raise NettestUsageError(f"--home {options.home} cannot be used: {reason(error)}") from error
    return await ask_relays(coordinator, NodeKey.load_or_generate(options.home / "node.key"), SystemClock())


def _read_secret(path: Path) -> str:
    try:
        with path.open() as file:
            return file.read(MAX_SECRET).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NettestUsageError(f"cannot read the secret in {path}: {reason(error)}") from error


class _Settings(msgspec.Struct):
    """Of the agent's settings, what matters here."""

    coordinator: str = ""


def _settled_coordinator(home: Path) -> str:
    file = home / "settings.json"
    try:
        settings: _Settings = decode_json(file.read_bytes(), _Settings, MAX_SETTINGS)
    except FileNotFoundError:
        settings = _Settings()
    except (OSError, MessageError) as error:
        raise NettestUsageError(f"{file} cannot be used: {reason(error)}") from error
    if not settings.coordinator:
        raise NettestUsageError(
            "which relays? Give --coordinator URL, or --relay turn:HOST:PORT and --relay-secret-file FILE"
        )
    return settings.coordinator

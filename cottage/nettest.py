"""``cottage nettest``: what this home's line is good for.

Exit codes: 0 measured; 1 no relay answers; 2 a wrong option or file; 3 there are no relays to measure against, or the coordinator
does not tell them.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from transport.clock import SystemClock
from transport.errors import IceConfigError, TransportError
from transport.ice import turn_credentials
from transport.identity import NodeKey
from transport.nettest import words
from transport.nettest.errors import NettestError
from transport.nettest.offer import ask_relays
from transport.nettest.result import NetTest
from transport.nettest.run import TOTAL_S, Phase, run
from transport.nettest.target import Target, targets
from transport.wire.codec import MessageError, decode_json

EXIT_SILENT = 1
EXIT_USAGE = 2
EXIT_NO_RELAYS = 3
TICK_S = 0.1
MAX_SECRET = 1024
MAX_SETTINGS = 1 << 20
USER = "nettest"  # Who measures, in a relay's account, where the secret itself is at hand.

T = TypeVar("T")


class UsageError(Exception):
    """An option or a file cannot be used."""


def main(argv: Sequence[str]) -> int:
    """Measure, and tell; returns the exit code."""
    options = _parser().parse_args(argv)
    try:
        return asyncio.run(_run(options))
    except (UsageError, IceConfigError) as error:
        print(f"cottage nettest: {error}", file=sys.stderr)
        return EXIT_USAGE
    except TransportError as error:
        print(f"cottage nettest: {error}", file=sys.stderr)
        return EXIT_NO_RELAYS if isinstance(error, NettestError) else EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_SILENT


def _parser() -> argparse.ArgumentParser:
    home = platformdirs.user_data_path("cottage") / "node"
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
    add("--no-speed", action="store_true", help="leave the rates out: they take up to four seconds of the whole line")
    return parser


async def _run(options: argparse.Namespace) -> int:
    chosen = await relays(options)
    console = Console(stderr=options.json)
    test = await with_bar(console, lambda on_phase: run(chosen, speed=not options.no_speed, on_phase=on_phase))
    if options.json:
        print(msgspec.json.encode(test).decode())
    else:
        show(console, test)
    return 0 if test.reached else EXIT_SILENT


async def relays(options: argparse.Namespace) -> list[Target]:
    """Those that are named, else those of the coordinator.

    Raises:
        UsageError: a file cannot be read, or nothing says where relays are.
        NettestError: the coordinator does not tell.
        IceConfigError: a URL cannot be used.
    """
    if options.relay:
        if options.relay_secret_file is None:
            raise UsageError("--relay needs the relay's secret: give --relay-secret-file")
        username, credential = turn_credentials(_read_secret(options.relay_secret_file), USER, time.time())
        return targets([((url,), username, credential) for url in options.relay])
    coordinator = options.coordinator or _settled_coordinator(options.home)
    try:
        options.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--home {options.home} cannot be used: {error.strerror}") from error
    return await ask_relays(coordinator, NodeKey.load_or_generate(options.home / "node.key"), SystemClock())


def _read_secret(path: Path) -> str:
    try:
        with path.open() as file:
            return file.read(MAX_SECRET).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the secret in {path}: {error}") from error


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
        raise UsageError(f"{file} cannot be used: {error}") from error
    if not settings.coordinator:
        raise UsageError("which relays? Give --coordinator URL, or --relay turn:HOST:PORT and --relay-secret-file FILE")
    return settings.coordinator


async def with_bar(console: Console, work: Callable[[Callable[[Phase], None]], Coroutine[Any, Any, T]]) -> T:
    """Do ``work`` under a progress bar, which is removed at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("beginning", total=TOTAL_S)
        measuring = asyncio.ensure_future(work(lambda phase: bar.update(task, description=phase.text)))
        began = time.monotonic()
        try:
            while not measuring.done():
                await asyncio.wait([measuring], timeout=TICK_S)
                bar.update(task, completed=min(time.monotonic() - began, TOTAL_S))
            return measuring.result()
        finally:
            measuring.cancel()


def show(console: Console, test: NetTest) -> None:
    """Print the figures and what they mean."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("your router", escape(words.nat(test)))
    if test.public:
        table.add_row("seen as", escape(test.public))
    table.add_row("IPv6", "yes" if test.ipv6 else "no")
    table.add_row("download", words.rate(test.down))
    table.add_row("upload", words.rate(test.up))
    if test.note:
        table.add_row("", escape(test.note))
    for relay in test.relays:
        table.add_row("relay", escape(f"{relay.relay}: {words.way(relay)}"))
    console.print(table)
    for sentence in words.earning(test):
        console.print(f"- {sentence}", markup=False)
    console.print(f"measured in {test.seconds:.1f} s", style="dim")

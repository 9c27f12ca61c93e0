"""Serves the embedded ledger: ``python -m ledger.local --port 0 --db ledger.db --ready-file url.txt``.

Exit codes: 0 ended by a signal, 1 the file or the port cannot be used, 3 the disk refused a write.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from common.log_lines import log_to
from common.options import host, port
from common.output import guarded
from common.system_words import reason
from common.terminal import say
from common.urls import join, url_of
from ledger.local.genesis import open_chain
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from ledger.local.store import LocalStore

EXIT_UNUSABLE, EXIT_STORE_FAILED = 1, 3
SHUTDOWN_S = 1.0  # Requests take milliseconds; idle keep-alive connections need no longer goodbye.


def parser() -> argparse.ArgumentParser:
    """The options of ``cottage ledger serve``."""
    parser = argparse.ArgumentParser(prog="python -m ledger.local", description="Serve the embedded ledger.")
    parser.add_argument(
        "--host", type=host, default="127.0.0.1", help="address to listen on; anybody who reaches it may mint"
    )
    parser.add_argument("--port", type=port, default=8899, help="0 picks a free port")
    parser.add_argument("--db", type=Path, required=True, help="SQLite file, created on the first start")
    parser.add_argument("--ready-file", type=Path, help="receives the URL once requests are answered")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Parse arguments and serve until a signal."""
    arguments = parser().parse_args(argv)
    log_to(logging.StreamHandler(), "%(asctime)s %(name)s %(message)s")
    try:
        store = LocalStore(arguments.db)
    except sqlite3.Error as error:
        say(f"{arguments.db} cannot be used as a ledger: {reason(error)}", error=True)
        return EXIT_UNUSABLE
    with contextlib.closing(store):
        try:
            return asyncio.run(_serve(store, arguments))
        except OSError as error:
            say(f"{join(arguments.host, arguments.port)} cannot be served: {reason(error)}", error=True)
            return EXIT_UNUSABLE


async def _serve(store: LocalStore, arguments: argparse.Namespace) -> int:
    stop, failed = asyncio.Event(), asyncio.Event()

    def fail() -> None:
        failed.set()
        stop.set()

    chain, genesis = open_chain(store, time.time)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The loop's own signal handlers do not exist on Windows.
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop.set))
    runner = web.AppRunner(build_app(Rpc(chain, genesis), fail), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, arguments.host, arguments.port)
        await site.start()
        url = url_of(*runner.addresses[0][:2])
        if arguments.ready_file is not None:
            _write_whole(arguments.ready_file, url)
        say(f"{url}")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await runner.cleanup()
    return EXIT_STORE_FAILED if failed.is_set() else 0


def _write_whole(path: Path, text: str) -> None:
    """Whoever waits for the file never sees half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    raise SystemExit(guarded(main))

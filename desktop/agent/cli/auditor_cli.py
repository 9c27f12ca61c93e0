"""``cottage auditor``: look at others' work for the operator of a coordinator.

It lends, stakes and earns nothing: it runs steps of others again, and says whether they are what was committed to.
The coordinator must name its address (cottage serve --auditor ADDRESS); until then it knocks again and again.

Exit codes: 0 ended as asked; 2 a setting or file is unusable; 5 another auditor uses the same data folder.
"""

import argparse
import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

from common import gc_tuning
from common.console import Terminal
from common.options import whole
from common.own_folders import data_folder
from common.shutdown_signals import on_end
from common.terminal import complain
from desktop.agent.app.auditor import look
from desktop.agent.base import log, loop_watchdog
from desktop.agent.base.config import DEFAULT_IMAGE, Home, Settings
from desktop.agent.base.log import LOG
from desktop.agent.errors import AgentError, SettingsError
from protocol.codec import MessageError, convert
from protocol.node import SandboxKind

LAST_WORDS_S = 30.0  # For an end in order once whoever started this one has gone; a worker gets some seconds.


def main(argv: Sequence[str] | None = None) -> int:
    """Look until SIGTERM or Ctrl-C; a second one does not wait for the step that is being run again."""
    options = _parser().parse_args(argv)
    try:
        home = Home.at(options.data or data_folder() / "auditor")
        home = Home(home.path, key_file=options.key)
        log.set_up(options.log_json, file=home.log)
        with home.locked():
            address = home.key().address
            settings = _settings(options).completed(address)
            if not options.bound:
                Terminal().print(
                    f"auditor {address}\nThe coordinator must know it: cottage serve --auditor {address}",
                    soft_wrap=True,
                )
            gc_tuning.settle()
            asyncio.run(_run(home, settings, bound=options.bound))
    except AgentError as error:
        complain("cottage auditor", error)
        return error.exit_code
    except KeyboardInterrupt:
        return 0
    return 0


async def _run(home: Home, settings: Settings, *, bound: bool) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def end() -> None:
        if stop.is_set():
            hurry.set()
        stop.set()

    def end_at_once() -> None:
        LOG.info("the coordinator beside this auditor has ended, or has given its cell up: it ends, too")
        hurry.set()
        stop.set()

    on_end(end)
    if bound:
        loop = asyncio.get_running_loop()
        _when_input_ends(lambda: loop.call_soon_threadsafe(end_at_once))
    async with loop_watchdog.told():
        await look(home, settings, stop, hurry)


def _when_input_ends(tell: Callable[[], object]) -> None:
    """Call ``tell`` once standard input is closed, which it is however its other end dies; and end, if that changes nothing."""

    def listen() -> None:
        while os.read(0, 1024):
            pass
        tell()
        time.sleep(LAST_WORDS_S)
        os._exit(1)

    threading.Thread(target=listen, name="input", daemon=True).start()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cottage auditor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--coordinator", required=True, metavar="URL", help="whose jobs to look at")
    add("--data", type=Path, metavar="DIR", help="folder for key, cache and log (the user's data folder)")
    add("--key", type=Path, metavar="FILE", help="the key, made where there is none (node.key in the data folder)")
    add("--name", default="auditor", help="how it is called on pages (%(default)s)")
    add("--threads", type=whole, default=1, help="processors' worth of computing, and part of the class (%(default)s)")
    add("--memory-mb", type=whole, default=0, help="memory for steps that are run again (half)")
    add(
        "--gpu", type=whole, default=0, metavar="N", help="which GPU; -1: the processor (the first, where there is one)"
    )
    add(
        "--sandbox",
        choices=get_args(SandboxKind),
        default="docker",
        help="docker: in containers, as nodes run jobs; process: with this user's rights (%(default)s)",
    )
    add("--image", default=DEFAULT_IMAGE, help="the sandbox image (%(default)s)")
    add("--log-json", action="store_true", help="log one JSON object for each event")
    add("--bound", action="store_true", help=argparse.SUPPRESS)  # Its coordinator's own: ends when standard input does.
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    given = {
        name: getattr(options, name)
        for name in ("coordinator", "name", "threads", "memory_mb", "sandbox", "image", "gpu")
    }
    try:
        settings: Settings = convert(given, Settings)
    except MessageError as error:
        raise SettingsError(f"a setting cannot be used: {error}") from error
    return settings


if __name__ == "__main__":
    sys.exit(main())

"""``cottage relay``: carry the packets of homes that cannot reach each other directly."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path

from common.clock import SystemClock
from common.console import Terminal
from common.errors import KeyFileError
from common.log_lines import log_to
from common.shutdown_signals import on_end
from common.terminal import complain, say
from cottage.relay_options import RelayCommand, parse
from cottage.relay_screen import show
from protocol.identity import NodeKey
from transport.relay import coturn, metrics
from transport.relay.announce import Announcer, Identity, RelayMeter
from transport.relay.errors import OptionsError, RelayError
from transport.relay.server import RelayServer

EXIT_USAGE = 2
EXIT_UNUSABLE = 5
PRINTED_FOLDER = Path("/var/lib/turn")  # Where Debian's coturn may write.


def main(argv: Sequence[str]) -> int:
    """Relay until SIGTERM or Ctrl-C.

    Returns:
        0 after a clean end, 2 for a wrong option, 5 if a port, file or program is not usable.
    """
    log_to(logging.StreamHandler(sys.stderr), "%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    try:
        choice = parse(argv)
        if choice.print_config:
            say(coturn.settings(choice.options, PRINTED_FOLDER, choice.certificate).rstrip("\n"))
            return 0
        # A selector loop everywhere: the sockets of a relay are watched by hand, which Windows' own loop cannot.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(_run(choice))
    except OptionsError as error:
        complain("cottage relay", error)
        return EXIT_USAGE
    except (RelayError, KeyFileError, OSError) as error:
        complain("cottage relay", error)
        return EXIT_UNUSABLE
    except KeyboardInterrupt:
        return 0
    return 0


async def _run(choice: RelayCommand) -> None:
    stopping = asyncio.Event()
    on_end(stopping.set)
    if sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _renew, choice)
    async with contextlib.AsyncExitStack() as stack:
        jobs: list[Awaitable[object]] = []
        meter: RelayMeter
        figures = ""
        if choice.coturn:
            process = await stack.enter_async_context(coturn.running(choice.options, SystemClock(), choice.certificate))
            meter, urls = process.meter, choice.urls()
            jobs.append(process.wait())
        else:
            server = await stack.enter_async_context(RelayServer(choice.options))
            meter, urls = server, choice.urls(server.addresses, server.tls_addresses)
            if choice.metrics is not None:
                figures = await stack.enter_async_context(metrics.serving(server, choice.metrics))
        if choice.coordinator:
            key = NodeKey.load_or_generate(choice.key_file)
            identity = Identity(key, urls, choice.options.secret, choice.region)
            jobs.append(Announcer(choice.coordinator, identity, meter, SystemClock()).run())
            show(Terminal(), choice, urls, figures, key.address)
        else:
            show(Terminal(), choice, urls, figures)
        if choice.ready_file is not None:
            _write_ready(choice.ready_file, urls, figures)
        await _first([stopping.wait(), *jobs])


async def _first(jobs: Sequence[Awaitable[object]]) -> None:
    """Run all until one ends; its error is this one's."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _renew(choice: RelayCommand) -> None:
    """Read the certificate again: new connections get the new one."""
    if choice.options.tls is None or choice.certificate is None:
        return
    try:
        choice.options.tls.load_cert_chain(*choice.certificate)
    except OSError as error:  # ssl.SSLError is one.
        logging.getLogger(__name__).error("the certificate stays the old one: %s", error)


def _write_ready(path: Path, urls: Sequence[str], figures: str) -> None:
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text("".join(f"{line}\n" for line in (*urls, figures) if line))
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

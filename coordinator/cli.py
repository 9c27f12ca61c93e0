"""``cottage serve``: run a coordinator."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from coordinator.app import serve
from coordinator.config import Config
from ledger.errors import LedgerError
from transport.errors import KeyFileError

EXIT_USAGE = 2
EXIT_LEDGER = 4
EXIT_DATA = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or Ctrl-C.

    Returns:
        0 after a clean end, 2 for a wrong option, 4 without a usable ledger, 5 if the data folder or port is not usable.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        arguments = arguments[1:]
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    for chatty in ("aiohttp.access", "httpx2", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if options.ledger_url is None:
        print(
            "cottage serve: no ledger: start one (cottage ledger serve) and name it with --ledger-url", file=sys.stderr
        )
        return EXIT_USAGE
    try:
        asyncio.run(_run(_config(options), options.ready_file))
    except LedgerError as error:
        print(f"cottage serve: the ledger at {options.ledger_url} cannot be used: {error}", file=sys.stderr)
        return EXIT_LEDGER
    except (KeyFileError, OSError) as error:
        print(f"cottage serve: {error}", file=sys.stderr)
        return EXIT_DATA
    return 0


async def _run(config: Config, ready_file: Path | None) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    def ready(url: str) -> None:
        logging.getLogger("coordinator").info("serving on %s", url)
        if ready_file is not None:
            draft = ready_file.with_name(f".{ready_file.name}.draft")
            draft.write_text(url)
            os.replace(draft, ready_file)

    await serve(config, ready, stopping)


def _config(options: argparse.Namespace) -> Config:
    return Config(
        data=options.data,
        ledger_url=options.ledger_url,
        ledger_program=options.ledger_program,
        ledger_mint=options.ledger_mint,
        host=options.host,
        port=options.port,
        database_url=options.database_url,
        test_wallet=not options.no_test_wallet,
        lease_seconds=options.lease_seconds,
        heartbeat_seconds=min(options.heartbeat_seconds, options.lease_seconds / 3),
        start_grace_seconds=options.start_grace_seconds,
        audits_per_round=options.audits_per_round,
        settle_every=options.settle_every,
        spares=options.spares,
        validations=options.validations,
        price_per_petaflop=options.price_per_petaflop,
        min_stake=options.min_stake,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cottage serve", description="Run a coordinator: jobs, nodes, money, web pages."
    )
    add = parser.add_argument
    default = Config(Path(), "")
    add("--data", type=Path, required=True, help="folder for the database, keys and files")
    add("--host", default=default.host, help="address to listen on (%(default)s)")
    add("--port", type=_port, default=default.port, help="port, 0 for any (%(default)s)")
    add("--ready-file", type=Path, help="write the base address here once it serves")
    add("--ledger-url", help="JSON-RPC of the ledger")
    add("--ledger-program", help="market program, where the ledger does not tell")
    add("--ledger-mint", help="token, where the ledger does not tell")
    add("--database-url", help="another database than SQLite in the data folder")
    add("--no-test-wallet", action="store_true", help="every job is funded by its submitter's own wallet")
    add("--lease-seconds", type=_positive, default=default.lease_seconds, help="silence after which a node has left")
    add("--heartbeat-seconds", type=_positive, default=default.heartbeat_seconds, help="at most a third of a lease")
    add("--start-grace-seconds", type=_seconds, default=default.start_grace_seconds, help="wait for late replicas")
    add("--audits-per-round", type=_count, default=default.audits_per_round, help="steps re-run after each round")
    add("--settle-every", type=_count, default=default.settle_every, help="rounds between two payouts")
    add("--spares", type=_count, default=default.spares, help="nodes held ready beside a job")
    add("--validations", type=_count, default=default.validations, help="between the first and the last")
    add("--price-per-petaflop", type=_count, default=default.price_per_petaflop, help="millionths for 10^15 operations")
    add("--min-stake", type=_count, default=default.min_stake, help="millionths that a node must have staked")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose more than 0, at most 3600")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose 0 to 3600")
    return value


def _count(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is out of bounds: choose a number from 0")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: choose 0 to 65535")
    return value


if __name__ == "__main__":
    sys.exit(main())

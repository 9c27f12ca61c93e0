"""``cottage ledger``: reads money back from the ledger, without the coordinator; serves the embedded one."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ledger.addresses import job_bytes
from ledger.client import EscrowState, Ledger, LedgerConfig, LedgerEvent
from ledger.deploy import main as deploy
from ledger.errors import LedgerError, NoEscrowError
from ledger.local.__main__ import main as serve
from ledger.money import show

EXIT_OK, EXIT_FAILED = 0, 1
# Fields that hold smallest units and are shown as tokens.
_MONEY_FIELDS = frozenset({"amount", "cumulative", "budget", "deposited", "paid", "refunded", "cap", "total"})
_HIDDEN_FIELDS = frozenset({"job", "account"})
_SHORT = 8  # Characters of a signature in the table; --json shows all of them.


@dataclass(frozen=True)
class JobHistory:
    """One escrow of a job with all that happened to it."""

    escrow: EscrowState
    events: list[LedgerEvent]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 with a message on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["serve"]:
        return serve(words[1:])
    if words[:1] == ["deploy"]:
        return deploy(words[1:])
    arguments = _parser().parse_args(words)
    config = LedgerConfig(arguments.url, arguments.program, arguments.mint)
    try:
        found = asyncio.run(read_job(config, arguments.job, arguments.submitter))
    except LedgerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_FAILED
    if arguments.json:
        documents = [_document(history) for history in found]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(documents), indent=2).decode() + "\n")
        return EXIT_OK
    console = Console()
    for history in found:
        console.print(_table(history))
        console.print(_totals(history.escrow))
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cottage ledger", description="Read money back from the ledger.")
    commands = parser.add_subparsers(dest="command", required=True)
    job = commands.add_parser("show", help="everything that happened to a job, and where its money is")
    job.add_argument("job", help="the job's id, 32 hexadecimal digits")
    job.add_argument("--url", required=True, help="the ledger's JSON-RPC address")
    job.add_argument("--program", help="market program, on a cluster")
    job.add_argument("--mint", help="token, on a cluster")
    job.add_argument("--submitter", help="only the escrow of this address")
    job.add_argument("--json", action="store_true", help="one JSON document with whole signatures and units")
    commands.add_parser("deploy", help="bring the market program to a cluster; deploy --help tells how", add_help=False)
    commands.add_parser("serve", help="serve the embedded ledger; serve --help tells its options", add_help=False)
    return parser


async def read_job(config: LedgerConfig, job_id: str, submitter: str | None = None) -> list[JobHistory]:
    """Every escrow of a job with its history.

    Raises:
        NoEscrowError: nobody, or not this submitter, opened an escrow for the job.
        LedgerError: whatever else can go wrong, see ``ledger.errors``.
    """
    job = job_bytes(job_id.replace("-", "").lower())
    async with await Ledger.connect(config) as ledger:
        escrows = [state for state in await ledger.find_escrows(job) if submitter in (None, state.submitter)]
        if not escrows:
            whose = f" of {submitter}" if submitter else ""
            raise NoEscrowError(f"the ledger at {config.url} has no escrow{whose} for job {job_id}: was it funded?")
        return [JobHistory(state, await ledger.history(state.submitter, job)) for state in escrows]


def _document(history: JobHistory) -> dict[str, Any]:
    state = history.escrow
    return {
        "escrow": state.address,
        "submitter": state.submitter,
        "coordinator": state.coordinator,
        "deadline": state.deadline,
        "status": _status(state),
        "funded": state.deposited,
        "paid": state.paid,
        "refunded": state.refunded,
        "left": state.balance,
        "events": [
            {
                "time": event.time,
                "slot": event.slot,
                "signature": event.signature,
                "kind": event.kind,
                "fields": event.fields,
            }
            for event in history.events
        ],
    }


def _status(state: EscrowState) -> str:
    if state.closed:
        return "closed"
    return "refunded" if state.ended else "open"


def _table(history: JobHistory) -> Table:
    state = history.escrow
    table = Table(title=f"Escrow {state.address} of {state.submitter}", title_justify="left")
    table.add_column("time (UTC)", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("signature", no_wrap=True)
    for event in history.events:
        time = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%d %H:%M:%S")
        # Memos are text from others: escaped, so that none of it is taken for markup.
        table.add_row(time, escape(event.kind), escape(_words(event.fields)), event.signature[:_SHORT])
    return table


def _words(fields: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {show(value) if name in _MONEY_FIELDS else _word(value)}"
        for name, value in fields.items()
        if name not in _HIDDEN_FIELDS
    )


def _word(value: Any) -> str:
    return " ".join(str(part) for part in value) if isinstance(value, list | tuple) else str(value)


def _totals(state: EscrowState) -> str:
    sums = f"funded {show(state.deposited)} = paid {show(state.paid)} + refunded {show(state.refunded)}"
    return f"{sums} + left {show(state.balance)}   ({_status(state)})"


if __name__ == "__main__":
    raise SystemExit(main())

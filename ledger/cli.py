"""``cottage ledger``: reads money back from the ledger, without the coordinator; serves the embedded one."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.table import Table

from common.console import Terminal
from common.terminal import say, say_json
from ledger.addresses import job_bytes, parse_address
from ledger.client import EscrowState, Ledger, LedgerConfig, LedgerEvent
from ledger.deploy import main as deploy
from ledger.errors import AddressError, LedgerError, NoEscrowError
from ledger.local.__main__ import main as serve
from ledger.money import show
from ledger.refund import main as refund
from ledger.states import StakeState

EXIT_OK, EXIT_FAILED = 0, 1
_LIKE_A_JOB = re.compile(r"[0-9a-fA-F-]{1,40}")
# Fields that hold smallest units and are shown as tokens.
_MONEY_FIELDS = frozenset({"amount", "cumulative", "budget", "deposited", "paid", "refunded", "cap", "total"})
_HIDDEN_FIELDS = frozenset({"job", "account"})
_SOURCES = (
    "* signed by coordinator or submitter, about what happened off the ledger; the rest is the program's own word"
)
_SHORT = 8  # Characters of a signature in the table; --json shows all of them.


@dataclass(frozen=True)
class JobHistory:
    """One escrow of a job with all that happened to it."""

    escrow: EscrowState
    events: list[LedgerEvent]


@dataclass(frozen=True)
class AccountHistory:
    """A node or a wallet: its stake with all that happened to it, and every payout."""

    address: str
    stake: StakeState | None
    stake_events: list[LedgerEvent]
    payouts: list[LedgerEvent]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 with a message on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["serve"]:
        return serve(words[1:])
    if words[:1] == ["deploy"]:
        return deploy(words[1:])
    if words[:1] == ["refund"]:
        return refund(words[1:])
    arguments = parser().parse_args(words)
    config = LedgerConfig(arguments.url, arguments.program, arguments.mint)
    try:
        if _LIKE_A_JOB.fullmatch(arguments.what):
            _show_job(asyncio.run(read_job(config, arguments.what, arguments.submitter)), arguments.json)
        else:
            _show_account(asyncio.run(read_account(config, _address(arguments.what))), arguments.json)
    except LedgerError as error:
        say(f"{error}", error=True)
        return EXIT_FAILED
    return EXIT_OK


def _show_job(found: Sequence[JobHistory], as_json: bool) -> None:
    if as_json:
        _print_json([_document(history) for history in found])
        return
    console = Terminal()
    for history in found:
        state = history.escrow
        console.print(_table(f"Escrow {state.address} of {state.submitter}", history.events))
        console.print(_totals(state))
    console.print(_SOURCES)


def _show_account(found: AccountHistory, as_json: bool) -> None:
    if as_json:
        _print_json(_account_document(found))
        return
    console = Terminal()
    console.print(_table(f"Stake of {found.address}", found.stake_events))
    if found.stake is not None:
        state = found.stake
        sums = f"deposited {show(state.deposited)} = slashed {show(state.slashed)} + withdrawn {show(state.withdrawn)}"
        console.print(f"{sums} + there {show(state.balance)}")
    console.print(_table(f"Payouts to {found.address}", found.payouts))
    paid = sum(int(event.fields["amount"]) for event in found.payouts)
    jobs = len({event.fields["escrow"] for event in found.payouts})
    console.print(f"paid {show(paid)} by {jobs} jobs. Audits are records of jobs: cottage ledger show JOB")


def _print_json(document: Any) -> None:
    say_json(document, indent=2)


def parser() -> argparse.ArgumentParser:
    """The options of ``cottage ledger``, and its words."""
    parser = argparse.ArgumentParser(prog="cottage ledger", description="Read money back from the ledger.")
    commands = parser.add_subparsers(dest="command", required=True)
    job = commands.add_parser("show", help="everything that happened to a job or a node, and where its money is")
    job.add_argument("what", metavar="JOB|NODE", help="a job's id, 32 hexadecimal digits, or an address")
    job.add_argument("--url", required=True, help="the ledger's JSON-RPC address")
    job.add_argument("--program", help="market program, on a cluster")
    job.add_argument("--mint", help="token, on a cluster")
    job.add_argument("--submitter", help="only the escrow of this address")
    job.add_argument("--json", action="store_true", help="one JSON document with whole signatures and units")
    commands.add_parser(
        "check", help="compare a coordinator's word with the ledger; check --help tells how", add_help=False
    )
    for word, text in (
        ("entries", "transactions of all jobs"),
        ("audits", "audits of all jobs"),
        ("totals", "its sums"),
    ):
        commands.add_parser(word, help=f"{text}, as a coordinator has them; {word} --help tells more", add_help=False)
    commands.add_parser(
        "challenge",
        help="run a committed step again and put a bond against it; challenge --help tells how",
        add_help=False,
    )
    commands.add_parser("claim", help="have paid what a job has promised; claim --help tells how", add_help=False)
    commands.add_parser("deploy", help="bring the market program to a cluster; deploy --help tells how", add_help=False)
    commands.add_parser(
        "refund", help="have back what a job has left after its deadline; refund --help tells how", add_help=False
    )
    commands.add_parser("serve", help="serve the embedded ledger; serve --help tells its options", add_help=False)
    return parser


def _address(text: str) -> str:
    try:
        return str(parse_address(text))
    except AddressError as error:
        raise AddressError(f"{error}; a job's id is 32 hexadecimal digits") from error


async def read_account(config: LedgerConfig, address: str) -> AccountHistory:
    """What the ledger knows of a node, or of a wallet that is paid.

    Raises:
        LedgerError: see ``ledger.errors``.
    """
    async with await Ledger.connect(config) as ledger:
        stake = await ledger.stake(address)
        return AccountHistory(address, stake, await ledger.stake_history(address), await ledger.paid_to(address))


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
                "source": _source(event),
            }
            for event in history.events
        ],
    }


def _account_document(found: AccountHistory) -> dict[str, Any]:
    stake = found.stake
    return {
        "address": found.address,
        "stake": None
        if stake is None
        else {
            "account": stake.address,
            "coordinator": stake.coordinator,
            "deposited": stake.deposited,
            "slashed": stake.slashed,
            "withdrawn": stake.withdrawn,
            "balance": stake.balance,
        },
        "stake_events": found.stake_events,
        "payouts": found.payouts,
    }


def _source(event: LedgerEvent) -> str:
    """Who says so: the program that moves the money, or a record that somebody signed about what happened off the ledger."""
    return "record" if event.author else "program"


def _status(state: EscrowState) -> str:
    if state.closed:
        return "closed"
    return "refunded" if state.ended else "open"


def _table(title: str, events: Sequence[LedgerEvent]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("time (UTC)", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("what", overflow="fold")
    table.add_column("signature", no_wrap=True)
    for event in events:
        time = datetime.fromtimestamp(event.time, UTC).strftime("%Y-%m-%d %H:%M:%S")
        # Memos are text from others: escaped, so that none of it is taken for markup.
        table.add_row(time, event.kind + ("*" if event.author else ""), _words(event.fields), event.signature[:_SHORT])
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

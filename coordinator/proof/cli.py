"""``cottage ledger check``: is what a coordinator says of a job true?

Exit status: 0 everything holds; 1 an untruth was found; 2 wrong use; 3 the ledger or the coordinator does not answer, knows no
such job, or does not show it to whoever asks; 4 nothing untrue was found, but records were lost before a restore of the
coordinator, so not everything could be checked.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from common.console import Terminal
from common.terminal import say_json
from coordinator.client.errors import ClientError, complain
from coordinator.client.login import LoginFileError, complain_of_key, take_token, token_of
from coordinator.client.options import DEFAULT_SERVER, SERVER_VARIABLE
from coordinator.proof import privacy
from coordinator.proof.case import ProofFinding
from coordinator.proof.checks import failed, findings
from coordinator.proof.gather import gather
from coordinator.proof.restores import unchecked
from ledger.addresses import job_id
from ledger.errors import AddressError, LedgerError

EXIT_UNTRUE, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_UNCHECKED = 1, 2, 3, 4
TRIES = 3  # A job that is running moves on between two questions: what fails once is asked again.
RETRY_S = 1.0
NOT_ALL = "Not everything could be checked: the coordinator was restored, and the notes say what is missing."
_MARKS = {"pass": ("✓ pass", "green"), "fail": ("✗ FAIL", "bold red"), "note": ("· note", "yellow")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    try:
        job = job_id(options.job)
    except AddressError as error:
        return complain(error, EXIT_USAGE)
    try:
        found = asyncio.run(check(job, options))
    except LoginFileError as error:
        return complain(error, EXIT_USAGE)
    except (LedgerError, ClientError) as error:
        return complain_of_key(error, EXIT_UNREACHABLE)
    except OSError as error:  # Of the card.
        return complain(error, EXIT_USAGE)
    shown = found if options.all else _until_untrue(found)
    if options.json:
        say_json(shown, indent=2)
    else:
        _print(job, shown)
    if failed(found):
        return EXIT_UNTRUE
    return EXIT_UNCHECKED if unchecked(found) else 0


async def check(job: str, options: argparse.Namespace) -> list[ProofFinding]:
    """All findings about a job; an untruth about a running one is looked at again before it is believed."""
    server = None if options.chain_only else options.coordinator
    token = None if server is None else token_of(options, server)
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(RETRY_S)
        case = await gather(job, options.rpc, options.program, options.mint, server, token)
        found = list(findings(case))
        if options.card is not None and case.published is not None:
            found += privacy.check_card(options.card, case.published.privacy)
        if not failed(found) or case.published is None or case.published.over:
            break
    if options.rpc is None and case.published is not None:
        detail = f"{case.ledger.url} is the coordinator's word: name an endpoint that you trust with --rpc"
        found.insert(0, ProofFinding("endpoint", "ledger", "note", detail, "nothing"))
    return found


def _until_untrue(found: Sequence[ProofFinding]) -> list[ProofFinding]:
    """Findings up to the first untruth: what comes after it may only be its consequence."""
    first = next((place for place, finding in enumerate(found) if finding.verdict == "fail"), len(found))
    return list(found[: first + 1])


def parser() -> argparse.ArgumentParser:
    """The options of ``cottage ledger check``."""
    server = os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)
    parser = argparse.ArgumentParser(
        prog="cottage ledger check",
        description="Recompute a job from the ledger: draws, Merkle proofs, shares and sums. Exit status 1 on an untruth, "
        "4 where records were lost before a restore.",
    )
    parser.add_argument("job", help="the job's id, 32 hexadecimal digits")
    parser.add_argument(
        "--rpc", metavar="URL", help="the ledger's JSON-RPC address; without it, the one that the coordinator names"
    )
    parser.add_argument(
        "--coordinator",
        metavar="URL",
        default=server,
        help=f"who published the job (or ${SERVER_VARIABLE}); now {server}",
    )
    take_token(parser)
    parser.add_argument(
        "--chain-only", action="store_true", help="ask only the ledger: sums and payouts, no rounds (needs --rpc)"
    )
    card = "README.md of the downloaded model: is its privacy statement the job's?"
    parser.add_argument("--card", type=Path, metavar="FILE", help=card)
    parser.add_argument("--program", help="market program, as you know it")
    parser.add_argument("--mint", help="token, as you know it")
    parser.add_argument("--all", action="store_true", help="go on after the first untruth")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    return parser


def _print(job: str, found: Sequence[ProofFinding]) -> None:
    out = Terminal()
    table = Table(title=f"Job {job}", title_justify="left", box=None, pad_edge=False)
    for title in ("", "check", "of", "found", "from"):
        table.add_column(title, no_wrap=title in ("", "check"), overflow="fold")
    for finding in found:
        mark, style = _MARKS[finding.verdict]
        table.add_row(
            Text(mark, style=style), *map(Text, (finding.check, finding.subject, finding.detail, finding.used))
        )
    out.print(table)
    count = sum(finding.verdict == "pass" for finding in found)
    if untrue := failed(found):
        out.print(
            Text(
                f"Not true: {untrue[0].check} of {untrue[0].subject}. {count} checks held before it.", style="bold red"
            )
        )
    elif unchecked(found):
        out.print(Text(f"{count} checks hold. {NOT_ALL}", style="yellow"))
    else:
        out.print(f"{count} checks hold.")


if __name__ == "__main__":
    raise SystemExit(main())

"""``cottage ledger refund``: after a job's deadline its submitter has back what is left, though the coordinator be gone."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from solders.keypair import Keypair

from common.system_words import in_words
from common.terminal import say
from ledger.addresses import job_bytes
from ledger.client import Ledger, LedgerConfig
from ledger.deploy import read_keypair
from ledger.errors import LedgerError, NoEscrowError
from ledger.money import Amount, show


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 with a message on standard error."""
    arguments = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    try:
        say(asyncio.run(_run(arguments)))
    except (LedgerError, OSError) as error:
        say(in_words(error), error=True)
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of ``cottage ledger refund``."""
    parser = argparse.ArgumentParser(
        prog="cottage ledger refund",
        description="Have back what is left of a job's escrow once its deadline has passed. It goes to who opened the escrow, "
        "whoever signs; who signs pays the fee. Submitter and coordinator close the empty escrow, too: its rent comes back.",
    )
    parser.add_argument("job", metavar="JOB", help="the job's id, 32 hexadecimal digits")
    parser.add_argument("--url", required=True, help="the ledger's JSON-RPC address")
    parser.add_argument("--program", help="market program, on a cluster")
    parser.add_argument("--mint", help="token, on a cluster")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="the key that signs")
    parser.add_argument("--submitter", metavar="ADDRESS", help="who opened the escrow (the key's own address)")
    return parser


async def _run(arguments: argparse.Namespace) -> str:
    job, signer = job_bytes(arguments.job.replace("-", "").lower()), read_keypair(arguments.key)
    config = LedgerConfig(arguments.url, arguments.program, arguments.mint)
    async with await Ledger.connect(config) as ledger:
        return await refund(ledger, signer, arguments.submitter or str(signer.pubkey()), job)


async def refund(ledger: Ledger, signer: Keypair, submitter: str, job: bytes) -> str:
    """Give back what is left and close what is empty; what was done, in words.

    Raises:
        LedgerError: there is no open escrow, or the ledger refuses it: before the deadline, above all.
    """
    seed, state = bytes(signer)[:32], await ledger.escrow(submitter, job)
    if state is None or state.closed:
        what = "has no escrow" if state is None else "has closed its escrow"
        raise NoEscrowError(f"{submitter} {what} for job {job.hex()[:32]}")
    held = state.balance
    if held or not state.ended:
        await ledger.confirm(await ledger.prepare_refund(seed, submitter, job))
        state = await ledger.escrow(submitter, job)
        assert state is not None, "an escrow leaves its totals for ever"
    told = f"{show(Amount(held - state.balance))} came back to {submitter}"
    if state.balance:
        return f"{told}; {show(state.balance)} is promised to providers: what they leave comes back a week after the deadline"
    if str(signer.pubkey()) not in (submitter, state.coordinator):
        return told
    await ledger.confirm(await ledger.prepare_close(seed, submitter, job))
    return f"{told}, and the escrow's rent to who had paid it"

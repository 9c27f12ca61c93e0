"""``cottage node withdraw``: have paid what coordinators promised on the ledger. Neither they nor the agent need to run."""

import argparse
import asyncio
from typing import Literal

from rich.table import Table

from common.console import Terminal
from common.terminal import say_json
from common.untrusted_text import View
from desktop.agent.base.config import Home
from desktop.agent.base.log import LOG, printable
from desktop.agent.earnings.promises import KeptPromise, PromiseFolder
from desktop.agent.errors import AgentError
from ledger.client import Ledger, LedgerConfig, job_bytes
from ledger.errors import LedgerAnswerError, LedgerError
from ledger.money import ZERO, Amount, show
from protocol.identity import NodeKey

NEEDED_LAMPORTS = 3_000_000  # A fee, and the rent of a token account where the payee has none yet.
Outcome = Literal["paid", "nothing", "outdated", "failed"]


class PaidPromise(View, frozen=True):
    """What became of one job's promise. ``amount``: what has just come in, in millionths of the token."""

    job: str
    outcome: Outcome
    amount: int
    signature: str
    detail: str


def run(options: argparse.Namespace) -> int:
    """Withdraw as the command says; the exit code."""
    home = Home.at(options.home)
    done = asyncio.run(withdraw(home, options.job, options.rpc))
    if options.json:
        say_json(done)
    else:
        _print(done)
    return int(any(one.outcome == "failed" for one in done))


async def withdraw(home: Home, job: str | None = None, rpc: str | None = None) -> list[PaidPromise]:
    """Claim everything that was promised to this node's payees.

    Args:
        job: only of this one.
        rpc: an endpoint to ask instead of the one that the coordinator named.
    Raises:
        AgentError: there is no such promise, or the node's key cannot be read.
    """
    promises, key = PromiseFolder(home.promises), home.key()
    jobs = [name for name in promises.jobs() if job in (None, name)]
    if job is not None and not jobs:
        raise AgentError(f"nothing was promised by job {job}: what it owes is paid without being asked for")
    return [await _claim(promises.of_job(name), key, rpc) for name in jobs]


async def _claim(kept: list[KeptPromise], key: NodeKey, rpc: str | None) -> PaidPromise:
    newest = kept[0]
    job, info = newest.promised.job, newest.ledger
    try:
        async with await Ledger.connect(LedgerConfig(rpc or info.url, info.program, info.mint)) as ledger:
            state = await ledger.escrow(newest.promised.submitter, job_bytes(job))
            if state is None or state.closed:
                return PaidPromise(job, "outdated", 0, "", "its escrow is closed: everything has left it")
            found = next((one for one in kept if one.promised.root == state.earnings_root.hex()), None)
            if found is None:
                detail = "the ledger has a newer promise: connect to the coordinator, or make the proof from its list"
                return PaidPromise(job, "outdated", 0, "", f"{detail} (cottage ledger claim)")
            promised = found.promised
            missing = promised.cumulative - state.paid_to.get(ledger.wallet(promised.payee), ZERO)
            if missing <= 0:
                return PaidPromise(job, "nothing", 0, "", f"all of {show(promised.cumulative)} has been paid")
            await fill(ledger, key)
            claim = await ledger.prepare_claim(
                key.seed, promised.submitter, job_bytes(job), promised.payee, Amount(promised.cumulative), found.proof
            )
            signature = await ledger.confirm(claim)
            return PaidPromise(job, "paid", missing, signature, f"to {promised.payee}")
    except LedgerError as error:
        return PaidPromise(job, "failed", 0, "", str(error))


async def fill(ledger: Ledger, key: NodeKey) -> None:
    """On the embedded ledger, where lamports are worth nothing, a faucet pays the fee."""
    if await ledger.lamports(key.address) >= NEEDED_LAMPORTS:
        return
    try:
        await ledger.faucet(key.address, ZERO)
    except LedgerAnswerError:
        LOG.warning("%s has less than %d lamports for fee and rent: fund it", key.address, NEEDED_LAMPORTS)


def _print(done: list[PaidPromise]) -> None:
    console = Terminal()
    if not done:
        console.print("nothing was promised to this node: small earnings are, once a few rounds are verified")
        return
    table = Table("Job", "Outcome", "Came in", "What", title="Withdrawn from the ledger")
    for one in done:
        table.add_row(one.job, one.outcome, show(one.amount), printable(one.signature or one.detail))
    console.print(table)

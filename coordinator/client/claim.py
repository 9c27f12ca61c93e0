"""``cottage ledger claim``: have a payee paid what was promised to it, by the list that the coordinator publishes or published.

Exit status: 0 done; 1 the list is not what the ledger holds, or nothing is due; 2 wrong use; 3 somebody does not answer.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from common.terminal import say
from coordinator.client.client import Client
from coordinator.client.errors import ClientError, complain
from coordinator.client.login import LoginFileError, complain_of_key, take_token, token_of
from coordinator.client.options import DEFAULT_SERVER, SERVER_VARIABLE
from ledger.addresses import job_bytes, job_id
from ledger.client import Ledger, LedgerConfig
from ledger.deploy import read_keypair
from ledger.errors import AddressError, LedgerError, NoEscrowError
from ledger.money import ZERO, Amount, show
from protocol.codec import MessageError, decode_json, encode_json
from protocol.rest.ledger import PromiseView

EXIT_NOT_DUE, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3


class SavedPromise(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A promise with everything that it takes to claim it: the list, and where its ledger is."""

    promise: PromiseView
    rpc: str
    program: str
    mint: str


class NotDueError(Exception):
    """Nothing can be claimed: the text says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    try:
        say(asyncio.run(_run(options)))
    except (NotDueError, NoEscrowError) as error:
        return complain(error, EXIT_NOT_DUE)
    except ClientError as error:  # One that does not answer is an OSError, too.
        return complain_of_key(error, EXIT_UNREACHABLE)
    except (LoginFileError, AddressError, OSError, MessageError) as error:
        return complain(error, EXIT_USAGE)
    except LedgerError as error:
        return complain(error, EXIT_UNREACHABLE)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of ``cottage ledger claim``."""
    server = os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)
    parser = argparse.ArgumentParser(
        prog="cottage ledger claim",
        description="Claim earnings that were promised on the ledger. Whoever signs pays the fee, the payee gets the money.",
    )
    parser.add_argument("job", help="the job's id, 32 hexadecimal digits")
    parser.add_argument("--coordinator", metavar="URL", default=server, help=f"who publishes the list; now {server}")
    take_token(parser)
    parser.add_argument("--promise", type=Path, metavar="FILE", help="a list that was saved; no coordinator is asked")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the list, for when the coordinator is gone")
    parser.add_argument("--payee", metavar="ADDRESS", help="whom to have paid (the key's own address)")
    parser.add_argument("--key", type=Path, metavar="FILE", help="the key that signs; without it nothing is sent")
    parser.add_argument("--rpc", metavar="URL", help="the ledger's JSON-RPC address, instead of the one that is named")
    return parser


async def _run(options: argparse.Namespace) -> str:
    job = job_id(options.job)
    saved = await _list_of(job, options)
    if options.save is not None:
        options.save.write_bytes(encode_json(saved))
    async with await Ledger.connect(LedgerConfig(options.rpc or saved.rpc, saved.program, saved.mint)) as ledger:
        return await _claim(ledger, saved.promise, options)


async def _list_of(job: str, options: argparse.Namespace) -> SavedPromise:
    if options.promise is not None:
        saved: SavedPromise = decode_json(options.promise.read_bytes(), SavedPromise)
        if saved.promise.job != job:
            raise AddressError(f"{options.promise} is of job {saved.promise.job}, not of {job}")
        return saved
    async with Client(options.coordinator, token_of(options, options.coordinator)) as client:
        promise, books = await client.promise(job), await client.job_ledger(job)
    return SavedPromise(promise, books.rpc, books.program, books.mint)


async def _claim(ledger: Ledger, promise: PromiseView, options: argparse.Namespace) -> str:
    amounts = {one.payee: Amount(one.cumulative) for one in promise.payees}
    earned, key = ledger.earnings(amounts), job_bytes(promise.job)
    state = await ledger.escrow(promise.submitter, key)
    if state is None or state.earnings_root != earned.root:
        held = "no such escrow" if state is None else f"the root {state.earnings_root.hex()[:16]}…"
        raise NotDueError(
            f"this list has the root {earned.root.hex()[:16]}…, the ledger has {held}: it is not, or no longer, what was promised"
        )
    if options.key is None:
        return f"the ledger holds the root of this list: {len(amounts)} payees, {show(earned.total)} in all"
    signer = read_keypair(options.key)
    payee = options.payee or str(signer.pubkey())
    if payee not in amounts:
        raise NotDueError(f"{payee} is not among the {len(amounts)} payees of this promise: name one with --payee")
    missing = amounts[payee] - state.paid_to.get(ledger.wallet(payee), ZERO)
    if missing <= 0:
        raise NotDueError(f"{payee} has been paid all of its {show(amounts[payee])}")
    claim = await ledger.prepare_claim(
        bytes(signer)[:32], promise.submitter, key, payee, amounts[payee], earned.proofs[payee]
    )
    return f"{payee} got {show(missing)}: transaction {await ledger.confirm(claim)}"

"""``cottage ledger challenge``: run a committed step again, and put a bond on the ledger against one that was not done.

Exit status: 0 the step was done as committed, or a bond's way was shown; 1 it was not (and the bond is up where ``--key`` was
given); 2 wrong use; 3 somebody does not answer; 4 the step cannot be run again here.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from common.options import whole
from common.terminal import say
from coordinator.client.client import Client
from coordinator.client.errors import ClientError, complain
from coordinator.client.login import LoginFileError, complain_of_key, take_token, token_of
from coordinator.client.options import DEFAULT_SERVER, SERVER_VARIABLE
from coordinator.proof import rerun
from coordinator.proof.checks import root
from coordinator.proof.gather import on_ledger
from ledger.addresses import StepPlace, job_id
from ledger.client import Ledger, LedgerConfig
from ledger.deploy import read_keypair
from ledger.errors import AddressError, AmountError, LedgerError, NoDisputeError
from ledger.money import Amount, parse, show
from ledger.program.layout import Ruling
from ledger.states import DisputeState
from protocol.evidence import CommitmentLeaf, RoundEvidence

EXIT_WRONG, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_NOT_HERE = 1, 2, 3, 4
POLL_S = 5.0


class ProofNotFoundError(Exception):
    """There is nothing like that: the text says what, and the way out."""


class ChallengeResult(msgspec.Struct, frozen=True):
    """What came of it. ``verdict``: of the re-run, empty where none was made; ``bond``: how a bond stands, if there is one."""

    text: str
    verdict: str = ""
    bond: str = ""

    @property
    def status(self) -> int:
        """The exit status."""
        if self.verdict == "incomparable":
            return EXIT_NOT_HERE
        return EXIT_WRONG if self.verdict in ("mismatch", "malformed") else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    options = parser().parse_args(list(sys.argv[1:] if argv is None else argv))
    try:
        result = asyncio.run(challenge(options))
    except ClientError as error:
        return complain_of_key(error, EXIT_UNREACHABLE)
    except (LoginFileError, ProofNotFoundError, NoDisputeError, AddressError, AmountError, OSError) as error:
        return complain(error, EXIT_USAGE)
    except rerun.RerunError as error:
        return complain(error, EXIT_NOT_HERE)
    except LedgerError as error:
        return complain(error, EXIT_UNREACHABLE)
    say(result.text)
    return result.status


def parser() -> argparse.ArgumentParser:
    """The options of ``cottage ledger challenge``."""
    server = os.environ.get(SERVER_VARIABLE, DEFAULT_SERVER)
    parser = argparse.ArgumentParser(
        prog="cottage ledger challenge",
        description="Run a committed step again from its records, and put a bond against it where it was not done. "
        "The coordinator then has it audited: the bond comes back with a part of the slash, or goes to whom it accused.",
    )
    parser.add_argument("job", help="the job's id, 32 hexadecimal digits")
    parser.add_argument("--round", type=whole, required=True, help="counted from 0, as the interface counts")
    parser.add_argument("--stage", type=whole, required=True)
    parser.add_argument("--replica", type=whole, required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--step", type=whole, help="within the round, counted from 0")
    what.add_argument("--outer", action="store_true", help="the round's outer step")
    parser.add_argument("--epoch", type=whole, help="needed where the round was done more than once")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--records", type=Path, metavar="FOLDER", help="keep the records here")
    source.add_argument("--from", dest="source", type=Path, metavar="FOLDER", help="records that somebody kept")
    source.add_argument(
        "--unseen", action="store_true", help="run nothing: the bond has a step opened that nobody has seen"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="the wallet that puts the bond up; without it nothing is sent"
    )
    parser.add_argument(
        "--bond", metavar="TOKENS", help="what it stands to lose (the least that the ledger's terms ask)"
    )
    parser.add_argument("--wait", action="store_true", help="wait for the verdict")
    parser.add_argument(
        "--collect", action="store_true", help="take back the bond that nobody decided in time, and the rent"
    )
    parser.add_argument("--coordinator", metavar="URL", default=server, help=f"who published the job; now {server}")
    take_token(parser)
    parser.add_argument("--rpc", metavar="URL", help="the ledger's JSON-RPC address, instead of the one that is named")
    return parser


async def challenge(options: argparse.Namespace) -> ChallengeResult:
    """Do what the options say.

    Raises:
        NotFoundError: there is no such commitment, or its root is not on the ledger. RerunError: see ``rerun``.
        AddressError, AmountError: an option that cannot be used. LedgerError, ClientError: somebody does not answer, or refuses.
    """
    job = job_id(options.job)
    async with Client(options.coordinator, token_of(options, options.coordinator)) as client:
        books, rounds = await client.job_ledger(job), await client.evidence(job, options.round)
        config = LedgerConfig(options.rpc or books.rpc, books.program, books.mint)
        found = _round(rounds, options.epoch)
        chain = await on_ledger(config, job, books.submitter, ())
        held = next(root(chain, found, "commitments"))
        if held.verdict != "pass":
            raise ProofNotFoundError(
                f"the commitments of round {options.round} are not what the ledger holds: {held.detail}"
            )
        leaf = _leaf(found, options)
        step = leaf.leaves if options.outer else options.step
        place = StepPlace(job, found.epoch, found.round, leaf.stage, leaf.replica, step)
        result = ChallengeResult("", "")
        if not options.unseen and not options.collect:
            result = await _again(client, found, leaf, place, options)
            if result.status in (0, EXIT_NOT_HERE):
                return result
    async with await Ledger.connect(config) as ledger:
        if options.collect:
            return await _collect(ledger, place, options)
        return await _bond(ledger, leaf, place, result, options)


def _round(rounds: Sequence[RoundEvidence], epoch: int | None) -> RoundEvidence:
    fitting = [one for one in rounds if epoch in (None, one.epoch)]
    if not fitting:
        there = ", ".join(str(one.epoch) for one in rounds)
        raise ProofNotFoundError(f"the round was not completed in epoch {epoch}: there are {there}")
    # After a rollback a bond would be against other work, perhaps of another node, than was meant.
    if len(fitting) > 1:
        there = ", ".join(str(one.epoch) for one in fitting)
        raise ProofNotFoundError(f"the round was done more than once, in epochs {there}: name one with --epoch")
    return fitting[0]


def _leaf(found: RoundEvidence, options: argparse.Namespace) -> CommitmentLeaf:
    seat = (options.stage, options.replica)
    leaf = next((one for one in found.commitments if (one.stage, one.replica) == seat), None)
    if leaf is None or leaf.rate is None:
        raise ProofNotFoundError(
            f"nobody's work as stage {seat[0]} of replica {seat[1]} counted in round {found.round}"
        )
    if options.outer and leaf.outer is None:
        raise ProofNotFoundError("its member had said nothing of the outer step when the round ended")
    if not options.outer and not 0 <= options.step < leaf.leaves:
        raise ProofNotFoundError(f"there is no step {options.step}: the commitment has {leaf.leaves}, counted from 0")
    return leaf


async def _again(
    client: Client, found: RoundEvidence, leaf: CommitmentLeaf, place: StepPlace, options: argparse.Namespace
) -> ChallengeResult:
    seat = (leaf.stage, leaf.replica, place.step)
    audit = next((one for one in found.audits if (one.stage, one.replica, one.step) == seat), None)
    if audit is None and options.source is None:
        raise rerun.RerunError("nobody has opened that step, so there is nothing to run: --unseen has it opened")
    async with rerun.folder_of(options.source or options.records) as folder:
        if options.source is not None:
            records = rerun.read(folder)
        else:
            assert audit is not None
            records = await rerun.fetch(client, place.job, audit.audit, folder)
        rerun.hold(records, leaf, place.step)
        report = await rerun.rerun(records, folder)
    said = {
        "match": f"node {leaf.node} did {_words(place, leaf)} as it committed to",
        "incomparable": f"{_words(place, leaf)} cannot be compared here: {report.detail}",
    }.get(report.verdict, f"node {leaf.node} did not do {_words(place, leaf)} as it committed to: {report.detail}")
    return ChallengeResult(said, report.verdict)


def _words(place: StepPlace, leaf: CommitmentLeaf) -> str:
    what = "the outer step" if place.step == leaf.leaves else f"step {place.step}"
    return f"{what} of round {place.round}"


async def _bond(
    ledger: Ledger, leaf: CommitmentLeaf, place: StepPlace, seen: ChallengeResult, options: argparse.Namespace
) -> ChallengeResult:
    least = Amount((await ledger.terms()).bond)
    bond = least if options.bond is None else parse(options.bond)
    before = f"{seen.text}\n" if seen.text else ""
    if options.key is None:
        text = f"{before}a bond of at least {show(least)} against it can be put up with --key FILE"
        return msgspec.structs.replace(seen, text=text)
    signer = read_keypair(options.key)
    seed, who = bytes(signer)[:32], str(signer.pubkey())
    state = await ledger.dispute(who, place.bytes)
    if state is None:
        opening = await ledger.prepare_dispute(seed, leaf.node, place.bytes, bond)
        signature = await ledger.confirm(opening)
        state = await ledger.dispute(who, place.bytes)
        assert state is not None
        until = datetime.fromtimestamp(state.deadline, UTC).strftime("%Y-%m-%d %H:%M UTC")
        before += f"{who} put up {show(state.bond)} against node {leaf.node}: transaction {signature}\n"
        before += f"the coordinator has until {until} to decide; after that --collect takes the bond back"
    while options.wait and state.ruling is Ruling.OPEN and state.deadline > datetime.now(UTC).timestamp():
        await asyncio.sleep(POLL_S)
        state = await ledger.dispute(who, place.bytes) or state
    if options.wait or state.ruling is not Ruling.OPEN:
        before = f"{before.rstrip()}\n{_stands(state)}".lstrip()
    return msgspec.structs.replace(seen, text=before, bond=state.ruling.name.lower())


def _stands(state: DisputeState) -> str:
    proof = "" if state.evidence is None else f" (evidence {state.evidence.hex()})"
    return {
        Ruling.OPEN: "nothing is decided yet",
        Ruling.UPHELD: f"upheld: the bond of {show(state.bond)} is back{proof}",
        Ruling.REJECTED: f"rejected: the bond of {show(state.bond)} went to node {state.node}{proof}",
    }.get(state.ruling, f"nobody could prove anything: the bond of {show(state.bond)} is back")


async def _collect(ledger: Ledger, place: StepPlace, options: argparse.Namespace) -> ChallengeResult:
    if options.key is None:
        raise AddressError("name the wallet that put the bond up: --key FILE")
    signer = read_keypair(options.key)
    seed, who = bytes(signer)[:32], str(signer.pubkey())
    state = await ledger.dispute(who, place.bytes)
    if state is None:
        raise NoDisputeError(f"{who} has no bond up against that step (any more)")
    said = _stands(state)
    if state.ruling is Ruling.OPEN:
        await ledger.confirm(await ledger.prepare_dispute_expiry(seed, who, place.bytes))
        said = f"the bond of {show(state.bond)} is back"
    closed = await ledger.confirm(await ledger.prepare_dispute_close(seed, who, place.bytes))
    return ChallengeResult(f"{said}, and so is the rent: transaction {closed}", bond="closed")

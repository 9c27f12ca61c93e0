"""A lie that the coordinator never drew, found by a stranger: real node processes, a bond on the ledger, the command as typed."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.client import Client
from cottage.demo.network import AGENT, DemoNetwork, Provider
from cottage.demo.options import parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from ledger.addresses import StepPlace
from ledger.client import Ledger
from ledger.money import Amount
from ledger.program.layout import Ruling
from protocol.identity import NodeKey
from tests.support.dispute_history import dispute_history

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# Three replicas of one stage: the liar, and the two auditors that have to agree. The job is longer than the test.
WORDS = ["--nodes", "3", "--stages", "1", "--tokens", "1000000", "--no-reference", "--json"]
WORDS += ["--lie", "commitment", "--audits", "0"]
# Of a micro-batch, so 12 s of a round at the least: the liar still has its records when it is asked for them.
PACE_S = 0.3
POLL_S = 0.5
COMMAND_LIMIT_S = 300


class UndrawnNetwork(DemoNetwork):
    """A network of nodes alone, whose coordinator audits nothing unless it is asked to, and whose nodes take their time."""

    def _coordinator_arguments(self, folder: Path, ready: Path, port: int) -> Sequence[str]:
        words = super()._coordinator_arguments(folder, ready, port)
        assert words[:3] == ["-m", "cottage", "serve"]
        return [str(Path(__file__).with_name("undrawn.py")), *words[3:], "--no-own-auditor"]

    async def add_provider(self, name: str, extra: Sequence[str] = (), program: Sequence[str] = AGENT) -> Provider:
        return await super().add_provider(name, [*extra, f"--worker-argument=--pace={PACE_S}"], program)


async def test_a_stranger_challenges_a_lie_that_nobody_drew_and_is_paid_from_the_slash(tmp_path: Path) -> None:
    stranger, key = NodeKey.generate(), tmp_path / "wallet"
    key.write_text(stranger.seed.hex())
    async with DemoRun(parse([*WORDS, "--dir", str(tmp_path / "demo")]), LineScreen()) as run:
        run.network = UndrawnNetwork(run.options, run.household)
        ledger = await run._start()
        assert run.liar is not None
        bond = Amount((await ledger.terms()).bond)
        await ledger.faucet(stranger.address, bond)
        async with Client(run.network.web) as client:
            job = await run._submit(client, ledger)
            place = await committed(run, client, job.id)
            assert not await client.audits(job.id), "nobody was drawn"
            told = await challenge(run, place, "--key", str(key), "--unseen", "--wait")
            audits = [(audit.node, audit.state) for audit in await client.audits(job.id)]
        assert audits == [(run.liar, "failed")], "nobody else was looked at"
        assert f"against node {run.liar}" in told
        assert "upheld" in told
        await assert_paid(ledger, place, run.liar, stranger.address, bond)
        assert "and so is the rent" in await challenge(run, place, "--key", str(key), "--collect")


async def committed(run: DemoRun, client: Client, job: str) -> StepPlace:
    """The first step of the liar's first round that counts, once the ledger holds what it committed to."""
    while True:
        run.household.check()
        mine = [one for one in await client.commits(job) if one.node == run.liar and one.drawable]
        for first in mine[:1]:
            (evidence,) = await client.evidence(job, first.round)
            if any(memo.what == "commitments" and memo.state == "confirmed" for memo in evidence.memos):
                return StepPlace(job, evidence.epoch, first.round, first.stage, first.replica, 0)
        await asyncio.sleep(POLL_S)


async def challenge(run: DemoRun, place: StepPlace, *words: str) -> str:
    """Run ``cottage ledger challenge`` against a step; returns what it printed."""
    seat = {name: str(getattr(place, name)) for name in ("round", "stage", "replica", "step", "epoch")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cottage",
        "ledger",
        "challenge",
        place.job,
        "--coordinator",
        run.network.web,
        *(word for name, value in seat.items() for word in (f"--{name}", value)),
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), COMMAND_LIMIT_S)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def assert_paid(ledger: Ledger, place: StepPlace, liar: str, stranger: str, bond: Amount) -> None:
    """The verdict and the slash are one transaction; the stranger has its bond and its part."""
    dispute = await ledger.dispute(stranger, place.bytes)
    assert dispute is not None
    assert (dispute.ruling, dispute.balance, dispute.node) == (Ruling.UPHELD, 0, liar)
    (slash,) = [event for event in await ledger.stake_history(liar) if event.kind == "stake_slashed"]
    decided = [e for e in await dispute_history(ledger, stranger, place.bytes) if e.kind == "dispute_decided"]
    assert [event.signature for event in decided] == [slash.signature]
    part = slash.fields["part"]
    assert isinstance(part, int)
    assert part > 0
    assert await ledger.balance(stranger) == bond + part

"""Real nodes that lie: one that nobody drew and a stranger finds, by a bond on the ledger, and one that the coordinator draws."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.client import Client
from cottage.demo.network import AGENT, LYING_AGENT, DemoNetwork, Provider
from cottage.demo.options import parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from ledger.addresses import StepPlace
from ledger.client import Ledger
from ledger.money import Amount
from ledger.program.layout import Ruling
from protocol.identity import NodeKey
from protocol.job.job import JobSpec
from tests.support.dispute_history import dispute_history
from tests.support.small_job import CORPUS_BYTES, small_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

# Four replicas of one stage: two liars, and the two auditors that have to agree.
WORDS = ["--nodes", "4", "--stages", "1", "--no-reference", "--json"]
WORDS += ["--lie", "commitment", "--audits", "0"]
OTHER_LIAR = "node1"
# Of each pass of a micro-batch, so 12 s of a round: the liar still has its records when it is asked for them.
PACE_S = 0.1
ROUNDS, STEPS = 100, 20  # More than the test sees.
START_GRACE_S = 4.0
POLL_S = 0.5
COMMAND_LIMIT_S = 300


class UndrawnNetwork(DemoNetwork):
    """A network of nodes that take their time, whose coordinator has no auditor of its own and draws nothing at first."""

    other_liar: Provider

    def _coordinator_arguments(self, folder: Path, ready: Path, port: int) -> Sequence[str]:
        words = super()._coordinator_arguments(folder, ready, port)
        assert words[:3] == ["-m", "cottage", "serve"]
        return [
            str(Path(__file__).with_name("undrawn.py")),
            *words[3:],
            "--no-own-auditor",
            f"--start-grace-seconds={START_GRACE_S}",
        ]

    async def add_provider(self, name: str, extra: Sequence[str] = (), program: Sequence[str] = AGENT) -> Provider:
        words = [*extra, f"--worker-argument=--pace={PACE_S}"]
        if name != OTHER_LIAR:
            return await super().add_provider(name, words, program)
        self.other_liar = await super().add_provider(name, [*words, "--worker-argument=--lie=gradient"], LYING_AGENT)
        assert self.other_liar.role is not None
        self.other_liar.role.may_end = True  # The network sends it away once it is caught.
        return self.other_liar

    def draw(self) -> None:
        """From now on the coordinator draws commitments as it does elsewhere."""
        (self.options.folder / "coordinator" / "draw").touch()


class LongRun(DemoRun):
    """One job of a model of 0.1 M parameters."""

    corpus_bytes = CORPUS_BYTES

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        stages, replicas = self.options.stages, self.options.replicas
        return small_job(artifact, budget, stages, replicas, rounds=ROUNDS, steps=STEPS, commit_every=1)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_a_stranger_finds_a_lie_that_nobody_drew_and_the_coordinator_one_that_it_drew(tmp_path: Path) -> None:
    stranger, key = NodeKey.generate(), tmp_path / "wallet"
    key.write_text(stranger.seed.hex())
    async with LongRun(parse([*WORDS, "--dir", str(tmp_path / "demo")]), LineScreen()) as run:
        network = run.network = UndrawnNetwork(run.options, run.household)
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
            network.draw()
            assert "and so is the rent" in await challenge(run, place, "--key", str(key), "--collect")
            await assert_caught(run, client, ledger, job.id, network.other_liar.key.address)


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


async def assert_caught(run: DemoRun, client: Client, ledger: Ledger, job: str, liar: str) -> None:
    """A round of it is drawn, found false and unpaid, and its stake is slashed; nobody honest is blamed."""
    while not (found := [a for a in await client.audits(job) if a.state == "failed" and a.node != run.liar]):
        run.household.check()
        await asyncio.sleep(POLL_S)
    assert {audit.node for audit in found} == {liar}
    while (stake := await ledger.stake(liar)) is None or not stake.slashed:
        run.household.check()
        await asyncio.sleep(POLL_S)
    false = {audit.round for audit in found}
    assert {c.amount for c in await client.commits(job) if c.node == liar and c.round in false} == {0}

"""A provider's computer that loses its power just when its round is drawn: back after 10 s, it shows it and is paid."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.client import Client
from cottage.demo.network import AGENT, DemoNetwork, Provider
from cottage.demo.options import parse
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from desktop.agent.base.activity import Activity
from protocol.job.job import JobSpec
from protocol.rest.api import AuditView, CommitView, JobEvent
from tests.support.small_job import CORPUS_BYTES, small_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

WORDS = ["--nodes", "3", "--stages", "1", "--no-reference", "--json"]  # Three replicas: two go on with the rounds.
PACE_S = 0.15  # Of each pass of a micro-batch, so a step takes long enough to die in before what is drawn was shown.
ROUNDS, STEPS = 5, 10
DOWN_S = 10.0  # Longer than its lease.
RETURN_S = 180.0  # Restarting takes a minute where two busy processors import PyTorch.
POLL_S = 0.05
PATIENCE_S = 400.0


class PacedNetwork(DemoNetwork):
    """A network whose nodes take their time, and whose coordinator waits for them as by default."""

    def _coordinator_arguments(self, folder: Path, ready: Path, port: int) -> Sequence[str]:
        words = list(super()._coordinator_arguments(folder, ready, port))
        words[words.index("--return-seconds") + 1] = str(RETURN_S)
        return words

    async def add_provider(self, name: str, extra: Sequence[str] = (), program: Sequence[str] = AGENT) -> Provider:
        return await super().add_provider(name, [*extra, f"--worker-argument=--pace={PACE_S}"], program)

    async def crash(self, provider: Provider) -> None:
        """SIGKILL to agent and worker at once: nobody says or writes anything any more."""
        assert provider.role is not None
        await self.household.kill(provider.role)

    async def restart(self, provider: Provider) -> None:
        """Start the agent with its folder as it was left."""
        words = [*AGENT, *self._agent_words(provider), f"--worker-argument=--pace={PACE_S}"]
        provider.role = await self.household.start(f"node-{provider.name}", words)


class PacedRun(DemoRun):
    """One job of a model of 0.1 M parameters."""

    corpus_bytes = CORPUS_BYTES

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        stages, replicas = self.options.stages, self.options.replicas
        return small_job(artifact, budget, stages, replicas, rounds=ROUNDS, steps=STEPS, commit_every=2)


async def drawn(run: DemoRun, client: Client, job: str) -> AuditView:
    """The first inner step that is drawn of a provider's round, while it has yet to be shown."""
    own = {provider.key.address for provider in run.network.providers}
    while True:
        run.household.check()
        for audit in await client.audits(job):
            if audit.node in own and audit.state in ("drawn", "opening") and audit.round >= 1:
                return audit
        await asyncio.sleep(POLL_S)


async def commit_of(client: Client, job: str, audit: AuditView) -> CommitView:
    [commit] = [c for c in await client.commits(job) if (c.round, c.node) == (audit.round, audit.node)]
    return commit


async def events(client: Client, job: str) -> list[JobEvent]:
    return list(await client.events(job))


async def test_who_is_killed_when_it_is_drawn_comes_back_shows_its_round_and_is_paid(tmp_path: Path) -> None:
    async with PacedRun(parse([*WORDS, "--dir", str(tmp_path / "demo")]), LineScreen()) as run:
        network = run.network = PacedNetwork(run.options, run.household)
        ledger = await run._start()
        async with Client(network.web) as client:
            job = (await run._submit(client, ledger)).id
            audit = await drawn(run, client, job)
            [victim] = [p for p in network.providers if p.key.address == audit.node]
            await network.crash(victim)
            began = time.monotonic()
            assert (await commit_of(client, job, audit)).state == "pending"
            await asyncio.sleep(DOWN_S)
            await network.restart(victim)
            while (commit := await commit_of(client, job, audit)).state == "pending":
                assert time.monotonic() - began < PATIENCE_S, [event.text for event in await events(client, job)][-20:]
                run.household.check()
                await asyncio.sleep(1.0)
            said = [str(event.text) for event in await events(client, job)]
            assert commit.state == "verified", said[-20:]
            assert commit.amount > 0
            mine = [a for a in await client.audits(job) if a.node == audit.node and a.round == audit.round]
            assert {a.blame for a in mine} == {""}
            back = [text for text in said if "is back after a crash" in text]
            assert len(back) == 1, said
            assert f"{audit.node[:4]}…{audit.node[-4:]}" in back[0], "as the interface spells a node"
            view = await run._watch(client, job)
            assert view.state == "settled"
            assert await ledger.balance(audit.node) >= commit.amount
        activity = Activity(victim.home / "activity.db")
        [told] = [event.text for event in activity.newest().events if event.kind == "returned"]
        activity.close()
        assert "back after a crash: shows the work of round " in told
        assert "so that it is paid" in told

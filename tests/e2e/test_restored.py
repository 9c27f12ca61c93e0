"""A coordinator's disk dies long after its backup, under a job at work: restored, it goes on where its nodes are."""

import asyncio
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from coordinator.client import Client
from coordinator.proof.cli import EXIT_UNCHECKED
from cottage.demo.network import AGENT, DemoNetwork
from cottage.demo.options import parse
from cottage.demo.processes import wait_for_file
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from protocol.job.job import JobSpec
from tests.support.small_job import CORPUS_BYTES, small_job

pytestmark = [pytest.mark.e2e, pytest.mark.long]

WORDS = ["--nodes", "4", "--stages", "2", "--no-reference", "--json"]
PACE_S = 0.1
ROUNDS, STEPS = 24, 4
BACKUP, DISASTER = 3, 19
RESTORING_S = 180.0  # Nodes are asked for 12 to 75 seconds, on a machine that is busy with others' tests.
PATIENCE_S = 400.0


class LongRun(DemoRun):
    """One job of a model of 0.1 M parameters, of many short rounds."""

    corpus_bytes = CORPUS_BYTES

    def _spec(self, artifact: str, budget: int) -> JobSpec:
        stages, replicas = self.options.stages, self.options.replicas
        return small_job(artifact, budget, stages, replicas, rounds=ROUNDS, steps=STEPS, commit_every=2)


class SlowNetwork(DemoNetwork):
    """Nodes that take their time."""

    async def add_provider(self, name, extra=(), program=AGENT):  # type: ignore[no-untyped-def]
        return await super().add_provider(name, [*extra, f"--worker-argument=--pace={PACE_S}"], program)


async def cottage(*words: str, status: int = 0) -> str:
    """Run a command, which must end with this status; what it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cottage", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == status, said.decode()
    return said.decode()


async def until_rounds(run: DemoRun, client: Client, job: str, rounds: int) -> None:
    began = time.monotonic()
    while (await client.get(job)).rounds_done < rounds:
        assert time.monotonic() - began < PATIENCE_S
        run.household.check()
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("kept", [True, False])
async def test_a_job_outlives_its_coordinators_disk(tmp_path: Path, kept: bool) -> None:
    """``kept``: its nodes have its records; else it begins where the backup has a state, since they keep no older one."""
    backup = tmp_path / "backup"
    async with LongRun(parse([*WORDS, "--dir", str(tmp_path / "demo")]), LineScreen()) as run:
        network = run.network = SlowNetwork(run.options, run.household)
        data = run.options.folder / "coordinator"
        ledger = await run._start()
        async with Client(network.web) as client:
            job = (await run._submit(client, ledger)).id
            await until_rounds(run, client, job, BACKUP)
            assert "Backed up" in await cottage("backup", str(backup), "--data", str(data))
            await until_rounds(run, client, job, DISASTER)
            assert network.coordinator is not None
            await run.household.kill(network.coordinator)
            shutil.rmtree(data)
            for entry in () if kept else run.options.folder.rglob("coordinator-records/*"):
                entry.unlink()
            assert "Restored" in await cottage("restore", str(backup), "--data", str(data))
            ready, port = data / "url", int(network.web.rsplit(":", 1)[1])
            network.coordinator = await run.household.start(
                "coordinator", network._coordinator_arguments(data, ready, port)
            )
            await wait_for_file(ready, network.coordinator, RESTORING_S)
            view = await run._watch(client, job)
            said = [str(event.text) for event in await client.events(job)]
            assert view.state == "settled", said[-20:]
            where = "from what its nodes keep" if kept else "from the backup alone"
            assert any(f"the coordinator was restored: the job goes on {where}" in text for text in said), said
            rounds = Counter(one.round for one in await client.rounds(job) if one.state == "complete" and one.tokens)
            assert set(rounds) == set(range(ROUNDS))
            assert not kept or set(rounds.values()) == {1}, "no complete round was done again"
            assert not any("is banned" in text or "lost its stake" in text for text in said)
            checked = ("--coordinator", network.web, "--rpc", network.ledger_url)
            await cottage("ledger", "check", job, *checked, status=0 if kept else EXIT_UNCHECKED)
            for provider in network.providers:
                commits = [c for c in await client.commits(job) if c.node == provider.key.address]
                owed = sum(commit.amount for commit in commits if commit.state == "verified")
                assert await ledger.balance(provider.key.address) == owed

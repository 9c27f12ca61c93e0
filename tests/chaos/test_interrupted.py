"""Jobs that are paused, or whose coordinator and nodes all lose their power: losses and weights as if nothing had been."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client import Client
from protocol.rest import api
from tests.chaos.storm import ENDED, Storm, Weather

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.long]

# A minute's lease: on a machine so busy that a node is lost by mistake, the run would rightly be another one.
WEATHER = Weather(
    stages=2, replicas=2, spares=0, joiners=0, kills=0, rounds=4, inner_steps=4, audits=1, lease_seconds=60.0
)
NEVER = 10**9
CUT_AFTER = 2  # Complete rounds. The third is under way, or just about to begin: it is done again to the same bits.


async def until(client: Client, job: str, rounds: int) -> api.JobView:
    """The job once so many rounds are complete, or it has ended."""
    while True:
        view = await client.get(job)
        if view.state in ENDED or view.rounds_done >= rounds:
            return view
        await asyncio.sleep(0.05)


async def course(client: Client, job: str) -> list[tuple[int, float | None, float | None, tuple[int, ...]]]:
    """Of each complete round in order: its losses, and who contributed."""
    done = [r for r in await client.rounds(job) if r.state == "complete"]
    return sorted((r.round, r.train_loss, r.validation_loss, tuple(r.contributors)) for r in done)


async def weights(client: Client, job: str, folder: Path) -> bytes:
    """The finished model's file."""
    return ((await client.download_folder(job, folder)) / "model.safetensors").read_bytes()


async def until_paused(client: Client, job: str) -> api.JobView:
    """The job once it rests."""
    while (view := await client.get(job)).state != "paused":
        await asyncio.sleep(0.05)
    return view


async def pause_and_resume(client: Client, job: str) -> None:
    """Pause the job once it is in mid-run, look at how it rests, and resume it."""
    assert (await until(client, job, CUT_AFTER)).state == "running", "the run was over before it could be paused"
    await client.pause(job)
    paused = await until_paused(client, job)
    newest = (await client.checkpoints(job))[0]
    assert (newest.round, newest.verified) == (paused.rounds_done, True)
    assert not [node for node in await client.nodes(job) if node.state not in ("done", "lost")]
    await client.resume(job)


async def test_a_job_that_was_interrupted_gives_the_losses_of_one_that_ran_through(tmp_path: Path) -> None:
    async with Storm(tmp_path / "network", WEATHER) as network:
        ledger = await network.start()
        async with Client(network.web) as client:
            through = (await network.submit(client, ledger)).id
            ended = await until(client, through, NEVER)
            assert ended.state == "settled", ended.reason
            expected, model = await course(client, through), await weights(client, through, tmp_path / "through")
            paused = (await network.submit(client, ledger)).id
            await pause_and_resume(client, paused)
            assert (await until(client, paused, NEVER)).state == "settled"
            stopped = (await network.submit(client, ledger)).id
            cut = await until(client, stopped, CUT_AFTER)
            assert cut.state == "running", "the run was over before the power was cut"
        await network.stop_everybody()
        await network.start_everybody()
        async with Client(network.web) as client:
            for job in (paused, stopped):
                again = await until(client, job, NEVER)
                assert again.state == "settled", again.reason
                assert await course(client, job) == expected
                assert again.validation_loss == ended.validation_loss
                assert await weights(client, job, tmp_path / job) == model
            said = [line.text for line in await client.logs(paused, limit=1000)]
            assert any("4 steps in" in line for line in said), "workers' words came here"

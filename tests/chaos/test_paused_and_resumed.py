"""A job that was paused and resumed, by real workers: losses and weights as if nothing had been."""

import asyncio
from pathlib import Path

import pytest

from coordinator.client import Client
from protocol.rest.api import JobView
from tests.chaos.storm import Storm
from tests.chaos.test_stopped_and_started_again import CUT_AFTER, NEVER, WEATHER, course, until, weights

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


async def until_paused(client: Client, job: str) -> JobView:
    while (view := await client.get(job)).state != "paused":
        await asyncio.sleep(0.05)
    return view


async def test_a_job_that_was_paused_and_resumed_gives_the_losses_of_one_that_ran_through(tmp_path: Path) -> None:
    async with Storm(tmp_path / "network", WEATHER) as network:
        ledger = await network.start()
        async with Client(network.web) as client:
            through = (await network.submit(client, ledger)).id
            ended = await until(client, through, NEVER)
            assert ended.state == "settled", ended.reason
            expected, model = await course(client, through), await weights(client, through, tmp_path / "through")
            job = (await network.submit(client, ledger)).id
            assert (await until(client, job, CUT_AFTER)).state == "running", (
                "the run was over before it could be paused"
            )
            await client.pause(job)
            paused = await until_paused(client, job)
            newest = (await client.checkpoints(job))[0]
            assert (newest.round, newest.verified) == (paused.rounds_done, True)
            assert not [node for node in await client.nodes(job) if node.state not in ("done", "lost")]
            await client.resume(job)
            again = await until(client, job, NEVER)
            assert again.state == "settled", again.reason
            assert await course(client, job) == expected
            assert again.validation_loss == ended.validation_loss
            assert await weights(client, job, tmp_path / "paused") == model
            said = [line.text for line in await client.logs(job, limit=1000)]
            assert any("4 steps in" in line for line in said), "workers' words came here"

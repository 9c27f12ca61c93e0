"""kill -9 of real agents and of the coordinator while an array runs in containers: each result once, nothing paid twice.

A killed agent comes back some seconds later with its disk as it was left, and removes the containers that it left at the engine.
"""

import asyncio
import contextlib
import json
import os
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

from coordinator.client import Client
from coordinator.client.arrays import array_document
from coordinator.client.errors import ClientError
from cottage.demo.network import AGENT, Provider
from ledger.client import job_bytes
from protocol.job.array import ArrayElement
from protocol.rest import api
from tests.e2e.mapped_homes import MappedHomes, mapped_homes
from tests.support.arrays.images import busybox_layer, saved

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.docker,
    pytest.mark.long,
    pytest.mark.timeout(3600),
]

HOMES = int(os.environ.get("COTTAGE_KILLED_HOMES", "4"))
ELEMENTS, BATCH = int(os.environ.get("COTTAGE_KILLED_ELEMENTS", "1000")), 64
SEED = int(os.environ.get("COTTAGE_KILLED_SEED", "87"))
CALM_S = (2.0, 8.0)  # Between two kills.
AWAY_S = (0.5, 4.0)
COORDINATOR_PART = 4  # One kill in so many is the coordinator's.
PATIENCE_S = 2400.0
ANY_BUDGET = 10**15  # For the quote.
AWAY = (OSError, aiohttp.ClientError, ClientError, TimeoutError)
"""What a client meets while the coordinator is down."""

T = TypeVar("T")


class Reaper:
    """Kills, and has those come back whom it killed."""

    def __init__(self, homes: MappedHomes, seed: int) -> None:
        self.homes, self.lot = homes, random.Random(seed)
        self.agents = self.coordinators = 0

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        reaping = asyncio.create_task(self._reap())
        try:
            yield
        finally:
            reaping.cancel()
            await asyncio.gather(reaping, return_exceptions=True)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(self.lot.uniform(*CALM_S))
            # Once it has begun, it comes to its end: nobody stays away for ever.
            await asyncio.shield(self.one())
            await self._until_most_are_here()

    async def _until_most_are_here(self) -> None:
        """Who was killed may still be on its way: on a crowded machine that takes longer than the pause between two kills."""
        while True:
            with contextlib.suppress(*AWAY):
                async with Client(self.homes.run.network.web) as client:
                    if (await client.network()).nodes_online > HOMES // 2:
                        return
            await asyncio.sleep(0.5)

    async def one(self) -> None:
        network = self.homes.run.network
        if (self.agents + self.coordinators) % COORDINATOR_PART == 1:
            assert network.coordinator is not None
            await network.household.kill(network.coordinator)
            await asyncio.sleep(self.lot.uniform(*AWAY_S))
            await network.start_coordinator()
            self.coordinators += 1
            return
        provider = self.lot.choice([one for one in network.providers if one.role is not None and one.role.running])
        assert provider.role is not None
        await network.household.kill(provider.role)
        await asyncio.sleep(self.lot.uniform(*AWAY_S))
        await self._back(provider)
        self.agents += 1

    async def _back(self, provider: Provider) -> None:
        network = self.homes.run.network
        words = [*AGENT, *network._agent_words(provider)]
        provider.role = await network.household.start(f"node-{provider.name}", words)


async def submitted(client: Client, image: str) -> api.JobView:
    elements = [ArrayElement(name=f"e{number}") for number in range(ELEMENTS)]
    listed = await client.upload_elements(elements)
    command = ["sh", "-c", "echo $((COTTAGE_ELEMENT * COTTAGE_ELEMENT)) > square"]
    bounds = {"memory_mb": 64, "disk_mb": 16, "seconds": 60.0, "batch": BATCH, "estimate": 5.0}
    document = array_document("squares", image, command, listed, ELEMENTS, ANY_BUDGET, bounds)
    quote = await client.quote(document)
    assert not quote.problems, quote.problems
    return await client.create_job(document | {"budget": 4 * (quote.price_likely or 1)})


async def over(client: Client, job: str) -> api.JobView:
    deadline, view = time.monotonic() + PATIENCE_S, None
    while time.monotonic() < deadline:
        try:
            view = await client.get(job)
        except AWAY:
            await asyncio.sleep(0.5)
            continue
        if view.state in ("settled", "failed", "cancelled"):
            return view
        await asyncio.sleep(0.5)
    raise AssertionError(f"job {job} is {view and view.state} after {PATIENCE_S:.0f} s")


async def balances(homes: MappedHomes) -> dict[str, int]:
    """What the ledger has for each home's wallet."""
    ledger = homes.run.network.ledger
    assert ledger is not None
    return {one.key.address: await ledger.balance(one.key.address) for one in homes.run.network.providers}


async def assert_ledger_agrees(
    homes: MappedHomes, view: api.JobView, nodes: Sequence[api.JobNode], before: Mapping[str, int]
) -> None:
    """Each wallet has more by what the books say that it was paid, and the escrow has nothing left."""
    ledger = homes.run.network.ledger
    assert ledger is not None
    paid = dict.fromkeys(before, 0)
    for node in nodes:
        paid[node.node] += node.paid
    assert {home: amount - before[home] for home, amount in (await balances(homes)).items()} == paid
    escrow = await ledger.escrow(view.submitter, job_bytes(view.id))
    assert escrow is not None
    assert (escrow.deposited, escrow.paid, escrow.refunded) == (view.escrow, view.paid, view.refunded)


async def test_an_array_under_kill_9_of_agents_and_coordinator_is_whole_and_paid_once(
    tmp_path: Path, docker_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = saved(tmp_path / "tools.tar", [busybox_layer()], {"Env": ["PATH=/bin"]})
    monkeypatch.setattr("cottage.demo.network.STARTING_S", 300.0)
    async with mapped_homes(tmp_path, HOMES, monkeypatch) as homes:
        await homes.push(image, "tools:1")
        async with Client(homes.run.network.web) as client:
            (pushed,), reaper = await client.images(), Reaper(homes, SEED)
            before = await balances(homes)
            job = await submitted(client, pushed.artifact)
            await client.fund(job.id)
            began = time.monotonic()
            async with reaper.at_work():
                view = await over(client, job.id)
            seconds = time.monotonic() - began
            assert view.state == "settled", view.reason
            assert view.array is not None
            assert (view.array.done, view.array.failed) == (ELEMENTS, 0)
            assert view.paid + view.refunded == view.escrow
            commits, nodes = await client.commits(job.id), await client.nodes(job.id)
            assert sum(commit.leaves for commit in commits) == 2 * ELEMENTS, "each run that holds is in one share"
            assert sum(node.paid for node in nodes) == view.paid > 0
            await assert_ledger_agrees(homes, view, nodes, before)
            found = [one async for one in client.results(job.id, tmp_path / "results")]
        squares = {one.element.index: (tmp_path / "results" / one.element.name / "square").read_text() for one in found}
        assert squares == {number: f"{number * number}\n" for number in range(ELEMENTS)}
        assert len(found) == ELEMENTS
        assert reaper.agents > 0
        assert reaper.coordinators > 0
        figures = {"elements": ELEMENTS, "homes": HOMES, "seconds": round(seconds, 1)}
        figures |= {"agents_killed": reaper.agents, "coordinators_killed": reaper.coordinators}
        figures |= {"ms_an_element": round(1000 * seconds / ELEMENTS, 1), "load": round(os.getloadavg()[0], 1)}
        (tmp_path / "figures.json").write_text(json.dumps(figures))
        print(json.dumps(figures))  # noqa: T201 - the figures of the docs

"""Three coordinators of one PostgreSQL that carry the cells of a network: jobs, nodes and pages at any of them.

They are as they are in processes of their own, with real HTTP and WebSockets between them; ledger and trainer are stand-ins.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import aiohttp
import msgspec
import pytest

from coordinator.cells_at_work import CellWork, serve_cells
from coordinator.client.client import Client
from coordinator.config import Config
from coordinator.domain.audits.trust import Audit
from coordinator.domain.cells import cell_of
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, RoundRecord
from coordinator.store.sql import SqlStore
from coordinator.web.fronts.node_lines import NodeLines
from coordinator.web.signal import PATH
from protocol.federated.federations import FederationTold, FederationWish, terms_digest
from protocol.identity import NodeKey
from protocol.ids import JobId
from protocol.node import Claim, CoordinatorMessage
from protocol.rest.api import NewJob
from tests.coordinator.cells.test_wishes_between import ROUNDS, document
from tests.coordinator.conftest import FRONTS_SEED, House, ScriptedNode, one_ledger, opened, until
from tests.coordinator.fakes import BUDGET, WALLET, FakeChain, Peers, spec
from tests.support.databases import Postgres, needs_postgres
from tests.support.wait import HANGS_S

pytestmark = needs_postgres

CELLS = 3
BACK_S = 0.3  # An agent comes back after about as long.


@dataclass
class Coordinator:
    """One that runs. ``houses``: what it carries, by cell."""

    task: asyncio.Task[None]
    stopping: asyncio.Event
    houses: dict[int, House] = field(default_factory=dict)
    url: str = ""


@dataclass
class Town:
    """The coordinators of a network. ``chain``: the ledger of all."""

    config: Config
    chain: FakeChain = field(default_factory=FakeChain)
    coordinators: list[Coordinator] = field(default_factory=list)
    peers: Peers = field(default_factory=Peers)

    async def comes(self) -> Coordinator:
        """One more."""
        stopping = asyncio.Event()
        houses: dict[int, House] = {}

        async def work(work: CellWork) -> None:
            config = replace(self.config, port=0)
            async with opened(config, self.chain, rest=True, ownership=work.ownership, beside=work) as house:
                houses[work.cell.number] = house
                waiting = [asyncio.create_task(end.wait()) for end in work.ends]
                try:
                    await asyncio.wait([*waiting, *house.loops], return_when=asyncio.FIRST_COMPLETED)
                    assert not any(loop.done() for loop in house.loops), [loop for loop in house.loops if loop.done()]
                finally:
                    for one in waiting:
                        one.cancel()
                    del houses[work.cell.number]

        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve_cells(self.config, ready.set_result, stopping, work, one_ledger))
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        self.coordinators.append(made := Coordinator(task, stopping, houses, await ready))
        return made

    def houses(self) -> dict[int, House]:
        """Who carries each cell."""
        self.shares()
        return {number: house for one in self.coordinators for number, house in one.houses.items()}

    def shares(self) -> list[int]:
        """How many cells each carries."""
        for one in self.coordinators:
            assert not one.task.done(), one.task.exception()
        return [len(one.houses) for one in self.coordinators]


class WanderingNode(ScriptedNode):
    """One that comes back whenever its connection ends, at any of the coordinators, as behind a load balancer."""

    def __init__(self, town: Town, number: int) -> None:
        super().__init__(cast(House, town), number)
        self._town, self._turn = town, number
        self.came = 0
        self.federations: list[FederationTold] = []

    async def run(self) -> None:
        while True:
            self._turn += 1
            there = self._town.coordinators[self._turn % len(self._town.coordinators)]
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                self.house = cast(House, _Place(there.url.rstrip("/") + PATH, self._town.peers))
                await super().run()
            self.came += 1
            await asyncio.sleep(BACK_S)

    async def _obey(self, message: CoordinatorMessage) -> None:
        if isinstance(message, FederationTold):
            self.federations.append(message)
        await super()._obey(message)


@dataclass
class _Place:
    url: str
    peers: Peers


@pytest.fixture
async def town(config: Config, postgres: Postgres) -> AsyncIterator[Town]:
    config.data.mkdir(parents=True, exist_ok=True)
    NodeKey(FRONTS_SEED).save(config.data / "coordinator.key")
    quick = replace(config, lease_seconds=3.0, heartbeat_seconds=0.3, spares=0, start_grace_seconds=3.0)
    made = Town(replace(quick, database_url=postgres.url(), cells=CELLS, port=0, open=True))
    made.chain.wallets[WALLET] = 100 * BUDGET
    try:
        yield made
    finally:
        for one in made.coordinators:
            one.stopping.set()
        await asyncio.wait_for(asyncio.gather(*(one.task for one in made.coordinators)), HANGS_S)


@asynccontextmanager
async def wandering(
    town: Town, count: int, first: int = 1, payouts: Sequence[str] = ()
) -> AsyncIterator[list[WanderingNode]]:
    made = [WanderingNode(town, first + number) for number in range(count)]
    for node, payout in zip(made, payouts, strict=False):
        node.payout = payout
    tasks = [asyncio.create_task(node.run()) for node in made]
    try:
        yield made
        assert not any(task.done() for task in tasks), [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def submitted(town: Town, at: int, rounds: int = 4) -> str:
    """A funded job, handed in at a coordinator."""
    document = msgspec.structs.replace(spec(1, 2, tokens=1024 * rounds), budget=BUDGET)
    async with Client(town.coordinators[at].url) as client:
        job = (await client.create_job(msgspec.to_builtins(NewJob(document).spec))).id
        await client.fund(job)
    return job


async def known(town: Town, nodes: int) -> None:
    """Every cell knows of so many nodes, its own and others'."""

    async def know() -> bool:
        for house in town.houses().values():
            await house.parts.nodes.elsewhere.look()
        return all(len(house.parts.nodes.everywhere()) == nodes for house in town.houses().values())

    await until(know)


async def submitted_to(house: House, rounds: int) -> str:
    """A funded job of a cell."""
    job = (await house.parts.jobs.create(NewJob(spec(1, 2, tokens=1024 * rounds)))).id
    await house.parts.jobs.fund(job)
    return job


async def _shows(url: str, nodes: int) -> bool:
    """Whether the network has so many nodes, as a coordinator says; some may just be on their way."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/api/v1/network") as answer:
        return bool((await answer.json())["nodes_online"] == nodes)


async def rested(town: Town, jobs: list[str]) -> list[Job]:
    """The jobs, once all have ended and their money is where it belongs."""
    store = await SqlStore.open(town.config.database)

    async def found() -> list[Job]:
        async with store.transaction() as tx:
            return await tx.find(Job, col(Job.id).in_(tuple(jobs)))

    async def over() -> bool:
        return all(
            one.state in (JobState.SETTLED, JobState.FAILED, JobState.CANCELLED)
            and one.paid + one.refunded == one.escrow
            for one in await found()
        )

    try:
        await until(over)
        return await found()
    finally:
        await store.close()


async def check(town: Town, jobs: list[Job]) -> None:
    """Everything that cells must not change: rounds are done once, and money moves once."""
    assert {job.state for job in jobs} == {JobState.SETTLED}, [(job.state, job.reason) for job in jobs]
    assert town.peers.violations == []
    assert set(Counter(town.chain.executed.values()).values()) == {1}, "nothing happened twice on the ledger"
    for job in jobs:
        account = town.chain.escrows[job.id]
        assert sum(account.paid.values()) + account.refunded == account.deposited
    store = await SqlStore.open(town.config.database)
    async with store.transaction() as tx:
        rounds = await tx.find(RoundRecord)
        # Whoever was away while its cell moved may be given up before it is back; that costs it nothing.
        failed = [audit.blame for audit in await tx.find(Audit) if audit.state == "failed" and audit.blame != "gone"]
        leases = await tx.find(Lease)
    await store.close()
    complete = Counter((one.job, one.number) for one in rounds if one.state == "complete")
    assert set(complete.values()) == {1}
    assert failed == []
    together = [(lease.node, cell_of(lease.job, CELLS), lease.granted, lease.ended or float("inf")) for lease in leases]
    for node, cell, began, over in together:
        others = [one for one in together if one[0] == node and one[1] != cell]
        assert not any(began < end and start < over for _, _, start, end in others), f"{node} was in two cells"


async def settled(town: Town, *shares: int) -> None:
    """So many cells are carried by each, in any order, and all of them reach all cells."""

    async def ready() -> bool:
        return sorted(town.shares()) == sorted(shares) and all([await _is_ready(one.url) for one in town.coordinators])

    await until(ready)


async def _is_ready(url: str) -> bool:
    """Whether it says that it has reached every cell."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as answer:
        return answer.status == 200 and (await answer.json())["cells"] == f"{CELLS} of {CELLS}"


async def test_jobs_of_all_cells_are_done_by_nodes_that_come_in_anywhere(town: Town) -> None:
    for _ in range(3):
        await town.comes()
    await settled(town, 1, 1, 1)
    async with wandering(town, 10) as nodes:
        await until(lambda: all(node.welcomes for node in nodes))
        await known(town, 10)
        jobs = [await submitted(town, number % 3) for number in range(2)]
        jobs += [await submitted_to(house, rounds=4) for house in town.houses().values()]
        assert {cell_of(job, CELLS) for job in jobs} == {0, 1, 2}
        await check(town, await rested(town, jobs))
        for one in town.coordinators:
            async with Client(one.url) as client:
                assert {job.id for job in await client.jobs()} == set(jobs)
                for job in jobs:
                    assert (await client.get(job)).state == "settled"
            await until(partial(_shows, one.url, nodes=10))


async def test_cells_of_the_process_where_a_node_comes_in_take_it_without_a_second_connection(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    led: list[str] = []
    connect = NodeLines._connect

    async def counted(*given: Any) -> Any:
        led.append("on")
        return await connect(*given)

    monkeypatch.setattr(NodeLines, "_connect", counted)
    alone = await town.comes()
    await settled(town, 3)
    async with wandering(town, 6) as nodes:
        await until(lambda: all(node.welcomes for node in nodes))
        await known(town, 6)
        assert led == []
        job = await submitted(town, 0, rounds=40)
        await town.comes()
        await settled(town, 1, 2)
        await check(town, await rested(town, [job]))
        async with wandering(
            town, 8, first=7
        ) as more:  # As many at each, and not all of those for cells that it carries.
            await until(lambda: all(node.welcomes for node in more))
            assert led, "by now some come in at the other one"
        await known(town, 6)
        here = sum(len(house.parts.nodes.sessions()) for house in alone.houses.values())
        alone.stopping.set()
        await asyncio.wait_for(alone.task, HANGS_S)
        town.coordinators.remove(alone)
        await settled(town, 3)
        await known(town, 6)
        assert here > 0, "some were its own, and were told to come back"


async def test_more_jobs_than_a_cell_has_nodes_for_get_those_of_others(town: Town) -> None:
    """Jobs of one cell alone: nodes come to it, and it has no more than are there."""
    for _ in range(2):
        await town.comes()
    await settled(town, 1, 2)
    async with wandering(town, 6) as nodes:
        await until(lambda: all(node.welcomes for node in nodes))
        await known(town, 6)
        await until(lambda: sorted(len(one.parts.nodes.sessions()) for one in town.houses().values()) == [2, 2, 2])
        house = town.houses()[1]
        jobs = [await submitted_to(house, rounds=40) for _ in range(3)]
        assert {cell_of(job, CELLS) for job in jobs} == {1}
        await check(town, await rested(town, jobs))
        async with house.parts.context.store.transaction() as tx:
            worked = {lease.node for lease in await tx.find(Lease) if lease.seat is not None}
        assert len(worked) >= 4, "nodes of other cells have come"


async def asked(node: WanderingNode, wish: FederationWish) -> FederationTold:
    """What a node is told over the connection that it has; said anew only where that has ended."""
    told, came = len(node.federations), -1

    async def answered() -> bool:
        nonlocal came
        if node.came != came:
            came = node.came
            with contextlib.suppress(ConnectionError):
                await node.send(wish)
        return len(node.federations) > told

    await until(answered)
    return node.federations[-1]


async def test_owners_join_a_federation_from_wherever_they_are_and_work_for_it(town: Town) -> None:
    for _ in range(3):
        await town.comes()
    await settled(town, 1, 1, 1)
    async with wandering(town, 3) as nodes:
        await until(lambda: all(node.welcomes for node in nodes))
        await known(town, 3)
        house = min(town.houses().values(), key=lambda one: len(one.parts.nodes.sessions()))
        assert len(house.parts.nodes.sessions()) < 3, "some are elsewhere"
        job = (await house.parts.jobs.create(NewJob(document([node.key.address for node in nodes], least=3)))).id
        await house.parts.jobs.fund(job)
        for node in nodes:
            seen = (await asked(node, FederationWish(JobId(job), "look"))).spec
            assert seen is not None
            told = await asked(node, FederationWish(JobId(job), "join", terms_digest(seen)))
            assert (told.joined, told.problem) == (True, "")
        [done] = await rested(town, [job])
        assert (done.state, done.rounds_done) == (JobState.SETTLED, ROUNDS), done.reason
        assert {owner.node for owner in done.owners} == {node.key.address for node in nodes}
        told = await asked(nodes[0], FederationWish(JobId(job), "leave"))
        assert (told.joined, told.owners) == (False, 2)


async def test_a_claim_at_one_coordinator_is_paid_by_the_jobs_of_others(town: Town) -> None:
    town.config = replace(town.config, settle_every=100_000)  # Nothing is paid by itself while jobs run.
    for _ in range(2):
        await town.comes()
    await settled(town, 1, 2)
    payouts = [NodeKey((2000 + number).to_bytes(32, "big")).address for number in range(2)]
    async with wandering(town, 2, 1, payouts) as one, wandering(town, 2, 3, payouts) as other:
        await until(lambda: all(node.welcomes for node in (*one, *other)))
        await known(town, 4)
        jobs = [await submitted_to(town.houses()[cell], rounds=2_000) for cell in (0, 1)]
        store = await SqlStore.open(town.config.database)

        async def owes() -> bool:
            mine = (col(CommitRecord.payout).equals(payouts[0]), col(CommitRecord.state).equals("verified"))
            async with store.transaction() as tx:
                return {commit.job for commit in await tx.find(CommitRecord, *mine)} == set(jobs)

        await until(owes)
        assert all(town.chain.escrows[job].paid == {} for job in jobs)
        await one[0].send(Claim())
        await until(lambda: all(town.chain.escrows[job].paid.get(payouts[0]) for job in jobs))
        assert all(set(town.chain.escrows[job].paid) == {payouts[0]} for job in jobs), "who did not ask waits on"
        await store.close()


async def test_cells_of_one_that_ends_go_on_elsewhere_and_who_comes_gets_a_share(town: Town) -> None:
    await town.comes()
    await settled(town, 3)
    async with wandering(town, 9) as nodes:
        await until(lambda: all(node.welcomes for node in nodes))
        await known(town, 9)
        jobs = [await submitted(town, 0, rounds=20) for _ in range(4)]
        await town.comes()
        await settled(town, 1, 2)
        leaving = town.coordinators[0]
        leaving.stopping.set()
        await asyncio.wait_for(leaving.task, HANGS_S)
        town.coordinators.remove(leaving)
        await settled(town, 3)
        await check(town, await rested(town, jobs))

"""Losses over the real WebSocket and a real database: nodes that die, freeze, leave or lie, a coordinator that is killed."""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from coordinator.config import Config
from coordinator.domain.lease import Lease
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, NodeRecord
from protocol.rest.api import JobView, NewJob
from protocol.task import BeginRound
from tests.coordinator.conftest import House, ScriptedNode, nodes, opened, until
from tests.coordinator.fakes import BUDGET, FakeChain, spec


async def start(house: House, stages: int = 2, replicas: int = 2, rounds: int = 8) -> str:
    """A funded job of some rounds."""
    job = (await house.parts.jobs.create(NewJob(spec(stages, replicas, tokens=512 * replicas * rounds)))).id
    await house.parts.jobs.fund(job)
    return job


async def reached(house: House, job: str, rounds: int) -> None:
    async def done() -> bool:
        return (await house.parts.jobs.get(job)).rounds_done >= rounds

    await until(done)


async def ended(house: House, job: str) -> JobView:
    async def done() -> bool:
        view = await house.parts.jobs.get(job)
        return view.state in ("settled", "failed", "cancelled") and view.paid + view.refunded == view.escrow

    await until(done)
    return await house.parts.jobs.get(job)


def quick(config: Config) -> Config:
    return replace(config, lease_seconds=1.5, heartbeat_seconds=0.2)


async def test_a_killed_node_is_replaced_by_a_spare_and_the_job_completes(config: Config) -> None:
    async with opened(quick(config), FakeChain()) as house, nodes(house, 4, first=2) as made, nodes(house, 1) as spare:
        job = await start(house)
        await reached(house, job, 2)
        victim = next(node for node in (*made, *spare) if any(t.assign.stage is not None for t in node.tasks.values()))
        victim.silent = victim.frozen = True
        view = await ended(house, job)
        assert view.state == "settled"
        assert house.peers.violations == []
        part = {node.node: node for node in await house.parts.jobs.nodes(job)}
        assert part[victim.key.address].state == "lost"
        assert part[victim.key.address].verified <= view.quote.price // 2


@pytest.mark.long
async def test_without_a_spare_the_other_replica_finishes_and_what_was_not_done_is_refunded(config: Config) -> None:
    async with opened(quick(config), FakeChain()) as house, nodes(house, 4) as made:
        job = await start(house)
        await reached(house, job, 2)
        made[0].silent = made[0].frozen = True
        view = await ended(house, job)
        assert view.state == "settled"
        assert view.paid < view.quote.price
        assert view.paid + view.refunded == BUDGET
        contributors = [set(r.contributors) for r in await house.parts.jobs.rounds(job) if r.contributors]
        assert {0, 1} in contributors
        assert any(len(c) == 1 for c in contributors)


@pytest.mark.long
async def test_a_node_that_says_goodbye_is_replaced_at_once(house: House) -> None:
    async with nodes(house, 5) as made:
        job = await start(house)
        await reached(house, job, 1)
        leaver = next(node for node in made if any(t.assign.stage is not None for t in node.tasks.values()))
        await leaver.goodbye()
        view = await ended(house, job)
        assert view.state == "settled"
        assert any("the owner wants to play" in lease for lease in await reasons(house, job))


@pytest.mark.long
async def test_who_takes_a_checkpoint_is_not_held_to_what_others_say_is_in_it(house: House) -> None:
    async with nodes(house, 5) as made:
        job = await start(house)
        await reached(house, job, 1)
        leaver = next(node for node in made if any(t.assign.stage is not None for t in node.tasks.values()))
        await leaver.goodbye()
        assert (await ended(house, job)).state == "settled"
        told = [(command.lease, command.body) for node in made for command in node.commands]
        begun = {(lease, b.plan.epoch, b.round): b.replaces_state for lease, b in told if isinstance(b, BeginRound)}
        async with house.parts.context.store.transaction() as tx:
            commits = await tx.find(CommitRecord, col(CommitRecord.job).equals(job))
        for commit in commits:
            took = begun[commit.lease, commit.epoch, commit.round]
            assert (commit.anchor is None) == (took or commit.round == 0)
        assert any(commit.anchor is None and commit.round > 0 for commit in commits), "somebody joined"
        assert any(commit.anchor is not None for commit in commits)


async def reasons(house: House, job: str) -> list[str]:
    async with house.parts.context.store.transaction() as tx:
        return [lease.reason for lease in await tx.find(Lease, col(Lease.job).equals(job))]


@pytest.mark.long
async def test_an_agent_that_comes_back_without_its_task_has_lost_it(house: House) -> None:
    async with nodes(house, 4) as made:
        job = await start(house)
        await reached(house, job, 1)
        async with nodes(house, 1):  # The same key as the first node, in a new process that knows nothing.
            await until(lambda: made[0].closed)
            view = await ended(house, job)
        assert view.state == "settled"
        assert any("came back without this task" in reason for reason in await reasons(house, job))


async def test_a_coordinator_that_is_killed_and_restarted_finishes_the_job_and_pays_once(config: Config) -> None:
    chain = FakeChain()
    config = replace(config, lease_seconds=10.0)
    async with opened(config, chain) as first, nodes(first, 4) as before:
        job = await start(first)
        await reached(first, job, 3)
        kept = [(node.tasks, node.fences, node.said, node.reports) for node in before]
        peers = first.peers
    async with opened(config, chain) as second:
        second.peers = peers
        again = [ScriptedNode(second, number) for number in range(1, 5)]
        for node, (tasks, fences, said, reports) in zip(again, kept, strict=True):
            node.tasks, node.fences, node.said, node.reports = tasks, fences, said, reports
        running = [asyncio.create_task(node.run()) for node in again]
        view = await ended(second, job)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert view.state == "settled"
        assert view.rounds_done == view.rounds_total
        assert view.paid == view.quote.price == sum(chain.escrows[job].paid.values())
        assert peers.violations == []
        assert not any(r.epoch > 2 for r in await second.parts.jobs.rounds(job)), "nobody had to begin anew"


async def test_a_liar_is_caught_unpaid_slashed_and_sent_away(config: Config) -> None:
    config = replace(config, audits_per_round=8, settle_every=100)
    async with (
        opened(config, FakeChain()) as house,
        nodes(house, 5) as honest,
        nodes(house, 1, first=9, flops=9e9, lie="root") as (liar,),
    ):
        house.chain.stakes[liar.key.address] = 1_000_000
        async with house.parts.context.store.transaction() as tx:
            record = await tx.get(NodeRecord, liar.key.address)
            await tx.update(msgspec.structs.replace(record, stake=1_000_000))
        job = await start(house)
        view = await ended(house, job)
        assert view.state == "settled"
        await until(lambda: house.chain.slashed)
        assert house.chain.slashed == {liar.key.address: 500_000}
        assert house.chain.escrows[job].paid.get(liar.payout, 0) == 0
        assert liar.closed
        assert all(house.parts.nodes.session(node.key.address) for node in honest)
        states = {commit.state for commit in await house.parts.jobs.commits(job) if commit.node == liar.key.address}
        assert states <= {"rejected", "void"}
        again = ScriptedNode(house, 9)
        await again.run()
        assert again.refused is not None
        assert "is banned" in again.refused.reason


async def test_a_running_job_can_be_cancelled_and_its_nodes_are_free_again(house: House) -> None:
    async with nodes(house, 4) as made:
        job = await start(house, rounds=200)
        await reached(house, job, 3)
        await house.parts.jobs.cancel(job)
        view = await ended(house, job)
        assert view.state == "cancelled"
        assert 0 < view.paid < view.quote.price
        await until(lambda: not any(node.tasks for node in made))
        assert (await house.parts.jobs.cancel(job)).state == "cancelled"


@pytest.mark.long
async def test_two_jobs_share_the_network_one_after_the_other(house: House) -> None:
    async with nodes(house, 4):
        first, second = await start(house, rounds=3), await start(house, rounds=3)
        assert (await ended(house, first)).state == "settled"
        assert (await ended(house, second)).state == "settled"

"""Worlds whose replicas exchange by shards: machines that come and go, reducers that fail, and what is looked at of them."""

import asyncio
from typing import Literal

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.store.records import CommitRecord, RoundRecord
from tests.cheats.catalogue import CATALOGUE, fate
from tests.coordinator.fakes import spec
from tests.sim.test_faults import check, read, run_world
from tests.sim.world import World
from tests.support.seeds import seeds

REPLICAS = 4


async def world_of(seed: int, faults: float) -> tuple[World, str]:
    stages = 1 + seed % 2
    world = World(seed, nodes=stages * REPLICAS + 1 + seed % 3, faults=faults)
    job, stored = await run_world(world, stages, REPLICAS)
    await check(world, job, stored)
    return world, job


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", seeds(2, of=60))
async def test_whatever_breaks_jobs_end_and_nobody_honest_is_blamed(seed: int) -> None:
    world, job = await world_of(seed, 1.0)
    audits = await read(world, Audit, job)
    assert not [
        audit for audit in audits if audit.blame in ("wrong", "unconfirmed", "refused") and not world.happened["hang"]
    ]


async def test_in_calm_everybody_contributes_and_answers_for_its_shard() -> None:
    world, job = await world_of(2, 0.0)
    rounds: list[RoundRecord] = [r for r in await read(world, RoundRecord, job) if r.state == "complete" and r.steps]
    assert all(len(record.contributors) == REPLICAS for record in rounds)
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    for record in rounds:
        own = [c for c in commits if (c.epoch, c.round) == (record.epoch, record.number)]
        reduced = sorted(shard.shard for c in own if c.outer is not None for shard in c.outer.reduced)
        assert reduced == list(range(REPLICAS)), "one answers for each shard"
        assert len({tuple(sorted(c.outer.results.items())) for c in own if c.outer is not None}) == 1
    outer = [a for a in await read(world, Audit, job) if a.outer is not None]
    assert any(audit.outer.record.reduced for audit in outer)
    assert all(audit.state == "passed" for audit in outer)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("exchange", ["mesh", "shards"])
async def test_audits_weigh_updates_as_the_members_of_a_timed_round_were_told(
    exchange: Literal["mesh", "shards"],
) -> None:
    document = spec(2, REPLICAS, tokens=32_768)
    training = msgspec.structs.replace(document.training, inner_steps=8, round_seconds=60.0, exchange=exchange)
    world = World(3, nodes=2 * REPLICAS + 2, faults=0.0)
    job, _ = await run_world(world, 2, REPLICAS, msgspec.structs.replace(document, training=training))
    outer = [a.outer for a in await read(world, Audit, job) if a.outer is not None and a.state == "passed"]
    assert any(claim.weights == {0: 8, 1: 4, 2: 2, 3: 2} for claim in outer)
    assert all(audit.state == "passed" for audit in await read(world, Audit, job))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("cheat", [c for c in CATALOGUE if c.shape == (1, REPLICAS)], ids=lambda cheat: cheat.name)
def test_a_reducer_that_lies_is_sent_away_and_one_that_fails_is_replaced(cheat: object) -> None:
    world = asyncio.run(fate(cheat, 1))  # type: ignore[arg-type]
    assert world.settled
    assert (world.honest_slashed, world.honest_banned, world.paid_forged) == (0, 0, 0)
    if cheat.ends == "slashed":  # type: ignore[attr-defined]
        assert world.banned
        assert world.rounds is not None
    else:
        assert world.took_part == 20, "no round is lost, and none is done without it"
        assert world.slashed == 0

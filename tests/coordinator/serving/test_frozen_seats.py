"""Seats of replicas whose nodes hang, freeze or compute for long: who is missed, who keeps its seat, and where answers go on."""

import pytest

from coordinator.domain import serving as rules
from tests.coordinator.serving.deployed import Deployed
from tests.coordinator.serving.test_deployments import shares
from tests.coordinator.serving.test_stages import by_stage, halves


async def test_a_replica_that_hangs_is_let_go_whole_and_nobody_is_at_fault() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3, 4)
    job = await bench.deploy()
    first, last = by_stage(homes)
    last.hung = True
    asked = bench.ask(await bench.stored(job), tokens=6)
    await bench.pass_time(400.0, 2.0)
    await bench.turn(job)
    assert all(home.lease is None for home in (first, last))
    await bench.pass_time(10.0, 0.25)
    await asked.task
    assert asked.tokens == asked.right
    async with bench.desk(job) as work:
        assert {lease.node for lease in work.leases.values()}.isdisjoint({first.node, last.node})
    assert not [share for share in await shares(bench, job) if share.state == "rejected"]


@pytest.mark.parametrize("stage", [0, 1])
async def test_an_answer_leaves_a_replica_one_of_whose_nodes_is_frozen_within_five_seconds(stage: int) -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3, 4)
    job = await bench.deploy(replicas=2)
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.05)
    busy = next(home for home in homes if home.answering)
    assert busy.lease is not None
    by_stage(homes, busy.lease.replica or 0)[stage].frozen = True
    assert not asked.texts, "it had not begun: for its first word an answer may wait longer"
    await bench.pass_time(5.0)
    assert asked.texts
    await bench.pass_time(3.0)
    await asked.task
    assert asked.tokens == asked.right


@pytest.mark.parametrize("stage", [0, 1])
async def test_a_frozen_seat_alone_is_given_to_who_is_free_and_its_node_gets_none_before_it_speaks(stage: int) -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    job = await bench.deploy()
    pair = by_stage(homes)
    cold, warm = pair[stage], pair[1 - stage]
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.75)
    cold.frozen = True
    await bench.pass_time(rules.AWAY_S + 2.0, 0.25)
    await bench.turn(job)
    [free] = [home for home in homes if home not in pair]
    async with bench.desk(job) as work:
        assert {lease.node for lease in work.leases.values()} == {free.node, warm.node}
    await bench.pass_time(5.0, 0.25)
    await asked.task
    assert asked.tokens == asked.right
    await free.vanish()
    async with bench.desk(job) as work:
        work.end(free.lease.lease if free.lease else "", "expired", "it is gone")
    await bench.turn(job)
    async with bench.desk(job) as work:
        assert {lease.node for lease in work.leases.values()} == {warm.node}, "who says nothing gets no seat"


async def test_a_node_that_is_frozen_for_a_moment_keeps_its_seat_and_the_answer_goes_on_there() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2)
    job = await bench.deploy()
    last = by_stage(homes)[1]
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.75)
    last.frozen = True
    await bench.pass_time(6.0)
    assert not by_stage(homes)[0].answering, "nobody computes what nobody hears"
    await last.thaw()
    await bench.pass_time(3.0)
    await asked.task
    assert asked.tokens == asked.right
    await bench.turn(job)
    assert by_stage(homes)[1] is last


async def test_a_stage_that_computes_for_long_keeps_its_seat_and_one_whose_pass_has_no_end_loses_it() -> None:
    bench = Deployed()
    homes = await halves(bench, 1, 2, 3)
    job = await bench.deploy()
    last = by_stage(homes)[1]
    last.hung, last.computing = True, rules.STUCK_S - 1.0
    asked = bench.ask(await bench.stored(job), tokens=6)
    await bench.pass_time(20.0, 0.25)
    await bench.turn(job)
    assert last.lease is not None
    last.computing = rules.STUCK_S + 1.0
    await bench.pass_time(20.0, 0.25)
    await bench.turn(job)
    assert last.lease is None
    await bench.pass_time(5.0, 0.25)
    await asked.task
    assert asked.tokens == asked.right

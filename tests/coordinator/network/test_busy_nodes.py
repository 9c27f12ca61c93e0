"""Who is at work is here: a node that may come back with its worker is waited for, and does nothing meanwhile."""

from tests.coordinator.bench import Bench


async def test_a_node_that_is_away_is_not_busy_though_it_is_waited_for() -> None:
    bench = Bench()
    job = await bench.fund(await bench.job())
    await bench.parts.upkeep.tick()
    lease = bench.parts.leases.of_job(job.id)[0]
    shown = {one.node: one for one in await bench.parts.network.nodes()}
    assert (shown[lease.node].online, shown[lease.node].busy) == (True, True)
    session = bench.parts.nodes.session(lease.node)
    assert session is not None
    bench.parts.nodes.leave(session)
    assert bench.parts.leases.is_busy(lease.node)
    shown = {one.node: one for one in await bench.parts.network.nodes()}
    assert (shown[lease.node].online, shown[lease.node].busy) == (False, False)

"""What an operator decides of a node and what audits find stand beside each other: neither hides the other."""

import msgspec

from coordinator.domain.account import LOCAL_PRINCIPAL
from coordinator.services.audits.audit_outcomes import Penalties
from coordinator.services.operation.ports import OrderedBy
from coordinator.store.records import NodeRecord
from tests.coordinator.artifacts.test_keeping import audit
from tests.coordinator.bench import Bench

BY = OrderedBy(LOCAL_PRINCIPAL, "session", "::1")


async def test_a_lie_that_is_proven_after_an_operators_ban_still_costs_its_stake_once() -> None:
    bench = Bench()
    job = await bench.job()
    node = bench.parts.nodes.sessions()[0].node
    async with bench.store.transaction() as tx:
        await tx.update(msgspec.structs.replace(await tx.get(NodeRecord, node), stake=1_000))
    await bench.parts.operation.order(node, "ban", "it looks odd", BY)
    assert bench.closed[node] == "banned by this network's operator: it looks odd"
    assert await bench.rows(job, "slash") == [], "that costs nothing"
    found = msgspec.structs.replace(audit(job, "step", "failed", 0.0, bench.clock.t), node=node)
    for _ in range(2):
        async with bench.parts.desk.open(job) as work:
            await Penalties(bench.parts.context).ban(work, node, found, "it was forged", slash=True)
    assert [row.payload["node"] for row in await bench.rows(job, "slash")] == [node]
    shown = await bench.parts.operation.node(node)
    assert "it was forged" in shown.reason
    await bench.parts.operation.order(node, "unban", "it paid for that", BY)
    assert (await bench.enter(1)).node == node

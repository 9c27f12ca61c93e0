"""What was paid for a deployment is told by its periods."""

from coordinator.domain import serving as rules
from coordinator.domain.job import JobAction
from coordinator.store.ports import col
from coordinator.store.records import OutboxRecord
from tests.coordinator.serving.deployed import Deployed


async def test_what_was_paid_is_told_by_periods_and_not_by_rounds() -> None:
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy()
    async with bench.checking():
        asked = bench.ask(await bench.stored(job))
        await bench.pass_time(2.0)
        await asked.task
        await bench.pass_time(rules.PERIOD_S, 5.0)
        await bench.turn(job)
    async with bench.desk(job) as work:
        await bench.parts.runs.ask(work, JobAction.STOP)
    await bench.turn(job)
    async with bench.store.transaction() as tx:
        rows = await tx.find(OutboxRecord, col(OutboxRecord.job).equals(job), col(OutboxRecord.kind).equals("settle"))
    assert rows
    for row in rows:
        assert " for period" in row.detail
        assert "round" not in row.detail

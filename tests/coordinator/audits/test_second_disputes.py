"""An audit is disputed once: who accuses after a dispute that has proven nothing of the prover opens no second one."""

import msgspec
import pytest

from coordinator.domain.audits import dispute as disputes
from tests.coordinator.audits.test_trust import opened
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import digest


@pytest.mark.parametrize("apart", [False, True], ids=["at once", "later"])
async def test_a_second_accuser_of_the_same_step_opens_no_second_dispute(apart: bool) -> None:
    """Its report could not be stored, again and again: two friends blocked a job, or the operator's auditor, by it."""
    bench = Bench()
    job = await bench.job()
    await bench.fund(job)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        (lease, accuser, second, *_) = work.leases.values()
        work.leases[lease.id] = msgspec.structs.replace(lease, state="ready", env_class="cpu")
        shown = {"job": job, "lease": lease.id, "node": lease.node, "opening": digest("opening"), "state": "replaying"}
        audit = msgspec.structs.replace(opened(), **shown, watched=True, look=True, deadline=work.now + 100.0)
        work.audits[audit.id] = audit
        service = bench.parts.runs._verification._disputes
        service.open(work, audit, accuser.node)
        record = work.disputes[audit.id]
        service._keep(work, record, disputes.dropped(record.dispute, "the challenger left"))
        if not apart:
            service.open(work, audit, second.node)
            assert not work.disputes
    async with bench.parts.desk.open(job) as work:
        service.open(work, work.audits[audit.id], second.node)
        assert not work.disputes

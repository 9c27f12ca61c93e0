"""What the desk keeps of a job is what is stored: whoever else changes it, and whatever fails."""

import asyncio
from random import Random

import msgspec
import pytest

from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.run import Run
from coordinator.errors import ConflictError, NotFoundError
from coordinator.services.core import kept_jobs
from coordinator.services.core.kept_jobs import KeptJob, KeptJobs
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.store.ports import col
from coordinator.store.records import RunRecord
from protocol.task import Layers
from tests.coordinator.desk.conftest import JOBS, Office
from tests.coordinator.fakes import WALLET

RUN = Run((Layers(0, 1),), 1, 10, 2, (0,))


async def paid(office: Office, job: str, more: int = 0) -> int:
    """Open a job and add to what it has paid."""
    async with office.desk.open(job) as work:
        work.change(paid=work.job.paid + more)
        return work.job.paid


async def test_what_was_stored_is_not_read_again(office: Office) -> None:
    await paid(office, JOBS[0], 1)
    office.store.counts.clear()
    assert [await paid(office, JOBS[0], 1) for _ in range(3)] == [2, 3, 4]
    assert office.store.counts["reads"] == 0
    assert (await office.paid())[JOBS[0]] == 4


async def test_what_somebody_else_changes_is_seen(office: Office) -> None:
    await paid(office, JOBS[0], 1)
    async with office.context.store.transaction() as tx:
        await tx.update(msgspec.structs.replace(await tx.get(Job, JOBS[0]), paid=70))
    assert await paid(office, JOBS[0], 1) == 71
    async with office.context.store.transaction() as tx:
        await tx.insert(RunRecord(JOBS[0], RUN))
    async with office.desk.open(JOBS[0]) as work:
        assert work.run == RUN
    async with office.context.store.transaction() as tx:
        await tx.delete(await tx.get(RunRecord, JOBS[0]))
        assert await tx.forget(Job, col(Job.id).equals(JOBS[0])) == 1
    with pytest.raises(NotFoundError):
        await paid(office, JOBS[0])


async def test_what_a_body_changes_past_the_desk_is_seen(office: Office) -> None:
    await paid(office, JOBS[0], 1)
    async with office.desk.open(JOBS[0]) as work:
        await work.tx.insert(RunRecord(JOBS[0], RUN))
    async with office.desk.open(JOBS[0]) as work:
        assert work.run == RUN


async def test_what_a_body_made_that_failed_is_forgotten(office: Office) -> None:
    async def half() -> None:
        async with office.desk.open(JOBS[0]) as work:
            work.change(paid=9)
            raise RuntimeError

    await paid(office, JOBS[0], 1)
    with pytest.raises(RuntimeError):
        await half()
    assert await paid(office, JOBS[0], 1) == 2


async def test_a_change_that_nobody_noticed_is_a_conflict_and_then_seen(office: Office) -> None:
    await paid(office, JOBS[0], 1)
    async with office.store.transaction() as tx:  # Past the store that notices.
        await tx.update(msgspec.structs.replace(await tx.get(Job, JOBS[0]), paid=70))
    with pytest.raises(ConflictError):
        await paid(office, JOBS[0], 1)
    assert await paid(office, JOBS[0], 1) == 71


async def test_jobs_beyond_a_number_are_read_again(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_jobs, "MAX_KEPT", 2)
    office.desk._kept = KeptJobs(noticed=True)
    for job in JOBS[:3]:
        await paid(office, job)
    office.store.counts.clear()
    await paid(office, JOBS[2])
    assert office.store.counts["reads"] == 0
    await paid(office, JOBS[0])
    assert office.store.counts["reads"] > 0


@pytest.mark.parametrize("seed", range(3))
async def test_what_is_kept_is_what_would_be_read(office: Office, seed: int) -> None:
    """Leases come and go, reports are counted, jobs change by the desk and past it, bodies fail."""
    chance, nodes = Random(seed), [f"{WALLET[:-1]}{letter}" for letter in "abcdefgh"]
    async with office.context.store.transaction() as tx:
        for job in JOBS[:3]:
            await tx.insert(RunRecord(job, RUN))

    async def act(work: UnitOfWork) -> None:
        for _ in range(chance.randrange(3)):
            work.grant(chance.choice(nodes), WALLET, (chance.randrange(3), 0))
        for lease in list(work.leases.values()):
            match chance.randrange(4):
                case 0:
                    work.end(lease.id, "left", "it left")
                case 1:
                    work.leases[lease.id] = msgspec.structs.replace(lease, seq=lease.seq + 1)
        work.change(paid=work.job.paid + chance.randrange(2))
        await asyncio.sleep(0)
        if chance.random() < 0.2:
            raise RuntimeError

    numbers = iter(range(1, 10_000))
    office.context.__dict__["entropy"] = lambda size: next(numbers).to_bytes(size, "big")
    for _ in range(25):
        await asyncio.gather(*(office.desk.ask(job, act) for job in JOBS[:3]), return_exceptions=True)
        if chance.random() < 0.3:
            async with office.context.store.transaction() as tx:
                await tx.update(msgspec.structs.replace(await tx.get(Job, JOBS[0]), warned=chance.random() < 0.5))
        for job in JOBS[:3]:
            kept = office.desk._kept._jobs.get(job)
            async with office.store.inner.transaction() as tx:
                assert kept is None or kept == await _read(tx, job)
                live = await tx.find(Lease, col(Lease.job).equals(job), col(Lease.state).in_(("starting", "ready")))
            assert {lease.id for lease in live} == {lease.id for lease in office.leases.of_job(job)}


async def _read(tx: object, job: str) -> KeptJob:
    return await kept_jobs._read(tx, job)  # type: ignore[arg-type]

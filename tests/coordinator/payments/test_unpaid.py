"""Jobs that nobody pays for: how many, what they cost, and when they are gone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.job import Job, JobState
from coordinator.errors import FullError, NotFoundError, TooManyError
from coordinator.services.accounts.budgets import FAULTY_S, FUND_S, MAX_FAULTY_JOBS, MAX_PREPARED_EACH
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.jobs import unpaid as unpaid_module
from coordinator.services.jobs.unpaid import DAY, Unpaid
from coordinator.services.training.job_faults import OWN_FAULT
from coordinator.store.ports import col
from coordinator.store.records import EventRecord, LogRecord, OutboxRecord
from tests.coordinator.bench import Bench

ADA, BOB, EVE = "a" * 32, "b" * 32, "e" * 32


def unpaid(bench: Bench, folder: Path, disk: int) -> Unpaid:
    parts = bench.parts
    return Unpaid(
        parts.context, parts.desk, parts.runs, parts.settlement, DiskArtifacts(folder / "artifacts"), lambda: disk
    )


async def piece(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def job_of(bench: Bench, account_id: str, **fields: object) -> Job:
    job = await bench.job()
    async with bench.store.transaction() as tx:
        fields = {"state": JobState.CREATED, "escrow": 0, "account_id": account_id, **fields}
        return await tx.update(msgspec.structs.replace(await tx.get(Job, job), **fields))


async def test_an_account_and_all_strangers_have_so_many_jobs_that_nobody_pays_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(unpaid_module, "MAX_UNPAID_JOBS", 2)
    monkeypatch.setattr(unpaid_module, "MAX_UNPAID_JOBS_OF_ALL", 3)
    bench = Bench()
    jobs = unpaid(bench, tmp_path, 10**9)
    dataset = await DiskArtifacts(tmp_path / "artifacts").put(piece(b"words"), None, 100)
    for _ in range(2):
        await jobs.made(await job_of(bench, ADA))
    await jobs.look()
    with pytest.raises(TooManyError, match="2 jobs of yours"):
        async with jobs.making(ADA, dataset):
            pass
    async with jobs.making(BOB, dataset):
        await jobs.made(ended := await job_of(bench, BOB))
    with pytest.raises(FullError, match="3 jobs wait here"):
        async with jobs.making(EVE, dataset):
            pass
    async with jobs.making(LOCAL_ACCOUNT, dataset):
        pass
    async with bench.store.transaction() as tx:
        now = bench.clock.time()
        over = msgspec.structs.replace(ended, state=JobState.CANCELLED, ended=now, escrow=5, refunded=5)
        over = await tx.update(over)
    await jobs.look()
    with pytest.raises(FullError):
        async with jobs.making(EVE, dataset):
            pass
    async with bench.store.transaction() as tx:
        await tx.update(msgspec.structs.replace(over, paid=1))
    await jobs.look()
    async with jobs.making(EVE, dataset):
        pass


async def test_an_account_whose_jobs_failed_by_their_own_files_waits_a_day_since_the_third_last(tmp_path: Path) -> None:
    bench = Bench()
    jobs = unpaid(bench, tmp_path, 10**9)
    dataset = await DiskArtifacts(tmp_path / "artifacts").put(piece(b"words"), None, 100)

    async def fail(account_id: str, reason: str, ago: float) -> None:
        ended = bench.clock.time() - ago
        await job_of(bench, account_id, state=JobState.FAILED, reason=reason, ended=ended, paid=1)

    async def make(account_id: str) -> None:
        async with jobs.making(account_id, dataset):
            pass

    for _ in range(MAX_FAULTY_JOBS):
        await fail(BOB, "the deadline of 5 hours has passed", 60.0)
        await fail(EVE, f"{OWN_FAULT}: a tensor", FAULTY_S + 1.0)
    for number in range(MAX_FAULTY_JOBS):
        await make(ADA)
        await fail(ADA, f"{OWN_FAULT}: a tensor", 600.0 - 60.0 * number)
    with pytest.raises(TooManyError, match="3 jobs of yours failed within a day") as refused:
        await make(ADA)
    assert refused.value.retry_s == pytest.approx(FAULTY_S - 600.0)
    for account_id in (BOB, EVE):
        await make(account_id)
    await bench.clock.sleep(FAULTY_S - 599.0)
    await make(ADA)


async def test_what_is_made_ready_has_a_share_of_the_disk(tmp_path: Path) -> None:
    bench = Bench()
    jobs = unpaid(bench, tmp_path, 8_000)
    store = DiskArtifacts(tmp_path / "artifacts")
    small, large = await store.put(piece(b"w" * 100), None, 1_000), await store.put(piece(b"w" * 501), None, 1_000)
    with pytest.raises(FullError, match="your unpaid jobs"):
        async with jobs.making(ADA, large):
            pass
    async with jobs.making(ADA, small):
        made = await store.put(piece(b"tokens" * 150), None, 1_000)
        await jobs.made(await job_of(bench, ADA, files={"train.bin": made, "heldout.bin": made}))
    await jobs.look()
    with pytest.raises(FullError, match="your unpaid jobs"):
        async with jobs.making(ADA, small):
            pass


async def test_a_crowd_that_makes_jobs_keeps_nobody_waiting_who_is_known(tmp_path: Path) -> None:
    bench = Bench()
    jobs = unpaid(bench, tmp_path, 10**9)
    dataset = await DiskArtifacts(tmp_path / "artifacts").put(piece(b"words"), None, 100)
    await job_of(bench, ADA, paid=1, state=JobState.SETTLED)
    go, begun = asyncio.Event(), list[str]()

    async def make(account_id: str) -> None:
        async with jobs.making(account_id, dataset):
            begun.append(account_id)
            await go.wait()

    crowd = [asyncio.create_task(make(account_id)) for account_id in (BOB, BOB, EVE)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == [BOB]
    with pytest.raises(TooManyError, match=f"{MAX_PREPARED_EACH} jobs that are made ready of yours"):
        await make(BOB)
    known = asyncio.create_task(make(ADA))
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == [BOB, ADA]
    go.set()
    await asyncio.gather(*crowd, known)
    assert begun == [BOB, ADA, BOB, EVE]


async def test_a_job_that_nobody_funds_costs_no_fee_and_is_gone_after_two_days() -> None:
    bench = Bench()
    ended = bench.parts.unpaid
    job = await bench.job()
    async with bench.store.transaction() as tx:
        stored = await tx.get(Job, job)
        lasting = msgspec.structs.replace(stored, id="9" * 32, state=JobState.RUNNING, escrow=7, deadline=10**12)
        await tx.insert(msgspec.structs.replace(lasting, version=0))
    bench.clock.t += FUND_S - 60
    await ended.look()
    assert (await bench.stored(job)).state is JobState.CREATED
    bench.clock.t += 120
    await ended.look()
    assert (await bench.stored(job)).state is JobState.CANCELLED
    assert "nobody funded it within 24 hours" in (await bench.stored(job)).reason
    async with bench.store.transaction() as tx:
        assert await tx.find(OutboxRecord) == [], "nothing is written on the ledger for who has not paid"
    bench.clock.t += DAY + 60
    await ended.look()
    with pytest.raises(NotFoundError):
        await bench.stored(job)
    async with bench.store.transaction() as tx:
        assert await tx.find(EventRecord, col(EventRecord.job).equals(job)) == []
        assert await tx.find(LogRecord, col(LogRecord.job).equals(job)) == []
        assert len(await tx.find(Job)) == 1, "what runs stays"

"""A job of which many audits wait: what each report costs it grows with them as little as it can."""

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.upkeep.waiting_audits import BUSY, SEATS, busy
from coordinator.domain.audits.trust import Audit, Side
from coordinator.store import sql
from coordinator.store.ports import col
from coordinator.store.sql import SqlStore
from tests.coordinator.fakes import digest

WAITING = 60


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    made = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / 'c.db'}")
    yield made
    await made.close()


async def test_each_audit_is_looked_at_once_for_whoever_may_be_asked_and_not_for_each_lease(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, job = await busy(store, WAITING)
    asked = itertools.count()
    as_it_is = Audit.command_for

    def counted(audit: Audit, lease: str, anew: bool = False) -> Any:
        next(asked)
        return as_it_is(audit, lease, anew)

    monkeypatch.setattr(Audit, "command_for", counted)
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
        assert len(work.leases) == SEATS + 1
    assert next(asked) <= 2 * (WAITING + BUSY), "each has one that may be asked, or two"


async def test_holders_are_asked_what_a_look_at_every_audit_says(store: SqlStore) -> None:
    bench, job = await busy(store, WAITING)
    async with bench.parts.desk.open(job) as work:
        leases = sorted(work.leases)
        for number, audit in enumerate(list(work.audits.values())):
            side = Side(0, number % 5, leases[number % 7], digest(number), 2)
            fields = (
                {"state": "opening", "opening": None},
                {"state": "opening", "opening": None, "sides": (side,)},
                {},
            )
            work.audits[audit.id] = msgspec.structs.replace(audit, **fields[number % 3])
        for lease in [*leases, "nobody's"]:
            every = list(work.audits.values())
            naive = [one for audit in every if (one := audit.command_for(lease)) is not None]
            naive += [one for audit in every if (one := audit.question_for(lease)) is not None]
            assert work.openings(lease) == tuple(naive)
        first = next(iter(work.audits.values()))
        work.audits[first.id] = msgspec.structs.replace(first, state="void")
        assert first.id not in {audit.id for lease in leases for audit in work.audits_with(lease)}
        work.audits.clear()
        assert [work.openings(lease) for lease in leases] == [()] * len(leases)


async def test_what_is_read_again_and_again_is_decoded_once_and_never_old(store: SqlStore) -> None:
    _, job = await busy(store, 3)

    async def read() -> dict[str, Audit]:
        async with store.transaction() as tx:
            return {audit.id: audit for audit in await tx.find(Audit, col(Audit.job).equals(job))}

    first, before = await read(), sql._reader(Audit).cache_info().misses
    again = await read()
    assert again == first
    assert sql._reader(Audit).cache_info().misses == before
    one = next(iter(first.values()))

    async def fail() -> None:
        async with store.transaction() as tx:
            await tx.update(msgspec.structs.replace(one, opening=digest("taken back")))
            assert (await tx.get(Audit, one.id)).opening == digest("taken back")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert (await read())[one.id] == one
    async with store.transaction() as tx:
        await tx.update(msgspec.structs.replace(one, opening=digest("another")))
    assert (await read())[one.id].opening == digest("another")

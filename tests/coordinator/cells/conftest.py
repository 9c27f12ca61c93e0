"""Two cells over one PostgreSQL: a store, a context and a desk each, as two processes have them."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from common.clock import SystemClock
from common.untrusted_text import untrusted
from coordinator.config import Config
from coordinator.domain.cells import Cell
from coordinator.domain.job import Job, JobState
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.core.unit_of_work import JobDesk
from coordinator.store.noticing import NoticingStore
from coordinator.store.ownership import Ownership
from coordinator.store.records import NodeRecord
from coordinator.store.sql import SqlStore
from protocol.identity import NodeKey
from tests.coordinator.desk.conftest import CountedStore
from tests.coordinator.fakes import WALLET, profile
from tests.coordinator.jobs.test_lifecycle import JOB
from tests.support.databases import Postgres

CELLS = 2
NODE = NodeKey(b"n" * 32).address


def name(cell: int, number: int = 0) -> str:
    """The ``number``-th name of a job of a cell, of two."""
    return f"{CELLS * number + cell:07x}".ljust(32, "0")


def job(cell: int, number: int = 0, **fields: Any) -> Job:
    """That job."""
    made = msgspec.structs.replace(JOB, id=name(cell, number), created=float(CELLS * number + cell))
    return msgspec.structs.replace(made, **{"state": JobState.RUNNING, **fields})


def node(**fields: Any) -> NodeRecord:
    """A node's record."""
    return msgspec.structs.replace(NodeRecord(NODE, WALLET, profile("node"), 1.0, 1.0, reason=untrusted("")), **fields)


@dataclass
class CellAtWork:
    """What one process has of its cell. ``counted``: its transactions."""

    sql: SqlStore
    counted: CountedStore
    context: Context
    desk: JobDesk


async def opened(url: str, cell: Cell, folder: Path, ownership: Ownership | None = None) -> CellAtWork:
    """A cell of a database."""
    sql = await SqlStore.open(url, ownership, cell)
    counted = CountedStore(sql)
    chance = Random(cell.number)
    config = Config(data=folder, ledger_url="http://ledger.test")
    context = Context(config, SystemClock(), NoticingStore(counted), chance.randbytes, cell=cell)
    return CellAtWork(sql, counted, context, JobDesk(context, Leases(context)))


@pytest.fixture
def url(postgres: Postgres) -> str:
    """Of a new database."""
    return postgres.migrated_url()


@pytest.fixture
async def cells(url: str, tmp_path: Path) -> AsyncIterator[tuple[CellAtWork, CellAtWork]]:
    """Both, whose owners they are."""
    owners = [await Ownership.open(url, SystemClock(), "key", "files", Cell(number, CELLS)) for number in range(CELLS)]
    for owner in owners:
        assert await owner.take()
    first, second = [await opened(url, owner.cell, tmp_path, owner) for owner in owners]
    yield first, second
    for one in (first, second):
        await one.desk.close()
        await one.sql.close()
    for owner in owners:
        await owner.close()

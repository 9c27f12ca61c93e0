"""What lists and pages cost does not grow with the jobs that have ended: SQLite's own steps are counted, not time."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from coordinator.services.jobs.ports import ListWindow
from coordinator.services.views.ledger_views import MAX_NODE_JOBS
from coordinator.store.sql import SqlStore
from tests.coordinator.bench import Bench
from tests.coordinator.ended_jobs import filled, home

HOMES, FEW, MANY = 40, 200, 8_000
STEPS = 5  # Of SQLite's machine, between two counts.
SLACK = 400  # A tree of rows that is deeper by one.


class Counted:
    """A coordinator over a database with so many jobs, and what asking it costs."""

    def __init__(self, store: SqlStore) -> None:
        self.bench = Bench(store=store)
        self.bench.clock.t = 1e6 + MANY
        self.steps = 0
        event.listen(store._engine.sync_engine, "connect", self._watch)

    def _watch(self, raw: object, _: object) -> None:
        raw.run_async(lambda connection: connection.set_progress_handler(self._step, STEPS))  # type: ignore[attr-defined]

    def _step(self) -> None:
        self.steps += STEPS

    async def of(self, ask: Callable[[Bench], Awaitable[object]]) -> int:
        """The first time: nothing is summed beforehand."""
        self.steps = 0
        await ask(self.bench)
        return self.steps


ASKED: dict[str, Callable[[Bench], Awaitable[object]]] = {
    "network": lambda bench: bench.parts.network.view(),
    "market": lambda bench: bench.parts.market.now(),
    "ledger totals": lambda bench: bench.parts.books.totals(),
    "transactions": lambda bench: bench.parts.books.entries((), None, None, 50),
    "payments": lambda bench: bench.parts.books.entries(("settle", "refund"), None, None, 50),
    "slashes": lambda bench: bench.parts.books.entries(("slash",), None, None, 50),
    "transactions of a job": lambda bench: bench.parts.books.entries(("settle",), f"{1:032x}", 10**9, 50),
    "a job's ledger": lambda bench: bench.parts.books.job(f"{1:032x}"),
    "audits": lambda bench: bench.parts.books.audits(None, None, 0, 50),
    "failed audits": lambda bench: bench.parts.books.audits("failed", None, 0, 50),
    "audits of a job": lambda bench: bench.parts.books.audits(None, f"{1:032x}", 0, 50),
    "jobs": lambda bench: bench.parts.jobs.list(50, None),
    "shared jobs": lambda bench: bench.parts.jobs.list_shared(1, None),
    "a job": lambda bench: bench.parts.jobs.get(f"{1:032x}"),
    "a job's rounds": lambda bench: bench.parts.jobs.rounds(f"{1:032x}"),
    "a job's audits": lambda bench: bench.parts.jobs.audits(f"{1:032x}"),
    "an operator's jobs": lambda bench: bench.parts.operation.jobs("live", WINDOW),
    "ended jobs": lambda bench: bench.parts.operation.jobs("failed", WINDOW),
    "an operator's outbox": lambda bench: bench.parts.operation.outbox(None, None, 50),
}
WINDOW = ListWindow(None, 50)


@pytest.fixture
async def sizes(tmp_path: Path) -> tuple[Counted, Counted]:
    found = []
    for jobs in (FEW, MANY):
        await filled(tmp_path / f"{jobs}.db", jobs, HOMES)
        store = await SqlStore.open(f"sqlite+aiosqlite:///{tmp_path / f'{jobs}.db'}")
        found.append(Counted(store))
        await store.close()  # Its connections begin anew, watched.
    return found[0], found[1]


async def test_no_list_and_no_page_costs_more_with_forty_times_the_jobs(sizes: tuple[Counted, Counted]) -> None:
    found = {name: [await counted.of(ask) for counted in sizes] for name, ask in ASKED.items()}
    assert all(many > 0 for _, many in found.values()), "the steps are counted"
    assert {name: both for name, both in found.items() if both[1] > 1.5 * both[0] + SLACK} == {}
    assert (await sizes[1].bench.parts.network.view()).jobs_done == MANY


async def test_a_node_s_page_has_the_newest_of_its_jobs_and_what_each_came_to(sizes: tuple[Counted, Counted]) -> None:
    found = await sizes[1].bench.parts.books.node(home(3))
    worked = [f"{number:032x}" for number in range(MANY) if number % HOMES == 3]
    assert [job.job for job in found.jobs] == worked[::-1][:MAX_NODE_JOBS]
    assert {(job.rounds, job.verified, job.rejected) for job in found.jobs} == {(2, 2000, 0)}
    assert found.audits == {"passed": len(worked)}
    assert len(found.recent) == MAX_NODE_JOBS

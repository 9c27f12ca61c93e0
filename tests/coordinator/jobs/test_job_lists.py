"""Lists of jobs: each job as it reads by itself, and never more questions to the store for more of them."""

import pytest

from coordinator.domain.job import JobState
from coordinator.store.memory import MemoryStore
from tests.coordinator.bench import Bench
from tests.coordinator.many_jobs import CountingStore, fill

STATES = len(JobState)


async def test_a_list_shows_each_job_as_it_reads_by_itself() -> None:
    bench = Bench()
    jobs = await fill(bench.store, 3 * STATES)
    listed = {view.id: view for view in await bench.parts.jobs.list(100, None)}
    assert list(listed) == jobs[::-1], "newest first"
    for job in jobs:
        assert listed[job] == await bench.parts.jobs.get(job)


async def test_what_a_job_of_the_list_says_is_its_own() -> None:
    bench = Bench()
    jobs = await fill(bench.store, 5 * STATES)
    listed = {view.id: view for view in await bench.parts.jobs.list(100, None)}
    queue = [listed[job].queue_position for job in jobs if listed[job].state == "funded"]
    assert queue == [1, 2, 3, 4, 5]
    assert [view.queue_position for view in listed.values() if view.state != "funded"] == [None] * 4 * 10
    for place, job in enumerate(jobs):
        seats = 2 + place % 3
        assert listed[job].cost == seats * 110, "what waits and what is verified"
        assert listed[job].bytes_sent == seats * place
        assert listed[job].checkpoint == (place % 5 if place % 2 else 0)
        assert f"node-{place % 4} (" in listed[job].reason


@pytest.mark.parametrize("what", ["list", "list_shared"])
async def test_more_jobs_are_no_more_questions(what: str) -> None:
    asked = []
    for number in (STATES, 10 * STATES):
        store = CountingStore(MemoryStore())
        bench = Bench(store=store)
        await fill(store, number)
        store.asked.clear()
        jobs = bench.parts.jobs
        await (jobs.list(100, None) if what == "list" else jobs.list_shared(100, None))
        asked.append(dict(store.asked))
    assert asked[0] == asked[1]


async def test_the_network_s_view_reads_no_job_and_no_node() -> None:
    store = CountingStore(MemoryStore())
    bench = Bench(store=store)
    await fill(store, 4 * STATES)
    store.asked.clear()
    view = await bench.parts.network.view()
    assert store.asked == {"sums Job": 1, "sums NodeRecord": 1}
    assert (view.jobs_running, view.jobs_done, view.paid_total) == (4 * 4, 4, 4006)

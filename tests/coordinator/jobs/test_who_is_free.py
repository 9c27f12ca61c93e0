"""A price says whether a job would begin at once: nobody is there, nobody is free, or too few are."""

import io

import pytest
from rich.console import Console

from coordinator.client.show import quote_table
from coordinator.client.text import takes
from protocol.rest.api import Quote
from tests.coordinator.bench import Bench
from tests.coordinator.fakes import spec
from tests.coordinator.serving.deployed import Deployed
from tests.support.clock import VirtualClock

WAITS = "no node is free now: the job waits until one is"


def shown(quote: Quote) -> str:
    console = Console(width=200, file=io.StringIO())
    with console.capture() as captured:
        console.print(quote_table(quote))
    return captured.get()


async def at_work(bench: Deployed, nodes: int, stages: int, replicas: int) -> None:
    """A job that trains on so many of these nodes."""
    for number in range(1, nodes + 1):
        await bench.come(number)
    job = await bench.job(spec(stages, replicas), nodes=0)
    await bench.while_time_moves(bench.fund(job))
    await bench.turn(job)


async def test_with_nobody_there_nobody_knows_how_long_it_takes() -> None:
    quote = await Bench(clock=VirtualClock()).parts.jobs.quote(spec(1, 1))
    assert quote.problems
    assert quote.hours == 0
    assert takes(quote) == "not known: nobody is there to take it now"
    assert "0 s" not in shown(quote)


async def test_with_too_few_there_no_plan_says_how_long_it_takes() -> None:
    bench = Deployed()
    await bench.come(1)
    assert takes(await bench.parts.jobs.quote(spec(3, 1))) == "not known: no plan fits the network"


async def test_where_all_are_at_work_a_price_says_that_the_job_waits() -> None:
    bench = Deployed()
    await at_work(bench, 2, 2, 1)
    quote = await bench.parts.jobs.quote(spec(1, 1))
    assert not quote.problems
    assert quote.limit.endswith(f"; {WAITS}")
    assert WAITS in shown(quote)
    assert "not known" not in takes(quote)


async def test_where_some_are_free_it_says_how_many_and_spares_count_as_free() -> None:
    bench = Deployed()
    await at_work(bench, 3, 2, 1)
    assert any(lease.seat is None for lease in bench.parts.leases.live()), "one stands by"
    assert WAITS not in (await bench.parts.jobs.quote(spec(1, 1))).limit
    few = (await bench.parts.jobs.quote(spec(2, 1))).limit
    assert few.endswith("; 1 of the 2 nodes that it takes at least are free now: the job waits for more")


@pytest.mark.parametrize("nodes", [1, 2])
async def test_where_enough_are_free_nothing_is_said_of_it(nodes: int) -> None:
    bench = Deployed()
    for number in range(nodes):
        await bench.come(number + 1)
    assert "free now" not in (await bench.parts.jobs.quote(spec(nodes, 1))).limit

"""The network's price: what nodes ask, what is queued, and who gets no seat for it."""

from dataclasses import replace

import msgspec
import pytest

from coordinator.domain import pricing
from coordinator.domain.job import Job, JobState
from coordinator.errors import CottageError
from coordinator.services.network.market_price import Rates
from protocol.rest.api import NewJob
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import spec

LEAST = CONFIG.price_per_petaflop


async def crowd(floors: list[int]) -> Bench:
    """A node for each floor."""
    bench = Bench(config=replace(CONFIG, minimum_price=0))
    for number, floor in enumerate(floors, start=1):
        await bench.enter(number, floor=floor)
    return bench


async def rate(bench: Bench) -> int:
    return (await Rates(bench.parts.context, bench.parts.nodes).now()).per_petaflop


async def test_a_job_of_many_small_rounds_costs_what_they_cost_on_the_ledger() -> None:
    bench = Bench(config=replace(CONFIG, minimum_price=0, sol_price=150_000_000))
    for number in range(1, 5):
        await bench.enter(number)
    few, many = await bench.parts.jobs.quote(spec()), await bench.parts.jobs.quote(spec(tokens=1 << 20))
    assert many.rounds > 10 * few.rounds
    for quote in (few, many):
        signatures = pricing.ROUND_SIGNATURES * quote.rounds + pricing.JOB_SIGNATURES
        lamports = signatures * pricing.SIGNATURE_LAMPORTS
        assert quote.price * pricing.LAMPORTS >= lamports * 150_000_000
    assert "the least that a job of so many rounds costs" in " ".join(many.reasons)
    assert pricing.ledger_cost(1_000, 0) == 0


async def test_a_quote_names_the_networks_price_a_range_and_reasons() -> None:
    bench = await crowd([0, 0, 0, 0])
    quote = await bench.parts.jobs.quote(spec())
    assert quote.rate == LEAST
    assert quote.price == pricing.price(int(quote.operations), LEAST, 0)
    assert quote.price_low <= quote.price_likely <= quote.price == quote.price_high
    assert quote.fee_lamports == 5000
    assert "4 of 4 nodes work for that, and nothing is queued" in quote.reasons[0]


async def test_floors_raise_the_price_to_where_half_of_the_network_is_willing() -> None:
    bench = await crowd([0, 3 * LEAST, 5 * LEAST, 9 * LEAST])
    assert await rate(bench) == 3 * LEAST
    quote = await bench.parts.jobs.quote(spec(stages=1, replicas=2))
    assert quote.nodes_available == 2
    assert "2 nodes ask more than that and are not chosen" in quote.reasons


async def test_a_job_that_needs_those_who_ask_more_is_refused_with_the_reason() -> None:
    bench = await crowd([0, 0, 9 * LEAST, 9 * LEAST])
    quote = await bench.parts.jobs.quote(spec(stages=2, replicas=2))
    assert any("2 nodes ask more than that" in problem for problem in quote.problems)
    with pytest.raises(CottageError, match="2 nodes ask more"):
        await bench.parts.jobs.create(NewJob(spec(stages=2, replicas=2)))


async def test_who_asks_more_than_the_jobs_price_gets_no_seat_and_the_timeline_says_so() -> None:
    bench = await crowd([0, 0, 9 * LEAST])
    job = (await bench.parts.jobs.create(NewJob(spec(stages=1, replicas=2)))).id
    async with bench.parts.desk.open(job) as work:
        work.change(escrow=work.job.spec.budget)
        work.advance(JobState.FUNDED, "funded")
    async with bench.parts.desk.open(job) as work:
        await bench.parts.runs.advance(work)
    nodes = await bench.parts.jobs.nodes(job)
    assert len(nodes) == 2
    texts = [event.text for event in await bench.parts.jobs.events(job, 0) if event.kind == "unused"]
    assert any("they ask more than" in text for text in texts)


async def test_a_queue_raises_the_price_by_an_eighth_in_ten_minutes_at_most() -> None:
    bench = await crowd([0, 0])
    job = (await bench.parts.jobs.create(NewJob(spec(stages=1, replicas=2)))).id
    async with bench.store.transaction() as tx:
        stored = await tx.get(Job, job)
        crowded = msgspec.structs.replace(stored.quote, operations=2e9 * 3600 * 100)  # A hundred hours of both nodes.
        await tx.update(msgspec.structs.replace(stored, state=JobState.RUNNING, quote=crowded))
    assert await rate(bench) == LEAST, "not at once"
    bench.clock.t += pricing.STEP_S + 1
    assert await rate(bench) == LEAST + LEAST // 8
    bench.clock.t += 100 * pricing.STEP_S
    assert await rate(bench) == pricing.MAX_DEMAND * LEAST

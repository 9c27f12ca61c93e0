"""Ranges that nine of ten jobs end in, and choices that are cheaper or sooner."""

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain import forecast
from coordinator.domain.forecast import ASSUMED, JobOutcome
from coordinator.domain.job import JobState
from coordinator.domain.rounds.run import Run
from coordinator.services.jobs.alternatives import changed, find_choices
from coordinator.services.jobs.history import KnownOutcomes
from coordinator.store.records import RunRecord
from protocol.job.job import JobSpec
from protocol.rest.api import Quote
from protocol.task import Layers
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import spec

outcomes = st.lists(st.builds(JobOutcome, st.floats(0.01, 100), st.floats(0.01, 1), st.integers(1, 8)), max_size=80)


def test_with_no_job_seen_the_range_is_the_assumed_one_and_holds_the_plan() -> None:
    found = forecast.time([])
    assert (found.low, found.high) == (min(ASSUMED), max(ASSUMED))
    assert found.low < 1 < found.high


@given(outcomes)
def test_a_range_is_in_order_whatever_was_seen(seen: list[JobOutcome]) -> None:
    found = forecast.time(seen)
    assert 0 < found.low <= found.middle <= found.high


@pytest.mark.parametrize("earlier", [0, 3, 10, 40, 60])
def test_nine_of_ten_jobs_end_in_their_range_however_many_were_seen(earlier: int) -> None:
    """Jobs that take 0.9 to 2 times their plan, as log-normal noise; the range is asked for before each."""
    chance = random.Random(earlier)
    inside = total = 0
    for _ in range(1500):
        seen = [JobOutcome(chance.lognormvariate(0.3, 0.25), 1.0, 2) for _ in range(earlier)]
        found = forecast.time(seen)
        inside += found.low <= chance.lognormvariate(0.3, 0.25) <= found.high
        total += 1
    assert inside / total >= 0.88


def test_forty_jobs_like_each_other_make_the_range_narrow() -> None:
    chance = random.Random(3)
    found = forecast.time([JobOutcome(chance.uniform(1.4, 1.6), 1.0, 2) for _ in range(40)])
    assert 1.4 <= found.low < found.high <= 1.6


@given(outcomes, st.integers(1, 64), st.integers(1, 8), st.integers(1, 5000), st.floats(0, 1000))
def test_a_part_of_the_price_is_never_below_one_replicas_nor_above_all(
    seen: list[JobOutcome], replicas: int, stages: int, rounds: int, hours: float
) -> None:
    found = forecast.paid(seen, replicas, replicas * stages, rounds, hours)
    assert 1 / replicas <= found.low + 1e-12
    assert found.low <= found.middle <= found.high == 1.0


@pytest.mark.parametrize(
    ("replicas", "stages", "rounds", "hours"), [(2, 1, 8, 6.0), (4, 2, 40, 20.0), (8, 1, 100, 100.0)]
)
def test_nineteen_of_twenty_jobs_whose_nodes_leave_once_a_day_pay_the_low_end(
    replicas: int, stages: int, rounds: int, hours: float
) -> None:
    chance, members = random.Random(rounds), replicas * stages
    low = forecast.paid([], replicas, members, rounds, hours).low
    inside = 0
    for _ in range(1000):
        lost, at = set[tuple[int, int]](), 0.0
        while (at := at + chance.expovariate(members / forecast.LEAVES_HOURS)) < hours:
            lost.add((int(at / hours * rounds), chance.randrange(replicas)))
        inside += 1 - len(lost) / (replicas * rounds) >= low
    assert inside >= 950


@pytest.mark.parametrize("earlier", [0, 5, 19, 60])
def test_nineteen_of_twenty_jobs_in_rough_weather_pay_the_low_end_however_many_were_seen(earlier: int) -> None:
    """Many shares are whole, some lose a replica for most of the job; one replica always pays all, and tells nothing."""
    chance = random.Random(earlier)

    def one() -> float:
        return 1.0 if chance.random() < 0.3 else 1 - 0.5 * chance.betavariate(1, 4)

    inside = 0
    for _ in range(1500):
        seen = [JobOutcome(1.0, one() if at % 2 else 1.0, 2 if at % 2 else 1) for at in range(2 * earlier)]
        inside += one() >= forecast.paid(seen[: forecast.RECENT], 4, 4, 100, 0.1).low
    assert inside / 1500 >= 0.93


def test_calm_weather_makes_the_range_narrow() -> None:
    seen = [JobOutcome(1.0, 0.99, 2)] * 40
    assert forecast.paid(seen, 4, 4, 100, 0.1).low >= 0.98
    assert forecast.paid(seen[:4], 4, 4, 100, 0.1).low < 0.8


def test_one_replica_pays_its_price() -> None:
    assert forecast.paid([JobOutcome(1.0, 0.5, 4)] * 40, 1, 2, 10, 100.0).low == 1.0


async def test_jobs_that_lost_parts_count_and_jobs_that_were_stopped_do_not() -> None:
    bench = Bench(config=replace(CONFIG, minimum_price=0))
    for done, paid, node in ((2, 0.75, "a"), (1, 0.5, "b")):
        job = await bench.verified([{node * 32: 100}])
        run = Run((Layers(0, 4),), 2, 2, 1, (), done=done)
        async with bench.parts.desk.open(job) as work:
            quote = msgspec.structs.replace(work.job.quote, replicas=2, price=1000, hours_planned=0.5)
            work.job = msgspec.structs.replace(
                work.job, state=JobState.SETTLED, quote=quote, paid=int(1000 * paid), tokens_done=1
            )
            await work.tx.insert(RunRecord(job, run))
    seen = await KnownOutcomes(bench.parts.context).outcomes()
    assert [(one.paid, one.replicas) for one in seen] == [(0.75, 2)]


def priced(spec: JobSpec, price: int, hours: float, **more: object) -> Quote:
    return Quote(1.0, 1, spec.training.tokens, 2, 2, 4, 1, hours, price, price, price, (), "", **more)  # type: ignore[arg-type]


async def test_choices_are_quoted_and_only_those_that_help_are_named() -> None:
    async def quote(spec: JobSpec) -> Quote:
        hours = 10.0 * (0.5 if spec.training.inner_steps > 20 else 1.0)
        if spec.training.lookahead:
            return priced(spec, 100, 0.1, problems=("too little memory",))
        return priced(spec, spec.training.tokens, hours)

    asked = msgspec.structs.replace(spec(), budget=1)
    asked = msgspec.structs.replace(
        asked, training=msgspec.structs.replace(asked.training, tokens=1_000_000, inner_steps=20)
    )
    found = await find_choices(asked, quote)
    assert [choice.changes for choice in found] == [{"training.tokens": 500_000}, {"training.inner_steps": 100}]
    assert "0.50 in place of ¤ 1.00" in found[0].text
    assert "about 5 h in place of 10 h" in found[1].text
    for choice in found:
        other = changed(asked, choice.changes)
        assert other is not None
        assert (await quote(other)).price == choice.quote.price


async def test_a_budget_below_the_price_is_answered_with_what_it_covers() -> None:
    bench = Bench(config=replace(CONFIG, minimum_price=0))
    for number in range(1, 5):
        await bench.enter(number)
    asked = spec()
    asked = msgspec.structs.replace(asked, training=msgspec.structs.replace(asked.training, tokens=1_000_000_000))
    price = (await bench.parts.jobs.quote(asked)).price
    asked = msgspec.structs.replace(asked, budget=price // 3)
    found = await bench.parts.jobs.choices(asked)
    covered = next(choice for choice in found if "the budget covers" in choice.text)
    assert price // 4 < covered.quote.price <= asked.budget
    other = changed(asked, covered.changes)
    assert other is not None
    assert not (await bench.parts.jobs.quote(other)).problems

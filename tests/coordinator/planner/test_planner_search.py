"""The search: known optima under any numbering of the nodes, one plan for one seed, bounds that OR-Tools proves."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.placement.flow import RoundFlow
from coordinator.domain.placement.search import Chance, anneal, descend
from coordinator.domain.placement.start import gather, pipelines_inside
from coordinator.domain.placement.tiers import least_bottleneck
from tests.coordinator.planner.test_plan_chains import beat, tightened
from tests.support import dtfm, homes

SWAPS = 3000


def planned(number: int, traffic: dtfm.StepTraffic, names: list[int], swaps: int = SWAPS) -> dtfm.Communication:
    """The planner's layout of a scenario whose machines are called ``names``."""
    latency, rate = dtfm.scenario(number)
    latency = [[latency[names[a]][names[b]] for b in range(dtfm.NODES)] for a in range(dtfm.NODES)]
    rate = [[rate[names[a]][names[b]] for b in range(dtfm.NODES)] for a in range(dtfm.NODES)]
    found = dtfm.plan(latency, rate, traffic, swaps, seed=1)
    fresh = dtfm.Communication(latency, rate, traffic, found.places, dtfm.REPLICAS)
    assert found.cost() == pytest.approx(fresh.cost(), rel=1e-9), "the running sums are those of the plan"
    assert sorted(found.places) == list(range(dtfm.NODES))
    return found


@pytest.mark.parametrize("number", range(5))
def test_the_published_networks_are_planned_as_well_as_by_the_published_search(number: int) -> None:
    names = sorted(range(dtfm.NODES), key=lambda i: (i * 37) % 64)  # No order that would give regions away.
    assert round(planned(number, dtfm.traffic(), names).cost(), 3) <= dtfm.PUBLISHED[number]


def test_with_compression_the_worldwide_network_wants_pipelines_inside_regions() -> None:
    names = list(range(dtfm.NODES))
    plain, sparse = (planned(4, dtfm.traffic(*ratios), names) for ratios in ((1, 1, 1), (4, 4, 100)))
    assert plain.cost() == pytest.approx(49.218, abs=0.001)
    assert sparse.cost() <= 6.743
    for replica in range(dtfm.REPLICAS):
        cities = {node // 8 for node in sparse.places[replica :: dtfm.REPLICAS]}
        assert len(cities) == 1, "every pipeline stays in its city"
    exchange, pipelines = sparse.parts()
    assert exchange < 0.02 * pipelines


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**64), st.lists(st.tuples(st.integers(0, 63), st.integers(0, 63)), min_size=1, max_size=40))
def test_swaps_and_swaps_back_leave_no_trace(seed: int, swaps: list[tuple[int, int]]) -> None:
    chance = Chance(seed)
    places = sorted(range(64), key=lambda _: chance.share())
    objective = dtfm.objective(4, dtfm.traffic(), places)
    before = objective.cost()
    for one, other in swaps:
        objective.swap(one, other)
    assert objective.cost() == pytest.approx(dtfm.objective(4, dtfm.traffic(), objective.places).cost(), rel=1e-9)
    for one, other in reversed(swaps):
        objective.swap(one, other)
    assert objective.places == places
    assert objective.cost() == pytest.approx(before, rel=1e-9)


def test_groups_are_the_regions_whatever_the_nodes_are_called() -> None:
    region = [(i * 5) % 4 for i in range(16)]
    far = [[0.0 if a == b else 1.0 if region[a] == region[b] else 9.0 for b in range(16)] for a in range(16)]
    for places, whole in (
        (pipelines_inside(far, range(16), 4, 4), False),
        (dtfm.replicas_inside(far, range(16), 4, 4), True),
    ):
        parts = [places[i * 4 : (i + 1) * 4] if whole else places[i::4] for i in range(4)]
        assert all(len({region[node] for node in part}) == 1 for part in parts)
    assert len({node for group in gather(far, range(16), 3, 5) for node in group}) == 15


def flow(count: int, stages: int, seed: int, ahead: int = homes.MICRO_BATCHES) -> RoundFlow:
    fleet, load = homes.peers(count, seed), homes.load(ahead)
    order = sorted(range(count), key=lambda node: -fleet.speed[node])
    return RoundFlow(fleet, load, [[homes.LAYERS] * count] * stages, count // stages, order)


def test_a_plan_depends_on_the_seed_and_on_nothing_else() -> None:
    plans = []
    for seed in (1, 1, 2):
        found = flow(16, 4, 3)
        anneal(found, 400, seed)
        plans.append(found.places)
    assert plans[0] == plans[1] != plans[2]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([(8, 2), (9, 3), (12, 4), (7, 2)]))
def test_a_search_never_ends_above_its_start_and_its_sums_stay_true(seed: int, size: tuple[int, int]) -> None:
    count, stages = size
    found = flow(count, stages, seed)
    before = found.cost()
    after = anneal(found, 200, seed)
    assert after <= before
    assert descend(found, 1) <= after
    again = RoundFlow(
        homes.peers(count, seed), homes.load(), [[homes.LAYERS] * count] * stages, count // stages, found.places
    )
    assert again.cost() == pytest.approx(found.cost(), rel=1e-9)
    assert sorted(found.places) == list(range(count))


SLOW = pytest.mark.slow


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 50), st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), min_size=1, max_size=8))
def test_whoever_comes_from_the_bench_or_goes_there_counts_at_once(seed: int, swaps: list[tuple[int, int]]) -> None:
    fleet, load = homes.peers(11, seed), homes.load()
    caps = [[2 + (node * 7 + seed) % 23 for node in range(11)] for _ in range(2)]
    found = RoundFlow(fleet, load, caps, 3, list(range(11)))
    for one, other in swaps:
        found.swap(one, other)
        fresh = RoundFlow(fleet, load, caps, 3, found.places)
        assert found.counts == fresh.counts
        assert found.cost() == pytest.approx(fresh.cost(), rel=1e-9)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [2, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("count", "stages"),
    [
        (8, 2),
        (8, 4),
        (16, 4),
        pytest.param(32, 4, marks=SLOW),
        pytest.param(32, 8, marks=SLOW),
        pytest.param(64, 8, marks=SLOW),
    ],
)
def test_no_plan_beats_ours_by_more_than_three_percent(count: int, stages: int, seed: int) -> None:
    pytest.importorskip("ortools")
    from tests.support import exact

    fleet, load = homes.peers(count, seed, uneven=False), homes.load()
    best, bound, proven = exact.least_beat(fleet, load, stages, seconds=60)
    assert proven, f"the solver found {best}, and proved {bound}, in its time"
    assert beat(fleet, load, stages, tightened(fleet, load, stages)) <= 1.03 * bound


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(("count", "stages"), [(6, 2), (8, 2), (6, 3)])
def test_the_start_for_unequal_nodes_is_the_best_of_all_seatings_where_ways_are_as_wide_as_lines(
    count: int, stages: int, seed: int
) -> None:
    fleet, load = homes.peers(count, seed, uneven=False), homes.load()
    seatings = ([n for group in groups for n in group] for groups in partitions(range(count), count // stages))
    best = min(beat(fleet, load, stages, places) for places in seatings)
    start = least_bottleneck(fleet, load, stages, count // stages)
    assert beat(fleet, load, stages, start) == pytest.approx(best, rel=1e-4)


def partitions(nodes: Sequence[int], size: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to make ordered groups of ``size``; within a group order does not matter."""
    if not nodes:
        yield []
        return
    for group in combinations(nodes, size):
        rest = [node for node in nodes if node not in group]
        for others in partitions(rest, size):
            yield [group, *others]


def test_the_chance_of_a_seed_is_even() -> None:
    chance = Chance(7)
    drawn = [chance.below(10) for _ in range(10_000)]
    assert all(850 < drawn.count(number) < 1150 for number in range(10))
    assert 0.48 < sum(chance.share() for _ in range(10_000)) / 10_000 < 0.52

"""Pipelines of the least beat: as good as the best of all seatings, and as what OR-Tools proves, where ways differ most."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.network import Line
from coordinator.domain.placement import MeasuredNetwork, PlanOptions, choose
from coordinator.domain.placement.chains import tighten
from coordinator.domain.placement.cost import Load, pace
from coordinator.domain.placement.fleet import Fleet, survey
from coordinator.domain.placement.flow import INFEASIBLE, RoundFlow
from coordinator.domain.placement.matching import largest_matching
from coordinator.domain.placement.search import Chance
from coordinator.domain.placement.tiers import least_beat, least_bottleneck
from protocol.ids import NodeAddress
from tests.coordinator.planner.test_placement import SHAPE, TRAINING
from tests.support import homes

FILLED = 16_000


def everywhere(count: int, stages: int) -> list[list[int]]:
    """Whoever there is holds every layer on every stage."""
    return [[homes.LAYERS] * count] * stages


def beat(fleet: Fleet, load: Load, stages: int, places: Sequence[int], replicas: int = 0) -> float:
    count = len(fleet.nodes)
    flow = RoundFlow(fleet, load, everywhere(count, stages), replicas or count // stages, places)
    assert flow.counts is not None
    return max(pace(fleet, load, flow.counts, nodes).beat for nodes in flow.rows)


def tightened(fleet: Fleet, load: Load, stages: int, seed: int = 1) -> list[int]:
    count = len(fleet.nodes)
    return tighten(fleet, load, everywhere(count, stages), range(count), count // stages, FILLED, seed)


# --- against the best there is ------------------------------------------------------------------------------------------


def seated(nodes: Sequence[int], stages: int) -> Iterator[list[list[int]]]:
    """All ways to make the nodes into pipelines; their order does not matter."""
    if not nodes:
        yield []
        return
    first, others = nodes[0], nodes[1:]
    for partners in combinations(others, stages - 1):
        rest = [node for node in others if node not in partners]
        for row in permutations((first, *partners)):
            for rows in seated(rest, stages):
                yield [list(row), *rows]


def best_of_all(fleet: Fleet, load: Load, stages: int) -> float:
    """The least beat, every seating tried."""
    least = float("inf")
    for rows in seated(range(len(fleet.nodes)), stages):
        ways = max(
            max(load.forward_bytes * fleet.byte[a][b], load.backward_bytes * fleet.byte[b][a])
            for row in rows
            for a, b in pairwise(row)
        )
        if ways < least:
            least = min(least, beat(fleet, load, stages, [row[stage] for stage in range(stages) for row in rows]))
    return least


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(("count", "stages"), [(6, 2), (8, 2), (6, 3), (5, 5)])
def test_of_few_nodes_none_of_all_seatings_is_quicker(count: int, stages: int, seed: int) -> None:
    fleet, load = homes.peers(count, seed), homes.load()
    found = beat(fleet, load, stages, tightened(fleet, load, stages))
    assert found <= best_of_all(fleet, load, stages) * 1.003, "where halving ends"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("count", "stages", "draws"),
    [(16, 4, (5, 8)), (64, 8, (4,)), pytest.param(64, 8, (5,), marks=pytest.mark.long)],
)
def test_draws_that_swaps_alone_do_not_solve_come_within_a_hundredth_of_the_proven_bound(
    count: int, stages: int, draws: tuple[int, ...]
) -> None:
    pytest.importorskip("ortools")
    from tests.support import exact

    for draw in draws:
        fleet, load = homes.peers(count, draw), homes.load()
        _, bound, _ = exact.least_beat(fleet, load, stages, seconds=20)
        places = tighten(fleet, load, everywhere(count, stages), range(count), count // stages, 4 * FILLED, seed=1)
        assert beat(fleet, load, stages, places) <= 1.01 * bound, f"draw {draw}"


@pytest.mark.parametrize(("count", "stages", "draw"), [(16, 4, 5), (32, 4, 4)])
def test_the_start_for_unequal_nodes_is_proven_where_either_end_would_take_a_node(
    count: int, stages: int, draw: int
) -> None:
    pytest.importorskip("ortools")
    from tests.support import exact

    fleet, load = homes.peers(count, draw, uneven=False), homes.load()
    best, _, proven = exact.least_beat(fleet, load, stages, seconds=20)
    assert proven
    assert least_beat(fleet, load, stages, count // stages)[0] == pytest.approx(best, rel=1e-4)
    start = least_bottleneck(fleet, load, stages, count // stages)
    assert beat(fleet, load, stages, start) == pytest.approx(best, rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("uneven", [True, pytest.param(False, marks=pytest.mark.long)])
def test_where_the_whole_problem_is_too_large_seats_alone_prove_the_plan(uneven: bool) -> None:
    pytest.importorskip("ortools")
    from tests.support import exact

    fleet, load = homes.peers(64, 10, uneven), homes.load()
    floor = exact.floor_beat(fleet, load, 8, seconds=60)
    places = tighten(fleet, load, everywhere(64, 8), range(64), 8, 4 * FILLED, seed=1)
    assert beat(fleet, load, 8, places) <= 1.01 * floor


@pytest.mark.parametrize("draw", range(1, 6))
def test_the_bound_of_seats_alone_is_never_above_the_best_of_all_plans(draw: int) -> None:
    pytest.importorskip("ortools")
    from tests.support import exact

    fleet, load = homes.peers(6, draw), homes.load()
    assert 0 < exact.floor_beat(fleet, load, 3, seconds=60) <= best_of_all(fleet, load, 3) * (1 + 1e-5)


# --- what a search may not do -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([(8, 2, 4), (9, 3, 2), (13, 4, 3), (7, 2, 3), (6, 6, 1)]))
def test_a_plan_is_never_slower_than_its_start_and_everybody_stays(seed: int, size: tuple[int, int, int]) -> None:
    count, stages, replicas = size
    fleet, load, chance = homes.peers(count, seed), homes.load(), Chance(seed)
    start = sorted(range(count), key=lambda _: chance.share())
    found = tighten(fleet, load, everywhere(count, stages), start, replicas, 500, seed)
    assert sorted(found) == list(range(count))
    assert beat(fleet, load, stages, found, replicas) <= beat(fleet, load, stages, start, replicas)
    assert found == tighten(fleet, load, everywhere(count, stages), start, replicas, 500, seed), "one plan for one seed"


def test_a_node_from_the_bench_takes_a_seat_where_its_ways_are_wide() -> None:
    fleet, load = homes.peers(9, 3, uneven=False), homes.load()
    start = sorted(range(9), key=lambda node: -fleet.speed[node])
    fleet = msgspec.structs.replace(fleet, byte=cut_off(fleet, start[0]))
    found = tighten(fleet, load, everywhere(9, 2), start, 4, FILLED, 1)
    assert found.index(start[0]) == 8, "whom nobody reaches in time stands aside"
    assert beat(fleet, load, 2, found, 4) < 0.1 * beat(fleet, load, 2, start, 4)


def cut_off(fleet: Fleet, lonely: int) -> list[list[float]]:
    count = range(len(fleet.nodes))
    return [[fleet.byte[a][b] * (1000 if lonely in (a, b) else 1) for b in count] for a in count]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000))
def test_memory_holds_every_stage_wherever_it_did(seed: int) -> None:
    fleet, load = homes.peers(12, seed), homes.load()
    chance, start = Chance(seed), list(range(12))
    caps = [[6 + chance.below(12) for _ in start] for _ in range(3)]
    before = RoundFlow(fleet, load, caps, 4, start)
    after = RoundFlow(fleet, load, caps, 4, tighten(fleet, load, caps, start, 4, 1000, seed))
    if before.counts is not None:
        assert after.counts is not None
        assert after.cost() < INFEASIBLE


def test_layers_that_cost_nothing_leave_a_plan_as_it_is() -> None:
    fleet, load = homes.peers(8, 1), msgspec.structs.replace(homes.load(), layer_operations=0.0)
    assert tightened(fleet, load, 4) == list(range(8))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 2**7 - 1), min_size=1, max_size=7))
def test_as_many_rows_have_a_column_of_their_own_as_can_have_one(seed: int, allowed: list[int]) -> None:
    found = largest_matching(allowed, Chance(seed))
    matched = [(row, column) for row, column in enumerate(found) if column >= 0]
    assert all(allowed[row] >> column & 1 for row, column in matched)
    assert len({column for _, column in matched}) == len(matched)
    short = max(
        len(rows) - joined(allowed, rows).bit_count()
        for size in range(len(allowed) + 1)
        for rows in combinations(range(len(allowed)), size)
    )
    assert len(matched) == len(allowed) - short, "Hall's theorem"


def joined(allowed: Sequence[int], rows: Sequence[int]) -> int:
    found = 0
    for row in rows:
        found |= allowed[row]
    return found


# --- the plan of a job --------------------------------------------------------------------------------------------------


class LossyWays:
    """A network whose lines are a fleet's, and whose losses make its ways as narrow as the fleet has them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._at = {candidate.node: at for at, candidate in enumerate(fleet.nodes)}

    def line(self, node: NodeAddress) -> Line:
        at = self._at[node]
        return Line(up=self._fleet.up[at], down=self._fleet.down[at], nat="none", ipv6=False)

    def rtt(self, one: NodeAddress, other: NodeAddress) -> float:
        return self._fleet.rtt[self._at[one]][self._at[other]]

    def nearest(self, node: NodeAddress) -> str | None:
        return None

    def loss(self, one: NodeAddress, other: NodeAddress) -> float:
        fleet, a, b = self._fleet, self._at[one], self._at[other]
        wide = max(1 / fleet.up[a], 1 / fleet.down[b]), max(1 / fleet.up[b], 1 / fleet.down[a])
        return 1 - 1 / max(fleet.byte[a][b] / wide[0], fleet.byte[b][a] / wide[1])


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in (3, 4, 5))])
def test_a_jobs_plan_goes_round_the_ways_that_lose_most(seed: int) -> None:
    fleet = homes.peers(64, seed)
    network: MeasuredNetwork = LossyWays(fleet)
    candidates = [homes.node(i, i, memory_mb=10**6, flops=fleet.speed[i] * 1e9) for i in range(64)]
    load = msgspec.structs.replace(homes.load(), layer_operations=homes.LAYER_S * 1e9)
    shape = dataclasses.replace(SHAPE, layers=homes.LAYERS)
    found = choose(shape, TRAINING, candidates, 8, 8, network, PlanOptions(1, load=load))
    name = {candidate.node: at for at, candidate in enumerate(candidates)}
    counts = [part.last - part.first for part in found.layers]
    known = survey(candidates, network)
    rows = [[name[found.seats[stage, replica]] for stage in range(8)] for replica in range(8)]
    slowest = max(pace(known, load, counts, row).beat for row in rows)
    bound, _ = least_beat(known, load, 8, 8)  # No plan is quicker than machines and lines allow, whatever the ways.
    assert slowest <= 1.2 * bound


def test_latency_holds_a_plan_where_few_micro_batches_are_under_way() -> None:
    fleet = msgspec.structs.replace(homes.peers(16, 1), rtt=[[10.0 * (a != b) for b in range(16)] for a in range(16)])
    held = [RoundFlow(fleet, homes.load(ahead), everywhere(16, 4), 4, range(16)).held_by_a_loop() for ahead in (0, 64)]
    assert held == [True, False]

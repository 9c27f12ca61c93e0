"""Changing seats in mid-run: only for a gain that is worth the move, and never back and forth."""

from dataclasses import replace
from typing import Any

import pytest

from coordinator.domain.network import NetworkMap
from coordinator.domain.placement import Candidate, choose, flow, reseat
from coordinator.domain.placement.cost import pace
from coordinator.domain.placement.layers import cut_layers
from coordinator.domain.placement.replan import BENCH, GAIN, LOOKED, REST_ROUNDS
from protocol.network import NetworkReport
from tests.coordinator.planner.test_placement import SHAPE, TRAINING, node

LATER = 1000


def held(candidates: list[Candidate]) -> dict[tuple[int, int], Candidate]:
    by_node = {candidate.node: candidate for candidate in candidates}
    return {seat: by_node[name] for seat, name in choose(SHAPE, TRAINING, candidates, 2, 2).seats.items()}


def slowed(
    seats: dict[tuple[int, int], Candidate], seat: tuple[int, int], factor: float
) -> dict[tuple[int, int], Candidate]:
    old = seats[seat]
    return seats | {seat: Candidate(old.node, old.owner, old.memory_mb, old.flops * factor, old.env_class)}


LAYERS = choose(SHAPE, TRAINING, [node(i, 4e9) for i in range(1, 5)], 2, 2).layers


def test_a_plan_as_good_as_on_its_first_day_stays() -> None:
    seats = held([node(i, 4e9) for i in range(1, 5)])
    assert reseat(SHAPE, TRAINING, LAYERS, seats, [node(9, 4.2e9)], None, LATER, LATER) is None


def test_a_node_that_has_become_slow_gives_its_seat_to_a_free_one() -> None:
    seats = slowed(held([node(i, 4e9) for i in range(1, 5)]), (1, 0), 0.25)
    found = reseat(SHAPE, TRAINING, LAYERS, seats, [node(9, 4e9)], None, LATER, LATER)
    assert found is not None
    assert found.seats == {(1, 0): node(9).node}
    assert found.gain > 2
    assert seats[1, 0].node in found.reason


@pytest.mark.parametrize("factor", [1.0, 0.95, 1 / GAIN + 0.01])
def test_what_measurements_vary_by_moves_nobody(factor: float) -> None:
    seats = slowed(held([node(i, 4e9) for i in range(1, 5)]), (0, 1), factor)
    assert reseat(SHAPE, TRAINING, LAYERS, seats, [node(9, 4e9)], None, LATER, LATER) is None


def test_a_changed_plan_rests_and_two_plans_never_take_turns() -> None:
    seats = slowed(held([node(i, 4e9) for i in range(1, 5)]), (1, 0), 0.25)
    spare = node(9, 4e9)
    assert reseat(SHAPE, TRAINING, LAYERS, seats, [spare], None, LATER, REST_ROUNDS - 1) is None
    found = reseat(SHAPE, TRAINING, LAYERS, seats, [spare], None, LATER, REST_ROUNDS)
    assert found is not None
    everybody = {candidate.node: candidate for candidate in (*seats.values(), spare)}
    after = seats | {seat: everybody[name] for seat, name in found.seats.items()}
    free = [candidate for candidate in everybody.values() if candidate not in after.values()]
    assert reseat(SHAPE, TRAINING, LAYERS, after, free, None, LATER, LATER) is None


# Two replicas a swap, undone or not, what bounds the plan, and the places put back at the end.
STAGE_TIMES = 6 * LOOKED


@pytest.mark.parametrize(("stages", "replicas", "free"), [(2, 2, 0), (8, 4, 16), (8, 4, 2_000), (12, 20, 2_000)])
def test_a_look_works_out_no_more_times_however_many_nodes_are_free(
    stages: int, replicas: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is answered meanwhile; and the one slow seat of them all is still found."""
    told, asked, shape = 0, 0, replace(SHAPE, layers=stages)

    def counted(*known: Any) -> Any:
        nonlocal told
        told += len(known[3])
        return pace(*known)

    class Asked(NetworkMap):
        def rtt(self, one: str, other: str) -> float | None:
            nonlocal asked
            asked += 1
            return super().rtt(one, other)

    monkeypatch.setattr(flow, "pace", counted)
    seats = {(place % stages, place // stages): node(place + 1, 4e9) for place in range(stages * replicas)}
    layers = cut_layers(shape, TRAINING, [4e9] * stages, [1 << 40] * stages)
    spare = [node(1_000 + place, 4e9) for place in range(free)]
    network = Asked()
    assert reseat(shape, TRAINING, layers, seats, spare, network, LATER, LATER) is None
    found = reseat(shape, TRAINING, layers, slowed(seats, (1, 1), 0.1), spare, network, LATER, LATER)
    assert told < 2 * STAGE_TIMES
    assert asked <= 2 * 96 * 95 / 2, "the ways between as many as are looked at one by one"
    assert found is None or (1, 1) in found.seats
    assert found is not None or not free


def test_of_many_free_nodes_those_near_and_those_with_the_best_lines_are_looked_at() -> None:
    network = NetworkMap()
    for number in (1, 2, 3, 4):
        network.learn(node(number).node, NetworkReport(up=1e5, down=1e5), 0.0)
    quick = [node(100 + number, 5e9) for number in range(10 * BENCH)]
    for one in quick:
        network.learn(one.node, NetworkReport(up=1e4, down=1e4), 0.0)
    wide = node(9, 4e9)
    network.learn(wide.node, NetworkReport(up=1e7, down=1e7), 0.0)
    seats = slowed(held([node(i, 4e9) for i in range(1, 5)]), (1, 0), 0.1)
    found = reseat(SHAPE, TRAINING, LAYERS, seats, [*quick, wide], network, LATER, LATER)
    assert found is not None
    assert wide.node in found.seats.values()


def test_near_the_end_of_a_job_nobody_moves_any_more() -> None:
    network = NetworkMap()
    for number in (1, 2, 3, 4, 9):
        network.learn(node(number).node, NetworkReport(up=1e5, down=1e5), 0.0)
    seats = slowed(held([node(i, 4e9) for i in range(1, 5)]), (1, 0), 0.25)
    assert reseat(SHAPE, TRAINING, LAYERS, seats, [node(9, 4e9)], network, LATER, LATER) is not None
    assert reseat(SHAPE, TRAINING, LAYERS, seats, [node(9, 4e9)], network, 1, LATER) is None


def test_a_free_node_without_the_memory_takes_no_seat() -> None:
    seats = slowed(held([node(i, 4e9) for i in range(1, 5)]), (1, 0), 0.25)
    assert reseat(SHAPE, TRAINING, LAYERS, seats, [node(9, 4e9, memory_mb=700)], None, LATER, LATER) is None

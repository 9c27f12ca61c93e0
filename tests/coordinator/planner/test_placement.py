"""Shapes, cuts and seats: memory is never exceeded, layers are all placed, the slowest stage is as quick as can be."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain import placement
from coordinator.domain.placement import Candidate, NoPlacementError, choose, cut_layers, fill, moves, stage_memory
from protocol.identity import NodeKey
from protocol.job.job import ModelSpec, TrainingSpec
from protocol.models.model import ModelShape, inspect_config, resolve
from protocol.task import Layers

TRAINING = TrainingSpec(tokens=10_000_000)
SHAPE = inspect_config(resolve(ModelSpec(preset="small-llama"), 8192))
PLENTY = 1 << 40


def node(number: int, flops: float = 1e9, memory_mb: int = 16_000, owner: int | None = None) -> Candidate:
    address = NodeKey(number.to_bytes(32, "big")).address
    paid = NodeKey((9000 + (number if owner is None else owner)).to_bytes(32, "big")).address
    return Candidate(address, paid, memory_mb, flops, "cpu")


def slowest(shape: ModelShape, cut: tuple[Layers, ...], speeds: list[float]) -> float:
    costs = [
        shape.stage_operations(part.first, part.last, s == len(cut) - 1, TRAINING.sequence)
        for s, part in enumerate(cut)
    ]
    return max(cost / speed for cost, speed in zip(costs, speeds, strict=True))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 100.0), min_size=1, max_size=8))
def test_a_cut_places_every_layer_once_and_in_order(speeds: list[float]) -> None:
    cut = cut_layers(SHAPE, TRAINING, speeds, [PLENTY] * len(speeds))
    assert [part.first for part in cut] == [0, *(part.last for part in cut[:-1])]
    assert cut[-1].last == SHAPE.layers
    assert all(part.last > part.first for part in cut)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1.0, 20.0), min_size=2, max_size=3))
def test_no_other_cut_is_quicker(speeds: list[float]) -> None:
    stages = len(speeds)
    found = slowest(SHAPE, cut_layers(SHAPE, TRAINING, speeds, [PLENTY] * stages), speeds)
    for marks in itertools.combinations(range(1, SHAPE.layers), stages - 1):
        edges = (0, *marks, SHAPE.layers)
        other = tuple(Layers(a, b) for a, b in itertools.pairwise(edges))
        assert found <= slowest(SHAPE, other, speeds) * (1 + 1e-6)


def test_a_cut_respects_memory_before_speed() -> None:
    even = cut_layers(SHAPE, TRAINING, [1.0, 1.0], [PLENTY, PLENTY])
    small = stage_memory(SHAPE, TRAINING, [Layers(0, 2), Layers(2, 8)], 0)
    cut = cut_layers(SHAPE, TRAINING, [1.0, 1.0], [small, PLENTY])
    assert cut[0].last == 2 < even[0].last


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(NoPlacementError, match="9 stages for 8 layers"):
        cut_layers(SHAPE, TRAINING, [1.0] * 9, [PLENTY] * 9)


def test_a_model_larger_than_the_networks_memory_is_refused_with_both_figures() -> None:
    with pytest.raises(NoPlacementError, match=r"needs about [\d,]+ MB in training, and the 3 nodes .* have 1,950 MB"):
        choose(SHAPE, TRAINING, [node(i, memory_mb=650) for i in range(3)], None, None)


def test_too_few_nodes_for_what_the_document_asks_are_named() -> None:
    with pytest.raises(NoPlacementError, match="2 x 3 = 6 nodes, and 4 are free"):
        choose(SHAPE, TRAINING, [node(i) for i in range(4)], 2, 3)


def test_an_open_shape_takes_few_stages_and_many_replicas() -> None:
    found = choose(SHAPE, TRAINING, [node(i) for i in range(4)], None, None)
    assert len(found.layers) == 1
    assert len(found.seats) == 4


def test_an_open_shape_takes_more_stages_where_one_node_is_too_small() -> None:
    whole = stage_memory(SHAPE, TRAINING, [Layers(0, SHAPE.layers)], 0) // placement.MEGABYTE
    found = choose(SHAPE, TRAINING, [node(i, memory_mb=whole - 50) for i in range(4)], None, None)
    assert len(found.layers) == 2
    assert len(found.seats) == 4


def test_a_short_job_is_not_spread_over_more_replicas_than_help_it() -> None:
    short = TrainingSpec(tokens=16 * 128 * 5 * 4 * 2)
    found = choose(SHAPE, short, [node(i) for i in range(9)], 1, None)
    assert len(found.seats) == 2


def test_quick_nodes_get_more_layers() -> None:
    found = choose(SHAPE, TRAINING, [node(1, 9e9), node(2, 9e9), node(3, 3e9), node(4, 3e9)], 2, 2)
    quick = next(stage for stage in range(2) if found.seats[stage, 0] in (node(1).node, node(2).node))
    assert {found.seats[quick, 0], found.seats[quick, 1]} == {node(1).node, node(2).node}, "like with like"
    sizes = [part.last - part.first for part in found.layers]
    assert sizes[quick] > sizes[1 - quick]


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.floats(1e8, 1e11), st.integers(0, 3)), min_size=4, max_size=9))
def test_every_seat_has_its_own_node_and_the_choice_repeats(machines: list[tuple[float, int]]) -> None:
    candidates = [node(i, flops, owner=owner) for i, (flops, owner) in enumerate(machines)]
    found = choose(SHAPE, TRAINING, candidates, 2, 2)
    assert len(set(found.seats.values())) == len(found.seats) == 4
    assert found == choose(SHAPE, TRAINING, list(reversed(candidates)), 2, 2)


def test_replicas_of_a_stage_go_to_distinct_owners_where_possible() -> None:
    candidates = [node(1, 4e9, owner=1), node(2, 4e9, owner=1), node(3, 4e9, owner=2), node(4, 4e9, owner=2)]
    found = choose(SHAPE, TRAINING, candidates, 2, 2)
    owners = {candidate.node: candidate.owner for candidate in candidates}
    for stage in range(2):
        assert owners[found.seats[stage, 0]] != owners[found.seats[stage, 1]]


def test_missing_seats_are_filled_lowest_replica_first_with_nodes_that_fit() -> None:
    free = [node(1, 1e9, memory_mb=100), node(2, 2e9, memory_mb=5000), node(3, 1e9, memory_mb=5000)]
    need = {"main": [1000 << 20, 1000 << 20], "card": [6000 << 20, 6000 << 20], "beside": [0, 0]}
    filled = fill([(1, 1), (0, 0), (1, 0)], {}, free, need)
    assert filled == {(0, 0): node(2).node, (1, 0): node(3).node}


def test_a_filled_seat_prefers_an_owner_that_the_stage_has_not() -> None:
    free = [node(2, 9e9, owner=1), node(3, 1e9, owner=2)]
    assert fill([(0, 1)], {(0, 0): node(1, owner=1)}, free, {"main": [0], "card": [0], "beside": [0]}) == {
        (0, 1): node(3).node
    }


def test_a_broken_replica_is_completed_with_a_member_of_a_higher_broken_one() -> None:
    everywhere = {stage: frozenset({(0, 1), (1, 0)}) for stage in range(2)}
    assert moves([(0, 0), (1, 1)], [(1, 0), (0, 1)], everywhere) == {(0, 0): (0, 1)}


def test_whole_replicas_give_nobody_away() -> None:
    everywhere = {stage: frozenset({(0, 0), (0, 1), (1, 1)}) for stage in range(2)}
    assert moves([(1, 0)], [(0, 0), (0, 1), (1, 1)], everywhere) == {}


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.data())
def test_moves_only_ever_make_replicas_whole(stages: int, replicas: int, data: st.DataObject) -> None:
    seats = [(s, p) for s in range(stages) for p in range(replicas)]
    held = data.draw(st.sets(st.sampled_from(seats)))
    missing = [seat for seat in seats if seat not in held]
    fits = {stage: frozenset(held) for stage in range(stages)}
    moved = moves(missing, sorted(held), fits)
    assert len(set(moved.values())) == len(moved)
    after = (held - set(moved.values())) | set(moved)
    for replica in {seat[1] for seat in moved}:
        assert all((s, replica) in after for s in range(stages))
    for replica in range(replicas):
        if all((s, replica) in held for s in range(stages)):
            assert all((s, replica) in after for s in range(stages)), "a whole replica stays whole"

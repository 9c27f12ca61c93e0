"""What rounds tell of a node's speed, and what a plan makes of it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain.placement import COMPUTE_SHARE, operations_of
from coordinator.domain.placement.cost import load_of
from coordinator.domain.rounds.speed import FURTHEST, QUICKEST, SMOOTHING, observed
from protocol.job.job import LoraSpec, PreferenceSpec, TrainingSpec
from protocol.task import Layers, RoundCommit, TaskReport
from tests.coordinator.planner.test_placement import SHAPE, TRAINING
from tests.sim.test_faults import gather_nodes, submit
from tests.sim.world import World

BENCHMARK = 1e9


def after(rounds: int, busy: float, known: float | None = None) -> float:
    for _ in range(rounds):
        known = observed(known, BENCHMARK, 1e9, busy, COMPUTE_SHARE)
    assert known is not None
    return known


def test_a_node_that_keeps_what_its_benchmark_promised_stays_where_it_was() -> None:
    assert after(5, 1 / COMPUTE_SHARE) == pytest.approx(BENCHMARK)


def test_a_node_that_slows_down_to_half_is_known_for_it_after_some_rounds() -> None:
    assert after(1, 2 / COMPUTE_SHARE) == pytest.approx((1 - SMOOTHING / 2) * BENCHMARK)
    assert after(12, 2 / COMPUTE_SHARE) == pytest.approx(BENCHMARK / 2, rel=0.02)
    assert after(12, 1 / COMPUTE_SHARE, BENCHMARK / 2) == pytest.approx(BENCHMARK, rel=0.02)


def test_a_round_that_says_nothing_of_its_time_teaches_nothing() -> None:
    assert observed(None, BENCHMARK, 1e9, 0.0, COMPUTE_SHARE) == BENCHMARK
    assert observed(5e8, BENCHMARK, 0.0, 1.0, COMPUTE_SHARE) == 5e8


@given(st.floats(0, 1e9), st.floats(0, 1e15))
def test_no_claim_moves_a_node_further_than_machines_drift(busy: float, operations: float) -> None:
    speed = None
    for _ in range(50):
        speed = observed(speed, BENCHMARK, operations, busy, COMPUTE_SHARE)
    assert speed is not None
    assert BENCHMARK / FURTHEST * (1 - 1e-9) <= speed <= BENCHMARK * QUICKEST * (1 + 1e-9)


@pytest.mark.parametrize("preference", [None, PreferenceSpec()], ids=["plain", "preference"])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_rounds_operations_are_counted_as_the_planner_counts_them(
    recompute: bool, preference: PreferenceSpec | None
) -> None:
    lora = None if preference is None else LoraSpec()
    training: TrainingSpec = msgspec.structs.replace(TRAINING, recompute=recompute, lora=lora, preference=preference)
    load, micro = load_of(SHAPE, training), training.batch * training.sequence // training.micro_batches
    last = operations_of(SHAPE, training, Layers(3, 8), True, micro)
    assert last / COMPUTE_SHARE == pytest.approx(5 * load.layer_operations + load.head_operations)


async def test_the_time_of_a_committed_round_changes_what_the_planner_knows_of_its_node() -> None:
    world = World(1, nodes=4, faults=0.0)
    world.crashes = False
    await gather_nodes(world)
    await submit(world, 2, 2)
    slow = world.nodes[0]
    say = slow.say

    def told(lease: str, bodies: list[TaskReport]) -> None:
        timed: list[TaskReport] = [
            msgspec.structs.replace(b, busy=1e6) if isinstance(b, RoundCommit) else b for b in bodies
        ]
        say(lease, timed)

    slow.say = told  # type: ignore[method-assign]
    assert world.parts is not None
    for _ in range(4_000):
        await world.turn()
        speeds = {c.node: c.flops for c in world.parts.nodes.everybody()}
        if speeds.get(slow.key.address, slow.profile.flops) < slow.profile.flops / 2:
            break
    assert speeds[slow.key.address] < slow.profile.flops / 2
    others = {n.key.address: n.profile.flops for n in world.nodes[1:]}
    assert {node: speeds[node] for node in others} == others, "who says nothing is as quick as its benchmark"


async def test_the_planner_knows_whose_memory_is_a_graphics_card_s() -> None:
    world = World(1, nodes=3, faults=0.0)
    card = world.nodes[0]
    card.profile = msgspec.structs.replace(card.profile, kind="cuda")
    await gather_nodes(world)
    assert world.parts is not None
    found = {candidate.node: candidate.card for candidate in world.parts.nodes.everybody()}
    assert found == {node.key.address: node is card for node in world.nodes}

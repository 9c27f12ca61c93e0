"""An outer step that arrives late: on a quadratic, whole updates with momentum diverge, fragments do not.

Replica ``p`` has the loss ``|x - target_p|^2 / 2``; all targets are near a common one. A round of inner steps moves a replica
most of the way to its own target, which is what makes momentum on stale updates dangerous.
"""

import pytest
import torch

from trainer.outer import Layout, OuterState
from trainer.outer.diloco import DiLoCo
from trainer.outer.streaming import PARAMETERS, Streaming
from trainer.stage.storage import Slot

SLOTS = tuple(Slot(f"model.layers.{layer}.weight", (64,), 64 * layer, 64) for layer in range(4))
SIZE, REPLICAS, ROUNDS = 256, 3, 60
LAYOUT = Layout(SLOTS, SIZE)
PULL = 0.9  # Of the way to its target that a replica goes in a round.


def targets() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    common = torch.randn(SIZE, generator=generator)
    return [common + 0.01 * torch.randn(SIZE, generator=generator) for _ in range(REPLICAS)]


def distance(anchor: torch.Tensor) -> float:
    """From the optimum of all, as a part of the beginning's."""
    optimum = torch.stack(targets()).mean(0)
    return float((anchor - optimum).norm() / optimum.norm())


def whole_updates(momentum: float, late: int, rate: float = 0.7) -> float:
    method = DiLoCo("diloco", LAYOUT, "int8-block", rate, momentum)
    state = OuterState(torch.zeros(SIZE), torch.zeros(SIZE))
    waiting: list[dict[int, bytes]] = []
    for round_index in range(ROUNDS):
        given = {}
        for replica, target in enumerate(targets()):
            begun = method.start(state, {}, round_index)
            given[replica] = method.contribution(state.anchor, begun + PULL * (target - begun), {}, round_index).data
        waiting.append(given)
        if len(waiting) > late:
            state = method.apply(state, waiting.pop(0), round_index)
    return distance(state.anchor)


def fragments(momentum: float, late: bool, mixing: float, count: int = 4, rate: float = 0.7) -> float:
    """Each fragment's outer step is applied at once, or when the next round has been stepped."""
    method = Streaming(LAYOUT, "int8-block", rate, momentum, count, mixing)
    state = OuterState(torch.zeros(SIZE), torch.zeros(SIZE))
    own = [state.anchor.clone() for _ in range(REPLICAS)]
    waiting: dict[int, bytes] = {}
    pull = 1 - (1 - PULL) ** (1 / count)  # As much computing between two exchanges of a fragment as in a whole round.
    for round_index in range(ROUNDS * count):
        given = {}
        for replica, target in enumerate(targets()):
            own[replica] = own[replica] + pull * (target - own[replica])
            local = {PARAMETERS: own[replica]}
            given[replica] = method.contribution(state.anchor, own[replica], local, round_index).data
        due, at = (waiting, round_index - 1) if late else (given, round_index)
        waiting = given
        if due:
            state = method.apply(state, due, at)
            own = [method.merge(parameters, state.anchor, at) for parameters in own]
    return distance(state.anchor)


def test_in_time_momentum_of_nine_tenths_converges() -> None:
    assert whole_updates(0.9, late=0) < 0.01


@pytest.mark.parametrize("momentum", [0.5, 0.7, 0.9])
def test_a_whole_update_one_round_late_diverges_with_momentum(momentum: float) -> None:
    assert whole_updates(momentum, late=1) > 10


def test_a_whole_update_one_round_late_without_momentum_converges() -> None:
    assert whole_updates(0.0, late=1) < 0.01


@pytest.mark.one_in(2)
@pytest.mark.parametrize("momentum", [0.5, 0.9])
@pytest.mark.parametrize("mixing", [0.0, 0.5])
def test_fragments_converge_in_time_and_late_with_the_momentum_that_whole_updates_cannot_have(
    momentum: float, mixing: float
) -> None:
    assert fragments(momentum, late=False, mixing=0.0) < 0.01
    assert fragments(momentum, late=True, mixing=mixing) < 0.01

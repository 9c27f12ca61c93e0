"""The outer step between replicas."""

import itertools
from typing import Any

import pytest
import torch

from protocol.job.job import TrainingSpec
from tests.trainer.small import pipeline, training
from trainer.codecs import decode
from trainer.data.data import TokenFile
from trainer.errors import CodecError, NonFiniteError, RoundError
from trainer.outer import OuterMethod, OuterState, outer_method
from trainer.outer.method import momentum_type
from trainer.stage.storage import Slot

SIZE = 640


def state(seed: int = 0) -> OuterState:
    generator = torch.Generator().manual_seed(seed)
    return OuterState(torch.randn(SIZE, generator=generator), torch.randn(SIZE, generator=generator) * 0.1)


def method_of(spec: TrainingSpec, size: int = SIZE) -> OuterMethod:
    return outer_method(spec, [Slot("whole", (size,), 0, size)], size)


def outer_step(state: OuterState, given: dict[int, bytes], spec: TrainingSpec) -> OuterState:
    return method_of(spec, state.anchor.numel()).apply(state, given, 0)


def pseudo_gradient(anchor: torch.Tensor, parameters: torch.Tensor, spec: TrainingSpec) -> bytes:
    return method_of(spec, anchor.numel()).contribution(anchor, parameters, {}, 0).data


def contributions(count: int, anchor: torch.Tensor) -> dict[int, bytes]:
    generator = torch.Generator().manual_seed(5)
    moved = {p: anchor + 0.01 * torch.randn(SIZE, generator=generator) for p in range(count)}
    return {p: pseudo_gradient(anchor, parameters, training()) for p, parameters in moved.items()}


def test_every_order_of_arrival_gives_the_same_bits() -> None:
    given = contributions(4, state().anchor)
    results = [outer_step(state(), dict(order), training()) for order in itertools.permutations(given.items())]
    for other in results[1:]:
        assert torch.equal(results[0].anchor, other.anchor)
        assert torch.equal(results[0].momentum, other.momentum)


def test_it_is_nesterov_on_the_mean() -> None:
    spec = training(outer_learning_rate=0.5, outer_momentum=0.9)
    given, before = contributions(3, state().anchor), state()
    after = outer_step(before, given, spec)
    mean = torch.stack([decode(data, (SIZE,), "int8-block") for data in given.values()]).mean(0)
    reference = torch.nn.Parameter(before.anchor.clone())
    optimizer = torch.optim.SGD([reference], lr=0.5, momentum=0.9, nesterov=True)
    reference.grad = mean
    optimizer.state[reference]["momentum_buffer"] = before.momentum.clone()
    optimizer.step()
    assert torch.allclose(after.anchor, reference.data, rtol=1e-6, atol=1e-7)


def test_full_rate_without_momentum_is_plain_averaging() -> None:
    spec = training(outer_learning_rate=1.0, outer_momentum=0.0, pseudo_gradient="fp32")
    anchor = state().anchor
    moved = [anchor + 1, anchor + 3]
    given = {p: pseudo_gradient(anchor, parameters, spec) for p, parameters in enumerate(moved)}
    after = outer_step(OuterState(anchor, torch.zeros(SIZE)), given, spec)
    assert torch.allclose(after.anchor, anchor + 2)


@pytest.mark.parametrize(
    "changes", [{}, {"outer": "streaming", "fragments": 1}, {"memory": "lean", "precision": "bf16"}]
)
def test_one_replica_alone_ends_where_its_own_steps_have_led(changes: dict[str, Any]) -> None:
    spec = training(outer_learning_rate=0.5, outer_momentum=0.9, pseudo_gradient="fp32", **changes)
    before = OuterState(state().anchor, torch.full((SIZE,), 0.5, dtype=momentum_type(spec)))
    method, parameters = method_of(spec), before.anchor + 0.25
    data = method.contribution(before.anchor, parameters, method.fresh(before), 0).data
    after = method.apply(before, {3: data}, 0)
    if spec.memory == "lean":  # In 16 bits, up or down.
        assert after.anchor.dtype == torch.bfloat16
        assert torch.allclose(after.anchor.float(), parameters, rtol=1 / 128, atol=0)
    else:
        assert torch.allclose(after.anchor, parameters, rtol=0, atol=1e-6)
    assert torch.equal(after.momentum, before.momentum)
    assert torch.equal(before.anchor, state().anchor)
    two = method.apply(before, {3: data, 4: data}, 0)
    assert not torch.allclose(two.anchor.float(), parameters, rtol=1 / 128, atol=1e-3)


def test_the_inputs_are_left_as_they_are() -> None:
    before = state()
    outer_step(before, contributions(2, before.anchor), training())
    assert torch.equal(before.anchor, state().anchor)
    assert torch.equal(before.momentum, state().momentum)


def test_a_lean_state_is_rounded_to_16_bits_by_chance_alike_and_does_not_drift() -> None:
    size, spec = 1 << 16, training(memory="lean", precision="bf16", outer_learning_rate=1.0, outer_momentum=0.5)
    method = method_of(spec, size)
    before = OuterState.first(torch.zeros(size), spec)
    assert before.momentum.dtype == torch.bfloat16
    mean = torch.full((size,), 1.001)  # Between two values of bf16, near the lower one.
    once, again, later = (method.step(before, mean.clone(), (), number) for number in (7, 7, 8))
    assert once.digest() == again.digest()
    moved = -mean.mul(0.5).add_(mean)
    assert once.anchor.dtype == torch.bfloat16
    assert float((once.anchor - moved).abs().max()) < 0.0078125, "no further than the next value"
    assert float(once.anchor.float().mean()) == pytest.approx(float(moved[0]), abs=1e-4), (
        "the step is made with what is not rounded yet"
    )
    assert not torch.equal(once.anchor == once.anchor.max(), once.momentum == 1.0), "chances of their own"
    assert set(once.momentum.unique().tolist()) == {1.0, 1.0078125}
    assert float(once.momentum.float().mean()) == pytest.approx(1.001, abs=1e-4)
    assert not torch.equal(once.momentum, later.momentum), "chance is another one each round"
    down = method.step(before, -mean, (), 7)
    assert torch.equal(down.momentum, -once.momentum)
    assert torch.equal(down.anchor, -once.anchor)
    plain = training(outer_learning_rate=1.0, outer_momentum=0.5)
    exact = method_of(plain, size).step(OuterState.first(torch.zeros(size), plain), mean.clone(), (), 7)
    assert torch.equal(exact.anchor, moved), "float32 states are left alone"


def test_nobody_is_no_round() -> None:
    with pytest.raises(RoundError, match="at least one replica"):
        outer_step(state(), {}, training())


def test_a_pseudo_gradient_of_another_stage_is_refused() -> None:
    given = contributions(1, state().anchor)
    with pytest.raises(CodecError):
        method_of(training(), SIZE + 64).decode_update(given[0], 0)
    with pytest.raises(CodecError):
        method_of(training()).decode_update(given[0][:-1], 0)


def test_a_replica_that_diverged_sends_nothing() -> None:
    anchor = state().anchor
    with pytest.raises(NonFiniteError):
        pseudo_gradient(anchor, anchor * float("nan"), training())


def test_int8_pseudo_gradients_learn_as_well_as_float32_ones(tokens: TokenFile) -> None:
    losses = {}
    for codec in ("int8", "fp32"):
        spec = training(pseudo_gradient=codec, learning_rate=1e-2)
        lines = [pipeline("llama", 1, tokens, spec) for _ in range(2)]
        outer = OuterState(lines[0].stages[0].state().parameters, torch.zeros_like(lines[0].stages[0].parameters))
        last: list[float] = []
        for round_index in range(6):
            given = {}
            for replica, line in enumerate(lines):
                line.replica = replica
                line.stages[0].parameters.copy_(outer.anchor)
                last = [line.step(round_index * 4 + i, 24) for i in range(4)]
                given[replica] = pseudo_gradient(outer.anchor, line.stages[0].parameters, spec)
            outer = outer_step(outer, given, spec)
        losses[codec] = last[-1]
    assert losses["int8"] == pytest.approx(losses["fp32"], rel=0.01)

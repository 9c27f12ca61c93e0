"""Methods between replicas: error feedback, fragments, exchanges at every step; what they share and what they refuse."""

import itertools
from typing import Any

import pytest
import torch

from tests.trainer.small import config_of, training
from trainer.codecs.sparse import TopK
from trainer.errors import CodecError
from trainer.outer import Layout, OuterMethod, OuterState, local_digest, outer_method, step_method
from trainer.outer.demo import DeMo
from trainer.outer.dgc import DGC
from trainer.outer.diloco import RESIDUAL, DiLoCo
from trainer.outer.every_step import Gradients, Moment, StepMethod
from trainer.outer.streaming import PARAMETERS, Streaming, cut_fragments
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.storage import Slot

SLOTS = (
    Slot("embed.weight", (100, 64), 0, 6400),
    Slot("model.layers.0.a", (64, 64), 6400, 4096),
    Slot("model.layers.1.a", (64, 64), 10496, 4096),
    Slot("model.layers.2.a", (30,), 14592, 30),
    Slot("model.norm", (64,), 14656, 64),
)
SIZE = 14720
SPECS: dict[str, dict[str, Any]] = {
    "diloco": {"pseudo_gradient": "int4"},
    "two bits": {"pseudo_gradient": "int2", "error_feedback": 0.9},
    "averaging": {"outer": "averaging"},
    "streaming": {"outer": "streaming", "pseudo_gradient": "int4", "fragments": 3},
    "sparseloco": {"outer": "sparseloco", "outer_momentum": 0.0},
    "gradients": {"outer": "gradients"},
}


def method_of(name: str, **changes: Any) -> OuterMethod:
    return outer_method(training(**(SPECS[name] | changes)), SLOTS, SIZE)


def padding() -> torch.Tensor:
    return Layout(SLOTS, SIZE).padding


def vector(seed: int, scale: float = 1.0) -> torch.Tensor:
    values = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * scale
    return values.masked_fill(padding(), 0.0)


def shared() -> OuterState:
    return OuterState(vector(0), vector(1, 0.01))


ALL = pytest.mark.parametrize("name", SPECS)


@ALL
def test_every_order_of_arrival_gives_the_same_bits_in_every_round(name: str) -> None:
    method, state = method_of(name), shared()
    for round_index in range(4):
        given = {}
        for replica in range(3):
            local = method.fresh(state)
            moved = method.start(state, local, round_index) + vector(10 * round_index + replica, 0.01)
            given[replica] = method.contribution(state.anchor, moved, local, round_index).data
            assert len(given[replica]) <= method.limit(round_index)
        results = [method.apply(state, dict(order), round_index) for order in itertools.permutations(given.items())]
        for other in results[1:]:
            assert torch.equal(results[0].anchor, other.anchor)
            assert torch.equal(results[0].momentum, other.momentum)
        state = results[0]


@ALL
def test_what_lies_between_parameters_stays_zero(name: str) -> None:
    method, state = method_of(name), shared()
    local = method.fresh(state)
    for round_index in range(3):
        moved = method.start(state, local, round_index) + vector(round_index, 0.01)
        made = method.contribution(state.anchor, moved, local, round_index)
        state, local = method.apply(state, {0: made.data}, round_index), made.local
    assert not state.anchor[padding()].any()
    assert not state.momentum[padding()].any()
    assert not method.start(state, local, 3)[padding()].any()


@ALL
def test_a_contribution_of_another_length_is_refused(name: str) -> None:
    method, state = method_of(name), shared()
    data = method.contribution(state.anchor, state.anchor + 0.01, method.fresh(state), 0).data
    with pytest.raises(CodecError):
        method.decode_update(data[:-1], 0)
    with pytest.raises(CodecError):
        method.apply(state, {0: data, 1: data + b"0"}, 0)


@ALL
def test_one_replica_alone_goes_where_it_went(name: str) -> None:
    """With full outer steps and float32, applying one's own contribution leads to one's own parameters."""
    changes = {} if name == "sparseloco" else {"pseudo_gradient": "fp32", "error_feedback": None}
    spec = {"outer_learning_rate": 1.0, "outer_momentum": 0.0, "density": 0.5} | changes
    method, state = method_of(name, **spec), shared()
    moved = state.anchor + vector(5, 0.01)
    after = method.apply(state, {0: method.contribution(state.anchor, moved, method.fresh(state), 0).data}, 0)
    spans = method.fragment(0) if isinstance(method, Streaming) else (slice(0, SIZE),)
    for span in spans:
        if name == "sparseloco":
            assert (after.anchor[span] - moved[span]).norm() < 0.5 * (state.anchor[span] - moved[span]).norm()
        else:
            assert torch.allclose(after.anchor[span], moved[span], atol=1e-6)


# --- error feedback -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sparseloco", "two bits"])
def test_what_was_not_sent_is_sent_later(name: str) -> None:
    """The same way again and again: sums of what was sent come near to sums of what was meant."""
    method, state = method_of(name, error_feedback=1.0), shared()
    way, sent, local = vector(3, 0.01), torch.zeros(SIZE), method.fresh(state)
    for round_index in range(60):
        made = method.contribution(state.anchor, state.anchor - way, local, round_index)
        sent, local = sent + method.decode_update(made.data, round_index), made.local
    largest = float(way.abs().max())
    assert torch.allclose(sent + local[RESIDUAL].masked_fill(padding(), 0.0), 60 * way, atol=60 * largest * 1e-3)
    assert (sent / 60 - way).norm() < 0.6 * way.norm()


def test_the_residual_fades_by_its_feedback() -> None:
    method = DiLoCo("sparseloco", Layout(SLOTS, SIZE), TopK(0.01), 0.7, 0.0, 0.5)
    state = shared()
    once = method.contribution(state.anchor, state.anchor - vector(3), method.fresh(state), 0)
    rest = once.local[RESIDUAL]
    still = method.contribution(state.anchor, state.anchor, once.local, 1)
    assert torch.allclose(still.local[RESIDUAL] + method.decode_update(still.data, 1), rest * 0.5, atol=1e-6)


def test_the_sparse_update_is_over_fifty_times_smaller() -> None:
    assert 4 * SIZE / method_of("sparseloco").limit(0) > 50


# --- streaming ------------------------------------------------------------------------------------------------------------


def test_fragments_are_strided_and_together_the_whole_model() -> None:
    fragments = cut_fragments(SLOTS, 2)
    names = [{slot.name for slot in fragment} for fragment in fragments]
    assert {"model.layers.0.a", "model.layers.2.a"} <= names[0]
    assert "model.layers.1.a" in names[1]
    assert names[0] | names[1] == {slot.name for slot in SLOTS}
    assert not names[0] & names[1]


def test_more_fragments_than_parameters_leave_none_empty() -> None:
    assert [len(fragment) for fragment in cut_fragments(SLOTS, 64)] == [1] * 5


def test_a_round_sends_and_moves_its_fragment_only() -> None:
    method, state = method_of("streaming"), shared()
    assert isinstance(method, Streaming)
    sizes = [method.limit(round_index) for round_index in range(3)]
    assert sum(sizes) < 1.02 * method_of("diloco").limit(0) + 200
    made = method.contribution(state.anchor, state.anchor + 0.1, method.fresh(state), 1)
    after = method.apply(state, {0: made.data}, 1)
    moved = torch.zeros(SIZE, dtype=torch.bool)
    for span in method.fragment(1):
        moved[span] = True
    assert torch.equal(after.anchor[~moved], state.anchor[~moved])
    assert torch.equal(after.momentum[~moved], state.momentum[~moved])
    assert bool((after.anchor[moved & ~padding()] != state.anchor[moved & ~padding()]).all())


def test_between_its_exchanges_a_replica_goes_on_from_where_it_is() -> None:
    method, state = method_of("streaming", mixing=0.25), shared()
    assert isinstance(method, Streaming)
    own = vector(8)
    begun = method.start(state, {PARAMETERS: own}, 1)
    exchanged = torch.zeros(SIZE, dtype=torch.bool)
    for span in method.fragment(0):
        exchanged[span] = True
    assert torch.equal(begun[~exchanged], own[~exchanged])
    assert torch.allclose(begun[exchanged], 0.25 * own[exchanged] + 0.75 * state.anchor[exchanged])


def test_the_first_round_and_whoever_joins_begin_at_the_anchor() -> None:
    method, state = method_of("streaming"), shared()
    for round_index in (0, 5):
        assert torch.allclose(method.start(state, method.fresh(state), round_index), state.anchor)


# --- what is carried over ---------------------------------------------------------------------------------------------------


def test_digests_tell_names_and_values_apart() -> None:
    one = torch.zeros(4)
    other = torch.ones(4)
    digests = {local_digest(x) for x in ({"a": one}, {"b": one}, {"a": other}, {"a": one, "b": one})}
    assert len(digests) == 4
    assert local_digest({}) is None


@pytest.mark.parametrize(
    ("name", "carries"), [("diloco", set()), ("streaming", {PARAMETERS}), ("sparseloco", {RESIDUAL})]
)
def test_only_methods_with_memory_carry_something(name: str, carries: set[str]) -> None:
    assert set(method_of(name).fresh(shared())) == carries


# --- exchanges at every step --------------------------------------------------------------------------------------------------

STEP_METHODS: list[StepMethod] = [Gradients(), DeMo(), DGC(0.01)]
STEPWISE = pytest.mark.parametrize("method", STEP_METHODS, ids=lambda method: type(method).__name__)
AT = Moment(1e-2, 50, 100)


def stages(count: int) -> list[Stage]:
    made = [Stage(config_of(), Cut(0, 3, True, True), training()) for _ in range(count)]
    for index, stage in enumerate(made):
        for slot in stage.slots:
            generator = torch.Generator().manual_seed(1000 * index + slot.start)
            span = slice(slot.start, slot.start + slot.count)
            stage.gradients[span] = torch.randn(slot.count, generator=generator) * 1e-3
    return made


@STEPWISE
def test_all_replicas_come_to_the_same_bits_in_any_order(method: StepMethod) -> None:
    replicas = stages(3)
    messages = {index: method.message(stage, AT) for index, stage in enumerate(replicas)}
    for order, stage in zip(itertools.permutations(messages.items()), replicas, strict=False):
        assert all(len(data) <= method.limit(stage, AT) for data in messages.values())
        method.reduce(stage, dict(order), AT)
    for other in replicas[1:]:
        assert torch.equal(other.parameters, replicas[0].parameters)
        assert torch.equal(other.gradients, replicas[0].gradients)


@STEPWISE
def test_a_message_of_another_model_is_refused(method: StepMethod) -> None:
    stage = stages(1)[0]
    data = method.message(stage, AT)
    with pytest.raises(CodecError):
        method.reduce(stage, {0: data, 1: data[:-9]}, AT)


def test_four_bit_gradients_are_near_their_mean() -> None:
    replicas = stages(4)
    mean = torch.stack([stage.gradients for stage in replicas]).mean(0)
    messages = {index: Gradients().message(stage, AT) for index, stage in enumerate(replicas)}
    Gradients().reduce(replicas[0], messages, AT)
    assert (replicas[0].gradients - mean).norm() < 0.2 * mean.norm()
    assert 4 * mean.numel() / len(messages[0]) > 7.8


def test_demo_sends_hundreds_of_times_less_and_takes_out_of_the_momentum_what_it_sent() -> None:
    stage = stages(1)[0]
    data = DeMo().message(stage, AT)
    before = stage.gradients * AT.rate
    assert stage.first_moment.norm() < before.norm()
    assert 4 * stage.parameter_count / len(data) > 50  # Tiles of this tiny model are 32 x 48 and smaller.
    old = stage.parameters.clone()
    DeMo().reduce(stage, {0: data}, AT)
    inside = ~Layout(stage.slots, stage.parameters.numel()).padding
    assert float((stage.parameters - old).abs().max()) < AT.rate * 1.2
    assert not stage.parameters[~inside].any()


def test_dgc_masks_what_it_sent_in_both_of_its_memories() -> None:
    stage = stages(1)[0]
    DGC(0.01).message(stage, AT)
    sent = (stage.second_moment == 0) & (stage.gradients != 0)
    assert 0 < int(sent.sum()) <= round(0.01 * stage.gradients.numel())
    assert not stage.first_moment[sent].any()
    rest = ~sent & (stage.gradients != 0)
    assert torch.equal(stage.second_moment[rest], stage.gradients[rest])


def test_dgc_warms_up_from_a_quarter() -> None:
    stage = stages(1)[0]
    sizes = [DGC(0.001).limit(stage, Moment(1.0, step, 400)) for step in (0, 10, 20, 30, 40, 399)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 5
    assert sizes[0] > 100 * sizes[-1]


@pytest.mark.parametrize(
    ("outer", "kind"),
    [("diloco", None), ("streaming", None), ("gradients", Gradients), ("demo", DeMo), ("dgc", DGC)],
)
def test_jobs_get_the_exchange_that_they_name(outer: Any, kind: type | None) -> None:
    found = step_method(training(outer=outer))
    assert found is None if kind is None else isinstance(found, kind)

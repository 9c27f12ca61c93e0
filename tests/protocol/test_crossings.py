"""Bytes over a boundary, and how a pipeline is run over a given link; no torch."""

import dataclasses
import math

import msgspec
import pytest

from protocol.job.job import LoraSpec, ModelSpec, PreferenceSpec, TrainingSpec
from protocol.models.boundary_bytes import (
    MAX_LOOKAHEAD,
    SUBSPACE_FAMILIES,
    Edge,
    boundary_bytes,
    check_subspace,
    choose_crossing,
    gradient_codec,
    longest_payload,
    most_in_flight,
    recorded_bytes,
    step_cost,
)
from protocol.models.config_values import ModelConfigError
from protocol.models.model import inspect_config, resolve

SHAPE = inspect_config(resolve(ModelSpec(preset="tiny-llama"), 2048))
TRAINING = TrainingSpec(sequence=128, batch=32, micro_batches=4, activations="auto")
FAST = Edge(2, 1.0, 0.0005, 1e9, 10_000, 1_000, 1 << 30)


def naive(tokens: int) -> int:
    return 4 * tokens * SHAPE.hidden


@pytest.mark.parametrize(
    ("changes", "forward", "backward"),
    [
        ({"activations": "fp32"}, 1.0, 1.0),
        ({"activations": "int8"}, 0.256, 0.256),
        ({"activations": "int4"}, 0.142, 0.256),
        ({"activations": "int4", "boundary_gradients": "int4"}, 0.142, 0.142),
        ({"activations": "int4", "boundary_gradients": "int4", "subspace": 48}, 0.0366, 0.0366),
        ({"activations": "int8", "subspace": 24}, 0.0368, 0.0368),
        ({"activations": "fp32", "subspace": 8}, 0.042, 0.042),
    ],
)
def test_shares_of_naive_bytes(changes: dict[str, object], forward: float, backward: float) -> None:
    there, back = boundary_bytes(SHAPE, msgspec.structs.replace(TRAINING, **changes), 1024)
    assert there / naive(1024) == pytest.approx(forward, rel=0.01)
    assert back / naive(1024) == pytest.approx(backward, rel=0.01)


@pytest.mark.parametrize("activations", ["fp32", "int8", "int4"])
def test_where_answers_are_compared_twice_as_much_crosses_forward_and_as_much_backward(activations: str) -> None:
    plain = msgspec.structs.replace(TRAINING, activations=activations)
    both = msgspec.structs.replace(plain, lora=LoraSpec(), preference=PreferenceSpec())
    assert boundary_bytes(SHAPE, both, 512)[0] == boundary_bytes(SHAPE, plain, 1024)[0]
    assert boundary_bytes(SHAPE, both, 512)[1] == boundary_bytes(SHAPE, plain, 512)[1]
    assert longest_payload(SHAPE, both) == 2 * longest_payload(SHAPE, plain)


@pytest.mark.parametrize(("recompute", "cost"), [(False, 4 / 3), (True, 5 / 3)])
def test_a_reference_takes_a_forward_pass_more(recompute: bool, cost: float) -> None:
    spec = msgspec.structs.replace(TRAINING, recompute=recompute, lora=LoraSpec(), preference=PreferenceSpec())
    assert step_cost(spec) == pytest.approx(cost)
    assert step_cost(spec, recomputes=False) == pytest.approx(4 / 3)
    assert step_cost(msgspec.structs.replace(TRAINING, recompute=recompute)) == (4 / 3 if recompute else 1)


def test_both_ways_of_a_subspace_stay_below_five_percent_for_a_quarter_of_the_channels() -> None:
    spec = TrainingSpec(activations="int4", boundary_gradients="int4", subspace=SHAPE.hidden // 4)
    assert sum(boundary_bytes(SHAPE, spec, 512)) < 0.05 * 2 * naive(512)


def test_cached_activations_are_recorded_on_both_sides() -> None:
    plain, cached = (
        recorded_bytes(SHAPE, msgspec.structs.replace(TRAINING, activations=kind), 1024) for kind in ("int4", "aq4")
    )
    assert cached - plain == 2 * 1024 * (SHAPE.hidden + 4)


def test_automatic_gradients_follow_the_activations() -> None:
    assert gradient_codec(TrainingSpec(activations="fp32")) == "fp32"
    assert gradient_codec(TrainingSpec(activations="int4")) == "int8"
    assert gradient_codec(TrainingSpec(activations="int4", boundary_gradients="int4")) == "int4"


@pytest.mark.parametrize("below_four", ["int2", "int3", "int1"])
def test_gradients_below_four_bits_cannot_be_written_down(below_four: str) -> None:
    with pytest.raises(msgspec.ValidationError, match="boundary_gradients"):
        msgspec.convert({"boundary_gradients": below_four}, TrainingSpec)


def test_eight_bits_where_the_link_allows_and_four_where_it_does_not() -> None:
    assert choose_crossing(SHAPE, TRAINING, FAST).training.activations == "int8"
    slow = choose_crossing(SHAPE, TRAINING, changed(FAST, bits_per_second=5e6))
    assert slow.training.activations == "int4"
    assert "0.716 s on the link" in slow.reason
    hopeless = choose_crossing(SHAPE, TRAINING, changed(FAST, bits_per_second=1e6))
    assert "the link is the limit" in hopeless.reason
    named = msgspec.structs.replace(TRAINING, activations="int8")
    kept = choose_crossing(SHAPE, named, changed(FAST, bits_per_second=5e6))
    assert kept.training.activations == "int8", "a job's own choice is kept"


def test_a_long_way_is_covered_by_more_in_flight() -> None:
    near = choose_crossing(SHAPE, TRAINING, FAST)
    far = choose_crossing(SHAPE, TRAINING, changed(FAST, latency=0.05))
    assert near.training.lookahead <= far.training.lookahead <= MAX_LOOKAHEAD
    assert far.training.lookahead >= 1
    assert near.seconds < far.seconds < 1.35


def test_one_stage_needs_no_lookahead_and_no_small_micro_batches() -> None:
    alone = choose_crossing(SHAPE, TRAINING, changed(FAST, stages=1))
    assert (alone.training.lookahead, alone.training.micro_batches) == (0, 1)


def test_more_stages_ask_for_more_micro_batches() -> None:
    counts = [
        choose_crossing(SHAPE, TRAINING, changed(FAST, stages=stages)).training.micro_batches for stages in (1, 2, 8)
    ]
    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_what_does_not_fit_is_computed_twice_and_what_never_fits_is_refused() -> None:
    window = 128 * FAST.token_bytes
    tight = choose_crossing(SHAPE, TRAINING, changed(FAST, stages=8, room=2 * window))
    assert tight.training.recompute
    assert "computed twice" in tight.reason
    with pytest.raises(ModelConfigError, match="shorter sequences, or more stages"):
        choose_crossing(SHAPE, TRAINING, changed(FAST, room=window - 1))


def test_what_was_chosen_fits_into_memory_over_a_grid() -> None:
    for stages in (1, 2, 5):
        for room in (2_000_000, 8_000_000, 64_000_000):
            for latency in (0.0, 0.02, 0.2):
                edge = changed(FAST, stages=stages, room=room, latency=latency)
                spec = choose_crossing(SHAPE, TRAINING, edge).training
                tokens = -(-spec.batch // spec.micro_batches) * spec.sequence
                flying = min(spec.micro_batches, most_in_flight(stages, 0, spec.lookahead))
                each = edge.token_inputs if spec.recompute else edge.token_bytes
                assert tokens * flying * each <= room


def changed(edge: Edge, **changes: float) -> Edge:
    return dataclasses.replace(edge, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gemma2", "gemma3_text", "gpt_neox"])
def test_families_whose_hidden_states_are_more_than_sums_are_refused_a_subspace(family: str) -> None:
    assert family not in SUBSPACE_FAMILIES
    with pytest.raises(ModelConfigError, match=family):
        check_subspace(dataclasses.replace(SHAPE, family=family), TrainingSpec(subspace=8))


def test_seconds_are_finite_and_reasons_are_words() -> None:
    choice = choose_crossing(SHAPE, TRAINING, FAST)
    assert math.isfinite(choice.seconds)
    assert "micro-batches" in choice.reason

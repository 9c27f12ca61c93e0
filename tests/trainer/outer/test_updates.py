"""The end of a step: rates, clipping over stages, precision, Muon, and that all of it can be run again."""

import itertools
import math
import struct
from typing import Any

import pytest
import torch

from protocol.boundary import Position, crossings
from protocol.job.job import TrainingSpec
from protocol.job.learning_rate import learning_rate
from tests.trainer.small import Pipeline, commit_round, config_of, pipeline, training
from trainer.audit.trivial_work import vain
from trainer.data.data import TokenFile
from trainer.errors import CodecError, NonFiniteError
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.muon import direction, orthogonal
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate

WHOLE = Cut(0, 3, True, True)
KINDS: list[dict[str, Any]] = [
    {"clip_norm": 0.5},
    {"optimizer": "muon"},
    {"optimizer": "muon", "clip_norm": 0.5, "precision": "bf16", "decay": "wsd"},
    {"precision": "bf16"},
    {"precision": "bf16", "activations": "int8"},
    {"precision": "fp16", "loss_scale": 512.0},
]


def vectors(line: Pipeline) -> dict[str, torch.Tensor]:
    return {
        slot.name: stage.parameters[slot.start : slot.start + slot.count].clone()
        for stage in line.stages
        for slot in stage.slots
    }


# --- rates ------------------------------------------------------------------------------------------------------------


def test_wsd_stays_at_its_peak_and_falls_at_the_end() -> None:
    spec = training(learning_rate=1.0, warmup_steps=10, decay="wsd", decay_share=0.25, final_rate=0.0)
    rates = [learning_rate(spec, step, 110) for step in range(111)]
    assert rates[9:85] == [1.0] * 76
    assert all(a > b for a, b in itertools.pairwise(rates[85:]))
    assert rates[110] == 0.0
    assert rates[91] == pytest.approx(1 - (6 / 25) ** 0.5)


def test_a_constant_rate_only_warms_up() -> None:
    spec = training(learning_rate=0.5, warmup_steps=4, decay="constant")
    assert [learning_rate(spec, step, 100) for step in (0, 3, 4, 50, 99)] == [0.125, 0.5, 0.5, 0.5, 0.5]


def test_the_cosine_ends_where_it_is_told_to() -> None:
    assert learning_rate(training(learning_rate=1.0, final_rate=0.0), 100, 100) == pytest.approx(0.0)
    assert learning_rate(training(learning_rate=1.0, final_rate=0.5), 100, 100) == pytest.approx(0.5)


# --- clipping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_clipping_over_stages_is_that_of_torch_over_the_whole_model(stages: int, tokens: TokenFile) -> None:
    spec = training(clip_norm=0.25)
    line = pipeline("llama", stages, tokens, spec)
    reference = Stage(config_of(), WHOLE, training())
    for step in range(4):
        windows, _ = tokens.sample(spec.seed, step, 0, spec.batch)
        accumulate(reference, Position(0, 1), windows, Recorded({}))
        parameter = torch.nn.Parameter(torch.zeros_like(reference.parameters))
        parameter.grad = reference.gradients
        assert torch.nn.utils.clip_grad_norm_([parameter], 0.25) > 0.25
        reference.adam_step(learning_rate(spec, step, 10))
        line.step(step, 10)
    for name, value in vectors(line).items():
        slot = next(s for s in reference.slots if s.name == name)
        expected = reference.parameters[slot.start : slot.start + slot.count]
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-6), name


def test_every_stage_reckons_with_the_same_bytes_of_the_norm(tokens: TokenFile) -> None:
    line = pipeline("llama", 3, tokens, training(clip_norm=1.0))
    line.step(0, 10)
    last = crossings(line.stages[0].training) - 1
    first, middle, end = line.recorders
    assert first.sent["activation", last] == middle.sent["activation", last] == end.received["activation", last]
    total = struct.unpack("<d", end.received["activation", last])[0]
    squares = [struct.unpack("<d", recorder.sent["gradient", last])[0] for recorder in (middle, end)]
    assert total > squares[0] > squares[1] > 0


def test_gradients_below_the_limit_are_not_touched(tokens: TokenFile) -> None:
    plain, wide = (pipeline("llama", 2, tokens, training(**more)) for more in ({}, {"clip_norm": 1e5}))
    for step in range(3):
        assert plain.step(step, 10) == wide.step(step, 10)
    assert all(torch.equal(a, b) for a, b in zip(vectors(plain).values(), vectors(wide).values(), strict=True))


@pytest.mark.parametrize(
    "payload", [b"", b"\0" * 7, b"\0" * 9, struct.pack("<d", -1.0), struct.pack("<d", float("nan"))]
)
def test_a_neighbours_norm_that_is_none_is_refused(payload: bytes, tokens: TokenFile) -> None:
    spec = training(clip_norm=1.0)
    stage = Stage(config_of(), Cut(0, 1, True, False), spec)
    boundary = Recorded({("gradient", crossings(spec) - 1): payload})
    with pytest.raises(CodecError, match="sum of squares"):
        update(stage, Position(0, 3), boundary, 0, 10)


def test_a_neighbours_infinite_norm_stops_a_step_and_changes_nothing() -> None:
    spec = training(clip_norm=1.0)
    stage = Stage(config_of(), Cut(0, 1, True, False), spec)
    before = stage.state_digest()
    boundary = Recorded({("gradient", crossings(spec) - 1): struct.pack("<d", float("inf"))})
    with pytest.raises(NonFiniteError, match="clip_norm"):
        update(stage, Position(0, 3), boundary, 0, 10)
    assert stage.state_digest() == before


def test_half_floats_that_overflow_in_one_stage_leave_the_step_out_in_all(tokens: TokenFile) -> None:
    line = pipeline("llama", 2, tokens, training(precision="fp16", loss_scale=2.0**24, activations="fp32"))
    before = [stage.state_digest() for stage in line.stages]
    recorder = Recorder(Recorded({("activation", 2): struct.pack("<d", float("inf"))}))
    line.stages[1].gradients[3] = float("inf")
    update(line.stages[1], Position(1, 2), recorder, 0, 10)
    assert struct.unpack("<d", recorder.sent["gradient", 2])[0] == float("inf")
    other = Recorder(Recorded({("gradient", 2): recorder.sent["gradient", 2]}))
    line.stages[0].gradients[3] = 1.0
    update(line.stages[0], Position(0, 2), other, 0, 10)
    assert [stage.state_digest() for stage in line.stages] == before
    assert not any(bool(stage.gradients.any()) for stage in line.stages)


@pytest.mark.parametrize("activations", ["int8", "fp32"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_loss_scale_that_is_too_large_leaves_steps_out_and_ends_nothing(
    stages: int, activations: str, tokens: TokenFile
) -> None:
    spec = training(precision="fp16", loss_scale=2.0**24, activations=activations)
    line = pipeline("llama", stages, tokens, spec)
    before = [stage.state_digest() for stage in line.stages]
    assert math.isfinite(line.step(0, 10))
    assert [stage.state_digest() for stage in line.stages] == before
    assert not any(bool(stage.gradients.any()) for stage in line.stages), "the next step begins with none"
    sent = [dict(recorder.sent) for recorder in line.recorders]
    for stage, payloads in zip(line.stages, sent, strict=True):
        assert vain(stage, tokens.sample(spec.seed, 0, 0, spec.batch)[0], payloads) == "", "nobody was spared any work"
    line.step(0, 10)
    assert [dict(recorder.sent) for recorder in line.recorders] == sent, "run again it is the same"


# --- precision --------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_sixteen_bits_learn_about_what_thirty_two_do(precision: str, tokens: TokenFile) -> None:
    wide, narrow = (
        pipeline("llama", 2, tokens, training(learning_rate=1e-2, precision=p)) for p in ("fp32", precision)
    )
    losses = [(wide.step(step, 40), narrow.step(step, 40)) for step in range(40)]
    assert all(a != b for a, b in losses)
    assert sum(b for _, b in losses[-5:]) == pytest.approx(sum(a for a, _ in losses[-5:]), rel=0.02)
    assert losses[-1][1] < losses[0][1] - 0.5


def test_master_weights_and_what_crosses_stay_float32(tokens: TokenFile) -> None:
    line = pipeline("llama", 2, tokens, training(precision="bf16"))
    line.step(0, 10)
    assert line.stages[0].parameters.dtype == line.stages[0].gradients.dtype == torch.float32
    assert line.stages[0].forward(torch.zeros(1, 16, dtype=torch.int64)).dtype == torch.float32


def test_the_loss_scale_moves_small_gradients_and_not_the_step(tokens: TokenFile) -> None:
    ends = []
    for scale in (1.0, 1024.0):
        line = pipeline("llama", 1, tokens, training(precision="fp16", loss_scale=scale))
        line.step(0, 10)
        ends.append(vectors(line))
    shift = [(ends[0][name] - ends[1][name]).abs().max().item() for name in ends[0]]
    assert 0 < max(shift) < 1e-3 * 5


# --- Muon -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(24, 40), (40, 24), (3, 16, 8)])
def test_muon_makes_matrices_nearly_orthogonal(shape: tuple[int, ...]) -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(1))))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_muons_updates_have_the_size_of_adamws() -> None:
    generator = torch.Generator().manual_seed(1)
    update = direction(torch.randn(64, 192, generator=generator), torch.zeros(64, 192))
    assert update.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.25)


def test_muon_is_the_one_of_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    theirs = torch.nn.Parameter(torch.randn(32, 48, generator=generator))
    optimizer = torch.optim.Muon([theirs], lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    ours, momentum = theirs.detach().clone(), torch.zeros(32, 48)
    for _ in range(5):
        gradient = torch.randn(32, 48, generator=generator)
        theirs.grad = gradient
        optimizer.step()
        ours.mul_(1 - 0.02 * 0.1).sub_(direction(gradient, momentum), alpha=0.02)
    moved = (theirs.detach() - ours).norm() / ours.norm()
    assert moved < 2e-3  # Theirs rounds to bfloat16 inside.


def test_muon_moves_hidden_matrices_and_adamw_the_rest(tokens: TokenFile) -> None:
    for family in ("llama", "qwen3_moe", "gpt2"):
        adamw, muon = (
            Stage(config_of(family), WHOLE, training(optimizer=name, weight_decay=0.0)) for name in ("adamw", "muon")
        )
        windows, _ = tokens.sample(7, 0, 0, 4)
        for stage in (adamw, muon):
            accumulate(stage, Position(0, 1), windows, Recorded({}))
            stage.adam_step(1e-3)
        kinds = {slot.name.split(".")[-2]: slot.orthogonal for slot in muon.slots}
        assert not any(kinds.get(name) for name in ("embed_tokens", "lm_head", "norm", "gate", "wte", "wpe"))
        for slot in muon.slots:
            span = slice(slot.start, slot.start + slot.count)
            same = torch.equal(adamw.parameters[span], muon.parameters[span])
            assert same != slot.orthogonal, slot.name


def test_muon_learns(tokens: TokenFile) -> None:
    line = pipeline("llama", 2, tokens, training(learning_rate=1e-2, optimizer="muon"))
    losses = [line.step(step, 40) for step in range(40)]
    assert sum(losses[-5:]) / 5 < losses[0] - 1.0


# --- running again ----------------------------------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(f"{k}={v}" for k, v in kind.items()))
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_committed_step_runs_again_bit_for_bit(kind: dict[str, Any], stage: int, tokens: TokenFile) -> None:
    spec: TrainingSpec = training(**kind)
    line = pipeline("llama", 3, tokens, spec)
    done = commit_round(line, stage, 2, 10)
    again = Stage(config_of(), line.stages[stage].cut, spec, initialise=False)
    again.restore(done.trace.states[1])
    windows, _ = tokens.sample(spec.seed, 1, 0, spec.batch)
    recorder = Recorder(Recorded(done.trace.payloads[1]))
    accumulate(again, Position(stage, 3), windows, recorder)
    update(again, Position(stage, 3), recorder, 1, 10)
    assert again.state_digest() == done.trace.leaves[1].after
    assert len(done.trace.leaves[1].sent) == crossings(spec) * (2 if stage == 1 else 1)

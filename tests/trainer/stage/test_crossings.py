"""Codecs, schedules, recomputation and the subspace through whole pipelines: what must not change a bit, and what replays."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from protocol.boundary import Position
from protocol.job.job import ModelSpec
from protocol.models.boundary_bytes import boundary_bytes, longest_payload, payload_bytes
from protocol.models.config_values import ModelConfigError
from protocol.models.model import inspect_config, resolve
from tests.trainer.audit.test_replay import auditor, command
from tests.trainer.small import SEQUENCE, commit_round, config_of, pipeline, training
from trainer.codecs.envelope import unwrap, wrap
from trainer.data.data import TokenFile
from trainer.stage.boundary_codec import BoundaryCodec, wrapped_kinds
from trainer.stage.model import Cut, initial_embedding
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate

TOTAL = 12
WAYS: list[dict[str, Any]] = [
    {"activations": "int4"},
    {"activations": "int8", "boundary_gradients": "int4"},
    {"activations": "int4", "boundary_gradients": "int4", "schedule": "zero-bubble", "micro_batches": 4},
    {"activations": "int8", "subspace": 12, "recompute": True, "clip_norm": 0.5},
    {"activations": "int4", "subspace": 20, "schedule": "zero-bubble", "lookahead": 1},
]


def run(stages: int, tokens: TokenFile, family: str = "llama", **changes: Any) -> tuple[list[float], torch.Tensor]:
    """Losses of two steps, and all parameters after them in the whole model's order."""
    line = pipeline(family, stages, tokens, training(batch=8, micro_batches=4, **changes))
    losses = [line.step(step, TOTAL) for step in range(2)]
    values = {
        slot.name: stage.parameters[slot.start : slot.start + slot.count]
        for stage in line.stages
        for slot in stage.slots
    }
    return losses, torch.cat([values[name] for name in sorted(values)])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("stages", [1, 3])
def test_no_schedule_and_no_recomputation_changes_a_bit(family: str, stages: int, tokens: TokenFile) -> None:
    losses, parameters = run(stages, tokens, family)
    others: list[dict[str, Any]] = [
        {"schedule": "zero-bubble"},
        {"recompute": True},
        {"schedule": "zero-bubble", "recompute": True, "lookahead": 2},
        {"lookahead": 3},
    ]
    for changes in others:
        again, found = run(stages, tokens, family, **changes)
        assert again == losses, changes
        assert torch.equal(found, parameters), changes


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_subspace_gives_the_same_bits_in_one_process_and_in_three_stages(family: str, tokens: TokenFile) -> None:
    losses, parameters = run(1, tokens, family, subspace=8)
    again, found = run(3, tokens, family, subspace=8)
    assert again == losses
    assert torch.equal(found, parameters)
    assert run(1, tokens, family)[0] != losses


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt2"])
def test_hidden_states_of_a_subspace_are_the_embedding_beyond_it_before_every_layer(
    family: str, tokens: TokenFile
) -> None:
    spec, config = training(subspace=8), config_of(family)
    whole = Stage(config, Cut(0, 3, True, True), spec)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    for _ in range(2):
        accumulate(whole, Position(0, 1), windows, Recorded({}))
        whole.adam_step(0.01)
    first = Stage(config, Cut(0, 2, True, False), spec)
    first.parameters.copy_(whole.parameters[: first.parameters.numel()])
    ids = torch.from_numpy(windows)[:, :-1]
    with torch.no_grad():
        hidden = first.forward(ids)
    start = initial_embedding(config, whole.shape, spec.seed)
    assert torch.equal(hidden[..., 8:], functional.embedding(ids, start)[..., 8:])
    assert not torch.equal(hidden[..., :8], functional.embedding(ids, start)[..., :8])


def test_what_a_subspace_keeps_stays_whatever_an_outer_step_made_of_it(tokens: TokenFile) -> None:
    stage = Stage(config_of(), Cut(0, 2, True, False), training(subspace=8))
    before = stage.parameters.clone()
    drifted = before + 1.0
    stage.constrain(drifted)
    changed = drifted != before
    assert bool(changed.any())
    stage.constrain(before)
    assert torch.equal(before, stage.parameters)
    for slot in stage.slots:
        values = changed[slot.start : slot.start + slot.count].view(slot.shape)
        if slot.name.endswith(("o_proj.weight", "down_proj.weight")):
            assert bool(values[:8].all())
            assert not bool(values[8:].any())
            assert not bool(before[slot.start : slot.start + slot.count].view(slot.shape)[8:].any())
        elif slot.name.endswith("embed_tokens.weight"):
            assert not bool(values[:, 8:].any())
        else:
            assert bool(values.all())


def test_the_last_layer_is_free_since_nothing_crosses_a_link_behind_it() -> None:
    stage = Stage(config_of(), Cut(2, 3, False, True), training(subspace=8))
    drifted = stage.parameters + 1.0
    stage.constrain(drifted)
    assert torch.equal(drifted, stage.parameters + 1.0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: "-".join(str(value) for value in ways.values()))
@pytest.mark.parametrize("stage", [0, 1])
def test_every_way_of_crossing_replays_bit_for_bit(
    ways: dict[str, Any], stage: int, folder: Path, tokens: TokenFile
) -> None:
    spec = training(**ways)
    done = commit_round(pipeline("llama", 2, tokens, spec), stage, 2, TOTAL)
    for step in range(2):
        report = auditor(folder, spec).judge(command(done, step), done.opening(step))
        assert report.verdict == "match", report.detail


@pytest.mark.parametrize("ways", [*WAYS, {"activations": "fp32", "subspace": 4}, WAYS[2] | {"batch": 40}], ids=str)
def test_payloads_are_as_long_as_the_plan_reckons(ways: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**(ways | {"micro_batches": 2, "clip_norm": None}))
    line = pipeline("llama", 2, tokens, spec)
    line.step(0, TOTAL)
    forward, backward = payload_bytes(line.stages[0].shape, spec, spec.batch // 2 * SEQUENCE)
    assert {len(payload) for payload in line.recorders[0].sent.values()} == {forward}
    assert {len(payload) for payload in line.recorders[1].sent.values()} == {backward}


def test_an_envelope_of_four_bits_is_no_longer_than_the_plan_reckons() -> None:
    spec = training(sequence=128, batch=8, micro_batches=2, activations="int4", boundary_gradients="int4")
    shape = inspect_config(resolve(ModelSpec(preset="tiny-llama"), 2048))
    for seed, planned in enumerate(boundary_bytes(shape, spec, 4 * 128)):
        values = torch.randn((4, 128, shape.hidden), generator=torch.Generator().manual_seed(seed))
        assert 0.9 * planned < len(wrap(BoundaryCodec(spec, shape.hidden).encode(values, "forward"))) < 1.02 * planned


@pytest.mark.parametrize(
    "ways", [{}, {"activations": "int4"}, {"activations": "aq4", "boundary_gradients": "int4"}], ids=str
)
def test_four_bits_cross_in_envelopes_and_nothing_else_does(ways: dict[str, Any]) -> None:
    spec = training(**ways)
    expected = {"activation"} if ways else set()
    assert wrapped_kinds(spec) == expected | ({"gradient"} if "boundary_gradients" in ways else set())


def test_a_number_of_eight_bytes_that_begins_like_a_frame_is_none() -> None:
    number = bytes.fromhex("28b52ffd00000000")
    assert unwrap(wrap(number), 100) == number


@pytest.mark.parametrize(
    "ways", [*WAYS, {"activations": "fp32"}, {"activations": "aq4", "sampling": "epochs"}], ids=str
)
def test_no_payload_is_longer_than_what_is_unpacked(ways: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**ways)
    line = pipeline("llama", 2, tokens, spec)
    line.step(0, TOTAL)
    sent = [len(payload) for recorder in line.recorders for payload in recorder.sent.values()]
    assert 0 < max(sent) <= longest_payload(line.stages[0].shape, spec)


def test_losses_with_four_bits_stay_near_those_without(tokens: TokenFile) -> None:
    exact = pipeline("llama", 3, tokens, training(tokens=10_000))
    coarse = pipeline("llama", 3, tokens, training(tokens=10_000, activations="int4", boundary_gradients="int4"))
    last = [(exact.step(step, 30), coarse.step(step, 30)) for step in range(30)][-5:]
    assert sum(a for a, _ in last) < 5 * 5.5
    for without, with_four in last:
        assert abs(with_four - without) < 0.02 * without


@pytest.mark.parametrize("channels", [32, 33, 4096])
def test_a_subspace_as_wide_as_the_model_is_refused(channels: int) -> None:
    with pytest.raises(ModelConfigError, match=f"{channels} of 32 channels"):
        Stage(config_of(), Cut(0, 3, True, True), training(subspace=channels))


def test_a_subspace_is_refused_for_given_weights_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="begins with uploaded weights"):
        Stage(config_of(), Cut(0, 3, True, True), training(subspace=8), tmp_path / "model.safetensors")


def test_a_cut_behind_the_last_layer_is_refused_with_a_subspace() -> None:
    with pytest.raises(ModelConfigError, match="last layer"):
        Stage(config_of(), Cut(0, 3, True, False), training(subspace=8))

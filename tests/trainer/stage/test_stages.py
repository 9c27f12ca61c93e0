"""Cut models against whole ones."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from protocol.boundary import Position
from protocol.job.learning_rate import learning_rate
from protocol.models.model import inspect_config
from tests.trainer.small import FAMILY_CONFIGS, SEQUENCE, VOCABULARY, config_of, cuts, pipeline, training
from trainer.data.data import TokenFile
from trainer.errors import CodecError, NonFiniteError, WeightsError
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate
from trainer.stage.storage import ALIGNMENT

WHOLE = Cut(0, 3, True, True)


@pytest.mark.one_in(9)
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
@pytest.mark.parametrize("stages", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_a_pipeline_and_one_process_agree_over_many_steps(family: str, stages: int, tokens: TokenFile) -> None:
    spec, steps = training(), 50 if family in ("llama", "gpt2") else 10
    line = pipeline(family, stages, tokens, spec)
    whole = Stage(config_of(family), WHOLE, spec)
    for step in range(steps):
        windows, _ = tokens.sample(spec.seed, step, 0, spec.batch)
        expected = accumulate(whole, Position(0, 1), windows, Recorded({}))
        whole.adam_step(learning_rate(spec, step, steps))
        assert line.step(step, steps) == expected
    for stage in line.stages:
        for slot in stage.slots:
            other = next(s for s in whole.slots if s.name == slot.name)
            own = stage.parameters[slot.start : slot.start + slot.count]
            assert torch.equal(own, whole.parameters[other.start : other.start + other.count]), slot.name


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_a_stage_has_as_many_parameters_as_the_arithmetic_says(family: str) -> None:
    config, shape = config_of(family), inspect_config(config_of(family))
    for stages in (1, 2, 3):
        built = [Stage(config, cut, training()) for cut in cuts(3, stages)]
        counts = [stage.parameter_count for stage in built]
        assert counts == [shape.stage_parameters(c.first, c.last, c.is_first, c.is_last) for c in cuts(3, stages)]
        assert sum(counts) == shape.parameters


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_the_whole_stage_computes_what_transformers_computes(family: str, tmp_path: Path) -> None:
    stage = Stage(config_of(family), WHOLE, training())
    save_file(
        {s.name: stage.parameters[s.start : s.start + s.count].view(s.shape) for s in stage.slots}, tmp_path / "w"
    )
    model = AutoModelForCausalLM.from_config(stage.module.config).eval()
    model.load_state_dict(load_file(tmp_path / "w"))
    ids = torch.arange(2 * SEQUENCE).view(2, SEQUENCE)
    with torch.no_grad():
        assert torch.equal(stage.forward(ids), model(input_ids=ids).logits)


def test_a_stage_trains_what_is_random_to_something_better(tokens: TokenFile) -> None:
    spec = training(learning_rate=1e-2)
    line = pipeline("llama", 2, tokens, spec)
    losses = [line.step(step, 60) for step in range(60)]
    assert sum(losses[-5:]) / 5 < losses[0] - 1.0


def test_the_seed_decides_the_weights_and_the_cut_does_not() -> None:
    config = config_of()
    whole, again = Stage(config, WHOLE, training()), Stage(config, WHOLE, training())
    other = Stage(config, WHOLE, training(seed=8))
    assert torch.equal(whole.parameters, again.parameters)
    assert not torch.equal(whole.parameters, other.parameters)


def test_initial_weights_follow_the_families_rules() -> None:
    stage = Stage(config_of("gpt2"), WHOLE, training())
    values = {s.name: stage.parameters[s.start : s.start + s.count] for s in stage.slots}
    assert values["transformer.h.1.mlp.c_fc.weight"].std().item() == pytest.approx(0.02, rel=0.05)
    assert values["transformer.h.1.mlp.c_proj.weight"].std().item() == pytest.approx(0.02 / 6**0.5, rel=0.05)
    assert torch.equal(values["transformer.ln_f.weight"], torch.ones(32))
    assert torch.equal(values["transformer.h.0.attn.c_attn.bias"], torch.zeros(96))


def test_a_config_that_ties_starts_with_a_copied_head_and_trains_it_apart(tokens: TokenFile) -> None:
    stage = Stage(config_of("qwen2"), WHOLE, training())
    slots = {slot.name: slice(slot.start, slot.start + slot.count) for slot in stage.slots}
    head, embedding = slots["lm_head.weight"], slots["model.embed_tokens.weight"]
    assert torch.equal(stage.parameters[head], stage.parameters[embedding])
    accumulate(stage, Position(0, 1), tokens.sample(7, 0, 0, 4)[0], Recorded({}))
    stage.adam_step(1e-3)
    assert not torch.equal(stage.parameters[head], stage.parameters[embedding])


def test_every_tensor_begins_at_a_multiple_of_the_block() -> None:
    stage = Stage(config_of("gpt2"), Cut(1, 3, False, True), training())
    assert all(slot.start % ALIGNMENT == 0 for slot in stage.slots)
    used = torch.zeros(stage.parameters.numel(), dtype=torch.bool)
    for slot in stage.slots:
        used[slot.start : slot.start + slot.count] = True
    assert torch.equal(stage.parameters[~used], torch.zeros(int((~used).sum())))


def test_a_state_that_is_restored_continues_exactly(tokens: TokenFile) -> None:
    spec = training()
    line = pipeline("llama", 1, tokens, spec)
    for step in range(3):
        line.step(step, 10)
    kept = line.stages[0].state()
    expected = [line.step(step, 10) for step in (3, 4)]
    line.stages[0].restore(kept)
    assert kept.digest() == line.stages[0].state_digest()
    assert [line.step(step, 10) for step in (3, 4)] == expected


def test_a_state_of_another_size_is_refused() -> None:
    first, second = (Stage(config_of(), cut, training()) for cut in cuts(3, 2))
    with pytest.raises(CodecError, match="values for a stage of"):
        first.restore(second.state())


def test_gradients_that_are_not_finite_stop_training_before_anything_changes() -> None:
    stage = Stage(config_of(), WHOLE, training())
    before = stage.state_digest()
    stage.gradients[5] = float("nan")
    with pytest.raises(NonFiniteError, match="learning rate"):
        stage.adam_step(1e-3)
    assert stage.state_digest() == before


def test_adamw_is_the_one_of_torch(tokens: TokenFile) -> None:
    spec = training(weight_decay=0.0)
    stage = Stage(config_of(), WHOLE, spec)
    reference = torch.nn.Parameter(stage.parameters.clone())
    optimizer = torch.optim.AdamW([reference], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    for step in range(5):
        accumulate(stage, Position(0, 1), tokens.sample(7, step, 0, 4)[0], Recorded({}))
        reference.grad = stage.gradients.clone()
        optimizer.step()
        stage.adam_step(1e-3)
    assert torch.allclose(stage.parameters, reference.data, rtol=1e-6, atol=1e-7)


def test_an_update_in_parts_gives_the_bits_of_one_in_whole(tokens: TokenFile, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    for values in (1 << 30, 1000):
        monkeypatch.setattr("trainer.stage.stage.CACHED", values)
        line = pipeline("llama", 1, tokens, training(clip_norm=0.5))
        for step in range(3):
            line.step(step, 100)
        ended.append(line.stages[0].state().digest())
        parts = list(line.stages[0].parts(slice(10, 2500)))
        assert (parts[0].start, parts[-1].stop) == (10, 2500)
        assert all(one.stop == next_.start for one, next_ in itertools.pairwise(parts))
    assert ended[0] == ended[1]


def test_norms_and_biases_do_not_decay() -> None:
    stage = Stage(config_of("gpt2"), WHOLE, training(weight_decay=0.5))
    before = stage.state().parameters
    stage.adam_step(1e-2)
    for slot in stage.slots:
        span = slice(slot.start, slot.start + slot.count)
        expected = before[span] * (1 - 0.005) if len(slot.shape) > 1 else before[span]
        assert torch.allclose(stage.parameters[span], expected, rtol=1e-6), slot.name


def test_the_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    spec = training(learning_rate=1.0, warmup_steps=4)
    rates = [learning_rate(spec, step, 100) for step in range(100)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert rates[-1] == pytest.approx(0.1, abs=0.001)
    assert learning_rate(spec, 0, 1) > 0


# --- weights from a file ----------------------------------------------------------------------------------------------


def saved(tmp_path: Path, family: str = "llama", **changes: torch.Tensor | None) -> Path:
    stage = Stage(config_of(family), WHOLE, training(seed=99))
    values = {s.name: stage.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in stage.slots}
    for name, value in changes.items():
        key = name.replace("__", ".")
        if value is None:
            del values[key]
        else:
            values[key] = value
    save_file(values, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_weights_from_a_file_are_those_of_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path)
    whole = Stage(config_of(), WHOLE, training(seed=99))
    for cut in cuts(3, 3):
        stage = Stage(config_of(), cut, training(), path)
        for slot in stage.slots:
            other = next(s for s in whole.slots if s.name == slot.name)
            expected = whole.parameters[other.start : other.start + other.count]
            assert torch.equal(stage.parameters[slot.start : slot.start + slot.count], expected)


def test_a_tied_file_without_a_head_gives_its_embedding_to_the_head(tmp_path: Path) -> None:
    path = saved(tmp_path, "qwen2", lm_head__weight=None)
    stage = Stage(config_of("qwen2"), Cut(2, 3, False, True), training(), path)
    head = next(slot for slot in stage.slots if slot.name == "lm_head.weight")
    assert torch.equal(
        stage.parameters[head.start : head.start + head.count], load_file(path)["model.embed_tokens.weight"].flatten()
    )


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (None, "missing-tensor"),
        (torch.zeros(31), "wrong-shape"),
        (torch.full((32,), float("nan")), "not-finite"),
        (torch.full((32,), float("inf")), "not-finite"),
    ],
)
def test_unusable_weights_are_refused_by_name(tmp_path: Path, value: torch.Tensor | None, code: str) -> None:
    path = saved(tmp_path, model__norm__weight=value)
    with pytest.raises(WeightsError, match=r"norm\.weight") as caught:
        Stage(config_of(), Cut(2, 3, False, True), training(), path)
    assert caught.value.code == code


@pytest.mark.parametrize("content", [b"", b"not safetensors at all", b"\xff" * 64, b"\x10" + b"\0" * 7 + b"{" * 16])
def test_a_broken_weights_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=r"model\.safetensors") as caught:
        Stage(config_of(), WHOLE, training(), path)
    assert caught.value.code == "bad-safetensors"


def test_small_tokens_are_within_the_small_vocabulary(tokens: TokenFile) -> None:
    assert int(tokens.sample(0, 0, 0, 64)[0].max()) < VOCABULARY

"""A frozen model in 4 or 8 bits: what is kept of it, what learns beside it, and that it runs again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from coordinator.domain.placement import stage_memory
from protocol.audit import OperationRecord, ends_segment
from protocol.boundary import Position
from protocol.job.job import LoraSpec, ModelSpec
from protocol.models.model import QUANTIZED_BYTES, inspect_config, resolve
from protocol.task import Layers
from tests.trainer.files.test_families import IDS, WHOLE, published, theirs
from tests.trainer.small import FAMILY_CONFIGS, Pipeline, commit_round, config_of, cuts, training
from trainer.data.data import TokenFile
from trainer.operations.judge import ALLOWED
from trainer.operations.tracer import Tracer, record_of
from trainer.outer.inner_update import update
from trainer.stage.quantized import BLOCK, QuantizedMatrix, matrices, quantized
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate

KINDS = ["nf4", "int8"]
HERE = torch.device("cpu")
# Table 14 of arXiv 2305.14314, to four digits.
NF4 = [-1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0]
NF4 += [0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1]


def lora(kind: Any, **more: Any) -> LoraSpec:
    return LoraSpec(rank=4, alpha=8.0, quantize=kind, **more)


def hub(family: str, folder: Path) -> Path:
    published(theirs(family, tie=False), folder)
    return folder


def adapted(family: str, weights: Path, kind: str, stages: int, tokens: TokenFile, **changes: Any) -> Pipeline:
    config = config_of(family) | {"cottage_head_starts_tied": False}
    spec = training(**({"lora": lora(kind)} | changes))
    return Pipeline([Stage(config, cut, spec, weights) for cut in cuts(3, stages)], tokens)


def test_four_bits_name_the_published_levels_and_eight_equal_steps() -> None:
    block = torch.tensor([*NF4, *[0.0] * 48]) * 3.0
    assert quantized(block, 4, HERE).values() == pytest.approx(block, abs=3e-3)
    steps = torch.arange(-127, 128).float()
    found = torch.cat([quantized(steps[i : i + BLOCK], 8, HERE).values() for i in range(0, 255, BLOCK)])
    assert found == pytest.approx(steps, abs=0.51)


@pytest.mark.parametrize(("kind", "bits", "error"), [("nf4", 4, 0.093), ("int8", 8, 0.007)])
def test_a_matrix_takes_what_is_said_and_stays_near(kind: str, bits: Any, error: float) -> None:
    values = torch.randn(1000, 257, generator=torch.Generator().manual_seed(1)) * 0.02
    matrix = quantized(values, bits, HERE)
    assert matrix.bytes / values.numel() == pytest.approx(QUANTIZED_BYTES[kind], rel=0.001)
    made = matrix.values()
    assert made.shape == values.shape
    assert float((made - values).norm() / values.norm()) < error
    blocks = nn.functional.pad(values.flatten(), (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    over = nn.functional.pad(made.flatten(), (0, -values.numel() % BLOCK)).view(-1, BLOCK)
    most = blocks.abs().amax(dim=1)
    assert bool((over.abs().amax(dim=1) <= most + blocks.abs().amax() / 250).all()), "scales are rounded up by one step"
    assert torch.equal(matrix.values(torch.bfloat16), made.to(torch.bfloat16))


@pytest.mark.parametrize("bits", [4, 8])
def test_noughts_one_value_and_great_differences_of_blocks(bits: Any) -> None:
    assert torch.equal(quantized(torch.zeros(130), bits, HERE).values(), torch.zeros(130))
    assert quantized(torch.tensor([-5.0]), bits, HERE).values().item() == pytest.approx(-5.0)
    values = torch.cat([torch.full((BLOCK,), 1e-3), torch.full((BLOCK,), 100.0)])
    made = quantized(values, bits, HERE).values()
    assert float(made[-1]) == pytest.approx(100.0)
    assert float((made[:BLOCK] - values[:BLOCK]).abs().max()) <= 100 / 250, "as coarse as a step of the group's scales"


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_a_stage_computes_what_transformers_does_with_the_same_values(
    family: str, kind: str, tmp_path: Path, tokens: TokenFile
) -> None:
    weights = hub(family, tmp_path / "hub")
    line = adapted(family, weights, kind, 1, tokens)
    (stage,) = line.stages
    held = dict(matrices(stage.module))
    assert len(held) == 3 * len(stage.shape.linears)
    model = AutoModelForCausalLM.from_pretrained(weights, experts_implementation="eager")
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, matrix in held.items():
            own[name].copy_(matrix.values())
    due = model(input_ids=IDS[:, :-1], use_cache=False).logits
    assert torch.allclose(stage.forward(IDS[:, :-1]), due, atol=1e-5)


def test_an_embedding_of_whole_blocks_is_looked_up_in_eight_bits(tmp_path: Path, tokens: TokenFile) -> None:
    config = config_of() | {"hidden_size": 64, "cottage_head_starts_tied": False}
    whole = Stage(config, WHOLE, training())
    save_file(
        {s.name: whole.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in whole.slots},
        tmp_path / "w",
    )
    stage = Stage(config, WHOLE, training(lora=lora("nf4")), tmp_path / "w")
    (held,) = (m for name, m in matrices(stage.module) if "embed" in name)
    assert held.bits == 8
    ids = torch.tensor([[1, 5, 299], [0, 7, 7]])
    rows = stage.module.get_submodule("model.embed_tokens")(ids)
    assert torch.equal(rows, held.values()[ids])
    assert torch.isfinite(stage.forward(IDS[:, :-1])).all()


def test_adapters_get_the_gradients_of_the_wide_model(tmp_path: Path, tokens: TokenFile) -> None:
    weights = hub("llama", tmp_path / "hub")
    (stage,) = adapted("llama", weights, "nf4", 1, tokens).stages
    values = load_file(weights / "model.safetensors")
    save_file(values | {n: m.values() for n, m in matrices(stage.module)}, tmp_path / "wide.safetensors")
    (other,) = adapted("llama", tmp_path / "wide.safetensors", "none", 1, tokens).stages
    stage.parameters.add_(0.05)
    other.parameters.add_(0.05)
    for each in (stage, other):
        each.loss(each.forward(IDS[:, :-1]), IDS[:, 1:]).backward()
    assert float(other.gradients.abs().max()) > 0.01
    assert torch.allclose(stage.gradients, other.gradients, rtol=1e-4, atol=1e-6)


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16"},
        {"memory": "lean", "precision": "bf16", "clip_norm": 0.5},
        {"recompute": True},
        {"schedule": "zero-bubble"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", [0, 1])
def test_a_step_runs_again_bit_for_bit(
    stage: int, kind: str, changes: dict[str, Any], tmp_path: Path, tokens: TokenFile
) -> None:
    weights = hub("llama", tmp_path / "hub")
    line = adapted("llama", weights, kind, 2, tokens, **changes)
    done = commit_round(line, stage, 2, 10)
    spec = line.stages[0].training
    again = Stage(config_of(), line.stages[stage].cut, spec, weights, initialise=False, beside=line.stages[stage])
    for fresh in (again, Stage(config_of(), line.stages[stage].cut, spec, weights, initialise=False)):
        fresh.restore(done.trace.states[1])
        recorder = Recorder(Recorded(done.trace.payloads[1]))
        accumulate(fresh, Position(stage, 2), tokens.sample(spec.seed, 1, 0, spec.batch)[0], recorder)
        update(fresh, Position(stage, 2), recorder, 1, 10)
        if ends_segment(1, spec.commit_every, 2):
            fresh.shorten(done.trace.anchor)
        assert fresh.state_digest() == done.trace.leaves[1].after


def test_a_second_stage_takes_no_second_model(tmp_path: Path, tokens: TokenFile) -> None:
    (stage,) = adapted("llama", hub("llama", tmp_path / "hub"), "nf4", 1, tokens).stages
    again = Stage(config_of(), stage.cut, stage.training, initialise=False, beside=stage)
    first, second = (dict(matrices(each.module)) for each in (stage, again))
    assert [m.codes.data_ptr() for m in first.values()] == [m.codes.data_ptr() for m in second.values()]
    assert again.operations_per_token == stage.operations_per_token > 4 * stage.shape.layer_parameters


@pytest.mark.parametrize("kind", KINDS)
def test_a_dispute_knows_every_operation(kind: str, tmp_path: Path, tokens: TokenFile) -> None:
    (stage,) = adapted("llama", hub("llama", tmp_path / "hub"), kind, 1, tokens).stages
    windows, _ = tokens.sample(stage.training.seed, 0, 0, stage.training.batch)
    tracer = Tracer()
    with tracer.recording(stage.module, {}):
        accumulate(stage, Position(0, 1), windows, Recorded({}))
    records: list[OperationRecord] = [record_of(leaf) for leaf in tracer.leaves]
    names = {record.name.split(".")[1] for record in records if record.name.startswith("aten.")}
    assert {"index_select", "mul_"} <= names or kind == "int8"
    assert names <= ALLOWED


def test_losses_are_near_those_beside_the_wide_model_and_nearer_in_eight_bits(
    tmp_path: Path, tokens: TokenFile
) -> None:
    weights = hub("llama", tmp_path / "hub")
    losses = {}
    for kind in ("none", *KINDS):
        line = adapted("llama", weights, kind, 2, tokens, learning_rate=1e-2)
        losses[kind] = torch.tensor([line.step(step, 20) for step in range(20)])
    away = {kind: float((losses[kind] - losses["none"]).abs().max()) for kind in KINDS}
    assert 0 < away["int8"] < away["nf4"] < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planned_is_what_is_held(kind: Any, tmp_path: Path) -> None:
    config = resolve(ModelSpec(config=FAMILY_CONFIGS["llama"] | {"hidden_size": 128, "intermediate_size": 320}), 300)
    whole = Stage(config, WHOLE, training())
    save_file(
        {s.name: whole.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in whole.slots},
        tmp_path / "w",
    )
    stage = Stage(config, WHOLE, training(lora=lora(kind)), tmp_path / "w")
    held = sum(v.bytes if isinstance(v, QuantizedMatrix) else 4 * v.numel() for v in stage.frozen().values())
    shape = stage.shape
    moment = shape.frozen_bytes(0, False, False, lora(kind), 4.0)
    assert shape.frozen_bytes(3, True, True, lora(kind), 4.0) - moment == pytest.approx(held, rel=0.005)
    assert sum(v.numel() for v in stage.frozen().values()) == shape.parameters


LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}


def test_eight_billion_fit_a_card_of_eight_gigabytes() -> None:
    """In 0.65 bytes a parameter; without the 4 bits it takes more than a card of 24 GB."""
    shape = inspect_config(resolve(ModelSpec(config=LLAMA_3_8B), 128_256))
    spec = training(lora=lora("nf4"), memory="lean", precision="bf16", sequence=1024, batch=4, micro_batches=4)
    held = shape.frozen_bytes(32, True, True, spec.lora, 2.0) - shape.frozen_bytes(0, False, False, spec.lora, 2.0)
    assert held / shape.parameters < 0.65
    whole = [Layers(0, 32)]
    assert stage_memory(shape, spec, whole, 0, card=True) < 7_600 << 20
    plain = training(lora=lora("none"), memory="lean", precision="bf16", sequence=1024, batch=4, micro_batches=4)
    assert stage_memory(shape, plain, whole, 0, card=True) > 15_000 << 20

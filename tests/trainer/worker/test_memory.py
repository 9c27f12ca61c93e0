"""What a stage is thought to need, against what torch keeps."""

import weakref
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coordinator.domain.placement import stage_memory
from coordinator.domain.placement.layers import BASE_CARD, BASE_MEMORY
from protocol.job.job import LoraSpec, ModelSpec, TrainingSpec
from protocol.models.model import LEAN_LOGITS, LEAN_PART, inspect_config, resolve
from protocol.task import Layers
from tests.support.published_configs import LLAMA_3_2_1B
from tests.trainer.files.test_families import published, theirs
from tests.trainer.small import FAMILY_CONFIGS, training
from trainer.codecs import coarse, framing
from trainer.outer import OuterState, outer_method
from trainer.outer.method import FromContributions, Layout
from trainer.outer.shards import reduce_shard
from trainer.stage import short
from trainer.stage import stage as stages
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.storage import Slot

ROWS, SEQUENCE = 2, 64


def kept_bytes(stage: Stage) -> int:
    """Bytes of all storages that one forward pass keeps for its backward pass, parameters and tables excepted."""
    own = {stage.parameters.untyped_storage().data_ptr()} | {
        b.untyped_storage().data_ptr() for b in stage.module.buffers()
    }
    found: dict[int, tuple[int, torch.Tensor]] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    inputs = torch.randn(ROWS, SEQUENCE, stage.shape.hidden, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stage.forward(inputs)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_what_layers_keep_is_estimated_within_a_tenth(family: str) -> None:
    width = {"n_embd": 128} if family == "gpt2" else {"hidden_size": 128, "intermediate_size": 320}
    config = resolve(ModelSpec(config=FAMILY_CONFIGS[family] | width), 300)
    stage = Stage(config, Cut(1, 3, False, False), training(sequence=SEQUENCE))
    tokens = ROWS * SEQUENCE
    estimate = stage.shape.stage_memory_bytes(0, False, 2, tokens, SEQUENCE)
    assert estimate == pytest.approx(kept_bytes(stage), rel=0.1)


def test_sixteen_bits_keep_less_and_never_more() -> None:
    config = resolve(ModelSpec(config=FAMILY_CONFIGS["llama"]), 300)
    wide, narrow = (
        kept_bytes(Stage(config, Cut(1, 3, False, False), training(precision=precision)))
        for precision in ("fp32", "bf16")
    )
    assert 0.5 * wide < narrow < 0.95 * wide


def held_bytes(stage: Stage) -> int:
    """Bytes of all that a stage holds, each storage once."""
    tensors = [value for value in vars(stage).values() if isinstance(value, torch.Tensor)]
    tensors += [*stage.module.parameters(), *stage.module.buffers()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


class Peak(TorchDispatchMode):
    """The most bytes of large tensors that operations made and that were alive together."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.most = least, 0
        self._alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in known:
                self._alive.add(tensor)
        alive = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self._alive}
        self.most = max(self.most, sum(size for size in alive.values() if size >= self.least))
        return made


@pytest.mark.one_in(4)
@pytest.mark.parametrize("targets", [(), ("first",)], ids=["all", "one"])
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_what_learns_beside_a_frozen_model_is_counted_without_torch(
    family: str, targets: tuple[str, ...], tmp_path: Any
) -> None:
    config = resolve(ModelSpec(config=FAMILY_CONFIGS[family]), 300)
    shape = inspect_config(config)
    lora = LoraSpec(rank=3, targets=(shape.linears[0][0],) if targets else ())
    weights = published(theirs(family, tie=False), tmp_path)
    cut = Cut(1, 3, False, True)
    stage = Stage(config, cut, training(lora=lora), weights)
    learnt, frozen = shape.stage_learns(1, 3, False, True, lora)
    assert stage.parameter_count == learnt
    assert sum(value.numel() for value in stage.frozen().values()) == frozen
    assert shape.stage_learns(1, 3, False, True, None) == (frozen, 0)
    again = Stage(config, cut, training(lora=lora), initialise=False, beside=stage)
    shared = {value.data_ptr() for value in stage.frozen().values()}
    assert {value.data_ptr() for value in again.frozen().values()} == shared, "a second stage takes no second model"


@pytest.mark.parametrize("lora", [None, LoraSpec(rank=8)], ids=["all", "adapters"])
def test_a_stage_holds_five_vectors_of_what_learns_and_one_of_what_does_not(
    lora: LoraSpec | None, tmp_path: Any
) -> None:
    width = {"hidden_size": 128, "intermediate_size": 320, "vocab_size": 300}
    config = resolve(ModelSpec(config=FAMILY_CONFIGS["llama"] | width), 300)
    whole = Stage(config, Cut(0, 3, True, True), training())
    weights = tmp_path / "model.safetensors"
    values = {
        slot.name: whole.parameters[slot.start : slot.start + slot.count].view(slot.shape) for slot in whole.slots
    }
    save_file({name: value.clone() for name, value in values.items()}, weights)
    stage = Stage(config, Cut(0, 3, True, True), training(lora=lora), weights)
    learnt, frozen = stage.shape.stage_learns(0, 3, True, True, lora)
    assert held_bytes(stage) == pytest.approx(4 * (5 * learnt + frozen), rel=0.02)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_an_optimizers_step_takes_at_most_one_vector_for_a_moment_where_it_goes_over_all_at_once(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "CACHED", 1 << 40)  # As on a graphics card.
    config = resolve(ModelSpec(config=FAMILY_CONFIGS["llama"] | {"hidden_size": 128, "intermediate_size": 320}), 300)
    stage = Stage(config, Cut(0, 3, True, True), training(optimizer=optimizer))
    stage.gradients.fill_(0.5)
    size = stage.parameters.untyped_storage().nbytes()
    with Peak(size // 1000) as peak:
        stage.adam_step(0.1)
    assert 0 < peak.most <= 1.05 * size


def test_adapters_keep_less_than_is_thought() -> None:
    config = resolve(ModelSpec(config=FAMILY_CONFIGS["llama"] | {"hidden_size": 128, "intermediate_size": 320}), 300)
    spec = training(sequence=SEQUENCE, lora=LoraSpec(rank=8))
    whole = Stage(config, Cut(1, 3, False, False), training(sequence=SEQUENCE))
    values = {
        slot.name: whole.parameters[slot.start : slot.start + slot.count].view(slot.shape) for slot in whole.slots
    }
    stage = Stage(config, Cut(1, 3, False, False), spec, initialise=False, beside=_Frozen(values))  # type: ignore[arg-type]
    tokens = ROWS * SEQUENCE
    estimate = stage.shape.stage_memory_bytes(0, False, 2, tokens, SEQUENCE)
    estimate += 4 * 2 * stage.shape.adapter_values(spec.lora) * tokens
    frozen = sum(value.numel() * 4 for value in values.values())
    assert 0.5 * estimate < kept_bytes(stage) - frozen < estimate


class _Frozen:
    """Stands for a stage whose parameters are all frozen."""

    def __init__(self, values: dict[str, torch.Tensor]) -> None:
        self._values = values

    def frozen(self) -> dict[str, torch.Tensor]:
        return self._values


SMALL = TrainingSpec(sequence=512, batch=4, micro_batches=4)


def planned(spec: TrainingSpec, card: bool) -> float:
    """Gigabytes of a model of 1.5 billion parameters, its head apart from its embedding, as one stage."""
    shape = inspect_config(LLAMA_3_2_1B)
    return stage_memory(shape, spec, [Layers(0, shape.layers)], 0, card) / 1e9


def test_adapters_of_a_billion_parameters_are_planned_with_the_memory_that_they_take() -> None:
    adapters = msgspec.structs.replace(SMALL, lora=LoraSpec(rank=16))
    parameters = inspect_config(LLAMA_3_2_1B).parameters / 1e9
    for card, base in ((False, BASE_MEMORY), (True, BASE_CARD)):
        full, thin = planned(SMALL, card), planned(adapters, card)
        assert 4 * parameters + base / 1e9 < thin < 4 * parameters + base / 1e9 + 6
        assert thin < full / 4


def test_a_card_is_planned_with_what_lies_on_it() -> None:
    shape = inspect_config(LLAMA_3_2_1B)
    tokens = shape.stage_memory_bytes(0, True, shape.layers, 512, 512)

    def vectors(stages: int = 1, **changes: Any) -> float:
        spec = msgspec.structs.replace(SMALL, **changes)
        return (planned(spec, True) * 1e9 - BASE_CARD - stages * tokens) / (4 * shape.parameters)

    # Nobody of another class can look at what its steps came to, and the only state of a round is its first one.
    alone = {"outer": "streaming", "overlap": 2, "commit_every": 20}
    assert vectors(**alone) == pytest.approx(6)
    assert vectors(**alone, clip_norm=1.0) == pytest.approx(7)
    assert vectors(2) == pytest.approx(6 + 5), "showing what a segment came to takes a second stage"
    assert vectors(2, **alone | {"commit_every": 1}) == pytest.approx(6 + 5), "so does a state that was not kept"
    assert vectors(outer="gradients", commit_every=20) == pytest.approx(6 + 3)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_lean_card_is_planned_with_what_lies_on_it(optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = inspect_config(LLAMA_3_2_1B)
    lean = msgspec.structs.replace(SMALL, memory="lean", precision="bf16", optimizer=optimizer, clip_norm=1.0)
    one_layer = shape.stage_memory_bytes(0, False, 1, 512, 512)
    inputs = 4 * shape.layers * shape.hidden * 512
    moment = 4 * (10 * LEAN_PART + 4 * LEAN_LOGITS)
    each = (planned(lean, True) * 1e9 - BASE_CARD - one_layer - inputs - moment) / shape.parameters
    config = resolve(ModelSpec(config=FAMILY_CONFIGS["llama"] | {"hidden_size": 256, "intermediate_size": 640}), 300)
    stage = Stage(config, Cut(0, 3, True, True), training(memory="lean", precision="bf16", optimizer=optimizer))
    assert 0.99 < each / (held_bytes(stage) / stage.size) < (1.03 if optimizer == "adamw" else 1.16)
    assert each < 10
    monkeypatch.setattr(stages, "CACHED", 1 << 14)  # As a part on a card.
    stage.gradients.fill_(0.5)
    with Peak(1 << 12) as peak:
        stage.adam_step(0.1)
    if optimizer == "adamw":
        assert peak.most < 4 * 10 * (1 << 14)


def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes part by part, as of a stage a hundred times as large."""
    monkeypatch.setattr(short, "_PART", 1 << 12)
    monkeypatch.setattr(coarse, "AT_ONCE", 1 << 12)
    monkeypatch.setattr(framing, "AT_ONCE", 1 << 12)


LEAN_COARSE = training(memory="lean", precision="bf16", pseudo_gradient="coarse", outer_momentum=0.5)
LENGTH = 1 << 17


@pytest.mark.parametrize("count", [1, 4])
def test_a_contribution_takes_a_byte_a_value_what_is_sent_and_what_is_carried_over(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_small_parts(monkeypatch)
    method = outer_method(LEAN_COARSE, [Slot("whole", (LENGTH,), 0, LENGTH)], LENGTH)
    anchor = torch.randn(LENGTH)
    local = method.fresh(OuterState.first(anchor, LEAN_COARSE))
    codes = torch.randint(-15, 16, (LENGTH,), dtype=torch.int8)
    moved = short.ShortValues(anchor, codes, torch.ones(LENGTH // 64).bfloat16())
    with Peak(LENGTH // 8) as peak:
        made = method.contribution(anchor, moved, local, 0, count)
    # The levels of a shard, that shard of the anchor and of what is said in short, and the residual.
    assert peak.most < 2.5 * LENGTH + (0 if count == 1 else 2 * 7.5 * LENGTH / count)
    whole = method.contribution(anchor, moved.values(), local, 0, count)
    assert made.pieces == whole.pieces
    assert all(torch.equal(made.local[name], vector) for name, vector in whole.local.items())
    again = method.contribution(anchor, moved, made.local, 1, count)
    assert again.pieces == method.contribution(anchor, moved.values(), made.local, 1, count).pieces
    if count == 1:
        assert method.decode_update(made.data, 0).count_nonzero() > LENGTH // 10


def test_an_outer_step_takes_the_new_state_and_a_byte_a_value_of_each_update(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_parts(monkeypatch)
    method = outer_method(LEAN_COARSE, [Slot("whole", (LENGTH,), 0, LENGTH)], LENGTH)
    state = OuterState.first(torch.randn(LENGTH), LEAN_COARSE)
    given = {replica: method.encode_update(torch.randn(LENGTH), 0) for replica in range(2)}
    with Peak(LENGTH // 8) as peak:
        after = method.apply(state, given, 0)
    assert peak.most < (2 + 2 + 2 * 1 + 0.5) * LENGTH
    assert after.anchor.dtype == after.momentum.dtype == torch.bfloat16
    mean, left_out = method.combining.combine({p: method.decode_update(data, 0) for p, data in given.items()})
    whole = method.step(state, mean, left_out, 0)
    assert (whole.digest(), whole.left_out) == (after.digest(), after.left_out)


def test_the_results_of_shards_become_the_new_state_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    in_small_parts(monkeypatch)
    size = LENGTH + 64 * 3  # Shards of unequal length.
    slots = [Slot("first", (70,), 0, 70), Slot("rest", (size - 200,), 128, size - 200)]
    method = outer_method(LEAN_COARSE, slots, size)
    state = OuterState.first(Layout(tuple(slots), size).clear(torch.randn(size)), LEAN_COARSE)
    results = {}
    for place, replica in enumerate((0, 2, 3, 5)):
        shards, free = method.shards(0, 4), method.free(0)
        update = torch.randn(size)
        parts = {p: shards.encode(update + p)[place] for p in range(3)}
        results[replica] = reduce_shard(shards, place, parts, method.combining, shards.take(free, place), None).data
    with Peak(LENGTH // 8) as peak:
        after = method.apply_results(state, results, 0, False)
    assert peak.most < (2 + 2 + 1 + 0.5) * size
    whole = FromContributions.apply_results(method, state, results, 0, False)
    assert (whole.digest(), whole.left_out) == (after.digest(), after.left_out)
    assert not after.anchor[70:128].any()

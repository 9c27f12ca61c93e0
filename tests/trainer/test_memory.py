"""What a stage is thought to need, against what torch keeps."""

import pytest
import torch

from tests.trainer.small import FAMILY_CONFIGS, training
from trainer.model import Cut
from trainer.stage import Stage
from transport.wire.job import ModelSpec
from transport.wire.model import resolve

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

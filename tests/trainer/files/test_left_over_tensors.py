"""Tensors that a config does not ask for: those that transformers leaves out in silence pass, those that it warns of are told."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from coordinator.errors import InvalidError
from coordinator.services.artifacts.weight_index import check_fit
from protocol.job.job import ModelSpec
from protocol.models.families import FAMILY
from protocol.models.model import resolve
from tests.trainer.files.test_config_keys import theirs
from tests.trainer.small import FAMILY_CONFIGS

LEFT = {
    "llama": "self_attn.rotary_emb.inv_freq",
    "gpt_neox": "attention.masked_bias",
    "gpt2": "attn.bias",
}
BESIDE = "score.weight"


def said(config: dict[str, Any], file: Path) -> str:
    resolved = resolve(ModelSpec(config=config, weights="0" * 64), 259)
    try:
        return check_fit(resolved, [("a file", file)])
    except InvalidError as error:
        return error.detail


@pytest.mark.parametrize("family", LEFT)
def test_transformers_warns_of_the_same_tensors(family: str, tmp_path: Path) -> None:
    known = FAMILY[family]
    config = {"vocab_size": 312, "pad_token_id": None} | FAMILY_CONFIGS[family]
    theirs(config).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    layer = f"{known.prefix}{known.layers}"
    last = next(name for name in tensors if name.startswith(f"{layer}2.") and name.endswith(".weight"))
    foreign = last.replace(f"{layer}2.", f"{layer}3.")
    for name, told in ((f"{layer}1.{LEFT[family]}", False), (BESIDE, True), (foreign, True)):
        save_file(tensors | {name: torch.ones(3)}, file, {"format": "pt"})
        _, loading = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        assert (name in loading["unexpected_keys"]) == told, name
        assert (repr(name) in said(config, file)) == told, name

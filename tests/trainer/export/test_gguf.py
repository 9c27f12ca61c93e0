"""A finished folder as one GGUF file: llama.cpp takes the same tokens, and says the same, as transformers does."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.smollm2 import smollm2  # noqa: F401 - the model is a fixture
from tests.support.special_tokens import KNOWN, Known, written
from tests.trainer.export.llama_cpp import answers, needs_llama_cpp
from tests.trainer.files.test_config_keys import theirs
from tests.trainer.small import FAMILY_CONFIGS
from trainer.__main__ import main
from trainer.errors import WeightsError
from trainer.export.gguf_export import FAMILIES, TYPES, write_gguf

PROMPTS = ("a quick brown fox jumps", "0123456789 don't  stop\n\nthe lazy dog;", "Ünïcode ≈ 漢字 🦊 <|im_start|>")
QUESTION = [{"role": "user", "content": "What is the capital of France? One word, not 12345."}]
COUNT = 12
FIXED: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": 200},
    "phi3": {"sliding_window": 200},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    "gemma3_text": {"num_hidden_layers": 6, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
}
"""What llama.cpp has fixed, and the small configs otherwise."""
TOKENIZERS = {"gemma2": "gemma 3", "gemma3_text": "gemma 3", "mistral": "mistral"}


def folder_of(family: str, known: Known, folder: Path, **changes: Any) -> Path:
    written(known, folder)
    if known.settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(known.settings))
    config = FAMILY_CONFIGS[family] | FIXED.get(family, {}) | changes
    # Some families have numbers of their own.
    nothing = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    theirs({"vocab_size": 312, **nothing, "max_position_embeddings": 256} | config).save_pretrained(folder)
    return folder


def greedy(folder: Path, prompt: str) -> tuple[list[int], list[int]]:
    """What transformers makes of a prompt, whose tokens are the ones that the model learns from."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(prompt).ids
    ids = torch.tensor([tokens])
    for _ in range(COUNT):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    return tokens, ids[0, len(tokens) :].tolist()


@needs_llama_cpp
def test_a_model_of_each_family_says_the_same_in_llama_cpp(tmp_path: Path) -> None:
    asked, folders = [], {}
    for number, family in enumerate(FAMILIES):
        # A model that is called phi3 has to have phi3's own tokens there.
        folder = folder_of(family, KNOWN[TOKENIZERS.get(family, "qwen 2.5 instruct")], tmp_path / str(number))
        write_gguf(folder, tmp_path / f"{family}.gguf", "f32")
        asked.append((tmp_path / f"{family}.gguf", PROMPTS))
        folders[family] = folder
    for (family, folder), (_, said) in zip(folders.items(), answers(asked, COUNT), strict=True):
        expected = [greedy(folder, prompt) for prompt in PROMPTS]
        assert [(one.tokens, one.next) for one in said] == expected, family


LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 512,  # In longer contexts llama.cpp takes the long factors from the first token on.
    "short_factor": [1.0, 1.3],
    "long_factor": [1.5, 4.0],
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a stretched Llama 3": ("llama", {"rope_parameters": LLAMA_3_ROPE, "head_dim": 16}),
    "biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "a padded vocabulary": ("qwen3", {"vocab_size": 384}),
    "a stretched Phi 3, half of it turned": (
        "phi3",
        {
            "rope_parameters": LONG_ROPE | {"partial_rotary_factor": 0.5},
            "original_max_position_embeddings": 512,
            "max_position_embeddings": 2048,
            "sliding_window": None,
        },
    ),
    "GPT-2 of an inner width of its own": ("gpt2", {"n_inner": 96}),
    "Pythia with one half after the other": ("gpt_neox", {"use_parallel_residual": False}),
    "a head of its own": ("gemma3_text", {"tie_word_embeddings": False}),
}


@pytest.mark.long
@needs_llama_cpp
def test_what_configs_of_a_family_differ_in_is_the_same_in_llama_cpp(tmp_path: Path) -> None:
    asked, folders = [], []
    for name, (family, changes) in VARIANTS.items():
        folder = folder_of(family, KNOWN[TOKENIZERS.get(family, "gpt-2")], tmp_path / name, **changes)
        write_gguf(folder, tmp_path / f"{name}.gguf", "f32")
        asked.append((tmp_path / f"{name}.gguf", PROMPTS))
        folders.append(folder)
    for folder, (_, said) in zip(folders, answers(asked, COUNT), strict=True):
        assert [(one.tokens, one.next) for one in said] == [greedy(folder, one) for one in PROMPTS], folder.name


@needs_llama_cpp
def test_tokens_and_special_ones_are_those_of_the_tokenizers_that_everybody_has(tmp_path: Path) -> None:
    asked = []
    for name, known in KNOWN.items():
        folder = folder_of("llama", known, tmp_path / name)
        write_gguf(folder, tmp_path / f"{name}.gguf", "f16")
        asked.append((tmp_path / f"{name}.gguf", [*PROMPTS, f"fox{known.end}dog"]))
    for (file, prompts), (metadata, said) in zip(asked, answers(asked, 1), strict=True):
        tokenizer = Tokenizer.from_file(str(tmp_path / file.stem / "tokenizer.json"))
        assert [one.tokens for one in said] == [tokenizer.encode(one).ids for one in prompts], file.stem
        begins = bool(KNOWN[file.stem].settings.get("add_bos_token"))
        assert metadata["tokenizer"]["ggml"]["add_bos_token"] == begins, file.stem
        assert metadata["tokenizer"].get("chat_template") == KNOWN[file.stem].settings.get("chat_template")


@needs_llama_cpp
@pytest.mark.long
def test_a_published_model_answers_as_before(tmp_path: Path, smollm2: Path) -> None:  # noqa: F811
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    chat = str(tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True))
    files = {kind: tmp_path / f"{kind}.gguf" for kind in TYPES if kind != "f32"}
    for kind, file in files.items():
        assert main(["gguf", "--model", str(smollm2), "--type", kind, "--out", str(file)]) == 0
    expected = [greedy(smollm2, prompt) for prompt in (chat, "Once upon a time")]
    found = dict(
        zip(files, answers([(file, (chat, "Once upon a time")) for file in files.values()], COUNT), strict=True)
    )
    for kind in ("f16", "bf16"):
        metadata, said = found[kind]
        assert [(one.tokens, one.next) for one in said] == expected, kind
        assert metadata["tokenizer"]["chat_template"] == tokenizer.chat_template
    assert "Paris" in tokenizer.decode(found["q8_0"][1][0].next)
    sizes = {kind: file.stat().st_size for kind, file in files.items()}
    assert sizes["f16"] == pytest.approx(269e6, rel=0.01)
    assert sizes["q8_0"] == pytest.approx(143e6, rel=0.02)


@pytest.mark.parametrize(
    ("family", "changes", "says"),
    [
        ("smollm3", {"no_rope_layers": [1, 0, 1, 1]}, "the order of its layers"),
        ("gemma2", {"layer_types": ["full_attention"] * 3}, "the order of its layers"),
        ("gemma2", {"query_pre_attn_scalar": 7}, "its scale of attention 7"),
        ("gemma2", {"tie_word_embeddings": False}, "a head that is not its embedding"),
        ("llama", {"hidden_act": "relu"}, "its activation relu"),
        ("qwen3_moe", {"norm_topk_prob": False}, "experts whose shares do not add up to one"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "the order of its layers"),
        ("gpt2", {"activation_function": "relu"}, "its activation relu"),
        ("gpt2", {"scale_attn_weights": False}, "scores of attention as they are"),
        ("gpt_neox", {"attention_bias": False}, "attention without biases"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_refused(
    tmp_path: Path, family: str, changes: dict[str, Any], says: str
) -> None:
    folder = folder_of(family, KNOWN["gpt-2"], tmp_path / "model", **changes)
    with pytest.raises(WeightsError, match=says):
        write_gguf(folder, tmp_path / "model.gguf", "f16")
    assert not (tmp_path / "model.gguf").exists()


def test_a_family_without_a_row_is_told_with_those_that_have_one(tmp_path: Path) -> None:
    assert FAMILIES.keys() == FAMILY_CONFIGS.keys(), "all that are trained"
    (tmp_path / "config.json").write_text('{"model_type": "opt"}')
    with pytest.raises(WeightsError, match=r"granite, .* and this is opt: .*convert_hf_to_gguf.py may know it"):
        write_gguf(tmp_path, tmp_path / "model.gguf", "f16")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "a tokenizer that changes texts first .Lowercase."),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "the way in which this tokenizer splits texts"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}, "a tokenizer of the kind WordLevel"),
    ],
)
def test_a_tokenizer_that_llama_cpp_has_not_is_refused(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    folder = folder_of("llama", KNOWN["gpt-2"], tmp_path / "model")
    document = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(document | changes))
    with pytest.raises(WeightsError, match=says):
        write_gguf(folder, tmp_path / "model.gguf", "f16")


def test_an_adapter_alone_and_numbers_beyond_f16_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    asked = ["gguf", "--out", str(tmp_path / "model.gguf"), "--model"]
    assert main([*asked, str(tmp_path / "adapter")]) == 3
    assert (
        "download it with what it adapts (--merged)" in json.loads(capsys.readouterr().err.splitlines()[-1])["detail"]
    )
    model = theirs(FAMILY_CONFIGS["llama"] | {"vocab_size": 312})
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 70_000.0
    written(KNOWN["gpt-2"], tmp_path / "large")
    model.save_pretrained(tmp_path / "large")
    assert main([*asked, str(tmp_path / "large")]) == 3
    assert "beyond what f16 holds (65,504): take bf16" in capsys.readouterr().err
    assert [*tmp_path.glob("*gguf*")] == []
    assert main([*asked, str(tmp_path / "large"), "--type", "bf16"]) == 0


def test_what_is_missing_or_no_number_makes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(model: Path, out: Path = tmp_path / "model.gguf") -> str:
        assert main(["gguf", "--model", str(model), "--out", str(out)]) == 3
        return str(json.loads(capsys.readouterr().err.splitlines()[-1])["detail"])

    good = folder_of("qwen3_moe", KNOWN["gpt-2"], tmp_path / "good")
    assert "name the folder of a model" in said(tmp_path / "nowhere")
    assert f"there is no folder {tmp_path / 'no'}" in said(good, tmp_path / "no" / "model.gguf")
    for name in ("config.json", "tokenizer.json"):
        shutil.copytree(good, tmp_path / name)
        (tmp_path / name / name).unlink()
        assert f"{name}: name the folder of a model" in said(tmp_path / name)
    tensors = load_file(good / "model.safetensors")
    lost = next(name for name in tensors if "experts.2" in name)
    save_file({name: one for name, one in tensors.items() if name != lost}, good / "model.safetensors")
    assert "the model's files have no tensor model.layers.0.mlp.experts." in said(good)
    tensors[lost][0, 0] = float("nan")
    save_file(tensors, good / "model.safetensors")
    assert "holds values that are NaN or infinite" in said(good)
    assert not [*tmp_path.glob("*.gguf*")]

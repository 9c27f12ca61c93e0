"""Adapters with matrices drawn at random, large enough to change what a model says, and peft's own word for what that is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.trainer.serve.stages.ring import tensors_of
from trainer.serve.adapters import AdapterFiles


def draw_adapter(model: Path, out: Path, seed: int, rank: int, targets: Sequence[str], rslora: bool = False) -> Path:
    """Write one for a model's folder, as peft does."""
    torch.manual_seed(seed)
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    settings = LoraConfig(
        r=rank, lora_alpha=2.0 * rank, target_modules=list(targets), use_rslora=rslora, init_lora_weights=False
    )
    get_peft_model(base, settings).save_pretrained(out)
    return out


def merged(model: Path, adapter: Path, out: Path) -> Path:
    """The folder of the model that peft makes of both."""
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    whole: Any = PeftModel.from_pretrained(base, str(adapter))
    whole.merge_and_unload().save_pretrained(out)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)
    return out


def likeliest(model: Path, prompt: str, tokens: int) -> tuple[int, ...]:
    """What a folder's model says alone, by ``generate``."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    whole: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    made = whole.generate(ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return tuple(made[0, ids.shape[1] :].tolist())


def without_changes(adapter: Path) -> AdapterFiles:
    """An adapter of the same name that changes nothing: who has it answers with the model as it is."""
    files = AdapterFiles.of_folder(adapter)
    zeros = {name: torch.zeros_like(value) for name, value in tensors_of(adapter).items()}
    return AdapterFiles(files.spec, zeros, files.template)

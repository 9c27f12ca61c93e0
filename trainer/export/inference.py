"""What can be done with a finished model folder, through ``transformers`` alone: generate, and measure its loss."""

import math
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainer.audit.environment import configure
from trainer.data.data import TokenFile
from trainer.data.marks import learnt
from trainer.stage.micro_batch import MicroBatch
from trainer.stage.model import apart

_ROWS = 8


def sample_text(model_dir: Path, prompt: str, tokens: int, seed: int, temperature: float, threads: int) -> str:
    """Generate ``tokens`` tokens after ``prompt``; the same seed gives the same text on the same machine."""
    configure(threads)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir)
    model.eval()
    torch.manual_seed(seed)
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    longest = max(1, int(model.config.max_position_embeddings) - tokens)
    with torch.no_grad():
        made = model.generate(
            ids[:, -longest:],
            do_sample=True,
            temperature=temperature,
            top_k=40,
            max_new_tokens=tokens,
            pad_token_id=tokenizer.eos_token_id,
        )
    return str(tokenizer.decode(made[0], skip_special_tokens=True))


def evaluate(model_dir: Path, heldout: Path, sequence: int, threads: int) -> dict[str, Any]:
    """Mean cross-entropy in nats a token, and e to it, over the same held-out windows that a run validates on.

    Raises:
        DataError: the token file cannot be used with this model.
    """
    configure(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    model.eval()
    windows = TokenFile(heldout, sequence, int(model.config.vocab_size)).heldout()
    total = 0.0
    with torch.no_grad():
        for at in range(0, len(windows), _ROWS):
            rows = MicroBatch.of(windows[at : at + _ROWS])
            with apart(rows.positions) as places:
                logits = model(input_ids=rows.ids, **places).logits
            total += float(functional.cross_entropy(logits.flatten(0, 1), rows.targets.flatten(), reduction="sum"))
    tokens = max(1, learnt(windows))
    return {"loss": total / tokens, "perplexity": math.exp(total / tokens), "tokens": tokens}

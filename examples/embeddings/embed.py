"""Embed the lines of a text file with a language model: the mean of its last layer over a line's tokens. Leaves vectors.npy."""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

MODEL, TOGETHER = "/in/model", 16


def embedded(lines: list[str], model: str = MODEL) -> np.ndarray:
    """One vector a line, ``[lines, width]`` float32, of length 1."""
    words, network = AutoTokenizer.from_pretrained(model), AutoModel.from_pretrained(model, dtype=torch.float32)
    words.pad_token, words.padding_side = words.pad_token or words.eos_token, "right"
    found = []
    for start in range(0, len(lines), TOGETHER):
        batch = words(
            lines[start : start + TOGETHER], return_tensors="pt", padding=True, truncation=True, max_length=256
        )
        with torch.inference_mode():
            hidden = network(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        found.append((mean / mean.norm(dim=1, keepdim=True)).numpy())
    return np.concatenate(found)


if __name__ == "__main__":
    texts = [line for line in Path(sys.argv[1]).read_text().splitlines() if line.strip()]
    np.save("vectors.npy", embedded(texts, *sys.argv[2:]))

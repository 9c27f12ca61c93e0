"""Makes a draft model of a larger one: its first layers, with a head that was fitted to what the whole model says.

There is no smaller public model of every tokenizer. Of some text the states behind the first layers are taken, and what the whole
model's head gets in their place. A matrix between both is found by least squares, and multiplied into the head: no step of
training, and minutes on a processor. A model that was trained to be small drafts better at the same cost.

Source: tuned lens (Belrose and others, arXiv 2303.08112); drafts of early layers (Elhoushi and others, arXiv 2404.16710).

    python -m benchmarks.serving.fit_draft --model FOLDER --out FOLDER [--layers 8] [--tokens 12000] [--text FILE ...]

Of each number of ``--layers`` it says for how many tokens of text that was left out the likeliest next one is the whole model's.
The last one is written. Without ``--text`` this project's documentation is read. Of Llama's family only.
"""

import argparse
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

WINDOW = 256  # Tokens that are read at once.
HELD_OUT = 8  # One window in so many says how good the fit is.
RIDGE = 1e-3  # Of the mean square of the states: what keeps the solution from following single ones.


def states_of(model: Any, ids: Tensor, layers: Sequence[int]) -> tuple[dict[int, Tensor], Tensor]:
    """Of windows ``[n, WINDOW]``: normed states ``[n, WINDOW, d]`` behind so many layers, and what the head gets."""
    early: dict[int, list[Tensor]] = {one: [] for one in layers}
    final = []
    with torch.inference_mode():
        for window in ids:
            out = model.model(window[None], output_hidden_states=True)
            for one in layers:
                early[one].append(normed(out.hidden_states[one][0], model.config.rms_norm_eps))
            final.append(out.last_hidden_state[0])
    return {one: torch.stack(found) for one, found in early.items()}, torch.stack(final)


def normed(states: Tensor, eps: float) -> Tensor:
    """States ``[..., d]`` as a norm whose weights are all 1 leaves them."""
    return states * torch.rsqrt(states.square().mean(-1, keepdim=True) + eps)


def fitted(early: Tensor, final: Tensor) -> Tensor:
    """The matrix ``[d, d]`` that makes ``early`` ``[t, d]`` what is nearest to ``final`` ``[t, d]``."""
    squares = early.T @ early
    ridge = RIDGE * squares.diagonal().mean() * torch.eye(len(squares))
    return torch.linalg.solve(squares + ridge, early.T @ final)


def written(model: Any, source: Path, layers: int, head: Tensor, out: Path) -> None:
    """Write the folder ``out`` of the first layers and a head ``[vocabulary, d]``."""
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(
        json.dumps(config | {"num_hidden_layers": layers, "tie_word_embeddings": False}, indent=2)
    )
    kept = {
        name: value.contiguous()
        for name, value in model.state_dict().items()
        if not name.startswith("model.layers.") or int(name.split(".")[2]) < layers
    }
    kept |= {"lm_head.weight": head.contiguous(), "model.norm.weight": torch.ones_like(model.model.norm.weight)}
    save_file(kept, out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    """Fit, and write the folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder of Hugging Face's, of Llama's family")
    parser.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--layers", type=int, nargs="+", default=[8])
    parser.add_argument("--tokens", type=int, default=12_000)
    parser.add_argument("--text", type=Path, nargs="*", default=sorted(Path("docs").rglob("*.md")))
    options = parser.parse_args()
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model)
    model: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    text = "\n".join(path.read_text() for path in options.text)
    # From all over the text.
    whole = torch.tensor(tokenizer(text)["input_ids"])
    whole = whole[: len(whole) // WINDOW * WINDOW].view(-1, WINDOW)
    count = min(options.tokens // WINDOW, len(whole))
    ids = whole[torch.linspace(0, len(whole) - 1, count).long()]
    judged = torch.arange(count) % HELD_OUT == 0
    early, final = states_of(model, ids, options.layers)
    likeliest = (final[judged].flatten(0, 1) @ model.lm_head.weight.detach().T).argmax(-1)
    for layers in options.layers:
        mapped = fitted(early[layers][~judged].flatten(0, 1), final[~judged].flatten(0, 1))
        head = (mapped @ model.lm_head.weight.detach().T).T
        guessed = (early[layers][judged].flatten(0, 1) @ head.T).argmax(-1)
        print(
            f"{layers} layers: {float((guessed == likeliest).float().mean()):.3f} of {len(guessed):,} tokens",
            flush=True,
        )
    written(model, options.model, options.layers[-1], head, options.out)


if __name__ == "__main__":
    main()

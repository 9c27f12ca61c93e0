"""Text from a model folder, piece by piece, for whoever wants to try a model: one JSON object a line.

``{"text": "..."}`` for each piece, then ``{"done": "length" | "end", "tokens": n}``. Bounded in tokens here; time and memory are
bounded by whoever starts the process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
)
from transformers.generation.streamers import TextStreamer

from protocol.rest.api import TrialRequest
from trainer.audit.environment import configure
from trainer.errors import DataError

Say = Callable[[dict[str, Any]], None]


class _Pieces(TextStreamer):
    """Hands on each piece of text as soon as no later token can change it."""

    def __init__(self, tokenizer: Any, say: Say) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._say = say

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self._say({"text": text})


def generate(folder: Path, request: TrialRequest, threads: int, say: Say) -> None:
    """Continue ``request.prompt``; the same request gives the same text on the same machine.

    Raises:
        DataError: prompt and answer together are longer than the model can read, or it has no chat template to be asked in.
    """
    configure(threads)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    kind: Any = AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModelForImageTextToText
    model: Any = kind.from_pretrained(folder, dtype=torch.float32)
    model.eval()
    torch.manual_seed(request.seed)
    ids = _ids(tokenizer, request)
    longest = int(config.get_text_config().max_position_embeddings)
    room = longest - ids.shape[1]
    if ids.shape[1] < 1 or room < 1:
        raise DataError("prompt", f"the prompt has {ids.shape[1]} tokens: give 1 to {longest - 1}")
    sampling: dict[str, Any] = {"do_sample": False}
    if request.temperature > 0:
        sampling = {"do_sample": True, "temperature": request.temperature, "top_k": request.top_k}
    with torch.no_grad():
        made = model.generate(
            ids,
            max_new_tokens=min(request.tokens, room),
            pad_token_id=tokenizer.eos_token_id,
            streamer=_Pieces(tokenizer, say),
            **sampling,
        )
    tokens = int(made.shape[1]) - int(ids.shape[1])
    ended = tokenizer.eos_token_id is not None and int(made[0, -1]) == tokenizer.eos_token_id
    say({"done": "end" if ended else "length", "tokens": tokens})


def _ids(tokenizer: Any, request: TrialRequest) -> Any:
    """The prompt's tokens ``[1, t]``."""
    if not request.chat:
        return tokenizer(request.prompt, return_tensors="pt")["input_ids"]
    if tokenizer.chat_template is None:
        raise DataError("prompt", "this model has no chat template: have it continue the text, without chat")
    said = [{"role": "user", "content": request.prompt}]
    return tokenizer.apply_chat_template(said, add_generation_prompt=True, return_tensors="pt", return_dict=True)[
        "input_ids"
    ]

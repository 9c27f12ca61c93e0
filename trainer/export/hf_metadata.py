"""What a finished model's folder says of itself, as its publishers' folder said it where the model came from one. Free of torch.

Weights are float32 here, and leave in the type that they came in (docs/decisions/0051); those that began random are float32.
The head is a tensor of its own here (docs/decisions/0004), and leaves as the embedding where they are still equal.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from protocol.job.end_tokens import END_OF_TEXT
from protocol.models.config_keys import DROPOUT, OWN, TOKEN_IDS
from protocol.models.families import FAMILY
from protocol.models.model import (
    DTYPES,
    ENDS_WITH,
    PUBLISHED,
    STARTS_LEARNT,
    STARTS_TIED,
    clear_unknown_ids,
)
from protocol.models.tensor_names import HEAD, written
from protocol.models.weights import safetensors_header

_NAMES = ("bos_token", "eos_token", "pad_token")
_NOT_KEPT = frozenset(
    {"auto_map", "name_or_path", "tokenizer_file", "special_tokens_map_file", "_commit_hash", "transformers_version"}
)
"""Of a tokenizer's settings: where its files lay, and code that is not transformers' own."""
_HALF_WAY = np.uint32(0x7FFF)  # In what bfloat16 has no bits for of a float32.
_LARGEST_HALF = 65_520.0  # What rounds to infinity in float16.

Weights = Mapping[str, NDArray[np.float32]]


def finished_config(config: Mapping[str, Any], end: int | None, *, tied: bool, dtype: str) -> dict[str, Any]:
    """The content of the finished ``config.json``: what was trained, nulls too, and what the config brought beside.

    Args:
        config: of the job.
        end: id of the tokenizer's end of text. A model that began with weights keeps the ids that it came with; another one has
            this, unless its config names it, too.
    """
    published = dict(config.get(PUBLISHED, {}))
    published.pop("dtype", None)
    # What is dropped out is nothing here, and the family's own share elsewhere, unless the config had another.
    trained = {key: value for key, value in config.items() if not key.startswith(OWN) and key not in DROPOUT}
    made = trained | published
    ends = made.get("eos_token_id")
    named = end in ends if isinstance(ends, list) else end == ends
    if end is not None and not named and not config.get(STARTS_LEARNT, False):
        made |= {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}
    # A family's own token ids, which stand in for those left out, may lie beyond this vocabulary.
    made |= {key: made.get(key) for key in TOKEN_IDS}
    return made | {"tie_word_embeddings": tied, "dtype": dtype}


def end_of(tokenizer: Tokenizer, config: Mapping[str, Any]) -> int | None:
    """The id of the token that ended the documents that a job learnt from."""
    end: int | None = tokenizer.token_to_id(str(config.get(ENDS_WITH) or END_OF_TEXT))
    return end


def finished_generation(config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The content of the finished ``generation_config.json``, as it came; empty where a model began with random weights."""
    if not config.get(STARTS_LEARNT, False):
        return {}
    kept = dict(given)
    clear_unknown_ids(kept, frozenset(key for key in kept if key.endswith("_token_id")), int(config["vocab_size"]))
    return kept


def finished_settings(
    tokenizer: Tokenizer, config: Mapping[str, Any], given: Mapping[str, Any], max_positions: int
) -> dict[str, Any]:
    """The content of the finished ``tokenizer_config.json``: as it came, or what ``AutoTokenizer`` needs.

    Args:
        config: of the job; ids that its model came with name the tokens where nothing else does.
        given: the settings that came with the tokenizer; empty where none did.
    """
    if given:
        return {key: value for key, value in given.items() if key not in _NOT_KEPT}
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_positions,
        "clean_up_tokenization_spaces": False,
    }
    end = end_of(tokenizer, config)
    named: dict[str, str | None] = {}
    if config.get(STARTS_LEARNT, False):
        for name in _NAMES:
            ids = config.get(PUBLISHED, {}).get(f"{name}_id")
            first = ids[0] if isinstance(ids, list) and ids else ids
            named[name] = tokenizer.id_to_token(first) if isinstance(first, int) else None
    elif end is not None:
        named = dict.fromkeys(("bos_token", "eos_token", "unk_token"), tokenizer.id_to_token(end))
    named["eos_token"] = named.get("eos_token") or (None if end is None else tokenizer.id_to_token(end))
    return settings | {name: token for name, token in named.items() if token is not None}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A document of the folder."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", "utf-8")


def save_weights(tensors: Weights, config: Mapping[str, Any], path: Path) -> tuple[bool, str]:
    """Write ``model.safetensors`` under the names, and in the parts, of the family's own repositories.

    Returns:
        whether the head is the embedding, and so left out; and the type of the numbers, as configs name it.
    """
    embedding = FAMILY[str(config["model_type"])].embedding
    tied = bool(config.get(STARTS_TIED, False)) and np.array_equal(tensors[HEAD], tensors[embedding])
    dtype = str(config.get(PUBLISHED, {}).get("dtype", "float32")) if config.get(STARTS_LEARNT, False) else "float32"
    kept = {name: tensor for name, tensor in tensors.items() if not (tied and name == HEAD)}
    if dtype == "float16" and not all(np.abs(tensor).max(initial=0.0) < _LARGEST_HALF for tensor in kept.values()):
        dtype = "float32"
    parts = {
        part.key: tensor[part.index]
        for name, tensor in sorted(kept.items())
        for part in written(name, tensor.shape, config)
    }
    _write(parts, dtype, path)
    return tied, dtype


def _write(parts: Weights, dtype: str, path: Path) -> None:
    """A safetensors file, one tensor after the other: the library's own writer for NumPy has no bfloat16."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at, width = 0, 4 if dtype == "float32" else 2
    for key, tensor in parts.items():
        end = at + tensor.size * width
        entries[key] = {"dtype": DTYPES[dtype], "shape": tensor.shape, "data_offsets": [at, end]}
        at = end
    with path.open("wb") as file:
        file.write(safetensors_header(entries))
        for tensor in parts.values():
            file.write(in_bytes(np.ascontiguousarray(tensor), dtype))


def in_bytes(tensor: NDArray[np.float32], dtype: str) -> memoryview:
    """A tensor's bytes in a file, rounded to the nearest where ``dtype`` has fewer."""
    match dtype:
        case "bfloat16":
            # Finite, so that rounding to the nearest, or to the even one of two, never overflows a word.
            bits = tensor.view(np.uint32)
            odd = (bits >> np.uint32(16)) & np.uint32(1)
            return ((bits + odd + _HALF_WAY) >> np.uint32(16)).astype("<u2").data
        case "float16":
            return tensor.astype("<f2").data
        case _:
            return tensor.astype("<f4", copy=False).data

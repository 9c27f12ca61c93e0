"""A ``tokenizer.json`` as GGUF has it: tokens with their kinds, merges or scores, and how llama.cpp splits a text before."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import gguf

from trainer.errors import WeightsError

_BEFORE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_AFTER = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS: Final[Mapping[str, str]] = {
    _BEFORE + r"\p{N}{1,3}" + _AFTER: "llama-bpe",
    _BEFORE + r"\p{N}" + _AFTER: "qwen2",
    _CASED: "tekken",
}
"""Regular expressions of pre-tokenizers, and what llama.cpp calls them."""
_MERGED_AS_FOUND: Final = {"llama-bpe", "tekken"}
"""Of these llama.cpp takes a word that is a token as it is, whatever its merges say."""
_WITH_MERGES: Final = {"llama-bpe": "dbrx"}
"""The same split, by merges alone."""
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def add_tokens(writer: gguf.GGUFWriter, folder: Path, vocabulary: int) -> None:
    """Put a folder's tokenizer and chat template into a file.

    Args:
        vocabulary: rows of the embedding; those without a token are named as unused.
    Raises:
        WeightsError: llama.cpp has no tokenizer that does the same.
    """
    document = json.loads((folder / "tokenizer.json").read_bytes())
    model = document["model"]
    if model.get("type", "BPE") != "BPE":
        raise _refusal(f"a tokenizer of the kind {model.get('type')}")
    pieces = bool(model.get("byte_fallback")) and not _byte_level(document)
    changes = {part["type"] for part in _parts(document, "normalizer", "normalizers")}
    # llama.cpp writes a blank as it is written in pieces, and leaves NFC to whoever wrote the text.
    if others := changes - ({"Prepend", "Replace"} if pieces else {"NFC"}):
        raise _refusal(f"a tokenizer that changes texts first ({', '.join(sorted(others))})")
    split = "default" if pieces else _split(document)
    known: dict[int, str] = {number: token for token, number in model["vocab"].items()}
    added = {int(token["id"]): token for token in document.get("added_tokens", ())}
    tokens, kinds = [], []
    for number in range(vocabulary):
        token, kind = known.get(number), gguf.TokenType.NORMAL
        if number in added:
            token = str(added[number]["content"])
            kind = gguf.TokenType.CONTROL if added[number]["special"] else gguf.TokenType.USER_DEFINED
            token = token.replace(_SPACE, " ") if pieces and kind is gguf.TokenType.USER_DEFINED else token
        elif pieces and token is not None and len(token) == 6 and token.startswith("<0x"):
            kind = gguf.TokenType.BYTE
        if token is not None and token == model.get("unk_token") and pieces:
            kind = gguf.TokenType.UNKNOWN
        tokens.append(f"[PAD{number}]" if token is None else token)
        kinds.append(gguf.TokenType.UNUSED if token is None else kind)
    writer.add_tokenizer_model("llama" if pieces else "gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    special = gguf.SpecialVocab(folder, load_merges=not pieces, n_vocab=vocabulary)
    special.add_special_token.setdefault("bos", False)
    if pieces:
        writer.add_token_scores(_scores(tokens, kinds, model["merges"]))
        writer.add_add_space_prefix(_prefixed(document))
    special.add_to_gguf(writer, quiet=True)


def _scores(tokens: list[str], kinds: list[gguf.TokenType], merges: list[Any]) -> list[float]:
    """What pieces are merged by: the earlier a pair stands, the higher is the score of what it makes."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
        ranks.setdefault(left + right, rank)
    last = float(len(merges))
    plain = (gguf.TokenType.NORMAL, gguf.TokenType.BYTE)
    return [
        -float(ranks.get(token, last)) if kind in plain else -1000.0 - last
        for token, kind in zip(tokens, kinds, strict=True)
    ]


def _parts(document: Mapping[str, Any], name: str, within: str) -> list[Mapping[str, Any]]:
    """A part of a tokenizer, or those of a sequence of them."""
    found = document.get(name)
    if found is None:
        return []
    return list(found[within]) if found["type"] == "Sequence" else [found]


def _byte_level(document: Mapping[str, Any]) -> bool:
    return any(part["type"] == "ByteLevel" for part in _parts(document, "pre_tokenizer", "pretokenizers"))


def _split(document: Mapping[str, Any]) -> str:
    """What llama.cpp calls the way in which a tokenizer of bytes splits a text."""
    match _parts(document, "pre_tokenizer", "pretokenizers"):
        case [{"type": "ByteLevel", "add_prefix_space": False} as level] if level.get("use_regex", True):
            return "gpt-2"
        case [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False}]:
            return "smollm"
        case [{"type": "Split", "pattern": {"Regex": str(regex)}}, {"type": "ByteLevel"}] if regex in _SPLITS:
            split = _SPLITS[regex]
            if bool(document["model"].get("ignore_merges")) == (split in _MERGED_AS_FOUND):
                return split
            if split in _WITH_MERGES:
                return _WITH_MERGES[split]
    raise _refusal("the way in which this tokenizer splits texts")


def _prefixed(document: Mapping[str, Any]) -> bool:
    """Whether a text begins with a blank."""
    marks = [part for part in _parts(document, "normalizer", "normalizers") if part["type"] == "Prepend"]
    marks += [
        part
        for part in _parts(document, "pre_tokenizer", "pretokenizers")
        if part["type"] == "Metaspace" and part.get("prepend_scheme", "always") != "never"
    ]
    return bool(marks)


def _refusal(what: str) -> WeightsError:
    return WeightsError("no-gguf", f"llama.cpp has not {what}: no GGUF file of this model would be right")

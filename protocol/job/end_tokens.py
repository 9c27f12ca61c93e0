"""Which token ends a document: the one that the job names, that the model's files name, or that is known by its spelling.

A model learns to stop from what stands between documents. A tokenizer says which tokens it adds to its vocabulary, and seldom
what they are for; the config of a model that holds conversations names the end of a turn, which no document ends with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.job.job import ModelSpec, TokenizerSpec
from protocol.models.text_part import split

END_OF_TEXT = "<|endoftext|>"  # Of the tokenizers that are made here.
FIELD = "tokenizer.end"
DOCUMENT_ENDS = (
    END_OF_TEXT,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[EOS]",
    "<EOS>",
    "<|endofdocument|>",
    "<｜end▁of▁sentence｜>",
)
"""Spellings that end a document wherever they are special tokens; the more usual one of a tokenizer with two first."""
TURN_ENDS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<end_of_turn>",
        "<|end|>",
        "<|endofturn|>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|end_of_role|>",
        "<turn|>",
    }
)
_NAME = f"name the right one in {FIELD}"
MAX_ENDS = 64  # Ids of a model's files; the longest list of a public one has seven.
MAX_CHOICES = 8  # Special tokens that a sentence lists; some tokenizers have thousands.


class EndingError(ValueError):
    """The job names an end that its tokenizer has not; the text names it, and what there is."""


@dataclass(frozen=True)
class EndTokenChoice:
    """``token``: None where documents run into each other. ``warning``: what somebody should look at first; or empty."""

    token: str | None
    warning: str = ""


def ending(
    spec: TokenizerSpec, ids: Sequence[int], vocabulary: Mapping[str, int], added: Mapping[int, str]
) -> EndTokenChoice:
    """The token between documents.

    Args:
        ids: that the model's files name as ends, see ``ends_of``.
        vocabulary: every token's id.
        added: the tokens that the tokenizer has beside its model's own, by id.
    Raises:
        EndingError: ``spec.end`` is no token.
    """
    special = [token for _, token in sorted(added.items())]
    if spec.end is not None:
        if spec.end not in vocabulary:
            raise EndingError(f"{FIELD} {spec.end!r} is no token of the tokenizer: {_choices(special)}")
        return EndTokenChoice(spec.end)
    if spec.kind != "file":
        return EndTokenChoice(END_OF_TEXT)
    own = token_text((spec.settings or {}).get("eos_token"))
    # Made by hand or by older tools, a tokenizer may have its end among the other tokens.
    plain = set(ids) - added.keys()
    spelt = {number: token for token, number in vocabulary.items() if number in plain and token in DOCUMENT_ENDS}
    ends = {**added, **spelt}
    named = [ends[one] for one in ids if one in ends] + ([own] if own in vocabulary and own is not None else [])
    known = [token for token in DOCUMENT_ENDS if token in special]
    for found, by in ((named, "the model's files"), (known, "the tokenizer")):
        fit = [token for token in dict.fromkeys(found) if token not in TURN_ENDS]
        fit.sort(key=lambda token: token not in DOCUMENT_ENDS)
        if len(fit) > 1:
            others = ", ".join(map(repr, fit[1 : 1 + MAX_CHOICES]))
            return EndTokenChoice(
                fit[0], f"documents are ended with {fit[0]!r}, and {by} would have {others} too: {_NAME}"
            )
        if fit:
            return EndTokenChoice(fit[0])
    turns = [token for token in dict.fromkeys([*named, *special]) if token in TURN_ENDS]
    if turns:
        why = f"documents are ended with {turns[0]!r}, which ends a turn of a conversation, since no other end is known"
        return EndTokenChoice(turns[0], f"{why}: {_choices(special)}")
    why = "no token is known to end a document, so they run into each other and the model does not learn to stop"
    return EndTokenChoice(None, f"{why}: {_choices(special)}")


def ends_of(model: ModelSpec) -> tuple[int, ...]:
    """The ids that a model's files name as ends: its config's, then its generation settings'."""
    found: list[int] = []
    for document in (split(model.config or {})[0], model.generation):
        value = (document or {}).get("eos_token_id")
        found += [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]
    return tuple(dict.fromkeys(found[:MAX_ENDS]))


def token_text(value: Any) -> str | None:
    """A token as settings name it: a text, or a table with its ``content``."""
    value = value.get("content") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else None


def _choices(special: Sequence[str]) -> str:
    if not special:
        return f"{_NAME}; the tokenizer has no special tokens"
    more = f" and {len(special) - MAX_CHOICES:,} more" if len(special) > MAX_CHOICES else ""
    return f"{_NAME}; its special tokens are {', '.join(map(repr, special[:MAX_CHOICES]))}{more}"

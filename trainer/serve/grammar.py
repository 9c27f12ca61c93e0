"""Answers in the form that a JSON schema says: what cannot come next is no token to choose (``llguidance``)."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from trainer.errors import DataError

_DEFAULTS: Any = {"whitespace_pattern": r"[ \n]{0,8}"}
"""Models write JSON in lines; without a bound some would never end with blanks."""
MAX_COMPLAINT = 300  # Characters of what the library says of a schema.


class AnswerForm:
    """One answer and what may follow in it. ``prompt``: tokens before it."""

    def __init__(self, matcher: Any, prompt: int) -> None:
        self._matcher = matcher
        self._seen = prompt

    def __deepcopy__(self, _: object) -> "AnswerForm":
        """For a request that gives way for want of cache, and begins again."""
        return AnswerForm(self._matcher.deep_copy(), self._seen)

    def begin(self, tokens: Sequence[int]) -> None:
        """Take these as the answer's first; raises DataError where they do not keep to the form."""
        if self._matcher.try_consume_tokens(list(tokens)) < len(tokens):
            raise DataError("bad-begun", "the answer that has begun does not keep to the schema")
        self._seen += len(tokens)

    def restrict(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """Make -inf of what cannot follow in ``logits`` [1, vocabulary]. ``tokens``: the prompt's and the answer's so far."""
        from llguidance.torch import allocate_token_bitmask, apply_token_bitmask_inplace, fill_next_token_bitmask

        self._matcher.consume_tokens(list(tokens[self._seen :]))
        self._seen = len(tokens)
        mask = allocate_token_bitmask(1, logits.shape[1])
        fill_next_token_bitmask(self._matcher, mask)
        apply_token_bitmask_inplace(logits, mask.to(logits.device))


class AnswerForms:
    """Makes them for a model's tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        """Nothing is made before somebody asks; ``vocabulary``: how many logits there are."""
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, list(ends)
        self._made: Any = None

    def of(self, schema: Mapping[str, Any], prompt: int) -> AnswerForm:
        """The form of one answer.

        Raises:
            DataError: the schema is none that can be kept to, the model ends no answer, or the library is not here.
        """
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ImportError as error:
            raise DataError("bad-schema", "answers in a form need llguidance, which is not installed here") from error
        if not self._ends:
            raise DataError("bad-schema", "this model has no token that ends an answer: ask for text")
        if self._made is None:
            self._made = from_tokenizer(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._ends)
        try:
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_DEFAULTS)
            matcher = LLMatcher(self._made, grammar)
        except ValueError as error:
            raise DataError("bad-schema", f"the schema cannot be kept to: {str(error)[:MAX_COMPLAINT]}") from error
        if matcher.is_error():
            raise DataError("bad-schema", f"the schema cannot be kept to: {matcher.get_error()[:MAX_COMPLAINT]}")
        return AnswerForm(matcher, prompt)

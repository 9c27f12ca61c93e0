"""Answers in the form that JSON schemas say: what cannot come next is no token to choose (``llguidance``)."""

import json
from collections.abc import Sequence
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from protocol.serving import GenerateCommand, function_of
from trainer.errors import DataError
from trainer.serve.calls import END, MARK
from trainer.transfer import to_device

_DEFAULTS: Any = {"whitespace_pattern": r"[ \n]{0,8}"}
"""Models write JSON in lines; without a bound some would never end with blanks."""
_NOTHING: Any = {"type": "object", "properties": {}, "additionalProperties": False}
"""Parameters of a function that names none, as OpenAI's API has it."""
MAX_COMPLAINT = 300  # Characters of what the library says of a schema.
_EIGHT = torch.arange(8, dtype=torch.uint8)
MOST_CALLS = 16  # Of functions in an answer that is forced to be calls: a model that has learnt little would not end.


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
        self._matcher.consume_tokens(list(tokens[self._seen :]))
        self._seen = len(tokens)
        bits = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        # The library's own way is compiled anew in each process, by a compiler that most machines have not got.
        may = (bits[:, None] >> _EIGHT).bitwise_and_(1).bool().flatten()[: logits.shape[1]]
        if len(may) < logits.shape[1]:
            may = functional.pad(may, (0, logits.shape[1] - len(may)))
        logits.masked_fill_(to_device(~may, logits.device), -inf)


class AnswerForms:
    """Makes them for a model's tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        """Nothing is made before somebody asks; ``vocabulary``: how many logits there are."""
        self._tokenizer, self._vocabulary, self._ends = tokenizer, vocabulary, list(ends)
        self._made: Any = None

    def of(self, grammar: str, prompt: int) -> AnswerForm:
        """The form of one answer. ``grammar``: see ``grammar_of``.

        Raises:
            DataError: nobody can keep to it, the model ends no answer, or the library is not here.
        """
        matcher_of = _library()
        from llguidance.hf import from_tokenizer

        if not self._ends:
            raise DataError("bad-schema", "this model has no token that ends an answer: ask for text")
        if self._made is None:
            self._made = from_tokenizer(self._tokenizer, n_vocab=self._vocabulary, eos_token=self._ends)
        try:
            matcher = matcher_of(self._made, grammar)
        except ValueError as error:
            raise DataError("bad-schema", f"the schema cannot be kept to: {_cut(str(error))}") from error
        if matcher.is_error():
            raise DataError("bad-schema", f"the schema cannot be kept to: {_cut(matcher.get_error())}")
        return AnswerForm(matcher, prompt)


def grammar_of(command: GenerateCommand) -> str | None:
    """The grammar, as ``llguidance`` takes it, that an answer keeps to; None: it is free.

    Raises:
        DataError: a schema or a function is none, or the library is not here.
    """
    if command.schema is None and not command.choice.forced:
        return None
    library = _library()
    try:
        if command.choice.forced:
            return str(library.grammar_from_lark(_calls(command)))
        return str(library.grammar_from_json_schema(json.dumps(command.schema), defaults=_DEFAULTS))
    except ValueError as error:
        raise DataError("bad-schema", f"the schema cannot be kept to: {_cut(str(error))}") from error


def _library() -> Any:
    """``LLMatcher``; raises DataError where it is not installed."""
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise DataError("bad-schema", "answers in a form need llguidance, which is not installed here") from error
    return LLMatcher


def _calls(command: GenerateCommand) -> str:
    """Calls as models write them, in Lark's language: a schema stands alone, so that what it refers to in itself is found."""
    wanted = [tool for tool in command.tools if command.choice.name in ("", function_of(tool).get("name"))]
    more = f' ("\\n" call){{0,{MOST_CALLS - 1}}}' if command.choice.several else ""
    rules = [f"start: call{more}", "call: " + " | ".join(f"call_{number}" for number in range(len(wanted)))]
    behind = json.dumps(f"}}\n{END}")
    for number, tool in enumerate(wanted):
        function = function_of(tool)
        name, schema = function.get("name"), function.get("parameters") or _NOTHING
        if not isinstance(name, str) or not isinstance(schema, dict):
            raise DataError(
                "bad-schema", f"tool {number + 1} has no function with a name, and a schema as its parameters"
            )
        _check_parameters(name, schema)
        before = json.dumps(f'{MARK}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ')
        rules.append(f"call_{number}: {before} arguments_{number} {behind}")
        rules.append(f"arguments_{number}: %json {json.dumps({**schema, 'x-guidance': _DEFAULTS})}")
    return "\n".join(rules)


def _check_parameters(name: str, schema: dict[str, Any]) -> None:
    """Raise DataError, with the function's name, where nobody can keep to its schema."""
    library = _library()
    try:
        told = library.validate_grammar(library.grammar_from_json_schema(json.dumps(schema), defaults=_DEFAULTS))
    except ValueError as error:
        told = str(error)
    if told:
        raise DataError("bad-schema", f"parameters of the function {name!r} cannot be kept to: {_cut(told)}")


def _cut(told: str) -> str:
    """What the library says of a schema, in one line."""
    return " ".join(told.split())[:MAX_COMPLAINT]

"""A request as tokens, with what its answer may be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.asking import fault_of
from protocol.serving import EmbedCommand, GenerateCommand
from trainer.data.chat import ChatTemplate
from trainer.errors import DataError
from trainer.formats.conversations import talk_of
from trainer.formats.talk import ChatMessages
from trainer.serve.answer_text import AnswerText
from trainer.serve.grammar import AnswerForm, AnswerForms, grammar_of
from trainer.serve.likelihoods import TokenLikelihoods
from trainer.serve.loading import ModelTokens


@dataclass
class AskedAnswer:
    """A request that can be answered. ``most``: tokens of its answer. ``adapter``: the number of its own; 0: none."""

    prompt: list[int]
    most: int
    text: AnswerText
    form: AnswerForm | None
    likelihoods: TokenLikelihoods | None = None
    adapter: int = 0


class Requests:
    """Reads those of one model."""

    def __init__(self, loaded: ModelTokens, longest: int, templates: Sequence[Any] = ()) -> None:
        """Take a model's tokenizer.

        Args:
            longest: tokens of a prompt with its answer.
            templates: the chat template of each adapter, as a tokenizer's settings have it; None: the model's.
        """
        made, self._longest, self._ends = loaded.tokenizer, longest, loaded.ends
        self.tokenizer, self._encode, self._vocabulary = made.backend_tokenizer, made, loaded.vocabulary
        own = _templates(made.chat_template)
        chats = [{**made.special_tokens_map, "chat_template": given or own} for given in (None, *templates)]
        self._chats = [ChatTemplate(self.tokenizer, one, "answers", None, "this model") for one in chats]
        self._forms = AnswerForms(made, loaded.vocabulary, loaded.ends)

    def read(self, command: GenerateCommand, longest: int | None = None) -> AskedAnswer:
        """What is asked, with an answer that has not begun.

        Args:
            longest: tokens of a prompt with its answer; None: as many as here.
        Raises:
            DataError: it cannot be answered.
        """
        self._check_adapter(command.adapter)
        most = min(longest or self._longest, self._longest)
        code, fault = fault_of(command, most, self._chats[command.adapter].text)
        if code:
            raise DataError(code, fault)
        ids = self._ids(command)
        form = self._form(command, len(ids))
        room = most - len(ids)
        if not ids or room < 1:
            detail = f"the prompt has {len(ids):,} tokens: give 1 to {most - 1:,}"
            raise DataError("too-long" if ids else "empty", detail)
        self.check_known(ids, "the prompt")
        room = min(command.tokens or room, room)
        likelihoods = None if command.likeliest is None else TokenLikelihoods(command.likeliest)
        text = AnswerText(self.tokenizer, command, self._ends, room)
        return AskedAnswer(ids, room, text, form, likelihoods, command.adapter)

    def _form(self, command: GenerateCommand, prompt: int) -> AnswerForm | None:
        try:
            grammar = grammar_of(command)
            return None if grammar is None else self._forms.of(grammar, prompt)
        except DataError as error:
            raise DataError("bad-tools" if command.choice.forced else error.code, error.detail) from error

    def rows(self, command: EmbedCommand) -> list[list[int]]:
        """Texts of which embeddings are asked for, as tokens.

        Raises:
            DataError: one of them has none, or too many.
        """
        self._check_adapter(command.adapter)
        made = []
        for number, text in enumerate(command.texts, 1):
            row = list(self._encode(text)["input_ids"]) if isinstance(text, str) else list(text)
            called = f"text {number:,} of {len(command.texts):,}"
            if not 0 < len(row) <= self._longest:
                detail = f"{called} has {len(row):,} tokens: give 1 to {self._longest:,}"
                raise DataError("long-text" if row else "bad-text", detail)
            try:
                self.check_known(row, called)
            except DataError as error:
                raise DataError("bad-text", error.detail) from error
            made.append(row)
        return made

    def check_known(self, tokens: tuple[int, ...] | list[int], called: str) -> None:
        """Raise DataError where this model has no such token."""
        if tokens and max(tokens) >= self._vocabulary:
            detail = f"{called} has the token {max(tokens):,}, and this model knows {self._vocabulary:,}"
            raise DataError("unknown-token", detail)

    def _check_adapter(self, number: int) -> None:
        if number >= len(self._chats):
            detail = f"adapter {number} is asked for, and this model has {len(self._chats) - 1}"
            raise DataError("unknown-adapter", detail)

    def _ids(self, command: GenerateCommand) -> list[int]:
        """The prompt's tokens."""
        chat = self._chats[command.adapter]
        if not command.messages:
            return list(self._encode(command.prompt)["input_ids"])
        row: Mapping[str, Any] = {
            "messages": list(command.messages),
            "tools": list(command.tools) or None,
            "chat_template_kwargs": command.words or None,
        }
        talk = talk_of(row, "messages", "this request")
        if isinstance(talk, DataError):
            raise talk
        if not isinstance(talk, ChatMessages):
            raise DataError("bad-row", "this request has no messages with role and content: give at least one")
        if command.tools and not chat.calls_as_tags:
            raise DataError(
                "no-tools", "this model's chat template has no functions that are known here: leave tools out"
            )
        text = chat.asked(talk, "this request")
        if isinstance(text, DataError):
            raise text
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def _templates(given: Any) -> Any:
    """Several templates in the form that ``tokenizer_config.json`` has."""
    return [{"name": name, "template": text} for name, text in given.items()] if isinstance(given, dict) else given

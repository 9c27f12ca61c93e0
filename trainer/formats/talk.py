"""What is said in a row that is a conversation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatMessages:
    """Messages for a chat template.

    Attributes:
        given: of the messages, those of the prompt: nothing of them is learnt.
        tools: JSON schemas of functions.
        words: further variables of the template, such as ``enable_thinking``.
        unread: fields of the row that are no part of it.
    """

    messages: list[dict[str, Any]]
    given: int = 0
    tools: list[Any] | None = None
    words: Mapping[str, Any] | None = None
    unread: tuple[str, ...] = field(default=(), compare=False)

    @property
    def calls(self) -> bool:
        """Whether somebody calls a function in it."""
        return any(one.get("tool_calls") for one in self.messages)

    def learns(self, message: Mapping[str, Any]) -> bool:
        """Whether a message is an answer to learn: OpenAI's files say ``weight`` 0, others ``train`` false, where it is not."""
        return (
            message["role"] == "assistant" and message.get("weight", 1) != 0 and message.get("train", True) is not False
        )

    @property
    def blank(self) -> bool:
        """Whether an answer in it says nothing, and calls nothing."""
        said = (one for one in self.messages[self.given :] if self.learns(one))
        return any(not _said(one).strip() for one in said)

    def with_tables(self) -> "ChatMessages":
        """With the arguments of calls as tables, which OpenAI's programs and files have as JSON within a text."""
        return replace(self, messages=[_with_tables(one) for one in self.messages])

    def flat(self) -> "ChatMessages":
        """With one text for each message, for templates that know neither parts nor messages without a text."""
        messages = [{**one, "content": _text(one.get("content"), "\n")} for one in self.messages]
        return replace(self, messages=messages)

    def text(self) -> str:
        """All that is said, a line a message: for people, and to find what comes again."""
        return "\n".join(f"{one['role']}: {_said(one)}" for one in self.messages)


@dataclass(frozen=True, slots=True)
class Pair:
    """A prompt and its completion, which no template touches: only the completion is learnt."""

    prompt: str
    completion: str
    unread: tuple[str, ...] = field(default=(), compare=False)

    @property
    def blank(self) -> bool:
        """Whether the completion says nothing."""
        return not self.completion.strip()

    def text(self) -> str:
        """Both, as they follow each other."""
        return self.prompt + self.completion


@dataclass(frozen=True, slots=True)
class Preference:
    """Two answers to one prompt, of which the chosen one is to become likelier than the rejected one."""

    chosen: "Talk"
    rejected: "Talk"
    unread: tuple[str, ...] = field(default=(), compare=False)

    @property
    def blank(self) -> bool:
        """Whether one of them says nothing."""
        return self.chosen.blank or self.rejected.blank

    def text(self) -> str:
        """Both, with their prompt."""
        return f"{self.chosen.text()}\n{self.rejected.text()}"


Talk = ChatMessages | Pair
Said = Talk | Preference
"""What a row can be beside a text."""


def _said(message: Mapping[str, Any]) -> str:
    content = _text(message.get("content"), " ")
    calls = message.get("tool_calls")
    return f"{content} {json.dumps(calls, ensure_ascii=False)}".strip() if calls else content


def _text(content: Any, between: str) -> str:
    """A message's content, its parts one after the other."""
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    return between.join(str(part.get("text", "")) for part in parts)


def _with_tables(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_table(one) for one in calls]} if isinstance(calls, list) else message


def _with_table(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        table = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": table}} if isinstance(table, dict) else call

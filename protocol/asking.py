"""What no model can answer of a request, told without one: by the coordinator at once, and again by whoever holds the model."""

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.datasets.roles import KNOWN_ROLES, ROLES
from protocol.serving import GenerateCommand

NO_TEMPLATE = "this model has no chat template: have it continue the text, without chat (/v1/completions)"
_SHOWN = 40  # Characters of what is wrong.
_SPEAKERS = "assistant, developer, function, system, tool or user"  # As OpenAI's API has them.


def template_text(settings: Mapping[str, Any] | None) -> str:
    """All chat templates that a ``tokenizer_config.json`` has; empty where it has none."""
    given = (settings or {}).get("chat_template")
    if isinstance(given, Mapping):
        given = list(given.values())
    parts = given if isinstance(given, list) else [given]
    texts = (one.get("template") if isinstance(one, Mapping) else one for one in parts)
    return "\n".join(text for text in texts if isinstance(text, str))


def fault_of(command: GenerateCommand, context: int, template: str) -> tuple[str, str]:
    """Why no model can answer, as a code of ``RefusedReport`` and in words; both empty: one may.

    Args:
        context: tokens of a prompt with its answer.
        template: the text of the model's chat templates; empty: it has none.
    """
    if command.tokens is not None and command.tokens > context:
        has = f"this model reads {context:,} tokens, prompt and answer together"
        return "too-many", f"an answer of {command.tokens:,} tokens is asked for, and {has}: ask for fewer"
    if not command.messages:
        return "", ""
    if not template:
        return "no-template", NO_TEMPLATE
    faults = (_message_fault(message, template) for message in command.messages)
    wrong = next(((number, fault) for number, fault in enumerate(faults, 1) if fault), None)
    if not command.messages[0].keys() & {"role", "from"}:
        return "bad-message", "this request has no messages with role and content: give at least one"
    return ("", "") if wrong is None else ("bad-message", f"this request, message {wrong[0]:,}, {wrong[1]}")


def _message_fault(message: Mapping[str, Any], template: str) -> str:
    role, content = message.get("role"), message.get("content")
    if "role" not in message and "from" in message:
        return ""  # As ShareGPT writes it: who reads it says what is wrong.
    if not isinstance(role, str) or not role:
        return "does not say who speaks (role)"
    if not _is_known(role, template):
        return f"is of {role[:_SHOWN]!r}, who is nobody known here: role is {_SPEAKERS}"
    if isinstance(content, Sequence) and not isinstance(content, str):
        apart = "has a part that is no text: leave it out, since models here read text alone"
        return "" if all(map(_is_text, content)) else apart
    if isinstance(content, str) or (content is None and (message.get("tool_calls") or message.get("function_call"))):
        return ""
    return "has no content: write a text" if content is None else "has something else than text as its content"


def _is_known(role: str, template: str) -> bool:
    """Whether somebody of this name speaks here, or in the model's own template."""
    return role in KNOWN_ROLES or role.strip().lower() in ROLES or f"'{role}'" in template or f'"{role}"' in template


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type", "text") == "text" and isinstance(part.get("text"), str)

"""What no model can answer is told without one, by its code and in words."""

from typing import Any

import pytest

from protocol.asking import NO_TEMPLATE, fault_of, template_text
from protocol.serving import GenerateCommand

TEMPLATE = "{% for m in messages %}{% if m.role == 'narrator' %}*{% endif %}{{ m.content }}{% endfor %}"
CONTEXT = 100


def of(*messages: dict[str, Any], template: str = TEMPLATE, **more: Any) -> tuple[str, str]:
    return fault_of(GenerateCommand("1", messages=messages, **more), CONTEXT, template)


def said(role: str, content: Any = "Hi", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


@pytest.mark.parametrize(
    "message",
    [
        *(said(role) for role in ("system", "developer", "user", "assistant", "tool", "function", "ipython")),
        said("narrator"),
        said("Human"),
        said("user", [{"type": "text", "text": "Hi"}, {"text": "there"}]),
        said("user", ""),
        said("assistant", None, tool_calls=[{"type": "function", "function": {"name": "f", "arguments": "{}"}}]),
        {"from": "human", "value": "Hi"},
    ],
)
def test_what_a_template_can_write_is_no_fault(message: dict[str, Any]) -> None:
    assert of(message) == ("", "")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            said("wizard"),
            "is of 'wizard', who is nobody known here: role is assistant, developer, function, system, tool or user",
        ),
        (said("narrat"), "is of 'narrat', who is nobody known here"),
        (said("x" * 500), f"is of '{'x' * 40}', who"),
        ({"content": "Hi"}, "does not say who speaks (role)"),
        ({"role": 3, "content": "Hi"}, "does not say who speaks (role)"),
        ({"role": "", "content": "Hi"}, "does not say who speaks (role)"),
        (said("user", None), "has no content: write a text"),
        ({"role": "user"}, "has no content: write a text"),
        (said("assistant", None), "has no content: write a text"),
        (said("user", 3), "has something else than text as its content"),
        (said("user", {"text": "Hi"}), "has something else than text as its content"),
        (said("user", [{"type": "image_url", "image_url": {"url": "x"}}]), "has a part that is no text: leave it out"),
        (said("user", ["Hi"]), "has a part that is no text"),
        (said("user", [{"type": "text", "text": 3}]), "has a part that is no text"),
    ],
)
def test_a_message_that_no_template_can_write_is_named_by_its_place(message: dict[str, Any], words: str) -> None:
    code, detail = of(said("user"), message)
    assert code == "bad-message"
    assert detail.startswith("this request, message 2, ")
    assert words in detail


def test_messages_need_a_template_and_texts_none() -> None:
    assert of(said("user"), template="") == ("no-template", NO_TEMPLATE)
    assert fault_of(GenerateCommand("1", "Once"), CONTEXT, "") == ("", "")
    assert of({"content": "Hi"})[1] == "this request has no messages with role and content: give at least one"


def test_an_answer_is_no_longer_than_what_the_model_reads() -> None:
    assert of(said("user"), tokens=CONTEXT) == ("", "")
    code, detail = fault_of(GenerateCommand("1", "Once", tokens=100_000), CONTEXT, "")
    assert code == "too-many"
    assert detail == (
        "an answer of 100,000 tokens is asked for, and this model reads 100 tokens, prompt and answer together: ask for fewer"
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (None, ""),
        ({}, ""),
        ({"chat_template": ""}, ""),
        ({"chat_template": 3}, ""),
        ({"chat_template": "a"}, "a"),
        ({"chat_template": {"default": "a", "tool_use": "b"}}, "a\nb"),
        ({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}, "a\nb"),
        ({"chat_template": [{"name": "default"}, 3]}, ""),
    ],
)
def test_templates_are_found_as_settings_have_them(settings: dict[str, Any] | None, text: str) -> None:
    assert template_text(settings) == text

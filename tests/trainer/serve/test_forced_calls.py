"""Calls that are forced, of a model that has learnt nothing: only the grammar can have made them."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import validate
from tokenizers import Tokenizer

from protocol.serving import CheckedReport, EngineReport, GenerateCommand, RefusedReport, Sampling, ToolChoice
from tests.trainer.serve.answering import GREEDY, Asking, check_of, end_of, text_of, tokens_of
from tests.trainer.serve.test_calls import TEMPLATE, with_template
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve import sampling
from trainer.serve.engine import Engine
from trainer.serve.grammar import MOST_CALLS

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Köln", 'the "moon"']}},
}
LAMP = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {"weather": WEATHER, "lämp": LAMP}
TOOLS = tuple({"type": "function", "function": {"name": name, "parameters": one}} for name, one in SCHEMAS.items())
ASKED = GenerateCommand("1", messages=({"role": "user", "content": "?"},), tools=TOOLS, tokens=400)


@pytest.fixture
async def asking(folder: Path, tmp_path: Path) -> AsyncIterator[tuple[Asking, Engine]]:  # noqa: F811
    asking = Asking()
    async with Engine(with_template(folder, TEMPLATE, tmp_path / "here"), 1, asking.say) as engine:
        yield asking, engine


def command_of(number: int, **choice: Any) -> GenerateCommand:
    drawn = GREEDY if number == 0 else Sampling(0.6 if number % 2 else 1.0, seed=number)
    return msgspec.structs.replace(ASKED, id=str(number), choice=ToolChoice(True, **choice), sampling=drawn)


def calls_of(said: list[EngineReport]) -> list[str]:
    """Names of the functions that are called, with arguments that keep to their schemas, and nothing else said."""
    end = end_of(said)
    assert (end.reason, text_of(said)) == ("stop", "")
    for call in end.calls:
        validate(json.loads(call.arguments), SCHEMAS[call.name])
    return [call.name for call in end.calls]


async def test_a_named_function_is_called_once_or_more_and_no_other(asking: tuple[Asking, Engine]) -> None:
    commands = [command_of(number, name="lämp", several=number > 2) for number in range(6)]
    said = await asking[0].over(asking[1], *commands)
    called = [calls_of(said[str(number)]) for number in range(6)]
    assert set(map(len, called[:3])) == {1}
    assert all(1 <= len(one) <= MOST_CALLS for one in called)
    assert max(map(len, called[3:])) > 1
    assert {name for one in called for name in one} == {"lämp"}


async def test_where_any_must_be_called_each_is_and_the_checks_find_them_right(asking: tuple[Asking, Engine]) -> None:
    commands = [command_of(number, several=False) for number in range(8)]
    said = await asking[0].over(asking[1], *commands)
    called = [calls_of(said[one.id]) for one in commands]
    assert all(len(one) == 1 for one in called)
    assert {name for (name,) in called} == set(SCHEMAS)
    checks = [check_of(one, said[one.id], f"check {one.id}") for one in commands]
    found = await asking[0].over(asking[1], *checks)
    assert [one.wrong for (one,) in found.values() if isinstance(one, CheckedReport)] == [""] * 8
    free = msgspec.structs.replace(checks[1], asked=msgspec.structs.replace(commands[1], choice=ToolChoice()))
    other = msgspec.structs.replace(checks[1], id="2", asked=command_of(1, name="none of them"))
    told = await asking[0].over(asking[1], free, other)
    assert all(isinstance(one, CheckedReport) and one.wrong for (one,) in told.values()), (
        "asked otherwise it is another"
    )


async def test_a_forced_call_goes_on_behind_another_nodes_tokens(asking: tuple[Asking, Engine]) -> None:
    command = command_of(3, several=False)
    whole = (await asking[0].over(asking[1], command))["3"]
    tokens = tokens_of(whole)
    begun = msgspec.structs.replace(command, id="on", begun=tokens[:30])
    rest = (await asking[0].over(asking[1], begun))["on"]
    assert tokens_of(rest) == tokens[30:]
    assert end_of(rest).calls == end_of(whole).calls
    false = msgspec.structs.replace(command, id="false", begun=(*tokens[:20], 3))
    (refused,) = (await asking[0].over(asking[1], false))["false"]
    assert isinstance(refused, RefusedReport)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            {"name": "x", "parameters": {"type": "colour"}},
            "parameters of the function 'x' cannot be kept to: Invalid type: colour",
        ),
        (
            {"name": "x", "parameters": {"type": "object", "properties": {"a": {"pattern": "("}}}},
            "parameters of the function 'x' cannot be kept to: regex parse error: ( ^ error: unclosed group",
        ),
        ({"name": 3}, "tool 1 has no function with a name, and a schema as its parameters"),
        ({"name": "x", "parameters": [1]}, "tool 1 has no function with a name"),
    ],
)
async def test_functions_that_nobody_can_call_are_told(
    asking: tuple[Asking, Engine], function: dict[str, Any], words: str
) -> None:
    tools = ({"type": "function", "function": function},)
    (refused,) = (await asking[0].over(asking[1], msgspec.structs.replace(command_of(0), tools=tools)))["0"]
    assert isinstance(refused, RefusedReport)
    assert refused.code == "bad-tools", refused
    assert refused.detail.startswith(words)
    assert not re.search(r"x-guidance|%json|\n", refused.detail), "the grammar is nobody's business"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("more", [{}, {"parameters": {}}, {"parameters": None}])
async def test_a_function_without_parameters_is_called_with_none(
    asking: tuple[Asking, Engine], more: dict[str, Any]
) -> None:
    tools = ({"type": "function", "function": {"name": "now", **more}},)
    commands = [msgspec.structs.replace(command_of(number, several=False), tools=tools) for number in range(3)]
    said = await asking[0].over(asking[1], *commands)
    for one in commands:
        (call,) = end_of(said[one.id]).calls
        assert (call.name, json.loads(call.arguments)) == ("now", {})


async def test_of_free_answers_one_call_is_the_end_where_one_is_wanted(
    asking: tuple[Asking, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it draws is scripted: a model that has learnt nothing calls nothing by itself."""
    call = '<tool_call>\n{"name": "lämp", "arguments": {"on": true}}\n</tool_call>'
    tokenizer: Tokenizer = asking[1]._requests.tokenizer
    answer, prompts = tokenizer.encode(f"So: {call}\n{call} both").ids, list[int]()

    def scripted(_logits: Any, _sampling: Any, place: int) -> int:
        prompts[:] = prompts or [place]
        return [*answer, 256][place - prompts[0]]

    monkeypatch.setattr(sampling, "drawn", scripted)
    for several, number in ((True, 2), (False, 1)):
        prompts.clear()
        command = msgspec.structs.replace(ASKED, id=str(several), choice=ToolChoice(several=several))
        said = (await asking[0].over(asking[1], command))[command.id]
        assert text_of(said) == "So: "
        assert (end_of(said).reason, len(end_of(said).calls)) == ("stop", number)

"""Calls of functions among what a model says: found whole, in pieces, and left as text where they are none."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from protocol.serving import AnsweredReport, FunctionCall, GenerateCommand, RefusedReport
from tests.support.chat_templates import TOOLS
from tests.trainer.serve.test_grammar import asked, folder  # noqa: F401 - a fixture
from trainer.serve import sampling
from trainer.serve.calls import CallsApart

SUM = '<tool_call>\n{"name": "sum", "arguments": {"a": 2}}\n</tool_call>'
CALLED = FunctionCall("sum", '{"a": 2}')
TEMPLATE = (
    "{% if tools %}{{ tools[0].function.name }} in <tool_call>{% endif %}"
    "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}"
)


def apart(pieces: list[str]) -> tuple[str, tuple[FunctionCall, ...]]:
    stream = CallsApart()
    shown = "".join(stream.add(piece) for piece in pieces)
    left, calls = stream.end()
    return shown + left, calls


@pytest.mark.parametrize(
    ("said", "text", "calls"),
    [
        (f"So: {SUM}", "So: ", (CALLED,)),
        (f"{SUM}\n{SUM}", "", (CALLED, CALLED)),
        (SUM.removesuffix("</tool_call>"), "", (CALLED,)),
        ('<tool_call>{"name": "now"}</tool_call>', "", (FunctionCall("now", "{}"),)),
        ("1 < 2 <tool", "1 < 2 <tool", ()),
        ("<tool_call>{nonsense}</tool_call>", "<tool_call>{nonsense}</tool_call>", ()),
        (f"{SUM}<tool_call>[]</tool_call>", f"{SUM}<tool_call>[]</tool_call>", ()),
        ('<tool_call>{"name": "sum", "arguments": 3}</tool_call>', None, ()),
    ],
)
def test_calls_are_found_whole_and_in_pieces(said: str, text: str | None, calls: tuple[FunctionCall, ...]) -> None:
    text = said if text is None else text
    assert apart([said]) == (text, calls)
    assert apart(list(said)) == (text, calls)


@given(st.lists(st.text(st.sampled_from("<tol_ca>x "), max_size=6), max_size=20))
def test_nothing_that_is_said_is_lost(pieces: list[str]) -> None:
    assert apart(pieces) == ("".join(pieces), ())


def with_template(folder: Path, template: str, out: Path) -> Path:  # noqa: F811
    out.mkdir()
    for path in folder.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    settings = json.loads((out / "tokenizer_config.json").read_text())
    (out / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return out


async def test_what_a_model_calls_comes_beside_its_text(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = with_template(folder, TEMPLATE, tmp_path / "here")
    answer = Tokenizer.from_file(str(here / "tokenizer.json")).encode(f"So: {SUM}").ids
    prompts: list[int] = []

    def scripted(_logits: Any, _sampling: Any, place: int) -> int:
        prompts[:] = prompts or [place]
        return [*answer, 256][place - prompts[0]]

    monkeypatch.setattr(sampling, "drawn", scripted)
    call = {"type": "function", "function": {"name": "sum", "arguments": '{"a": 1}'}}
    messages = ({"role": "user", "content": "2?"}, {"role": "assistant", "content": None, "tool_calls": [call]})
    command = GenerateCommand("1", messages=messages, tools=tuple(TOOLS))
    ((text, end),) = (await asked(here, command)).values()
    assert text == "So: "
    assert isinstance(end, AnsweredReport)
    assert (end.calls, end.reason) == ((CALLED,), "stop")
    assert end.prompt == len('sum in <tool_call>2?{"a": 1}'), (
        "arguments that are a text of JSON are a table in the template"
    )


async def test_a_template_without_functions_that_are_known_is_told(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    here = with_template(folder, "{{ messages[0].content }}{{ tools }}", tmp_path / "here")
    command = GenerateCommand("1", messages=({"role": "user", "content": "2?"},), tools=tuple(TOOLS))
    ((_, end),) = (await asked(here, command)).values()
    assert isinstance(end, RefusedReport)
    assert end.code == "no-tools"

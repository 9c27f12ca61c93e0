"""An answer that another process began goes on as if nobody had been gone."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from protocol.serving import AnsweredReport, EngineReport, FunctionCall, GenerateCommand, RefusedReport, Sampling
from tests.support.chat_templates import TOOLS
from tests.trainer.serve.answering import GREEDY, Asking, end_of, text_of, tokens_of
from tests.trainer.serve.test_calls import SUM, TEMPLATE, with_template
from tests.trainer.serve.test_grammar import PLACE, folder  # noqa: F401 - a fixture
from trainer.serve import sampling
from trainer.serve.engine import Engine
from trainer.serve.loading import load
from trainer.serve.requests import Requests

END = 256


def parts(said: Sequence[EngineReport], at: int) -> tuple[str, tuple[int, ...]]:
    """The text and the tokens that were told with the first ``at`` reports."""
    return text_of(said[:at]), tokens_of(said[:at])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "more",
    [
        {"sampling": GREEDY},
        {"sampling": Sampling(seed=4)},
        {"sampling": Sampling(0.8, 40, 0.9, 5)},
        {"sampling": Sampling(seed=6), "schema": PLACE, "tokens": 200},
    ],
)
async def test_whoever_goes_on_says_what_the_first_would_have_said(folder: Path, more: dict[str, Any]) -> None:  # noqa: F811
    command = msgspec.structs.replace(GenerateCommand("whole", "Say:", tokens=30), **more)
    asking = Asking()
    async with Engine(folder, 1, asking.say) as engine:
        whole = (await asking.over(engine, command))["whole"]
        places = [1, 7, len(whole) - 2]
        after = [msgspec.structs.replace(command, id=str(at), begun=parts(whole, at)[1]) for at in places]
        beside = GenerateCommand("beside", "Something else", tokens=40, sampling=Sampling(seed=9))
        found = await asking.over(engine, *after, beside)
    assert len(tokens_of(whole)) == end_of(whole).tokens
    for at in places:
        text, begun = parts(whole, at)
        assert text + text_of(found[str(at)]) == text_of(whole)
        assert begun + tokens_of(found[str(at)]) == tokens_of(whole)
        assert end_of(found[str(at)]) == msgspec.structs.replace(end_of(whole), id=str(at))


def scripted(monkeypatch: pytest.MonkeyPatch, ids: Sequence[int]) -> list[int]:
    """The next token is always the next of these; returns the places that were asked for."""
    places: list[int] = []

    def drawn(_logits: Any, _sampling: Any, place: int) -> int:
        places.append(place)
        return ids[place - len("Say:")]

    monkeypatch.setattr(sampling, "drawn", drawn)
    return places


async def test_a_stop_may_begin_before_the_border_and_end_behind_it(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("one stop two").ids
    places = scripted(monkeypatch, [*ids, END])
    command = GenerateCommand("whole", "Say:", stops=("stop",), tokens=50)
    asking = Asking()
    async with Engine(folder, 1, asking.say) as engine:
        whole = (await asking.over(engine, command))["whole"]
        del places[:]
        begun = msgspec.structs.replace(command, id="on", begun=tuple(ids[:6]))
        on = (await asking.over(engine, begun))["on"]
        told = msgspec.structs.replace(command, id="told", begun=tuple(ids[:8]))
        ended = (await asking.over(engine, told))["told"]
    assert text_of(whole) == "one "
    assert tokens_of(whole) == tuple(ids[:8])
    assert (text_of(on), tokens_of(on)) == ("", tuple(ids[6:8]))
    assert end_of(on) == AnsweredReport("on", "stop", 4, 8)
    assert ended == [AnsweredReport("told", "stop", 4, 8)], "nothing is computed for it"
    assert min(places) == 4 + 6, "what was begun is not drawn again; the first one may still draw what nobody hears"


async def test_what_has_ended_already_is_answered_at_once(folder: Path) -> None:  # noqa: F811
    asking = Asking()
    async with Engine(folder, 1, asking.say) as engine:
        by_token = GenerateCommand("token", "Say:", begun=(65, END), tokens=9)
        by_length = GenerateCommand("length", "Say:", begun=(65, 66, 67), tokens=3)
        found = await asking.over(engine, by_token, by_length)
    assert found["token"] == [AnsweredReport("token", "stop", 4, 2)]
    assert found["length"] == [AnsweredReport("length", "length", 4, 3)]


async def test_calls_are_found_across_the_border(
    folder: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = with_template(folder, TEMPLATE, tmp_path / "here")
    ids = [*Tokenizer.from_file(str(here / "tokenizer.json")).encode(f"So: {SUM}").ids, END]
    prompts: list[int] = []

    def drawn(_logits: Any, _sampling: Any, place: int) -> int:
        prompts[:] = prompts or [place - 8]
        return ids[place - prompts[0]]

    monkeypatch.setattr(sampling, "drawn", drawn)
    asking = Asking()
    messages = ({"role": "user", "content": "2?"},)
    command = GenerateCommand("on", messages=messages, tools=tuple(TOOLS), begun=tuple(ids[:8]))
    async with Engine(here, 1, asking.say) as engine:
        on = (await asking.over(engine, command))["on"]
    assert text_of(on) == ""
    assert end_of(on).calls == (FunctionCall("sum", '{"a": 2}'),)
    assert end_of(on).tokens == len(ids)


@pytest.mark.parametrize(
    ("begun", "schema", "code"), [((70_000,), None, "unknown-token"), ((65, 66), PLACE, "bad-begun")]
)
async def test_what_no_model_has_begun_is_refused(
    folder: Path,  # noqa: F811
    begun: tuple[int, ...],
    schema: dict[str, Any] | None,
    code: str,
) -> None:
    asking = Asking()
    async with Engine(folder, 1, asking.say) as engine:
        wrong = GenerateCommand("wrong", "Say:", begun=begun, schema=schema)
        ((refused,),) = (await asking.over(engine, wrong)).values()
        well = (await asking.over(engine, GenerateCommand("well", "Say:", tokens=2)))["well"]
    assert isinstance(refused, RefusedReport)
    assert refused.code == code
    assert end_of(well).tokens == 2


async def test_a_context_bounds_a_prompt_with_its_answer(folder: Path) -> None:  # noqa: F811
    asking = Asking()
    async with Engine(folder, 1, asking.say, context=64) as engine:
        assert engine.longest == 64
        found = await asking.over(
            engine, GenerateCommand("fits", "a" * 40, sampling=GREEDY), GenerateCommand("long", "a" * 64)
        )
    assert end_of(found["fits"]).tokens <= 24
    assert isinstance(found["long"][-1], RefusedReport)


def test_a_form_is_copied_with_what_it_has_seen(folder: Path) -> None:  # noqa: F811
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode
    asked = Requests(load(folder, "cpu"), 512).read(GenerateCommand("1", "Say:", schema=PLACE))
    assert asked.form is not None
    asked.form.begin(ids("{").ids)
    again = copy.deepcopy(asked.form)
    again.begin(ids('"colour": "red"').ids)
    asked.form.begin(ids('"colour": "yellow"').ids)

"""Answers are drawn again: honest ones are right whatever was computed beside them, and each kind of lie is found."""

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from protocol.serving import (
    CheckCommand,
    CheckedReport,
    EngineReport,
    FunctionCall,
    GenerateCommand,
    RefusedReport,
    Sampling,
    TextReport,
)
from tests.support.chat_templates import TOOLS
from tests.trainer.serve.answering import GREEDY, Asking, check_of, end_of, tokens_of
from tests.trainer.serve.test_grammar import PLACE, folder  # noqa: F401 - a fixture
from tests.trainer.small import FAMILY_CONFIGS
from trainer.serve.checking import MOST, TOLERANCE, AnswerChecker, distance
from trainer.serve.engine import Engine
from trainer.stage.model import is_of_a_layer
from trainer.stage.quantized import quantized

ROUNDING = 1e-3  # Nats.
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "drawn": {"sampling": Sampling(seed=1)},
    "top_k": {"sampling": Sampling(0.7, 5, 1.0, 2)},
    "top_p": {"sampling": Sampling(1.5, 0, 0.6, 3)},
    "both": {"sampling": Sampling(1.0, 40, 0.9, 4)},
    "schema": {"sampling": Sampling(seed=5), "schema": PLACE, "tokens": 200},
    "likeliest": {"sampling": GREEDY, "schema": PLACE, "tokens": 200},
    "stop": {"sampling": Sampling(seed=6), "stops": ("e", "\n", "Q"), "tokens": 300},
    "long": {"sampling": Sampling(seed=7), "prompt": "Say it: " * 40, "tokens": 100},
}


@pytest.fixture
async def asking(folder: Path) -> AsyncIterator[tuple[Asking, Engine]]:  # noqa: F811
    asking = Asking()
    async with Engine(folder, 1, asking.say) as engine:
        yield asking, engine


def command_of(kind: str) -> GenerateCommand:
    return msgspec.structs.replace(GenerateCommand(kind, "Say:", tokens=40), **KINDS[kind])


async def checked(asking: Asking, engine: Engine, *checks: CheckCommand) -> list[CheckedReport]:
    found: list[CheckedReport] = []
    for one in checks:
        ((said,),) = (await asking.over(engine, one)).values()
        assert isinstance(said, CheckedReport), said
        found.append(said)
    return found


async def test_honest_answers_that_were_made_in_company_are_right(asking: tuple[Asking, Engine]) -> None:
    commands = [command_of(kind) for kind in KINDS]
    said = await asking[0].over(asking[1], *commands)
    found = await checked(*asking, *(check_of(one, said[one.id], one.id) for one in commands))
    assert {one.id: one.wrong for one in found} == dict.fromkeys(KINDS, "")
    assert max(one.worst for one in found) < ROUNDING
    assert end_of(said["stop"]).reason == "stop"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["greedy", "both", "schema", "stop"])
async def test_what_came_behind_another_nodes_tokens_is_checked_by_itself(
    asking: tuple[Asking, Engine], kind: str
) -> None:
    command = command_of(kind)
    whole = (await asking[0].over(asking[1], command))[kind]
    before = tokens_of(whole)[: len(tokens_of(whole)) // 2]
    begun = msgspec.structs.replace(command, begun=before, id="rest")
    rest = (await asking[0].over(asking[1], begun))["rest"]
    check = check_of(begun, rest)
    assert (await checked(*asking, check))[0].wrong == ""
    false = msgspec.structs.replace(begun, id="false", begun=(*before[:-1], (before[-1] + 1) % 256))
    if kind == "greedy":  # What is false in it is not this node's doing: only what it says behind is looked at.
        said = (await asking[0].over(asking[1], false))["false"]
        assert (await checked(*asking, check_of(false, said)))[0].wrong == ""
    forged = msgspec.structs.replace(check, asked=command)
    assert (await checked(*asking, forged))[0].wrong != "", "without what was before it is another answer"


async def test_an_answer_that_was_cut_off_is_right_as_far_as_it_goes(asking: tuple[Asking, Engine]) -> None:
    for kind in ("drawn", "stop", "schema"):
        command = command_of(kind)
        said = (await asking[0].over(asking[1], command))[kind]
        parts = [one for one in said if isinstance(one, TextReport)]
        for cut in (1, len(parts) // 2, len(parts)):
            check = check_of(command, [*parts[:cut], end_of(said)])
            check = msgspec.structs.replace(check, reason=None, prompt=None, calls=())
            assert (await checked(*asking, check))[0].wrong == ""
            false = msgspec.structs.replace(check, text=check.text + "!")
            assert "not what its tokens say" in (await checked(*asking, false))[0].wrong


async def test_an_answer_was_as_long_as_it_could_be_where_it_was_given(asking: tuple[Asking, Engine]) -> None:
    command = msgspec.structs.replace(command_of("greedy"), tokens=20)
    said = (await asking[0].over(asking[1], command))["greedy"]
    longer = msgspec.structs.replace(command, tokens=None)
    check = msgspec.structs.replace(check_of(command, said), asked=longer)
    assert "ended before its end" in (await checked(*asking, check))[0].wrong
    assert (await checked(*asking, msgspec.structs.replace(check, context=24)))[0].wrong == ""


async def test_answers_go_on_while_another_is_checked(asking: tuple[Asking, Engine]) -> None:
    command = command_of("long")
    said = (await asking[0].over(asking[1], command))["long"]
    checks = [check_of(command, said, f"check {number}") for number in range(3)]
    found = await asking[0].over(asking[1], command_of("drawn"), *checks)
    assert end_of(found["drawn"]).tokens
    assert [one.wrong for (one, *_) in (found[each.id] for each in checks) if isinstance(one, CheckedReport)] == [
        ""
    ] * 3


Altered = Callable[[CheckCommand], CheckCommand]


def altered(**more: Any) -> Altered:
    return lambda check: msgspec.structs.replace(check, **more)


def token_altered(check: CheckCommand) -> CheckCommand:
    tokens = list(check.tokens)
    tokens[16] = 90 if tokens[16] != 90 else 91
    asked = msgspec.structs.replace(check.asked, stops=())
    return msgspec.structs.replace(check, tokens=tuple(tokens), asked=asked)


LIES: Mapping[str, tuple[Altered, str]] = {
    "early": (lambda check: msgspec.structs.replace(check, tokens=check.tokens[:-1]), "was ended before its end"),
    "nothing": (altered(tokens=(), text=""), "was ended before its end"),
    "more": (lambda check: msgspec.structs.replace(check, tokens=(*check.tokens, 65)), "goes on behind its end"),
    "reason": (altered(reason="stop"), "ended for another reason: length, not stop"),
    "prompt": (altered(prompt=400), "the prompt has 4 tokens, not 400"),
    "text": (lambda check: msgspec.structs.replace(check, text=check.text + "!"), "not what its tokens say"),
    "calls": (altered(calls=(FunctionCall("rain", "{}"),)), "the functions that it asks for"),
    "unknown": (altered(tokens=(300,)), "has the token 300, and this model knows 300"),
    "too long": (
        lambda check: msgspec.structs.replace(check, asked=msgspec.structs.replace(check.asked, prompt="a" * 600)),
        "the prompt has 600 tokens",
    ),
    "schema": (
        lambda check: msgspec.structs.replace(check, asked=msgspec.structs.replace(check.asked, schema={"type": 1})),
        "the schema cannot be kept to",
    ),
    "tools": (
        lambda check: msgspec.structs.replace(
            check,
            asked=msgspec.structs.replace(
                check.asked, messages=({"role": "user", "content": "?"},), tools=tuple(TOOLS)
            ),
        ),
        "no chat template",
    ),
}


async def test_each_lie_about_an_answer_is_told(asking: tuple[Asking, Engine]) -> None:
    command = command_of("greedy")
    said = (await asking[0].over(asking[1], command))["greedy"]
    honest = check_of(command, said)
    assert honest.reason == "length"
    for lie, part in LIES.values():
        (found,) = await checked(*asking, lie(honest))
        assert part in found.wrong
    assert (await checked(*asking, honest))[0].wrong == ""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["greedy", "drawn", "top_k", "both"])
async def test_one_token_that_was_altered_is_found(asking: tuple[Asking, Engine], kind: str) -> None:
    command = command_of(kind)
    said = (await asking[0].over(asking[1], command))[kind]
    forged = token_altered(check_of(command, said))
    text = asking[1]._requests.read(command).text.add(forged.tokens)
    (found,) = await checked(*asking, msgspec.structs.replace(forged, text=text))
    assert found.wrong.startswith("token 17 of 40 is ")
    assert TOLERANCE < found.worst <= MOST


def told(engine: Engine, check: CheckCommand, tokens: Sequence[int]) -> CheckCommand:
    """The same request, answered with these tokens and all that follows of them."""
    text = engine._requests.read(check.asked).text
    return msgspec.structs.replace(check, tokens=tuple(tokens), text=text.add(tokens), reason=text.reason or "length")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["drawn", "top_k", "top_p", "both"])
@pytest.mark.parametrize("other", [{"sampling": GREEDY}, {"sampling": Sampling(seed=9)}, {"prompt": "Sing of it:"}])
async def test_an_answer_to_something_else_is_found(
    asking: tuple[Asking, Engine], kind: str, other: dict[str, Any]
) -> None:
    command = command_of(kind)
    said = (await asking[0].over(asking[1], msgspec.structs.replace(command, **other)))[kind]
    asked_so = check_of(command, (await asking[0].over(asking[1], command))[kind])
    (found,) = await checked(*asking, told(asking[1], asked_so, tokens_of(said)))
    assert "nats behind" in found.wrong or "likeliest" in found.wrong


@pytest.mark.parametrize("kind", ["greedy", "drawn", "both"])
async def test_an_end_that_the_model_does_not_draw_is_found(asking: tuple[Asking, Engine], kind: str) -> None:
    command = command_of(kind)
    honest = check_of(command, (await asking[0].over(asking[1], command))[kind])
    early = told(asking[1], honest, (*honest.tokens[:20], 256))
    assert early.reason == "stop"
    (found,) = await checked(*asking, early)
    assert found.wrong.startswith("token 21 of 21 is ")


async def test_weights_in_four_bits_are_another_model(folder: Path) -> None:  # noqa: F811
    held = load_file(folder / "model.safetensors")
    held["lm_head.weight"] *= 20.0
    few = {
        name: quantized(one, 4, one.device).values() if one.dim() == 2 and is_of_a_layer(name) else one
        for name, one in held.items()
    }
    honest, cheating = Asking(), Asking()
    commands = [command_of(kind) for kind in ("greedy", "drawn", "top_k")]
    async with (
        Engine(folder, 1, honest.say, weights=held) as checker,
        Engine(folder, 1, cheating.say, weights=few) as other,
    ):
        said = await cheating.over(other, *commands)
        found = await checked(honest, checker, *(check_of(one, said[one.id], one.id) for one in commands))
    assert any("nats behind" in one.wrong for one in found), [one.worst for one in found]


async def test_a_token_outside_the_schema_is_found(asking: tuple[Asking, Engine]) -> None:
    command = msgspec.structs.replace(command_of("schema"), tokens=3)
    said = (await asking[0].over(asking[1], command))["schema"]
    tokens = (tokens_of(said)[0], 3, 3)
    text = asking[1]._requests.read(command).text.add(tokens)
    (found,) = await checked(*asking, msgspec.structs.replace(check_of(command, said), tokens=tokens, text=text))
    assert (found.wrong, found.worst) == ("token 2 of 3 does not keep to the schema", MOST)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["greedy", "drawn", "both", "schema"])
async def test_another_model_of_the_same_shape_is_found(
    asking: tuple[Asking, Engine],
    folder: Path,  # noqa: F811
    tmp_path: Path,
    kind: str,
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    torch.manual_seed(2)
    other: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        other.lm_head.weight.mul_(20.0)  # Where two models find all tokens as good, a draw is the same by its noise.
    other.save_pretrained(tmp_path)
    command, cheating = command_of(kind), Asking()
    async with Engine(tmp_path, 1, cheating.say) as engine:
        said = (await cheating.over(engine, command))[kind]
    (found,) = await checked(*asking, check_of(command, said))
    assert "nats behind" in found.wrong or "likeliest" in found.wrong
    assert found.worst > TOLERANCE


async def test_a_machine_that_cannot_check_says_nothing_of_the_answer(
    asking: tuple[Asking, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no memory is left")

    command = command_of("greedy")
    said: list[EngineReport] = (await asking[0].over(asking[1], command))["greedy"]
    monkeypatch.setattr(AnswerChecker, "_drawn", fail)
    ((found,),) = (await asking[0].over(asking[1], check_of(command, said))).values()
    assert isinstance(found, RefusedReport)
    assert found.code == "failed"


def test_numbers_that_are_none_are_as_far_away_as_can_be() -> None:
    nothing = torch.full((5,), math.nan)
    assert distance(nothing, GREEDY, 3, 1) == (MOST, True)
    assert distance(nothing, Sampling(seed=1), 3, 1) == (MOST, True)


def test_at_a_border_both_sides_are_right() -> None:
    level = torch.tensor([2.0, 2.0, 1.0, -3.0])
    for sampling in (Sampling(top_k=1), Sampling(top_p=0.2)):
        assert all(distance(level, sampling, place, token) == (0.0, True) for place in range(9) for token in (0, 1))
        assert not distance(level, sampling, 1, 2)[1]
    sure = torch.tensor([3.0, 2.0, 0.0, -3.0])
    assert not distance(sure, Sampling(top_k=2), 1, 2)[1]
    assert distance(sure, Sampling(top_k=3), 1, 2)[1]
    assert not distance(sure, Sampling(top_p=0.7), 1, 1)[1]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", ["gpt2", "gemma2", "mistral"])
async def test_long_prompts_are_computed_in_parts(family: str, tmp_path: Path, folder: Path) -> None:  # noqa: F811
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    more = {"vocab_size": 300, "pad_token_id": None, "eos_token_id": 256, "bos_token_id": None}
    long = {"n_positions": 1024} if family == "gpt2" else {"max_position_embeddings": 1024}
    torch.manual_seed(3)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**(FAMILY_CONFIGS[family] | more | long)))
    model.save_pretrained(tmp_path)
    command = GenerateCommand("1", "Say it: " * 90, tokens=60, sampling=Sampling(seed=8))
    asking = Asking()
    async with Engine(tmp_path, 1, asking.say) as engine:
        said = (await asking.over(engine, command))["1"]
        (found,) = await checked(asking, engine, check_of(command, said))
    assert found.wrong == ""
    assert found.worst < ROUNDING

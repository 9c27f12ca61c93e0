"""Stages that answer together say what the whole model says by itself, in company, late and out of turn."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.serving import GenerateCommand, Sampling
from tests.trainer.serve.answering import GREEDY, Asking, Reports, end_of, text_of, tokens_of
from tests.trainer.serve.stages.ring import ring
from tests.trainer.serve.test_grammar import PLACE, folder  # noqa: F401 - a fixture
from trainer.serve.engine import Engine

PROMPT = "A quick brown fox é"
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "seeded": {"sampling": Sampling(seed=4)},
    "likeliest": {"sampling": Sampling(0.8, 40, 0.9, 5)},
    "schema": {"sampling": Sampling(seed=6), "schema": PLACE, "tokens": 200},
    "stops": {"sampling": Sampling(seed=7), "stops": ("e", "a")},
    "logprobs": {"sampling": Sampling(seed=8), "likeliest": 3},
}


def command(name: str, **more: Any) -> GenerateCommand:
    return msgspec.structs.replace(GenerateCommand(name, PROMPT, tokens=40), **more)


async def alone(folder: Path, *commands: GenerateCommand) -> Reports:  # noqa: F811
    """What the whole model says, one after the other."""
    asking, found = Asking(), dict[str, Any]()
    async with Engine(folder, 1, asking.say, context=256) as engine:
        for one in commands:
            found |= await asking.over(engine, one)
    return found


@pytest.mark.parametrize("stages", [2, 3])
async def test_each_kind_of_request_has_the_answer_of_the_whole_model(folder: Path, stages: int) -> None:  # noqa: F811
    commands = [command(name, **more) for name, more in KINDS.items()]
    expected = await alone(folder, *commands)
    async with ring(folder, stages, delay=0.01) as here:
        found = await here.over(*commands)
    for one in commands:
        assert tokens_of(found[one.id]) == tokens_of(expected[one.id]), one.id
        assert text_of(found[one.id]) == text_of(expected[one.id])
        assert end_of(found[one.id]) == end_of(expected[one.id])

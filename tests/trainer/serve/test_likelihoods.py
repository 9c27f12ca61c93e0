"""How likely the tokens of an answer were is what one plain pass of the model says, whatever was drawn how and beside what."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from protocol.serving import GenerateCommand, Sampling, TextReport, TokenLogprob
from tests.trainer.serve.answering import GREEDY, Asking, end_of, tokens_of
from tests.trainer.serve.test_grammar import PLACE, folder  # noqa: F401 - a fixture
from trainer.serve.engine import Engine
from trainer.serve.loading import load

LIKELIEST = 3
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "drawn": {"sampling": Sampling(1.3, 0, 0.9, 4)},
    "schema": {"sampling": Sampling(seed=5), "schema": PLACE, "tokens": 60},
    "stop": {"sampling": Sampling(seed=6), "stops": ("e", "Q"), "tokens": 60},
    "none": {"sampling": GREEDY, "likeliest": None},
    "only": {"sampling": GREEDY, "likeliest": 0},
}


def command_of(kind: str) -> GenerateCommand:
    plain = GenerateCommand(kind, "Say:", tokens=24, likeliest=LIKELIEST)
    return msgspec.structs.replace(plain, **KINDS[kind])


def told_of(said: list[Any]) -> list[TokenLogprob]:
    return [one for report in said if isinstance(report, TextReport) for one in report.logprobs]


async def test_each_token_has_the_likelihood_that_the_model_gives_it(folder: Path) -> None:  # noqa: F811
    loaded, asking = load(folder, "cpu"), Asking()
    commands = [command_of(kind) for kind in KINDS]
    async with Engine(folder, 1, asking.say) as engine:
        said = await asking.over(engine, *commands)
        half = tokens_of(said["drawn"])[:12]
        begun = msgspec.structs.replace(command_of("drawn"), id="on", begun=half)
        rest = (await asking.over(engine, begun))["on"]
    for command in commands:
        tokens, told = tokens_of(said[command.id]), told_of(said[command.id])
        ended = tokens[-1] in loaded.ends
        assert len(told) == (0 if command.likeliest is None else len(tokens) - ended)
        assert end_of(said[command.id]).tokens == len(tokens)
        prompt = loaded.tokenizer(command.prompt)["input_ids"]
        with torch.no_grad():
            rows = loaded.model(torch.tensor([[*prompt, *tokens]])).logits[0].log_softmax(-1)[len(prompt) - 1 :]
        for row, token, one in zip(rows, tokens, told, strict=False):
            assert one.text == loaded.tokenizer.decode([token])
            assert one.logprob == pytest.approx(float(row[token]), abs=1e-3)
            best = row.topk(command.likeliest or 0).values.tolist()
            assert [nats for _, nats in one.likeliest] == pytest.approx(best, abs=1e-3)
    assert [one.logprob for one in told_of(rest)] == pytest.approx(
        [one.logprob for one in told_of(said["drawn"])[12:]], abs=1e-3
    )

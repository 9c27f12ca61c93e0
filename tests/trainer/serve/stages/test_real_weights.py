"""SmolLM2-135M in two stages: a model that has learnt says what the whole one says, and eight bits are found."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.serving import BoundarySketches, CheckCommand, CheckedReport, GenerateCommand, Sampling
from tests.e2e.smollm2 import smollm2  # noqa: F401 - a fixture
from tests.trainer.serve.answering import GREEDY, Asking, Reports, check_of, end_of, text_of, tokens_of
from tests.trainer.serve.stages.ring import Sketched, ring, tensors_of
from tests.trainer.serve.stages.test_blame import int8
from trainer.serve import checking
from trainer.serve.engine import Engine

pytestmark = [pytest.mark.slow, pytest.mark.long]
CUTS = [(0, 14), (14, 30)]
GREEDILY = GenerateCommand(
    "greedy", messages=({"role": "user", "content": "What colour is the sea?"},), tokens=40, sampling=GREEDY
)
FREELY = GenerateCommand("free", "Once upon a time there was a fox who", tokens=64, sampling=Sampling(0.9, 0, 0.95, 3))


async def together(folder: Path, weights: dict[int, dict[str, Any]] | None = None) -> tuple[Reports, Sketched]:
    async with ring(folder, 2, delay=0.01, context=512, cuts=CUTS, weights=weights) as here:
        found = await here.over(GREEDILY, FREELY)
        return found, await here.sketched("free")


def check(found: Reports, sketched: Sketched) -> CheckCommand:
    sent, got = sketched["free", 0, "sent"].values, sketched["free", 1, "got"].values
    return msgspec.structs.replace(
        check_of(FREELY, found["free"]), boundaries=(BoundarySketches(CUTS[1][0], 0, sent, got),)
    )


async def test_learnt_weights_answer_as_one_process_and_eight_bits_are_found(
    smollm2: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checking, "TOLERANCE", 1e-3)
    found, sketched = await together(smollm2)
    layers = tuple(f".layers.{number}." for number in range(*CUTS[0]))
    eight = {
        name: int8(value.float()) if any(layer in name for layer in layers) else value
        for name, value in (await asyncio.to_thread(tensors_of, smollm2)).items()
    }
    lied = await together(smollm2, {0: eight})
    asking = Asking()
    async with Engine(smollm2, 1, asking.say, context=512) as engine:
        whole = await asking.over(engine, GREEDILY, FREELY)
        for one in (GREEDILY, FREELY):
            assert tokens_of(found[one.id]) == tokens_of(whole[one.id])
            assert text_of(found[one.id]) == text_of(whole[one.id])
            assert end_of(found[one.id]) == end_of(whole[one.id])
        reports = [(await asking.over(engine, check(*record)))["check"][-1] for record in ((found, sketched), lied)]
    right, wrong = reports
    assert isinstance(right, CheckedReport)
    assert (right.wrong, right.stages) == ("", ())
    assert isinstance(wrong, CheckedReport)
    assert wrong.wrong
    assert wrong.stages == (0,)

"""Embeddings that stages make together are those of the whole model, beside answers, and where pages are few."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.serving import (
    AnsweredReport,
    CancelCommand,
    CheckedReport,
    CheckEmbeddingsCommand,
    EmbedCommand,
    EmbeddedReport,
    EngineReport,
    RefusedReport,
)
from tests.trainer.serve.answering import GREEDY, Asking, tokens_of
from tests.trainer.serve.stages.ring import ring
from tests.trainer.serve.stages.test_stages import alone, command
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture
from trainer.serve.embeddings import TOLERANCE, distance
from trainer.serve.engine import Engine
from trainer.serve.stages import lead, share
from trainer.serve.stages.texts import LedTexts

TEXTS = ("a fox", "A quick brown fox " * 12, "é", (65, 66, 67), "a fox")


def vectors_of(said: Sequence[EngineReport]) -> list[bytes]:
    return [one for report in said if isinstance(report, EmbeddedReport) for one in report.vectors]


async def checked(folder: Path, asked: EmbedCommand, said: Sequence[EngineReport]) -> CheckedReport:  # noqa: F811
    """What the whole model finds of them."""
    counts = [one for report in said if isinstance(report, EmbeddedReport) for one in report.tokens]
    asking = Asking()
    async with Engine(folder, 1, asking.say, context=256) as engine:
        check = CheckEmbeddingsCommand("check", asked, tuple(counts), tuple(vectors_of(said)))
        ((found,),) = (await asking.over(engine, check)).values()
    assert isinstance(found, CheckedReport)
    return found


@pytest.mark.parametrize("stages", [2, 3])
async def test_texts_have_the_vectors_of_the_whole_model_beside_answers(folder: Path, stages: int) -> None:  # noqa: F811
    asked, answer = EmbedCommand("texts", TEXTS), command("answer", sampling=GREEDY)
    expected = await alone(folder, answer, asked)
    async with ring(folder, stages, delay=0.01) as here:
        found = await here.over(answer, asked, EmbedCommand("again", ("a fox",)))
        await here.in_step("answer")
    assert tokens_of(found["answer"]) == tokens_of(expected["answer"])
    made, due = vectors_of(found["texts"]), vectors_of(expected["texts"])
    away = [
        distance(torch.frombuffer(bytearray(one), dtype=torch.float32), other)
        for one, other in zip(made, due, strict=True)
    ]
    assert max(away) < TOLERANCE / 10
    assert made[0] == made[4] != made[1]
    assert found["texts"][-1] == expected["texts"][-1]
    assert isinstance(found["texts"][-1], AnsweredReport)
    assert (await checked(folder, asked, found["texts"])).wrong == ""


async def test_where_pages_are_few_texts_wait_or_begin_again_and_all_are_made(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = EmbedCommand("texts", tuple(f"{number} foxes " * 20 for number in range(12)))
    monkeypatch.setattr(share, "SEATS", 1)
    monkeypatch.setattr(lead, "BATCH", 48)
    async with ring(folder, 2, delay=0.002) as here:
        found = await here.over(asked, *(command(f"{number}", tokens=60) for number in range(3)))
    assert len(vectors_of(found["texts"])) == 12
    assert (await checked(folder, asked, found["texts"])).wrong == ""


async def test_what_cannot_be_embedded_is_told_and_what_nobody_waits_for_ends(folder: Path) -> None:  # noqa: F811
    async with ring(folder, 2, delay=0.01) as here:
        for texts, code in (((("a" * 300),), "long-text"), (("",), "bad-text"), (((299, 300),), "bad-text")):
            [refused] = (await here.over(EmbedCommand("texts", texts)))["texts"]
            assert isinstance(refused, RefusedReport)
            assert refused.code == code
        here.lead.ask(EmbedCommand("gone", ("a fox " * 30,) * 40))
        here.lead.ask(CancelCommand("gone"))
        found = await here.over(EmbedCommand("next", ("a fox",)))
        assert len(vectors_of(found["next"])) == 1
        assert not [one for one in here.asking.said.get("gone", []) if isinstance(one, AnsweredReport)]


async def test_texts_under_way_fail_once_where_nodes_change(folder: Path) -> None:  # noqa: F811
    async with ring(folder, 2, delay=0.05) as here:
        here.lead.ask(EmbedCommand("texts", ("a fox " * 30,) * 8))
        here.join(2)
        await here.asking.until(lambda said: any(isinstance(one, RefusedReport) for one in said.get("texts", [])))
        found = await here.over(EmbedCommand("next", ("a fox",)))
    assert len(vectors_of(found["next"])) == 1
    assert [type(one) for one in here.asking.said["texts"]].count(RefusedReport) == 1


def test_vectors_are_said_in_order_and_no_report_is_too_long() -> None:
    said: list[EngineReport] = []
    texts = LedTexts("1", [[1, 2]] * 100, said.append)
    vector: Tensor = torch.ones(4096)
    for place in reversed(range(100)):
        texts.take(place, vector)
    reports = [one for one in said if isinstance(one, EmbeddedReport)]
    assert [len(one.vectors) for one in reports] == [8] * 12 + [4]
    assert said[-1] == AnsweredReport("1", "stop", 200, 0)
    assert np.frombuffer(reports[0].vectors[0], "<f4").tolist() == [1.0] * 4096

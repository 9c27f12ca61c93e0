"""Homes that say more than a model says, or that they cannot answer: others go on, and whoever asked is told what helps."""

import pytest

from coordinator.errors import UnableError, UnavailableError
from protocol.serving import TextReport
from protocol.task import ModelSaid
from tests.coordinator.serving.deployed import Deployed
from tests.coordinator.serving.test_deployments import two_homes, who_answers


@pytest.mark.parametrize("flood", ["text", "tokens", "nothing"])
async def test_who_says_more_than_a_model_says_fills_no_memory_and_another_node_answers(flood: str) -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    asked = bench.ask(await bench.stored(job), tokens=20)
    await bench.pass_time(0.35)
    flooding = who_answers(one, two)
    flooding.silence()
    request = flooding.asked[-1].id
    for _ in range(200):
        report = TextReport(request, "x" * 5_000 if flood == "text" else "", (1,) * 5 if flood == "tokens" else ())
        await flooding.say(ModelSaid((report,)))
    assert len(bench.parts.homes._parts) <= 1, "no more of it is taken"
    await bench.pass_time(4.0)
    await asked.task
    assert asked.tokens[-2:] == asked.right[-2:]
    assert len(asked.tokens) == 20
    assert asked.end is not None
    assert len(asked.end.nodes) == 2


@pytest.mark.parametrize("code", ["failed", "busy"])
async def test_nodes_that_cannot_answer_are_let_go_and_the_request_is_answered_elsewhere(code: str) -> None:
    bench = Deployed()
    job, one, two = await two_homes(bench)
    one.refusing = code
    asked = [bench.ask(await bench.stored(job), seed=seed, tokens=3) for seed in range(8)]
    await bench.pass_time(4.0)
    assert all(answer.task.done() and answer.tokens == answer.right for answer in asked)
    await bench.turn(job)
    assert one.lease is None or len(one.asked) <= 8
    two.refusing = code
    one.refusing = code
    last = bench.ask(await bench.stored(job))
    await bench.pass_time(4.0)
    with pytest.raises(UnavailableError) as refused:
        await last.task
    assert isinstance(refused.value, UnableError) == (code == "failed"), "room may come"

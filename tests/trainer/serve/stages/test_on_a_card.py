"""Stages that answer on cards: what they say is what they say without, and a pass waits for what leaves alone."""

from pathlib import Path

import msgspec

from protocol.serving import GenerateCommand, Sampling
from tests.trainer.card import NAME, asked, card
from tests.trainer.serve.answering import GREEDY, text_of, tokens_of
from tests.trainer.serve.stages.ring import ring
from tests.trainer.serve.test_grammar import folder  # noqa: F401 - a fixture

TOKENS = 12
FINITE = "trainer/serve/stages/engine.py:_pass_on"


async def test_stages_answer_there_as_here_and_wait_for_what_they_send(folder: Path) -> None:  # noqa: F811
    asking = GenerateCommand("1", "A quick brown fox", tokens=TOKENS, sampling=GREEDY)
    commands = [asking, msgspec.structs.replace(asking, id="2", sampling=Sampling(seed=4))]
    async with ring(folder, 3) as here:
        expected = await here.over(*commands)
    with card() as counted:
        async with ring(folder, 3, device=NAME) as there:
            counted.clear()
            found = await there.over(*commands)
            passes = there.stages[-1].layers.passes
        assert {one.id: tokens_of(found[one.id]) for one in commands} == {
            one.id: tokens_of(expected[one.id]) for one in commands
        }
        assert text_of(found["1"]) == text_of(expected["1"])
        assert asked(counted) == {FINITE: passes}, "the last stage looks whether it has computed numbers"

"""Prices cost nothing, and each may have a template tried in a process: a few are tried at a time, each once."""

import asyncio
from typing import Any, cast

import pytest

from coordinator.errors import InvalidError, UnavailableError
from coordinator.services.artifacts.base_models import BaseModels
from coordinator.services.artifacts.models import ModelWorkshop
from coordinator.services.serving.chat_templates import MAX_AT_ONCE, MAX_REMEMBERED, ChatTemplates
from protocol.job.job import JobSpec, ModelSpec, ServeSpec, TokenizerSpec
from tests.coordinator.fakes import BUDGET, digest


class Tools:
    """Trials that take until they are let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.running = self.most = 0
        self.done = asyncio.Event()
        self.fails = False

    async def template_fault(self, tokenizer: TokenizerSpec) -> str:
        template = str((tokenizer.settings or {})["chat_template"])
        self.begun.append(template)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.done.wait()
        finally:
            self.running -= 1
        if self.fails:
            raise UnavailableError("reading the chat template failed")
        return f"{template} is broken"


def bench() -> tuple[Tools, ChatTemplates]:
    tools = Tools()
    return tools, ChatTemplates(cast(ModelWorkshop, tools), cast(BaseModels, None))


def written(template: str) -> TokenizerSpec:
    return TokenizerSpec("file", file=digest("tokenizer"), settings={"chat_template": template})


def document(template: str) -> JobSpec:
    model = ModelSpec(config={"model_type": "llama"}, weights=digest("weights"))
    return JobSpec("answers", model, BUDGET, tokenizer=written(template), serve=ServeSpec())


async def settle() -> None:
    """Until everybody waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_prices_of_many_templates_have_a_few_tried_and_wait_for_no_turn() -> None:
    tools, templates = bench()
    asking = [asyncio.create_task(templates.problem(document(f"t{number}"))) for number in range(120)]
    await settle()
    told = [task.result() for task in asking if task.done()]
    assert told == [""] * (120 - MAX_AT_ONCE), "nobody knows yet"
    tools.done.set()
    found = await asyncio.gather(*asking)
    assert [fault.split(";")[0] for fault in found[:MAX_AT_ONCE]] == ["t0 is broken", "t1 is broken"]
    assert len(tools.begun) == tools.most == MAX_AT_ONCE
    assert (await templates.problem(document("t119"))).startswith("t119 is broken"), "once there is room"


@pytest.mark.parametrize("fails", [False, True])
async def test_a_template_is_tried_once_for_all_who_ask_at_a_time(fails: bool) -> None:
    tools, templates = bench()
    tools.fails = fails
    asking = [asyncio.create_task(templates.problem(document("one"))) for _ in range(20)]
    await settle()
    tools.done.set()
    told = set(await asyncio.gather(*asking))
    assert told == {"" if fails else "one is broken; mend it, or leave it out: then the model continues texts"}
    assert tools.begun == ["one"]
    tools.fails = False
    assert (await templates.problem(document("one"))).startswith("one is broken")
    assert tools.begun == ["one"] * (1 + fails), "what failed is tried again"


async def test_a_deployment_that_is_made_waits_for_its_turn_and_is_told() -> None:
    tools, templates = bench()
    prices = [asyncio.create_task(templates.problem(document(f"t{number}"))) for number in range(MAX_AT_ONCE)]
    await settle()
    made = asyncio.create_task(templates.check(written("mine")))
    await settle()
    assert not made.done()
    assert "mine" not in tools.begun
    tools.done.set()
    with pytest.raises(InvalidError, match="mine is broken; mend it"):
        await made
    await asyncio.gather(*prices)
    assert tools.most == MAX_AT_ONCE


async def test_a_price_joins_a_trial_that_has_begun_and_none_that_waits_for_its_turn() -> None:
    tools, templates = bench()
    prices = [asyncio.create_task(templates.problem(document(f"t{number}"))) for number in range(MAX_AT_ONCE)]
    made = [asyncio.create_task(templates.check(written(name))) for name in ("mine", "yours")]
    early = asyncio.create_task(templates.problem(document("mine")))
    await settle()
    assert early.done()
    assert early.result() == "", "nobody knows yet"
    joined = asyncio.create_task(templates.problem(document("t0")))
    prices[1].cancel()
    await settle()
    assert tools.begun == ["t0", "t1", "mine"]
    late = asyncio.create_task(templates.problem(document("mine")))
    assert await templates.problem(document("yours")) == ""
    await settle()
    tools.done.set()
    assert [(await price).split(";")[0] for price in (joined, late)] == ["t0 is broken", "mine is broken"]
    assert all(isinstance(one, InvalidError) for one in await asyncio.gather(*made, return_exceptions=True))
    assert tools.begun == ["t0", "t1", "mine", "yours"]


async def test_a_trial_goes_on_while_somebody_asks_and_ends_with_the_last_who_does() -> None:
    tools, templates = bench()
    one, other = (asyncio.create_task(templates.problem(document("one"))) for _ in range(2))
    await settle()
    one.cancel()
    await settle()
    assert tools.running == 1
    other.cancel()
    await settle()
    assert (tools.running, one.cancelled(), other.cancelled()) == (0, True, True)
    tools.done.set()
    assert (await templates.problem(document("one"))).startswith("one is broken"), "it begins anew"


async def test_what_is_remembered_has_a_bound() -> None:
    tools, templates = bench()
    tools.done.set()
    for number in range(MAX_REMEMBERED + 5):
        assert await templates.problem(document(f"t{number}" + "x" * 10_000))
    kept: Any = templates._faults
    assert len(kept) == MAX_REMEMBERED
    assert {len(key) for key in kept} == {32}, "however long a template is"
    assert not templates._trials

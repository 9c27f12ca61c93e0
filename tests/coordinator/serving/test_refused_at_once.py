"""What no model can answer is refused before one is loaded, or a node waited for: also while a deployment has none."""

import asyncio
from typing import Any

import msgspec
import pytest

from coordinator.domain.serving import AdapterPoint
from coordinator.errors import InvalidError
from protocol.asking import NO_TEMPLATE
from protocol.job.job import ServedAdapter, TokenizerSpec
from protocol.rest.api import TrialRequest
from protocol.serving import GenerateCommand
from tests.coordinator.fakes import digest
from tests.coordinator.serving.deployed import Deployed

CONTEXT = 256
HI: Any = ({"role": "user", "content": "Hi"},)
TEMPLATE = "{{ messages }}"


async def lonely(template: str = "", adapters: tuple[ServedAdapter, ...] = ()) -> tuple[Deployed, str]:
    """A deployment that no node holds."""
    bench = Deployed()
    await bench.come(1)
    job = await bench.deploy(alone=True)
    async with bench.desk(job) as work:
        settings = {"chat_template": template} if template else None
        tokenizer = TokenizerSpec("file", file=digest("tokens"), settings=settings)
        assert work.job.spec.serve is not None
        serve = msgspec.structs.replace(work.job.spec.serve, context=CONTEXT, adapters=adapters)
        work.change(spec=msgspec.structs.replace(work.job.spec, serve=serve, tokenizer=tokenizer))
    return bench, job


async def refused(bench: Deployed, job: str, command: GenerateCommand, point: Any = None) -> InvalidError:
    with pytest.raises(InvalidError) as error:
        await asyncio.wait_for(anext(bench.parts.outputs.complete(job, point, command)), 5.0)
    return error.value


async def waits(bench: Deployed, job: str, command: GenerateCommand, point: Any = None) -> None:
    """It is taken, and waits for a node."""

    async def ask() -> None:
        async for _ in bench.parts.outputs.complete(job, point, command):
            pass

    asking = asyncio.create_task(ask())
    await bench.pass_time(2.0)
    assert bench.parts.homes.now(job)[1] == 1
    asking.cancel()
    await asyncio.wait({asking})


async def test_messages_for_a_model_without_a_template_are_refused_while_nobody_holds_it() -> None:
    bench, job = await lonely()
    error = await refused(bench, job, GenerateCommand("1", messages=HI))
    assert (error.field, error.code, error.detail) == ("messages", "no_chat_template", NO_TEMPLATE)
    await waits(bench, job, GenerateCommand("1", "Once"))
    with pytest.raises(InvalidError, match="has no chat template"):
        await anext(bench.parts.outputs.generate(job, None, TrialRequest("Hi", chat=True)))


async def test_a_role_that_nobody_knows_and_too_long_an_answer_are_refused_while_nobody_holds_it() -> None:
    bench, job = await lonely(TEMPLATE)
    wizard = await refused(bench, job, GenerateCommand("1", messages=({"role": "wizard", "content": "Hi"},)))
    assert wizard.field == "messages"
    assert "is of 'wizard', who is nobody known here" in wizard.detail
    for asked in (GenerateCommand("1", messages=HI, tokens=100_000), GenerateCommand("1", "Hi", tokens=CONTEXT + 1)):
        error = await refused(bench, job, asked)
        assert error.field == "max_tokens"
        assert "this model reads 256 tokens" in error.detail
    await waits(bench, job, GenerateCommand("1", messages=HI, tokens=CONTEXT))


async def test_an_adapter_may_bring_the_template_that_its_model_has_not() -> None:
    bench = Deployed()
    await bench.come(1)
    chats, plain = await bench.trained(), await bench.trained()
    async with bench.desk(chats) as work:
        tokenizer = TokenizerSpec("file", file=digest("tokens"), settings={"chat_template": TEMPLATE})
        work.change(spec=msgspec.structs.replace(work.job.spec, tokenizer=tokenizer))
    job = await bench.deploy(alone=True)
    async with bench.desk(job) as work:
        assert work.job.spec.serve is not None
        serve = msgspec.structs.replace(
            work.job.spec.serve, context=CONTEXT, adapters=(ServedAdapter(chats), ServedAdapter(plain))
        )
        work.change(spec=msgspec.structs.replace(work.job.spec, serve=serve))
    asked = GenerateCommand("1", messages=HI)
    for point in (None, AdapterPoint(plain)):
        assert (await refused(bench, job, asked, point)).detail == NO_TEMPLATE
    await waits(bench, job, asked, AdapterPoint(chats))


async def test_a_trial_that_names_no_length_fits_a_model_that_reads_little() -> None:
    bench, job = await lonely()
    async with bench.desk(job) as work:
        assert work.job.spec.serve is not None
        serve = msgspec.structs.replace(work.job.spec.serve, context=64)
        work.change(spec=msgspec.structs.replace(work.job.spec, serve=serve))
    home = await bench.come(2)
    await bench.turn(job)

    async def tried() -> None:
        async for _ in bench.parts.outputs.generate(job, None, TrialRequest("Hi")):
            pass

    home.pace = 0.01
    await bench.while_time_moves(tried())
    assert [one.tokens for one in home.asked if isinstance(one, GenerateCommand) and one.prompt == "Hi"] == [64]

"""A request with a list of texts: each has a choice of its own, as if it had been asked by itself."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from coordinator.client import Client
from coordinator.errors import InvalidError, TooManyError
from coordinator.services.accounts.budgets import COMPLETIONS
from coordinator.web.completions.routes import AT_A_TIME
from protocol.rest.completions import MAX_PROMPTS
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from tests.coordinator.web.completions.test_door import client as client
from tests.coordinator.web.completions.test_door import client_of, key_of
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.test_life import started
from tests.coordinator.web.test_tenants import job_of, member


async def test_each_text_has_a_choice_in_its_order(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    texts = ["to be or not", "to be", "to", "not"]
    alone = [await client.completions.create(model=job, prompt=text, max_tokens=3) for text in texts]
    together = await client.completions.create(model=job, prompt=texts, max_tokens=3)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in together.choices] == [one.choices[0].text for one in alone]
    assert [choice.finish_reason for choice in together.choices] == [one.choices[0].finish_reason for one in alone]
    assert together.usage is not None
    assert together.usage.total_tokens == sum(one.usage.total_tokens for one in alone if one.usage is not None)


async def test_a_list_of_one_is_that_text_also_as_a_stream(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    stream = await client.completions.create(model=job, prompt=["to be"], stream=True, max_tokens=3)
    said = "".join([chunk.choices[0].text async for chunk in stream if chunk.choices])
    assert said == (await client.completions.create(model=job, prompt="to be", max_tokens=3)).choices[0].text


async def test_what_cannot_be_asked_of_several_is_refused(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    with pytest.raises(openai.BadRequestError, match="a stream goes on with one text"):
        await client.completions.create(model=job, prompt=["a", "b"], stream=True)
    for prompt in (["a"] * (MAX_PROMPTS + 1), [], [[1, 2]], ["a", 1]):
        with pytest.raises(openai.BadRequestError, match="prompt"):
            await client.completions.create(model=job, prompt=prompt)  # type: ignore[call-overload]


async def test_few_are_under_way_at_a_time_and_what_is_wrong_with_one_ends_all(
    house: House, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, open_now, most, ended = await started(house), 0, 0, 0

    async def counted(
        _self: Outputs, _job: str, _point: object, command: GenerateCommand
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        nonlocal open_now, most, ended
        open_now += 1
        most = max(most, open_now)
        try:
            await asyncio.sleep(0)
            if command.prompt == "bad":
                await asyncio.sleep(0.1)
                raise InvalidError("this text is too long", "prompt")
            if command.prompt == "long":
                await asyncio.Event().wait()
            yield TextReport("1", command.prompt.upper())
            yield AnsweredReport("1", "stop", 1, 1)
        finally:
            open_now, ended = open_now - 1, ended + 1

    monkeypatch.setattr(Outputs, "complete", counted)
    texts = [f"t{number}" for number in range(MAX_PROMPTS)]
    answer = await client.completions.create(model=job, prompt=texts)
    assert [choice.text for choice in answer.choices] == [text.upper() for text in texts]
    assert (most, ended) == (AT_A_TIME, MAX_PROMPTS)
    with pytest.raises(openai.BadRequestError, match="this text is too long") as refused:
        await client.completions.create(model=job, prompt=["a", "bad", "long"])
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["param"] == "prompt"
    assert open_now == 0, "those that were under way have ended with it"


async def test_each_text_counts_as_a_request(town: House, http: aiohttp.ClientSession) -> None:
    await member(town, "operator")
    ada = await member(town, "ada")
    job, key = await job_of(town, http, ada), key_of(ada)
    budget = town.auth.budgets._own[COMPLETIONS.what]
    async with Client(town.url, key) as own:
        await own.fund(job)
    for _ in range(3):
        town.cluster.step(job)
    budget.spend((await town.accounts.by_key(key)).account_id, COMPLETIONS.burst - MAX_PROMPTS - 0.5)
    async with client_of(town, key) as client:
        await client.completions.create(model=job, prompt=["a"] * MAX_PROMPTS)
        with pytest.raises(openai.RateLimitError, match="requests to models"):
            await client.completions.create(model=job, prompt=["a"] * 2)


async def test_who_is_refused_behind_others_that_were_answered_waits(
    house: House, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, asked = await started(house), list[str]()

    async def crowded(
        _self: Outputs, _job: str, _point: object, command: GenerateCommand
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        asked.append(command.prompt)
        if command.prompt == "full" or (command.prompt == "late" and asked.count("late") < 3):
            await asyncio.sleep(0.05)
            raise TooManyError("too many answers are under way", 0.01)
        yield TextReport("1", command.prompt)
        yield AnsweredReport("1", "stop", 1, 1)

    monkeypatch.setattr(Outputs, "complete", crowded)
    answer = await client.completions.create(model=job, prompt=["a", "late", "b"])
    assert [choice.text for choice in answer.choices] == ["a", "late", "b"]
    assert (asked.count("a"), asked.count("late")) == (1, 3), "nothing that is answered is asked again"
    with pytest.raises(openai.RateLimitError):
        await client.with_options(max_retries=0).completions.create(model=job, prompt=["full", "full"])

"""Adapters of a deployment: on the command line, in the form, on its page, in the playground, and as models of ``/v1``."""

import re

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from coordinator.client import Client
from coordinator.client.errors import ProblemError
from protocol.job.job import ServedAdapter
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.conftest import ENOUGH, finished
from tests.coordinator.web.deployments.test_deploy_command import deploy
from tests.coordinator.web.deployments.test_serve_form import page, send, words


async def adapted(house: House) -> tuple[str, list[str]]:
    """A job with a model, and two that adapted it."""
    return await finished(house), [await finished(house) for _ in range(2)]


def named(jobs: list[str]) -> tuple[ServedAdapter, ...]:
    return tuple(map(ServedAdapter, jobs))


async def test_the_command_names_adapters_and_says_how_each_is_asked(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    job, adapters = await adapted(house)
    beside = [word for one in adapters for word in ("--adapter", one)]
    assert await deploy(house, job, *beside, "--hours", "8", "--budget", "5") == 0
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve is not None
    assert made.spec.serve.adapters == named(adapters)
    said = capsys.readouterr().out
    for one in adapters:
        assert f"adapter   {made.id}:{one}" in said
    with pytest.raises(SystemExit):
        await deploy(house, job, "--adapter", "moo")
    assert "'moo' is no job: give its id" in " ".join(capsys.readouterr().err.split())


async def test_a_program_asks_an_adapter_by_its_name(house: House) -> None:
    job, adapters = await adapted(house)
    async with Client(house.url) as cottage:
        made = await cottage.deploy(job, budget=ENOUGH, adapters=adapters)
        for wrong, said in (([adapters[0]] * 2, "twice"), (["0" * 32], "no job"), (["moo"], "serve.adapters")):
            with pytest.raises(ProblemError, match=said):
                await cottage.deploy(job, budget=ENOUGH, adapters=wrong)
    for _ in range(2):
        house.cluster.step(made.id)
    async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=0) as client:
        there = [model.id async for model in client.models.list()]
        names = [made.id, *(f"{made.id}:{one}" for one in adapters)]
        assert [name for name in there if name.startswith(made.id)] == names
        for name in names:
            assert (await client.models.retrieve(name)).id == name
        answer = await client.completions.create(model=names[2], prompt="moo", max_tokens=9)
        assert answer.choices[0].text == f" by {adapters[1]}: moo"
        assert answer.model == names[2]
        for strange in (f"{made.id}:{job}", f"{made.id}:{adapters[0]}@3", f"{made.id}:"):
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve(strange)


async def test_the_form_takes_ids_one_a_line_and_the_page_has_the_names(
    house: House, http: aiohttp.ClientSession
) -> None:
    job, adapters = await adapted(house)
    asked = {"replicas": "1", "hours": "8", "budget": "5", "action": "create"}
    for typed, said in (
        ("moo", "'moo' is no job: write ids of 32 hexadecimal digits, one a line"),
        ("\n".join(adapters[:1] * 2), f"serve.adapters has job {adapters[0]} twice: name each once"),
    ):
        text = await send(house, http, job, {**asked, "adapters": typed}, 422)
        assert 'id="error-adapters"' in text
        assert said in words(text)
        assert re.search(rf"<textarea id=\"field-adapters\"[^>]+>{typed}</textarea>", text), "what was typed stays"
    await send(house, http, job, {**asked, "adapters": "0" * 32}, 404)
    await send(house, http, job, {**asked, "adapters": "\r\n".join(adapters)})
    made = (await house.cluster.list(1, None))[0]
    assert made.spec.serve is not None
    assert made.spec.serve.adapters == named(adapters)
    async with Client(house.url) as client:
        await client.fund(made.id)
    for _ in range(2):
        house.cluster.step(made.id)
    text = await page(house, http, f"/jobs/{made.id}")
    for one in adapters:
        assert f"{made.id}:{one}" in text
    found = re.search(r'data-served="([^"]*)"', await page(house, http, "/playground"))
    assert found
    assert found[1].split() == [made.id, *(f"{made.id}:{one}" for one in adapters)]

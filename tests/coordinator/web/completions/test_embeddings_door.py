"""``/v1/embeddings`` as stock clients of OpenAI's API read it, of a scripted model and of one that really runs."""

import math
import struct
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from protocol.rest.embeddings import EmbeddingRequest
from protocol.serving import EmbedCommand
from tests.coordinator.web.completions.test_door import _never, client, client_of, key_of  # noqa: F401 - a fixture
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import vector_of
from tests.coordinator.web.test_life import started
from tests.coordinator.web.test_tenants import job_of, member


def numbers(text: Any) -> list[float]:
    return list(struct.unpack("<4f", vector_of(text)))


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a lemon", ["a lemon"]),
        (["a lemon", "a king"], ["a lemon", "a king"]),
        ([3, 4, 3], [(3, 4, 3)]),
        ([[3, 4], [5]], [(3, 4), (5,)]),
    ],
)
async def test_each_kind_of_input_has_its_embeddings_in_order(
    given: Any,
    texts: list[Any],
    house: House,
    client: AsyncOpenAI,  # noqa: F811
) -> None:
    job = await started(house)
    whole = await client.embeddings.create(model=job, input=given)  # The client asks for base64, and reads it.
    plain = await client.embeddings.create(model=f"{job}@start", input=given, encoding_format="float")
    for made in (whole, plain):
        assert [one.embedding for one in made.data] == [numbers(text) for text in texts]
        assert [one.index for one in made.data] == list(range(len(texts)))
        assert (made.usage.prompt_tokens, made.usage.total_tokens) == (sum(map(len, texts)),) * 2
    assert (whole.object, whole.data[0].object, whole.model) == ("list", "embedding", job)


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"dimensions": 256}, "dimensions", "dimensions is not supported here: leave it out"),
        ({"encoding_format": "int8"}, "encoding_format", "it is one of base64, float"),
        ({"input": []}, "input", "must not be empty"),
        ({"input": ["a", [1]]}, "input", "input has several kinds of entries: give a text, several"),
        ({"input": ["a", 1]}, "input", "input has several kinds of entries"),
        ({"input": ["a"] * 2049}, "input", "input has 2,049 entries: 2,048 at most"),
        ({"input": [-1]}, "input", "-1"),
    ],
)
async def test_what_cannot_be_done_as_it_was_asked_is_refused(
    more: dict[str, Any],
    param: str,
    words: str,
    house: House,
    client: AsyncOpenAI,  # noqa: F811
) -> None:
    job = await started(house)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.embeddings.create(**({"model": job, "input": "a", "encoding_format": "float"} | more))
    assert isinstance(refused.value.body, dict)
    assert (refused.value.body["param"].split("[")[0], refused.value.body["type"]) == (param, "invalid_request_error")
    assert words in refused.value.body["message"]


async def test_more_than_an_answer_holds_is_refused_with_what_it_would_hold(
    house: House,
    client: AsyncOpenAI,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = await started(house)
    monkeypatch.setattr("coordinator.web.completions.routes.MAX_VECTORS", 80)
    assert len((await client.embeddings.create(model=job, input=["a"] * 5)).data) == 5
    with pytest.raises(openai.BadRequestError, match="have 96 bytes: give at most 5 texts at a time"):
        await client.embeddings.create(model=job, input=["a"] * 6)


async def test_a_key_is_asked_for_and_others_jobs_are_not_there(
    town: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, eve = await member(town, "ada"), await member(town, "eve")
    job = await job_of(town, http, ada)
    async with client_of(town, "wrong") as nobody, client_of(town, key_of(eve)) as other:
        with pytest.raises(openai.AuthenticationError):
            await nobody.embeddings.create(model=job, input="a")
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            await other.embeddings.create(model=job, input="a")
        monkeypatch.setattr("coordinator.services.accounts.budgets.Budgets.take", _never)
        with pytest.raises(openai.RateLimitError) as refused:
            await other.embeddings.create(model=job, input="a")
        assert refused.value.response.headers["Retry-After"] == "7"


@pytest.mark.long
async def test_a_real_model_tells_texts_apart(house: House, answering: str) -> None:
    async with client_of(house) as one:
        made = await one.embeddings.create(model=answering, input=["def f", "def ", "def f"])
        alone = await one.embeddings.create(model=answering, input="def f")
        with pytest.raises(openai.BadRequestError, match="text 2 of 2 is empty") as refused:
            await one.embeddings.create(model=answering, input=["def f", ""])
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["param"] == "input"
    vectors = [item.embedding for item in made.data]
    assert all(math.isclose(math.hypot(*vector), 1.0, abs_tol=1e-5) for vector in vectors)
    assert math.dist(vectors[0], vectors[2]) == math.dist(vectors[0], vectors[0])
    assert math.dist(vectors[0], alone.data[0].embedding) < 1e-5 < math.dist(vectors[0], vectors[1])


def test_a_request_becomes_what_a_model_is_asked() -> None:
    asked = EmbeddingRequest(model="m", input=("a", "b"), dimensions=None)
    assert asked.command() == EmbedCommand("1", ("a", "b"))

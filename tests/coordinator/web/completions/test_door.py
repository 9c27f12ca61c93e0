"""``/v1``: answers, streams and errors as stock clients of OpenAI's API read them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, Literal

import aiohttp
import httpx
import openai
import pytest
from openai import AsyncOpenAI

from coordinator.errors import UnavailableError
from coordinator.web.completions.routes import CompletionRoutes
from protocol.codec import decode_json
from protocol.rest.completions import ChatCompletionRequest, CompletionRequest
from protocol.serving import AnsweredReport, GenerateCommand, Sampling, TextReport, ToolChoice
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.test_life import started
from tests.coordinator.web.test_tenants import job_of, member
from tests.support.wait import HANGS_S

HI: Any = [{"role": "user", "content": "to be or not"}]


SUM: Any = {"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}


def named(function: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": function}}


def client_of(house: House, key: str = "none") -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{house.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def client(house: House) -> AsyncIterator[AsyncOpenAI]:
    async with client_of(house) as one:
        yield one


async def test_models_are_those_that_jobs_have_made(house: House, client: AsyncOpenAI) -> None:
    assert [model async for model in client.models.list()] == []
    job = await started(house)
    (model,) = [model async for model in client.models.list()]
    assert (model.id, model.owned_by, model.object) == (job, "a job", "model")
    for name in (job, f"{job}@3", f"{job}@start"):
        assert (await client.models.retrieve(name)).id == name
    with pytest.raises(openai.NotFoundError) as refused:
        await client.models.retrieve("gpt-4o")
    assert refused.value.body == {
        "message": "there is no model 'gpt-4o': GET /v1/models lists yours",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


async def test_messages_are_answered_whole_and_in_pieces(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    whole = await client.chat.completions.create(model=job, messages=HI, max_completion_tokens=3)
    assert whole.choices[0].message.content == " to be or"
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (7, 3, 10)
    stream = await client.chat.completions.create(
        model=f"{job}@3", messages=HI, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert len({chunk.id for chunk in chunks}) == 1
    *pieces, end, counted = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == " 3: to be or not"
    assert (end.choices[0].finish_reason, end.choices[0].delta.content) == ("stop", None)
    assert counted.choices == []
    assert counted.usage is not None
    assert counted.usage.completion_tokens == 5


async def test_a_function_that_the_model_asks_for_is_a_call(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    call: Any = [{"role": "user", "content": "call sum"}]
    whole = await client.chat.completions.create(model=job, messages=call, tools=[SUM])
    (choice,) = whole.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (asked,) = choice.message.tool_calls
    assert asked.type == "function"
    assert (asked.function.name, asked.function.arguments) == ("sum", '{"a": 2}')
    stream = await client.chat.completions.create(model=job, messages=call, tools=[SUM], stream=True)
    deltas = [(chunk.choices[0].delta.tool_calls, chunk.choices[0].finish_reason) async for chunk in stream]
    ((found, _),) = [one for one in deltas if one[0]]
    assert found is not None
    assert found[0].function is not None
    assert (found[0].index, found[0].function.name, deltas[-1][1]) == (0, "sum", "tool_calls")
    plain = await client.chat.completions.create(model=job, messages=call, tools=[SUM], tool_choice="none")
    assert plain.choices[0].message.content == " call sum"


@pytest.mark.parametrize(
    ("choice", "parallel", "calls"),
    [
        ("required", None, 2),
        ("required", True, 2),
        ("required", False, 1),
        (named("sum"), False, 1),
        ("auto", False, 0),
    ],
)
async def test_a_call_that_is_forced_is_the_answer(
    choice: Any, parallel: bool | None, calls: int, house: House, client: AsyncOpenAI
) -> None:
    job = await started(house)
    more: Any = {} if parallel is None else {"parallel_tool_calls": parallel}
    asked: Any = {"model": job, "messages": HI, "tools": [SUM], "tool_choice": choice, **more}
    whole = await client.chat.completions.create(**asked)
    (answer,) = whole.choices
    assert len(answer.message.tool_calls or ()) == calls
    assert answer.finish_reason == ("tool_calls" if calls else "stop")
    stream = await client.chat.completions.create(**asked, stream=True)
    told = [one for chunk in [chunk async for chunk in stream] for one in chunk.choices[0].delta.tool_calls or ()]
    assert [(one.index, one.function.name if one.function else "") for one in told] == [
        (number, "sum") for number in range(calls)
    ]


async def test_a_text_is_gone_on_with_whole_and_in_pieces(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    whole = await client.completions.create(model=job, prompt="to be or not", max_tokens=3)
    assert (whole.choices[0].text, whole.choices[0].finish_reason, whole.object) == (
        " to be or",
        "length",
        "text_completion",
    )
    stream = await client.completions.create(model=f"{job}@start", prompt="to be", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].text for chunk in chunks) == " start: to be"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 3 + ["stop"]


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "is 3, and must be at most 2"),
        ({"n": 2}, "n", "n is not supported here: leave it out"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "is 21, and must be at most 20"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            "is 'xml': it is one of json_object, json_schema, text",
        ),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format",
            "the type is json_schema and there is none: write the schema into json_schema",
        ),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice forces a call, and there are no tools: name them"),
        ({"tools": [SUM], "tool_choice": named("now")}, "tool_choice", "the function 'now', which is not among tools"),
        ({"tools": [SUM, SUM]}, "tools", "a call would not tell which"),
        ({"tools": [SUM], "tool_choice": "any"}, "tool_choice", "is 'any': it is one of auto, none, required"),
        ({"tools": [SUM], "tool_choice": {"type": "custom"}}, "tool_choice.type", "is 'custom'"),
        ({"presence_penalty": 0.5}, "presence_penalty", "presence_penalty is not supported here"),
        ({"messages": []}, "messages", "must not be empty"),
        ({"max_tokens": 0}, "max_tokens", "is 0, and must be at least 1"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "must have at most 4 entries"),
        ({"n": 0}, "n", "n is not supported here: leave it out"),
        ({"top_p": 1.5}, "top_p", "is 1.5, and must be at most 1"),
        ({"top_p": -0.5}, "top_p", "is -0.5, and must be more than 0"),
        ({"temperature": -1}, "temperature", "is -1, and must be at least 0"),
        ({"logit_bias": {"7": 100}}, "logit_bias", "logit_bias is not supported here"),
        ({"seed": 2**63}, "seed", "must be at most"),
        ({"stop": ["x" * 201]}, "stop[0]", "at most 200"),
        ({"functions": [SUM["function"]]}, "functions", "functions is not supported here: leave it out"),
        ({"function_call": {"name": "sum"}}, "function_call", "function_call is not supported here"),
        ({"modalities": ["text", "audio"]}, "modalities", "modalities is not supported here"),
        ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio", "audio is not supported here"),
        ({"web_search_options": {}}, "web_search_options", "web_search_options is not supported here"),
        ({"extra_body": {"min_p": 0.1}}, "min_p", "min_p is not supported here"),
        ({"extra_body": {"repetition_penalty": 1.1}}, "repetition_penalty", "is not supported here"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs go with logprobs: set that to true"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options go with a stream"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools", "tool 1 is no function with a name"),
        ({"tools": [SUM, {"type": "function", "function": {}}]}, "tools", "tool 2 is no function with a name"),
    ],
)
async def test_what_cannot_be_answered_as_it_was_asked_is_refused(
    more: dict[str, Any], param: str, words: str, house: House, client: AsyncOpenAI
) -> None:
    job = await started(house)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.chat.completions.create(**({"model": job, "messages": HI} | more))
    assert isinstance(refused.value.body, dict)
    assert (refused.value.body["param"], refused.value.body["type"]) == (param, "invalid_request_error")
    assert words in refused.value.body["message"]


async def test_fields_that_change_nothing_are_passed_over(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    plain: dict[str, Any] = {
        "user": "ada",
        "metadata": {"a": "b"},
        "n": 1,
        "logprobs": False,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "extra_body": {"min_p": 0, "repetition_penalty": 1.0},
        "parallel_tool_calls": True,
        "service_tier": "auto",
        "store": False,
    }
    answer = await client.chat.completions.create(model=job, messages=HI, **plain)
    assert answer.choices[0].message.content == " to be or not"


async def test_a_fault_in_mid_answer_ends_the_stream_with_it(house: House, client: AsyncOpenAI) -> None:
    job = await started(house)
    failing: Any = [{"role": "user", "content": "fail"}]
    with pytest.raises(openai.InternalServerError, match="the model failed") as whole:
        await client.chat.completions.create(model=job, messages=failing)
    assert whole.value.status_code == 503
    stream = await client.chat.completions.create(model=job, messages=failing, stream=True)
    assert (await anext(stream)).choices[0].delta.role == "assistant"
    assert (await anext(stream)).choices[0].delta.content == "So"
    with pytest.raises(openai.APIError, match="the model failed"):
        await anext(stream)


def key_of(header: dict[str, str]) -> str:
    return header["Authorization"].removeprefix("Bearer ")


async def test_a_key_is_asked_for_and_others_jobs_are_not_there(town: House, http: aiohttp.ClientSession) -> None:
    ada, eve = await member(town, "ada"), await member(town, "eve")
    job = await job_of(town, http, ada)
    async with client_of(town, "wrong") as nobody:
        with pytest.raises(openai.AuthenticationError) as refused:
            await nobody.chat.completions.create(model=job, messages=HI)
        assert isinstance(refused.value.body, dict)
        assert (refused.value.body["type"], refused.value.body["code"]) == ("authentication_error", "invalid_api_key")
    async with client_of(town, key_of(eve)) as other, client_of(town, key_of(ada)) as own:
        assert [model async for model in other.models.list()] == []
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            await other.chat.completions.create(model=job, messages=HI)
        with pytest.raises(openai.NotFoundError, match="has no checkpoint"):
            await own.chat.completions.create(model=job, messages=HI)


async def test_who_asks_too_often_is_told_when_to_come_back(town: House, monkeypatch: pytest.MonkeyPatch) -> None:
    ada = await member(town, "ada")
    monkeypatch.setattr("coordinator.services.accounts.budgets.Budgets.take", _never)
    async with client_of(town, key_of(ada)) as client:
        with pytest.raises(openai.RateLimitError) as refused:
            await client.completions.create(model="x", prompt="y")
        assert refused.value.response.headers["Retry-After"] == "7"
        assert isinstance(refused.value.body, dict)
        assert (refused.value.body["type"], refused.value.body["code"]) == ("rate_limit_error", "rate_limit_exceeded")


async def _never(*_: Any) -> None:
    from coordinator.errors import TooManyError

    raise TooManyError("too many", 7.0)


async def test_whoever_leaves_ends_the_answer(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await started(house)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(
        _self: Outputs, _job: str, _point: int | Literal["start"] | None, _command: GenerateCommand
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        begun.set()
        try:
            while True:
                yield TextReport("1", "word ")
                await asyncio.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(Outputs, "complete", endless)
    for stream in (True, False):
        begun.clear()
        ended.clear()
        body = json.dumps({"model": job, "messages": HI, "stream": stream})
        asking = asyncio.create_task(
            http.post(f"{house.url}/v1/chat/completions", data=body, headers={"Content-Type": "application/json"})
        )
        await begun.wait()
        if stream:
            answer = await asking
            await answer.content.readline()
            answer.close()
        else:
            asking.cancel()
        async with asyncio.timeout(HANGS_S):
            await ended.wait()


async def test_a_stream_is_kept_alive_while_a_model_is_loaded(
    house: House, http: aiohttp.ClientSession, client: AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await started(house)
    ready, ended = asyncio.Event(), asyncio.Event()

    async def slow(
        _self: Outputs, _job: str, _point: int | Literal["start"] | None, command: GenerateCommand
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        try:
            await ready.wait()
            if command.tokens == 1:
                raise UnavailableError("too large")
            yield TextReport("1", "Hi")
            yield AnsweredReport("1", "stop", 3, 1)
        finally:
            ended.set()

    monkeypatch.setattr(Outputs, "complete", slow)
    monkeypatch.setattr("coordinator.web.stream.PACE_S", 0.05)
    body = {"model": job, "messages": HI, "stream": True}
    async with http.post(f"{house.url}/v1/chat/completions", json=body) as answer:
        assert await answer.content.readline() == b": waiting\n"
        assert not ended.is_set()
    async with asyncio.timeout(HANGS_S):
        await ended.wait()  # Who left is waited for no more.
    # Each comes back with its first sign of life, while the model is not there yet.
    late = await client.chat.completions.create(model=job, messages=HI, stream=True, max_tokens=1)
    stream = await client.chat.completions.create(model=job, messages=HI, stream=True)
    ready.set()
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Hi"
    with pytest.raises(openai.APIError, match="too large"):
        [chunk async for chunk in late]


async def test_a_stream_says_that_it_waits_while_nothing_comes_in_mid_answer(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, silent = await started(house), 1.5

    async def halting(
        _self: Outputs, _job: str, _point: int | Literal["start"] | None, _command: GenerateCommand
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        yield TextReport("1", "To be")
        await asyncio.sleep(silent)  # Its only home has left.
        yield TextReport("1", " or not")
        yield AnsweredReport("1", "stop", 3, 4)

    monkeypatch.setattr(Outputs, "complete", halting)
    # So impatient a client gives up unless something comes: a comment is enough for it, and is no part of the answer.
    async with AsyncOpenAI(
        base_url=f"{house.url}/v1", api_key="none", max_retries=0, timeout=httpx.Timeout(5.0, read=silent / 2)
    ) as impatient:

        async def said() -> str:
            stream = await impatient.chat.completions.create(model=job, messages=HI, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        with pytest.raises((openai.APITimeoutError, httpx.ReadTimeout)):
            await said()
        monkeypatch.setattr("coordinator.web.stream.PACE_S", 0.2)
        assert await said() == "To be or not"
    body = {"model": job, "messages": HI, "stream": True}
    async with http.post(f"{house.url}/v1/chat/completions", json=body) as answer:
        events = (await answer.text()).split("\n\n")
    waits = [place for place, event in enumerate(events) if event == ": waiting"]
    assert 4 <= len(waits) <= 8, "at a steady pace, and while nothing comes alone"
    assert waits == list(range(waits[0], waits[0] + len(waits)))
    assert "To be" in events[waits[0] - 1]
    assert "or not" in events[waits[-1] + 1]


def test_a_request_becomes_what_a_model_is_asked() -> None:
    chat = ChatCompletionRequest(
        model="m", messages=({"role": "user"},), max_tokens=9, stop="x", top_p=0.5, top_k=7, seed=3
    )
    assert chat.command(5) == GenerateCommand(
        "1", messages=({"role": "user"},), tokens=9, sampling=Sampling(1.0, 7, 0.5, 3), stops=("x",)
    )
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for given, wanted in (
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}, schema),
    ):
        body = json.dumps({"model": "m", "messages": HI, "response_format": given}).encode()
        assert decode_json(body, ChatCompletionRequest).command(1).schema == wanted
    for given, wanted_choice in (
        ({}, ToolChoice()),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ToolChoice(several=False)),
        ({"tool_choice": "required"}, ToolChoice(True)),
        ({"tool_choice": named("sum"), "parallel_tool_calls": False}, ToolChoice(True, "sum", several=False)),
    ):
        asked = {"model": "m", "messages": HI, "tools": [SUM], "response_format": {"type": "json_object"}} | given
        command = decode_json(json.dumps(asked).encode(), ChatCompletionRequest).command(1)
        assert (command.choice, command.tools) == (wanted_choice, (SUM,))
        assert (command.schema is None) is wanted_choice.forced, "a call has the form of its function alone"
    text = CompletionRequest(model="m", prompt="a", temperature=0)
    assert text.commands(lambda: 5) == [GenerateCommand("1", "a", tokens=16, sampling=Sampling(0, seed=5))]


async def test_what_a_real_model_cannot_answer_has_openais_shape(answering: str, client: AsyncOpenAI) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"messages": [{"role": "wizard", "content": "Hi"}]}, "messages", "is of 'wizard', who is nobody known here"),
        ({"messages": [{"role": "user"}]}, "messages", "message 1, has no content: write a text"),
        ({"max_tokens": 100_000}, "max_tokens", "an answer of 100,000 tokens is asked for, and this model reads 64"),
        ({"max_completion_tokens": 65}, "max_tokens", "an answer of 65 tokens is asked for"),
    ]
    for more, param, words in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**({"model": answering, "messages": HI} | more))
        assert isinstance(refused.value.body, dict)
        assert refused.value.body.keys() == {"message", "type", "param", "code"}
        assert (refused.value.body["param"], refused.value.body["type"]) == (param, "invalid_request_error")
        assert words in refused.value.body["message"]


@pytest.mark.parametrize("stream", [True, False])
async def test_what_no_model_here_can_do_is_told_in_words(stream: bool, house: House, client: AsyncOpenAI) -> None:
    told = "there is no POST /v1/responses: it is not among what is answered"
    with pytest.raises(openai.NotFoundError, match=told) as refused:
        await client.responses.create(model="x", input="y", stream=stream)
    nobody: Any = None
    ways = [route.path for route in CompletionRoutes(nobody, nobody).routes() if route.method == "POST"]
    assert len(ways) > 2
    assert [way for way in ways if way not in str(refused.value)] == []

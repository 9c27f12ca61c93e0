"""Stock clients ask again by themselves, after 408, 409, 429 and 5xx: what is refused the next time, too, must not be that."""

from collections.abc import AsyncIterator

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from coordinator.domain.job import JobState
from coordinator.errors import (
    ConflictError,
    CottageError,
    InvalidError,
    NotFoundError,
    TookTooLongError,
    TooManyError,
    UnableError,
    UnavailableError,
)
from coordinator.services.serving.refusals import closed, error_of
from protocol.serving import RefusedReport
from tests.coordinator.web.completions.test_door import started
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs

JOB = "7" * 32
OVER = [JobState.SETTLED, JobState.CANCELLED, JobState.FAILED, JobState.VERIFYING]
IN_VAIN = [
    *((closed(JOB, state), 404, "model_not_found") for state in OVER),
    *((closed(JOB, state), 400, "conflict") for state in (JobState.CREATED, JobState.PAUSED, JobState.RUNNING, None)),
    (ConflictError("not as things are", "model"), 400, "conflict"),
    (NotFoundError("there is no such checkpoint", "round"), 404, "model_not_found"),
    (TookTooLongError("too long"), 400, "took_too_long"),
    (UnableError("no node could"), 503, "unable"),
    (error_of(RefusedReport("1", "failed", "")), 503, "unable"),
]
LATER = [(UnavailableError("not now"), 503), (TooManyError("too many", 0.01), 429)]


class Door:
    """What the models' door answers, and how often it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: CottageError) -> None:
        self.asked = 0
        door = self

        async def refused(*_: object) -> AsyncIterator[None]:
            door.asked += 1
            raise error
            yield

        monkeypatch.setattr(Outputs, "complete", refused)

    async def ask(self, house: House) -> openai.APIStatusError:
        """What a client says that may ask once more."""
        job = await started(house)
        async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none", max_retries=1) as client:
            with pytest.raises(openai.APIStatusError) as refused:
                await client.completions.create(model=job, prompt="y")
        return refused.value


@pytest.mark.parametrize(("error", "status", "code"), IN_VAIN, ids=lambda one: getattr(one, "detail", one))
async def test_what_will_be_refused_again_is_asked_once(
    error: CottageError, status: int, code: str, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch, error)
    refused = await door.ask(house)
    assert (refused.status_code, refused.code, door.asked) == (status, code, 1)


@pytest.mark.parametrize(
    ("field", "chat", "text"),
    [("prompt", "messages", "prompt"), ("tokens", "max_tokens", "max_tokens"), ("round", "model", "model")],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_is_about_what_a_request_here_has(
    field: str, chat: str, text: str, stream: bool, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    Door(monkeypatch, InvalidError("no", field))
    job = await started(house)
    async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="none") as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=job, messages=[{"role": "user", "content": "y"}], stream=stream)
        assert refused.value.param == chat
        Door(monkeypatch, InvalidError("no", field))
        with pytest.raises(openai.BadRequestError) as refused:
            await client.completions.create(model=job, prompt="y", stream=stream)
        assert refused.value.param == text


@pytest.mark.parametrize(("body", "said"), [("[]", "the body must be a table"), ("{", "the body is cut off")])
async def test_what_is_wrong_with_a_whole_body_is_said_of_it(
    body: str, said: str, house: House, http: aiohttp.ClientSession
) -> None:
    header = {"Content-Type": "application/json"}
    for path in ("/v1/completions", "/api/v1/quote"):
        async with http.post(f"{house.url}{path}", data=body, headers=header) as answer:
            told = await answer.json()
        assert (told["error"]["message"] if "error" in told else told["detail"]).startswith(said)


@pytest.mark.parametrize(("error", "status"), LATER, ids=lambda one: getattr(one, "detail", one))
async def test_what_may_pass_is_asked_again(
    error: CottageError, status: int, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Door(monkeypatch, error)
    refused = await door.ask(house)
    assert (refused.status_code, door.asked) == (status, 2)

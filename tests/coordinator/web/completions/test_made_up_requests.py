"""``/v1`` keeps to its document, whatever a model is asked, and however its answer comes."""

import asyncio
import json
import os
from collections import Counter
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import response_schema_conformance

from tests.coordinator.web.conftest import House
from tests.coordinator.web.schema import CHECKS
from tests.coordinator.web.test_life import started

CASES = int(os.environ.get("COTTAGE_SCHEMA_CASES", "300"))
ERROR = {"message", "type", "param", "code"}


def ask(url: str, models: list[str], cases: int) -> Counter[tuple[str, int, bool]]:
    """Ask each operation of ``/v1``, by turns for each of ``models``; how often which status was answered, and as a stream."""
    schema: Any = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [one.ok() for one in schema.get_all_operations() if one.ok().path.startswith("/v1/")]
    told: Counter[tuple[str, int, bool]] = Counter()
    for operation in operations:
        for model in models:
            _ask_one(operation, model, cases // len(operations) // len(models) + 1, told)
    return told


def _ask_one(operation: Any, model: str, cases: int, told: Counter[tuple[str, int, bool]]) -> None:
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        if isinstance(case.body, dict):
            case.body |= {"model": model, "stream": told.total() % 2 == 0}
        if "model" in case.path_parameters:
            case.path_parameters["model"] = model
        response = case.call()
        streams = response.headers["content-type"][0].startswith("text/event-stream")
        told[(operation.path, response.status_code, streams)] += 1
        assert response.status_code < 500 or response.status_code == 503, response.text
        # The document's schema of a stream is that of all of it, and is taken here for that of an event.
        unfit = {response_schema_conformance} if streams else set()
        case.validate_response(response, checks=[check for check in CHECKS if check not in unfit])
        if response.status_code >= 400:
            assert set(json.loads(response.text)["error"]) == ERROR
        elif streams:
            *events, done, rest = response.text.split("\n\n")
            assert (done, rest) == ("data: [DONE]", "")
            assert all(set(json.loads(event.removeprefix("data: "))) > {"id", "choices"} for event in events)

    one()


async def test_every_answer_to_made_up_requests_is_one_that_the_document_has(house: House) -> None:
    job = await started(house)
    told = await asyncio.to_thread(ask, house.url, [job, f"{job}@start", f"{job}@99", "gpt-4o"], CASES)
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert told[(path, 200, False)], "requests get through to the model"
        assert told[(path, 200, True)], "some answers are streams"
    assert told[("/v1/models/{model}", 404, False)]

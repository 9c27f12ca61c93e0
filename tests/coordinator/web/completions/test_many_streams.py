"""Many answers at a time: each whole and in its order, and none held up by a reader that takes nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from benchmarks.serving._door import fake_model
from benchmarks.serving.streams import measured
from protocol.serving import AnsweredReport, GenerateCommand, TextReport
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.test_life import started
from tests.support.wait import HANGS_S

STREAMS, TOKENS = 64, 12
PIECE = "word " * 1_000


async def test_every_one_of_many_streams_has_all_its_tokens_in_order() -> None:
    """Accounts, database, engines and connections as they are; only the model's process computes nothing."""
    alone, many = await measured((1, STREAMS), TOKENS, 0.05)
    assert (alone["whole"], many["whole"]) == (1, STREAMS), "a token that is missing, or comes too early, fails the run"
    assert many["resident_mb"] - alone["resident_mb"] < STREAMS, "less than a megabyte each"


async def test_the_model_of_the_benchmark_takes_requests_while_it_has_more_to_say_than_is_heard() -> None:
    most = 50
    async with asyncio.timeout(60), fake_model(1e-5) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def ask(request: str) -> None:
            assert process.stdin is not None
            process.stdin.write(json.dumps({"type": "generate", "id": request, "tokens": 10**9}).encode() + b"\n")

        for number in range(most):
            ask(str(number))
        heard = [json.loads(await process.stdout.readline()) for _ in range(10 * most)]
        ask("late")
        while (report := json.loads(await process.stdout.readline()))["id"] != "late":
            heard.append(report)
        assert report["tokens"] == [0]
        said = [one["tokens"][0] for one in heard[1:] if one["id"] == "7"]
        assert said == list(range(len(said))), "in their order"


async def test_a_reader_that_takes_nothing_is_cut_off_and_holds_nobody_up(
    house: House, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await started(house)
    told, ended = 0, asyncio.Event()

    async def endless(
        _self: Outputs, _job: str, _point: Any, command: GenerateCommand
    ) -> AsyncIterator[TextReport | AnsweredReport]:
        nonlocal told
        if command.tokens is not None:
            for number in range(command.tokens):
                yield TextReport("1", f" {number}")
                await asyncio.sleep(0.01)
            yield AnsweredReport("1", "length", 1, command.tokens)
            return
        try:
            while True:
                told += len(PIECE)
                yield TextReport("1", PIECE)
        finally:
            ended.set()

    monkeypatch.setattr(Outputs, "complete", endless)
    monkeypatch.setattr("coordinator.web.stream.STALL_S", 2.0)
    asked = {"model": job, "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    body = json.dumps(asked)
    reader, writer = await asyncio.open_connection("127.0.0.1", house.port, limit=1_024)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{house.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    async with http.post(f"{house.url}/v1/chat/completions", json=asked | {"max_tokens": 30}) as answer:
        text = await answer.text()
    assert text.endswith("data: [DONE]\n\n")
    assert not ended.is_set(), "the other one was answered while this one took nothing"
    async with asyncio.timeout(HANGS_S):
        await ended.wait()
    assert told < 10 << 20, "little was said ahead for it"
    writer.close()

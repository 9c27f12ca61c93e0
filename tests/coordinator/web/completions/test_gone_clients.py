"""Whoever hangs up while nothing was answered yet gives the place back, whatever was asked for."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protocol.serving import AnswerReport
from tests.coordinator.web.conftest import House
from tests.coordinator.web.fake_services import Outputs
from tests.coordinator.web.test_life import started

SOON_S = 3.0  # Less than the time after which a stream says that it is alive.
HI = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/completions", {"prompt": "Hi", "stream": True}),
        ("/v1/chat/completions", {"messages": HI}),
        ("/v1/chat/completions", {"messages": HI, "stream": True}),
        ("/v1/embeddings", {"input": "Hi"}),
        ("/api/v1/jobs/{job}/generate", {"prompt": "Hi"}),
    ],
)
async def test_who_hangs_up_while_a_node_is_waited_for_waits_no_more(
    path: str, asked: dict[str, Any], house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await started(house)
    begun, left = asyncio.Event(), asyncio.Event()

    async def waiting(*_: Any) -> AsyncIterator[AnswerReport]:
        begun.set()
        try:
            await asyncio.Event().wait()
            yield  # type: ignore[misc]
        finally:
            left.set()

    monkeypatch.setattr(Outputs, "generate" if "generate" in path else "complete", waiting)
    body = json.dumps(asked if "generate" in path else asked | {"model": job})
    _, writer = await asyncio.open_connection("127.0.0.1", house.port)
    writer.write(
        f"POST {path.format(job=job)} HTTP/1.1\r\nHost: 127.0.0.1:{house.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
    )
    async with asyncio.timeout(SOON_S):
        await begun.wait()
    await asyncio.sleep(0.6)
    assert not left.is_set(), "it is waited for as long as somebody is there"
    writer.close()
    async with asyncio.timeout(SOON_S):
        await left.wait()

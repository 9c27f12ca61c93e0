"""What a front's line is answered: shared while it is new, told once more while a slow one is renewed, and never old."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
from aiohttp import web

from coordinator.bus import Bus
from coordinator.errors import ElsewhereError
from coordinator.web.fronts import line
from coordinator.web.fronts.answering import ASK, NEWS, LedgerFacts
from coordinator.web.fronts.line import LineToWork
from coordinator.web.http import answer
from tests.coordinator.conftest import FRONTS, until


@dataclass
class AtWork:
    """One that answers with the number of the question, after a while. ``away``: it says nothing."""

    takes: float = 0.0
    asked: int = 0
    away: bool = False
    url: str = ""
    runner: web.AppRunner = field(init=False)

    async def serve(self) -> None:
        app = web.Application()
        app.router.add_get(NEWS, self._news)
        app.router.add_post(ASK, self._answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        await web.TCPSite(self.runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def _news(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async def _answer(self, request: web.Request) -> web.Response:
        if b'"ledger"' in await request.read():
            return answer(LedgerFacts("", "", "", "", False))
        self.asked += 1
        number = self.asked
        await asyncio.sleep(self.takes)
        return web.Response(status=503) if self.away else answer(number)


@dataclass
class Asked:
    """A line to it."""

    at: AtWork
    line: LineToWork

    async def say(self) -> int:
        return await self.line.ask(int, "network")


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    at = AtWork()
    await at.serve()

    async def fits() -> bool:
        return True

    async with aiohttp.ClientSession() as http:
        made = LineToWork(lambda: at.url, FRONTS, http, Bus(), fits)
        following = asyncio.create_task(made.run())
        await until(lambda: made.is_reached)
        yield Asked(at, made)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await at.runner.cleanup()


async def test_all_who_ask_at_once_share_an_answer_and_a_quick_one_is_never_older_than_that(asked: Asked) -> None:
    assert await asyncio.gather(*(asked.say() for _ in range(5))) == [1] * 5
    assert await asked.say() == 1
    await asyncio.sleep(line.SHARED_S + 0.05)
    assert await asked.say() == 2


async def test_a_slow_one_is_told_once_more_while_it_is_renewed_and_not_when_it_is_old(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "OLDEST_S", 2.0)
    asked.at.takes = 0.3
    assert await asked.say() == 1
    await asyncio.sleep(line.SHARED_S + 0.05)
    async with asyncio.timeout(asked.at.takes / 2):
        assert [await asked.say() for _ in range(3)] == [1, 1, 1]
    await asyncio.sleep(asked.at.takes / 2)
    assert asked.at.asked == 2, "it is asked for once"
    await until(lambda: _said(asked, 2))
    await asyncio.sleep(line.OLDEST_S + 0.1)
    known = asked.at.asked
    assert await asked.say() == known + 1, "it is waited for"


async def test_what_is_not_said_any_more_is_told_no_longer(asked: Asked) -> None:
    asked.at.takes = 0.2
    assert await asked.say() == 1
    asked.at.away = True
    await asyncio.sleep(line.SHARED_S + 0.05)
    assert await asked.say() == 1, "it is being renewed"
    await asyncio.sleep(asked.at.takes + 0.1)
    with pytest.raises(ElsewhereError):
        await asked.say()


async def _said(asked: Asked, number: int) -> bool:
    return await asked.say() == number

"""Servers that take a question and do not answer: whoever waits is told for whom, and not for long."""

import asyncio
import contextlib
import os
import pty
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from common.http_sessions import ANSWER_S, open_session, told_of_waiting
from common.terminal import Waits
from common.urls import parse_url
from coordinator.client.client import Client
from coordinator.client.errors import SilentError, UnreachableError
from coordinator.client.line import CHANGE_S
from ledger.connection import Connection
from ledger.errors import LedgerUnavailableError

pytestmark = pytest.mark.usefixtures("no_proxies")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
Manner = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def _say_nothing(_writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(600)


async def _stop_after_the_head(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + b"[")
    await asyncio.sleep(600)


async def _drip(writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(b" ")
        await asyncio.sleep(0.5)


MANNERS = {"nothing": _say_nothing, "head": _stop_after_the_head, "drip": _drip}


@contextlib.asynccontextmanager
async def answering(manner: Manner) -> AsyncIterator[int]:
    """The port of a server that takes every connection."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await manner(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.contextmanager
def deaf() -> Iterator[int]:
    """A port whose queue is full: what is sent there is dropped, as by a firewall."""
    with contextlib.ExitStack() as held:
        listening = held.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            one = held.enter_context(socket.socket())
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(listening.getsockname())
        yield listening.getsockname()[1]


async def _held(question: Awaitable[object], kind: type[Exception]) -> tuple[float, str]:
    began = time.monotonic()
    with pytest.raises(kind) as refused:
        await question
    return time.monotonic() - began, str(refused.value)


async def _ask(url: str) -> tuple[float, str]:
    async with Client(url) as client:
        return await _held(client.jobs(), UnreachableError)


async def _ask_ledger(url: str) -> tuple[float, str]:
    ledger = Connection(url)
    try:
        return await _held(ledger.slot(), LedgerUnavailableError)
    finally:
        await ledger.aclose()


async def _ask_by_session(url: str) -> float:
    async with open_session() as http:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with http.get(url) as answer:
                await answer.read()
        return time.monotonic() - began


@pytest.mark.slow
async def test_no_server_holds_a_question_for_longer_than_anybody_would_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async with contextlib.AsyncExitStack() as servers:
        ports = {name: await servers.enter_async_context(answering(one)) for name, one in MANNERS.items()}
        full = servers.enter_context(deaf())
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{ports['nothing']}")
        urls = [f"http://127.0.0.1:{port}" for port in (*ports.values(), full)]
        urls += [f"https://127.0.0.1:{ports['nothing']}", "http://cottage.example"]  # TLS, and a proxy.
        asked = asyncio.gather(*map(_ask, urls), *map(_ask_ledger, urls))
        found, by_session = await asyncio.gather(asked, _ask_by_session(f"http://127.0.0.1:{ports['drip']}"))
    assert by_session < ANSWER_S + 5, "a session of any room asks for no longer either"
    for url, (seconds, said) in zip(urls * 2, found, strict=True):
        assert seconds < ANSWER_S + 5, url
        assert url in said
        assert "does not answer" in said
        assert "no answer in time" in said
        assert "see whether" in said or "is the ledger running" in said or "does the proxy reach it" in said


async def test_an_answer_that_is_large_and_slow_is_no_drip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.client.line.ANSWER_S", 0.2)

    async def slowly(writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD.replace(b"1000", b"160002") + b"[")
        for _ in range(10):
            writer.write(b" " * 16_000)
            await asyncio.sleep(0.05)
        writer.write(b"]")

    async with answering(slowly) as port, Client(f"http://127.0.0.1:{port}") as client:
        assert await client.jobs() == ()


async def test_silence_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.client.line.ANSWER_S", 0.05)
    asked: list[None] = []

    async def count(writer: asyncio.StreamWriter) -> None:
        asked.append(None)
        await _stop_after_the_head(writer)

    async with answering(count) as port, Client(f"http://127.0.0.1:{port}") as client:
        with pytest.raises(SilentError):
            await client.jobs()
    assert len(asked) == 1


def test_a_change_waits_longer_than_the_coordinator_does_for_its_ledger() -> None:
    assert CHANGE_S > ANSWER_S


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("manner", ["nothing", "drip"])
async def test_on_a_terminal_somebody_is_told_whom_this_waits_for(manner: str) -> None:
    async with answering(MANNERS[manner]) as port:
        url = f"http://127.0.0.1:{port}"
        ours, theirs = pty.openpty()
        words = [sys.executable, "-m", "cottage", "jobs", "--server", url]
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        try:
            async with asyncio.timeout(30):
                said = (await asyncio.to_thread(os.read, ours, 1000)).decode()
                assert said.strip() == f"Waiting for {url} to answer; Ctrl+C ends it"
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
        finally:
            if process.returncode is None:
                process.kill()
            os.close(ours)


@pytest.mark.parametrize(("terminal", "spoken_of"), [(False, True), (True, False)])
async def test_neither_programs_nor_logs_are_told(
    terminal: bool, spoken_of: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("common.http_sessions.TELL_S", 0.0)
    monkeypatch.setattr(Waits, "spoken_of", spoken_of)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    with told_of_waiting(parse_url("http://cottage.example")):
        await asyncio.sleep(0.01)
    assert capsys.readouterr().err == ""

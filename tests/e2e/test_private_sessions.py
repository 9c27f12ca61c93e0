"""Private sessions on a whole network: no word passes the coordinator, and what clients sign is paid."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from common.urls import parse_url, url_of
from coordinator.client import Client
from cottage.demo.network import DemoNetwork
from cottage.demo.options import parse
from cottage.demo.processes import output_of
from cottage.demo.screen import LineScreen
from cottage.private import PrivateClient
from protocol.serving import AnsweredReport, GenerateCommand, Sampling, TextReport
from tests.e2e.test_serving_at_homes import LONG, TOKENS, WORDS, SmallRun, state_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECRET, OPEN = "quokka larder", "wombat cellar"


class Tap:
    """A proxy in front of the coordinator that remembers every byte, of WebSocket frames without their masks."""

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self._port = parse_url(behind).port
        self.bytes = bytearray()
        self.url = ""
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._line, "127.0.0.1", 0)
        self.url = url_of("127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, to), (there, writer)):
            task = asyncio.create_task(self._carry(source, target, from_client=source is reader))
            self._lines.add(task)
            task.add_done_callback(self._lines.discard)

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, from_client: bool) -> None:
        upgraded, held = False, b""
        with contextlib.suppress(ConnectionError):
            while block := await source.read(1 << 16):
                # What is packed could not be looked through.
                block = re.sub(rb"(?i)accept-encoding: [^\r]*", lambda one: one[0][:17].ljust(len(one[0]), b"x"), block)
                target.write(block)
                self.bytes += block
                upgraded = upgraded or (from_client and b"upgrade: websocket" in block.lower())
                if upgraded:
                    held = self._unmask(held + block)
                await target.drain()
        target.close()

    def _unmask(self, data: bytes) -> bytes:
        """Remember what frames say; returns what is not a whole frame yet."""
        if data.startswith(b"GET "):
            data = data.partition(b"\r\n\r\n")[2]
        while len(data) >= 2:
            length, start = data[1] & 0x7F, 2
            if length >= 126:
                start = 4 if length == 126 else 10
                length = int.from_bytes(data[2:start])
            end = start + 4 + length
            if len(data) < end:
                break
            mask = data[start : start + 4]
            said = int.from_bytes(data[start + 4 : end]) ^ int.from_bytes((mask * (length // 4 + 1))[:length])
            self.bytes += said.to_bytes(length)
            data = data[end:]
        return data


class TappedNetwork(DemoNetwork):
    """Everybody reaches the coordinator through the tap."""

    tap: Tap | None = None

    async def start_coordinator(self) -> str:
        self.tap = Tap(await super().start_coordinator())
        await self.tap.start()
        self.web = self.tap.url
        return self.web

    async def close(self) -> None:
        if self.tap is not None:
            await self.tap.stop()
        await super().close()


@contextlib.asynccontextmanager
async def deployed(folder: Path) -> AsyncIterator[tuple[SmallRun, Tap, Client, str]]:
    """A network of two nodes that hold the model of a job that is done."""
    async with SmallRun(parse([*WORDS, "2", "--dir", str(folder)]), LineScreen()) as run:
        run.network = network = TappedNetwork(run.options, run.household)
        ledger = await run._start()
        assert network.tap is not None
        async with Client(network.web) as client:
            job = (await run._submit(client, ledger)).id
            assert (await run._watch(client, job)).state == "settled"
            made = await client.deploy(job, replicas=2, hours=1.0, budget=5_000_000)
            async with asyncio.timeout(90):
                while (view := await client.get(made.id)).serving is None or view.serving.ready < 2:
                    await asyncio.sleep(0.2)
            yield run, network.tap, client, made.id


async def openly(web: str, deployment: str, prompt: str, tokens: int) -> str:
    body = {"model": deployment, "prompt": prompt, "max_tokens": tokens, "seed": 7, "temperature": 1.0}
    async with aiohttp.ClientSession() as http, http.post(f"{web}/v1/completions", json=body) as answer:
        return str((await answer.json())["choices"][0]["text"])


def remembered(folder: Path, words: str) -> list[Path]:
    """Files of the coordinator, and its log, that have these words."""
    files = [*(folder / "coordinator").rglob("*"), *(folder / "logs").glob("coordinator*")]
    return [file for file in files if file.is_file() and words.encode() in file.read_bytes()]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_no_word_passes_the_coordinator_and_what_was_signed_is_paid(tmp_path: Path) -> None:
    async with deployed(tmp_path / "network") as (run, tap, client, deployment):
        web, folder = run.network.web, run.options.folder
        said = await openly(web, deployment, OPEN, TOKENS)
        assert tap.bytes.count(OPEN.encode()) >= 2, "the tap hears requests, and what nodes are asked"
        assert tap.bytes.count(b"model_said") >= 1, "and what they answer"
        tap.bytes.clear()
        ask = ["-m", "cottage", "ask", deployment, "--text", "--seed", "7", "--tokens", str(TOKENS), "--json"]
        words = ["--server", web, "--loopback"]
        same = json.loads(await output_of([*ask, OPEN, *words], tmp_path))
        assert same["text"] == said, "token for token as at /v1"
        private = json.loads(await output_of([*ask, SECRET, *words], tmp_path))
        assert private["tokens"] == TOKENS
        nodes = {provider.key.address for provider in run.network.providers}
        assert set(private["nodes"]) < nodes
        await asyncio.sleep(1.5)  # Counts are told once a second.
        heard = bytes(tap.bytes)
        assert b"private_counts" in heard
        assert b"private_offer" in heard
        for what in (SECRET, SECRET.split()[0], OPEN, "private:"):  # The last begins the names of private requests.
            assert what.encode() not in heard, what
        assert not remembered(folder, SECRET)
        await in_mid_answer(run, client, web, deployment)
        view = await client.get(deployment)
        assert view.serving is not None
        assert view.serving.tokens >= 3 * TOKENS + LONG
        await client.stop(deployment)
        view = await state_of(client, deployment, "settled")
        paid = {one.node: one.paid for one in await client.nodes(deployment)}
        assert sum(paid.values()) == view.paid > 0
        assert not remembered(folder, SECRET)
        assert SECRET.encode() not in tap.bytes


async def in_mid_answer(run: SmallRun, client: Client, web: str, deployment: str) -> None:
    """Kill the node that talks: the answer goes on at the other one, and no token is another."""
    right = await openly(web, deployment, OPEN, LONG)
    command = GenerateCommand("1", OPEN, tokens=LONG, sampling=Sampling(seed=7))
    text, killed = "", False
    async with PrivateClient(client, deployment, loopback=True) as talk:
        async for report in talk.ask(command):
            if isinstance(report, TextReport):
                text += report.text
            if not killed:
                killed = True
                [node] = talk.nodes
                [provider] = [one for one in run.network.providers if one.key.address == node.node]
                assert provider.role is not None
                await run.household.kill(provider.role)
        assert isinstance(report, AnsweredReport)
        assert len(talk.nodes) == 2
    assert text == right

"""llama.cpp's ``llama-server`` with the last layers at its ``rpc-server``, over an emulated line."""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp

from benchmarks.serving._line import LineProxy
from tests.support.addresses import free_port

SERVER, RPC_SERVERS = "llama-server", ("rpc-server", "ggml-rpc-server")  # Newer versions call it by the second name.
LOADED_S = 900.0
CONTEXT = 1024  # Of each answer.


class RpcModel:
    """A model over two processes of llama.cpp, asked by HTTP."""

    def __init__(self, port: int, session: aiohttp.ClientSession) -> None:
        """``port``: where ``llama-server`` listens."""
        self._url, self._session = f"http://127.0.0.1:{port}", session

    async def loaded(self, process: asyncio.subprocess.Process) -> None:
        """Return once it answers; raises SystemExit where it ends before."""
        async with asyncio.timeout(LOADED_S):
            while process.returncode is None:
                with contextlib.suppress(aiohttp.ClientError):
                    async with self._session.get(f"{self._url}/health") as answer:
                        if answer.status == 200:
                            return
                await asyncio.sleep(0.2)
        raise SystemExit(f"{SERVER} ended with status {process.returncode} while it loaded the model")

    async def answer(self, prompts: Sequence[str], tokens: int) -> tuple[float, float]:
        """Seconds to the first piece of text, and tokens a second of all; the likeliest tokens."""
        began = time.perf_counter()
        found = await asyncio.gather(*(self._one(prompt, tokens) for prompt in prompts))
        first = min(at for at, _ in found) - began
        return first, sum(made for _, made in found) / (time.perf_counter() - began)

    async def _one(self, prompt: str, tokens: int) -> tuple[float, int]:
        """When its first piece of text came, and how many tokens it has."""
        asked = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "cache_prompt": False, "stream": True}
        first, made = 0.0, 0
        async with self._session.post(f"{self._url}/completion", json=asked) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter()
                    made = max(made, int(json.loads(line[6:]).get("tokens_predicted", 0)))
        return first, made


def programs(folder: Path) -> tuple[Path, Path] | None:
    """``llama-server`` and ``rpc-server``; None: one of them is not there."""
    rpc = next((folder / name for name in RPC_SERVERS if (folder / name).exists()), None)
    return None if rpc is None or not (folder / SERVER).exists() else (folder / SERVER, rpc)


@contextlib.asynccontextmanager
async def rpc_model(
    found: tuple[Path, Path], model: Path, far_layers: int, trip: float, rate: float, streams: int, made: Path
) -> AsyncIterator[RpcModel]:
    """The same weights in float32, with a thread in each process. The line is slow once the model is loaded.

    Args:
        found: what ``programs`` found. ``far_layers``: how many lie at ``rpc-server``, and the head with them.
        trip: of one direction, in seconds. ``rate``: bytes a second. ``streams``: answers at a time.
        made: a folder for the GGUF file.
    """
    server, rpc = found
    weights = made / "model.gguf"
    words = ("-m", "trainer", "gguf", "--model", str(model), "--type", "f32", "--out", str(weights))
    making = await asyncio.create_subprocess_exec(sys.executable, *words)
    if await making.wait():
        raise SystemExit("the model has no GGUF file")
    far, near, quiet = free_port(), free_port(), asyncio.subprocess.DEVNULL
    processes = [
        await asyncio.create_subprocess_exec(
            str(rpc), "-H", "127.0.0.1", "-p", str(far), "-t", "1", stdout=quiet, stderr=quiet
        )
    ]
    try:
        await _listens(far)
        async with LineProxy(far, trip, rate) as line, aiohttp.ClientSession(timeout=_endless()) as session:
            limits = ("-ngl", str(far_layers + 1), "-np", str(streams), "-c", str(streams * CONTEXT), "-fit", "off")
            exact = ("-ctk", "f32", "-ctv", "f32", "-t", "1", "-tb", "1", "--no-webui", "--no-warmup", "--offline")
            where = ("--host", "127.0.0.1", "--port", str(near), "--rpc", f"127.0.0.1:{line.port}")
            processes.append(
                await asyncio.create_subprocess_exec(
                    str(server), "-m", str(weights), *where, *limits, *exact, stdout=quiet, stderr=quiet
                )
            )
            asked = RpcModel(near, session)
            await asked.loaded(processes[-1])
            line.open = False
            yield asked
    finally:
        for one in processes:
            with contextlib.suppress(ProcessLookupError):
                one.kill()
            await one.wait()


def _endless() -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=None)


async def _listens(port: int) -> None:
    """Return once somebody takes connections there."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.1)

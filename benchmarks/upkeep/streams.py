"""Live streams: 1,000 readers of 10 jobs at 5 events a second on one process, then 50 more that take nothing.

    python -m benchmarks.upkeep.streams                     # three passes of each by turns, three minutes
    python -m benchmarks.upkeep.streams --readers 200 --seconds 5 --passes 1

Ours are the coordinator's streams over the jobs in memory of the tests. Beside it, on the same work in the same run, is
sse-starlette under uvicorn (as ``pip install cottage[bench]`` has them), with one queue a reader. The readers are another
process; each event carries the moment at which it was made. Ours looks at a job when something happens, eight times a second
at most, and sends together what has come, the other one sends each event by itself. Those that take nothing watch a job of
400 events a second. Writes build/bench/streams.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.common import publish

JOBS, EVENTS_A_SECOND = 10, 5
STALLED = 50
BYTES = 60  # Of an event beside its time.
LOUD = 80  # Events at once of the job that those watch who take nothing.
PAGE = resource.getpagesize()
MADE = re.compile(rb"made (\d{19})")
Emit = Callable[[str, str], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each of the two measured parts")
    parser.add_argument("--passes", type=int, default=3, help="of each contender, by turns")
    parser.add_argument("--serve", choices=("ours", "peer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if options.serve:
        logging.getLogger("asyncio").setLevel(logging.ERROR)  # It tells of every event for a reader that has just gone.
        asyncio.run(serve_ours() if options.serve == "ours" else serve_peer())
        return
    found: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    for _ in range(options.passes):
        for name, passes in found.items():
            passes.append(asyncio.run(measure(name, options.readers, options.seconds)))
    told = {
        name: {key: statistics.median(one[key] for one in passes) for key in passes[0]}
        for name, passes in found.items()
    }
    publish(
        "streams",
        "live streams of one process: latency, processor time and memory, beside sse-starlette under uvicorn",
        {
            "readers": options.readers,
            "jobs": JOBS,
            "events_a_second_of_each": EVENTS_A_SECOND,
            "stalled": STALLED,
            "seconds": options.seconds,
            "passes": options.passes,
            "load": os.getloadavg(),
            "ours": told["ours"],
            "sse_starlette": told["peer"],
        },
    )


# --- the readers -------------------------------------------------------------------------------------------------------------


class Reader(asyncio.Protocol):
    """Notes how late each event comes."""

    def __init__(self, path: str, late: list[float]) -> None:
        self._path, self.late = path, late
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n".encode())

    def data_received(self, data: bytes) -> None:
        now, data = time.time_ns(), self._rest + data
        end = 0
        for made in MADE.finditer(data):
            self.late.append((now - int(made[1])) / 1e6)
            end = made.end()
        self._rest = data[max(end, len(data) - 30) :]


async def measure(name: str, readers: int, seconds: float) -> dict[str, float]:
    """One contender: its figures with readers that read, and once some do not."""
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.upkeep.streams",
        "--serve",
        name,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert server.stdin
    assert server.stdout
    port, *paths = json.loads(await server.stdout.readline())
    quiet, loud = itertools.cycle(paths[:-1]), paths[-1]
    loop, late = asyncio.get_running_loop(), list[float]()
    open_ones = []
    for _ in range(readers):
        transport, _ = await loop.create_connection(lambda: Reader(next(quiet), late), "127.0.0.1", port)
        open_ones.append(transport)
    await asyncio.sleep(5)
    told = await watched(server.pid, late, seconds, readers, "")
    for _ in range(STALLED):
        transport, _ = await loop.create_connection(lambda: Reader(loud, []), "127.0.0.1", port)
        transport.pause_reading()
        open_ones.append(transport)
    await asyncio.sleep(2)
    told |= await watched(server.pid, late, seconds, readers, "_stalled")
    server.stdin.close()
    try:
        await asyncio.wait_for(server.wait(), 20)
    except TimeoutError:
        server.kill()
        await server.wait()
    for transport in open_ones:
        transport.abort()
    return told


async def watched(pid: int, late: list[float], seconds: float, readers: int, suffix: str) -> dict[str, float]:
    late.clear()
    busy, began, memory = processor_s(pid), time.monotonic(), resident_mb(pid)
    await asyncio.sleep(seconds)
    passed, heard = time.monotonic() - began, sorted(late)
    return {
        f"heard_share{suffix}": round(len(heard) / (readers * EVENTS_A_SECOND * passed), 3),
        f"p50_ms{suffix}": round(heard[len(heard) // 2], 1),
        f"p99_ms{suffix}": round(heard[len(heard) * 99 // 100], 1),
        f"processor_share{suffix}": round((processor_s(pid) - busy) / passed, 3),
        f"resident_mb{suffix}": round(resident_mb(pid), 1),
        f"grown_mb{suffix}": round(resident_mb(pid) - memory, 1),
    }


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE / 1e6


# --- the servers -------------------------------------------------------------------------------------------------------------


async def emit(names: list[str], say: Emit) -> None:
    """Events of every job, evenly over the second, for ever; the last job is the loud one."""
    gap = 1 / (EVENTS_A_SECOND * len(names))
    due = time.monotonic()
    for name in itertools.cycle(names):
        due += gap
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        for _ in range(LOUD if name == names[-1] else 1):
            say(name, f"made {time.time_ns()} " + "x" * BYTES)


async def until_told(port: int, names: list[str], say: Emit, paths: list[str]) -> None:
    """Say where it serves, and emit until the other side closes its end."""
    print(json.dumps([port, *paths]), flush=True)
    task = asyncio.create_task(emit(names, say))
    await asyncio.to_thread(sys.stdin.read)
    task.cancel()


async def serve_ours() -> None:
    """The coordinator's streams, over jobs in memory."""
    import msgspec
    from aiohttp import web

    from common import gc_tuning
    from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
    from coordinator.web.http import protect
    from coordinator.web.stream import StreamLimits, Streams
    from protocol.rest.api import NewJob
    from tests.coordinator.web.fake import Cluster
    from tests.coordinator.web.fake_services import Registry
    from tests.coordinator.web.test_api import spec

    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(DiskArtifacts(Path(folder)), balance=10**15)
        assert cluster.artifacts is not None
        data = await cluster.artifacts.put(_text(), None, 1 << 20)
        new = msgspec.convert({"spec": spec(data)}, NewJob)
        names = [(await cluster.create(new)).id for _ in range(JOBS + 1)]
        streams = Streams(cluster, Registry(cluster), StreamLimits(total=10_000, each=10_000))
        app = web.Application()
        protect(app, lambda *_: None)
        app.router.add_get("/{job}", lambda request: streams.job(request, request.match_info["job"]))
        app.on_shutdown.append(streams.close)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=2048).start()

        gc_tuning.settle()  # As ``cottage serve`` does.

        def say(name: str, text: str) -> None:
            cluster._say(cluster._find(name), "round", text)

        await until_told(runner.addresses[0][1], names, say, [f"/{name}" for name in names])
        await runner.cleanup()


async def _text() -> AsyncIterator[bytes]:
    yield b"to be or not to be\n" * 200


async def serve_peer() -> None:
    """sse-starlette under uvicorn: a queue for each reader, an event for each that is put there."""
    import uvicorn
    from sse_starlette.sse import EventSourceResponse
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import Route

    names = [f"job{number}" for number in range(JOBS + 1)]
    readers: dict[str, set[asyncio.Queue[dict[str, str]]]] = {name: set() for name in names}
    numbers = itertools.count(1)

    async def stream(request: Request) -> EventSourceResponse:
        name, queue = request.path_params["job"], asyncio.Queue[dict[str, str]]()

        async def events() -> AsyncIterator[dict[str, str]]:
            readers[name].add(queue)
            try:
                while True:
                    yield await queue.get()
            finally:
                readers[name].discard(queue)

        return EventSourceResponse(events())

    def say(name: str, text: str) -> None:
        number = next(numbers)
        data = json.dumps([{"id": number, "time": time.time(), "kind": "round", "text": text}])
        for queue in readers[name]:
            queue.put_nowait({"event": "events", "id": f"0-{number}", "data": data})

    config = uvicorn.Config(
        Starlette(routes=[Route("/{job}", stream)]),
        port=0,
        log_level="warning",
        backlog=2048,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    task: Awaitable[None] = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no event for this
        await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    await until_told(port, names, say, [f"/{name}" for name in names])
    server.should_exit = True
    await task


if __name__ == "__main__":
    main()

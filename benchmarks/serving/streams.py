"""Open answers at the door: 1,000 streams of ``/v1/chat/completions`` on one coordinator, a token every 100 ms each.

The coordinator is a process of its own, with accounts, keys and a database; the model behind it is one that computes nothing
(``_fake_model``), so that the door is measured. Each token carries the moment at which the model's process said it; the readers
are a third process, whose clock is the same. ``1``, ``16`` and ``128`` are measured before in the same coordinator.

    python -m benchmarks.serving.streams [--streams 1,16,128,1000] [--tokens 700] [--gap 0.1]

``late``: from the model's process to the reader, while all streams are open (``all_open_s``). ``first``: from a request to its
first token, with 64 that wait for theirs; ``beginning``: ``late`` of all tokens, those among them that came meanwhile.
Writes build/bench/answer-streams.json.
"""

import argparse
import asyncio
import json
import os
import re
import resource
import sys
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common import ROOT, publish
from benchmarks.serving._door import serve
from benchmarks.upkeep.streams import processor_s, resident_mb

TOKEN = re.compile(rb'"content":" (\d+):(\d+)"')
DONE = b"data: [DONE]"
AT_ONCE = 64  # Requests that wait for their first token.
LATEST_S = 300.0  # Of one run.
LONGEST = 80  # Bytes of a token's text with what stands around it: no more has to be kept between two reads.


class Reading:
    """What the readers of one run see together. ``late``: nanoseconds, with the moment beside it."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.late, self.said = array("q"), array("q")
        self.first: list[float] = []
        self.one_ended = asyncio.Event()


class Reader(asyncio.Protocol):
    """One stream. ``begun``: it has a token; ``ended``: how many came, all of them in their order."""

    def __init__(self, port: int, key: str, job: str, reading: Reading) -> None:
        body = json.dumps(
            {
                "model": job,
                "messages": [{"role": "user", "content": "Hi"}],
                "max_tokens": reading.tokens,
                "stream": True,
            }
        )
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._request, self._reading = (head + body).encode(), reading
        self._rest, self._next, self._began = b"", 0, 0.0
        self.begun = asyncio.Event()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._began = transport, time.monotonic()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the tokens that have come."""
        now, data, end = time.monotonic_ns(), self._rest + data, 0
        if not self._next and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self._fail(data[-300:].decode(errors="replace"))
            return
        for found in TOKEN.finditer(data):
            if int(found[1]) != self._next:
                self._fail(f"token {int(found[1])} came where {self._next} was due")
                return
            if not self._next:
                self._reading.first.append(now / 1e9 - self._began)
                self.begun.set()
            self._next += 1
            said = int(found[2])
            self._reading.said.append(said)
            self._reading.late.append(now - said)
            end = found.end()
        if (fault := data.find(b'data: {"error"', end)) >= 0:
            self._fail(data[fault:].decode(errors="replace"))
        elif DONE in data[end:]:
            self._reading.one_ended.set()
            self.ended.set_result(self._next)
            self._transport.close()
        self._rest = data[max(end, len(data) - LONGEST) :]

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side has gone."""
        self._fail(f"the line was cut after {self._next} tokens: {exc}")

    def _fail(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(why))
            self.begun.set()
            self._reading.one_ended.set()


def part(ordered: Sequence[float], percent: int) -> float:
    """The value that so many of a hundred are not above."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


class Door:
    """A coordinator's process, and who may ask what there."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, callers: Sequence[tuple[str, str]]) -> None:
        self._process = process
        self._port = port
        self._callers = callers

    async def run(self, streams: int, tokens: int) -> dict[str, float]:
        """So many answers at a time; their figures, of when all are open."""
        reading, loop, pid = Reading(tokens), asyncio.get_running_loop(), self._process.pid
        busy = processor_s(pid)
        readers = [Reader(self._port, *self._callers[n % len(self._callers)], reading) for n in range(streams)]
        turns = asyncio.Semaphore(AT_ONCE)

        async def opened(one: Reader) -> None:
            async with turns:
                await loop.create_connection(lambda: one, "127.0.0.1", self._port)
                await one.begun.wait()

        async with asyncio.timeout(LATEST_S):
            await asyncio.gather(*map(opened, readers))
            from_ns, from_busy, from_own = time.monotonic_ns(), processor_s(pid), time.process_time()
            await reading.one_ended.wait()
            to_ns, to_busy, to_own, memory = (
                time.monotonic_ns(),
                processor_s(pid),
                time.process_time(),
                resident_mb(pid),
            )
            told = await asyncio.gather(*(one.ended for one in readers))
        within = [late for late, said in zip(reading.late, reading.said, strict=True) if from_ns <= said < to_ns]
        late, first, passed = sorted(within or reading.late), sorted(reading.first), (to_ns - from_ns) / 1e9
        return {
            "streams": streams,
            "whole": sum(count == tokens for count in told),
            "late_p50_ms": round(part(late, 50) / 1e6, 1),
            "late_p99_ms": round(part(late, 99) / 1e6, 1),
            "beginning_p99_ms": round(part(sorted(reading.late), 99) / 1e6, 1),
            "first_p50_s": round(part(first, 50), 2),
            "first_p99_s": round(part(first, 99), 2),
            "tokens_a_second": round(len(within) / passed) if passed > 0 else 0,
            "processor_share": round((to_busy - from_busy) / passed, 3) if passed > 0 else 0.0,
            "readers_share": round((to_own - from_own) / passed, 3) if passed > 0 else 0.0,
            "all_open_s": round(passed, 1),
            "processor_s": round(processor_s(pid) - busy, 2),
            "resident_mb": round(memory, 1),
        }


@asynccontextmanager
async def door(streams: int, gap_s: float) -> AsyncIterator[Door]:
    """A coordinator at which so many streams can be open at a time."""
    pipe = asyncio.subprocess.PIPE
    asked = ("-m", "benchmarks.serving.streams", "--serve", "--streams", str(streams), "--gap", str(gap_s))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *asked, stdin=pipe, stdout=pipe, limit=1 << 22, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = json.loads(await process.stdout.readline())
        yield Door(process, said["port"], said["callers"])
        process.stdin.close()
        async with asyncio.timeout(20):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def measured(streams: Sequence[int], tokens: int, gap_s: float) -> list[dict[str, float]]:
    """Each number of streams by turns, in one coordinator that has answered before."""
    async with door(max(streams), gap_s) as there:
        await there.run(1, 5)  # The model's process begins.
        return [await there.run(count, tokens) for count in streams]


def shown(rows: Sequence[dict[str, Any]]) -> Table:
    """For people."""
    table = Table(title="a token from the model's process to its reader; the coordinator's processor and memory")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" for value in row.values()))
    return table


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,16,128,1000")
    parser.add_argument("--tokens", type=int, default=700)
    parser.add_argument("--gap", type=float, default=0.1, help="seconds between two tokens of an answer")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    streams = [int(one) for one in options.streams.split(",")]
    if options.serve:
        asyncio.run(serve(max(streams), options.gap))
        return
    rows = asyncio.run(measured(streams, options.tokens, options.gap))
    Console(stderr=True, width=160).print(shown(rows))
    publish(
        "answer-streams",
        "open answers on one coordinator have all their tokens in order; how late each is, and what the coordinator takes",
        {"tokens": options.tokens, "gap_s": options.gap, "load": os.getloadavg(), "rows": rows},
    )


if __name__ == "__main__":
    main()

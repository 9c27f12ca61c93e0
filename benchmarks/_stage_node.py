"""One stage of a pipeline as a process of its own in a home of the test-bed: ``python _stage_node.py OPTIONS``.

Standard input and output carry one JSON object a line: ``{"signal": ...}`` for the other end, ``{"ready": true}`` when the link
stands, ``{"steps": [...]}`` when all is done: for each step wall seconds, seconds that the computing thread waited for a
neighbour, and its own CPU seconds.

Each stage also has a replica of itself at its neighbour's home: every ``period`` steps each home sends the other a
pseudo-gradient of its size on the bulk lane, while the next steps go on. That is the traffic of outer steps.
"""

import asyncio
import base64
import json
import sys
import threading
import time
from typing import Any

import numpy as np

from trainer.codecs import encode
from trainer.environment import configure
from trainer.stage import Stage
from trainer.steps import Kind, Position, Recorder, accumulate
from transport.ice import IceServer
from transport.identity import NodeKey
from transport.lane import Lane
from transport.peer import PeerNet
from transport.wire.job import TrainingSpec

sys.path.append(__file__.rpartition("/")[0])
from _replica import even_cuts, llama

RATE = 1e-3


class LinkBoundary:
    """A neighbour behind a link; the computing thread waits here, the loop's thread delivers."""

    def __init__(self, loop: asyncio.AbstractEventLoop, net: PeerNet, neighbour: str) -> None:
        self._loop, self._net, self._neighbour = loop, net, neighbour
        self._changed = threading.Condition()
        self._came: dict[tuple[int, str, int], bytes] = {}
        self.step = 0
        self.waited = 0.0

    def deliver(self, step: int, kind: str, micro: int, payload: bytes) -> None:
        """Called by the loop."""
        with self._changed:
            self._came[step, kind, micro] = payload
            self._changed.notify_all()

    def arrived(self, kind: Kind, micro: int) -> bool:
        """As ``Boundary.arrived``."""
        with self._changed:
            return (self.step, kind, micro) in self._came

    def receive(self, kind: Kind, micro: int) -> bytes:
        """As ``Boundary.receive``; what it waits is counted."""
        began = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: (self.step, kind, micro) in self._came)
            self.waited += time.perf_counter() - began
            return self._came.pop((self.step, kind, micro))

    def send(self, kind: Kind, micro: int, payload: bytes, naive: int) -> None:
        """As ``Boundary.send``."""
        header = f"{self.step} {kind} {micro}".encode()
        asyncio.run_coroutine_threadsafe(self._net.send(self._neighbour, Lane.ACTIVATIONS, header, payload), self._loop)

    def exchange(self, payload: bytes) -> None:
        """Send a pseudo-gradient and go on."""
        asyncio.run_coroutine_threadsafe(self._net.send(self._neighbour, Lane.BULK, b"outer", payload), self._loop)


def compute(options: dict[str, Any], boundary: LinkBoundary) -> list[dict[str, float]]:
    """All steps of one stage."""
    configure(1)
    index, spec = options["stage"], TrainingSpec(**options["training"])
    config = llama(options["width"], options["layers"])
    stage = Stage(config, even_cuts(options["layers"], 2)[index], spec)
    chance, found = np.random.default_rng(1), []
    for step in range(options["steps"]):
        windows = chance.integers(0, 259, (spec.batch, spec.sequence + 1), dtype=np.int64)
        boundary.step, boundary.waited = step, 0.0
        wall, cpu = time.perf_counter(), time.thread_time()
        accumulate(stage, Position(index, 2), windows, Recorder(boundary))
        stage.adam_step(RATE)
        if options["period"] and step % options["period"] == options["period"] - 1:
            boundary.exchange(encode(stage.parameters, "int4-block"))
        found.append({"wall": time.perf_counter() - wall, "waited": boundary.waited, "cpu": time.thread_time() - cpu})
    return found


async def main() -> None:
    """Connect, compute, and say how it went."""
    options = json.loads(sys.argv[1])
    keys = [NodeKey(bytes.fromhex(seed)) for seed in options["seeds"]]
    key, other = keys if options["stage"] == 0 else reversed(keys)
    say = _say

    async def send_signal(_: str, envelope: bytes) -> None:
        say(signal=base64.b64encode(envelope).decode())

    boundary: LinkBoundary | None = None
    early: list[tuple[int, str, int, bytes]] = []

    async def on_message(_peer: str, lane: Lane, header: bytes, payload: memoryview) -> None:
        if lane is not Lane.ACTIVATIONS:
            return
        step, kind, micro = header.decode().split()
        item = (int(step), kind, int(micro), bytes(payload))
        if boundary is None:
            early.append(item)
        else:
            boundary.deliver(*item)

    net = PeerNet(key, send_signal, on_message, ice_servers=[IceServer(*server) for server in options["servers"]])
    await net.allow({other.address})
    boundary = LinkBoundary(asyncio.get_running_loop(), net, other.address)
    for item in early:
        boundary.deliver(*item)
    hearing = asyncio.create_task(_hear(net, other.address))
    await net.send(other.address, Lane.CONTROL, b"hello", b"", timeout=60)
    say(ready=True)
    steps = await asyncio.to_thread(compute, options, boundary)
    say(steps=steps)
    await asyncio.sleep(1.0)  # The neighbour's last payloads are still on their way out.
    hearing.cancel()
    await net.aclose()


def _say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def _hear(net: PeerNet, neighbour: str) -> None:
    reader = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        message = json.loads(line)
        if "signal" in message:
            await net.on_signal(neighbour, base64.b64decode(message["signal"]))


if __name__ == "__main__":
    asyncio.run(main())

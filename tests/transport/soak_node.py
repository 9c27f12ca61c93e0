"""One side of a soak, in a process of its own: sends without end on all lanes and checks everything that comes.

``python -m tests.transport.soak_node SEED PEER OPTIONS``, as ``tests.testbed.node``; one JSON object a line:

    in   {"signal": [sender, hex]}, {"begin": true}, {"sample": true}, {"stop": true}
    out  {"signal": hex}, {"ready": address}, {"sample": {...}}, {"stopped": {...}}

A header names the sender's worker, the message's number among those of this worker, and the payload's SHA-256. A worker awaits
each message before the next one, so its numbers must arrive in order, each exactly once.
"""

import asyncio
import dataclasses
import hashlib
import json
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from protocol.identity import NodeKey
from transport.ice.ice import IceServer
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.peer import PeerNet

GREATEST = {Lane.CONTROL: 1 << 10, Lane.ACTIVATIONS: 2 << 20, Lane.BULK: 8 << 20}
WORKERS = {Lane.CONTROL: 1, Lane.ACTIVATIONS: 2, Lane.BULK: 4}
STREAM_EVERY = 5  # Of a worker's messages, one in so many is made while it is sent.
PIECE = 200_000
PAGE = os.sysconf("SC_PAGE_SIZE")


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def resident_bytes() -> int:
    """This process's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


async def pieces(payload: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(payload), PIECE):
        yield payload[start : start + PIECE]


class Soak:
    """Sends, receives and keeps count."""

    def __init__(self, key: NodeKey, peer: str, servers: list[IceServer]) -> None:
        self._peer = peer
        self._net = PeerNet(
            key, self._send_signal, self._on_message, ice_servers=servers, limits=PeerLimits(reach_s=60.0)
        )
        self._chance = random.Random(key.seed)
        self._stopped = False
        self._expected: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self._got: Counter[str] = Counter()
        self._bytes = 0
        self._faults: list[str] = []
        self._control: list[float] = []

    async def run(self) -> None:
        """Serve standard input until it ends."""
        await self._net.allow({self._peer})
        say(ready=self._net.address)
        reader = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with asyncio.TaskGroup() as group:
            workers: list[asyncio.Task[None]] = []
            while line := await reader.readline():
                command = json.loads(line)
                if "signal" in command:
                    sender, envelope = command["signal"]
                    await self._net.on_signal(sender, bytes.fromhex(envelope))
                elif "begin" in command:
                    for lane, count in WORKERS.items():
                        workers += [group.create_task(self._work(lane, number)) for number in range(count)]
                elif "sample" in command:
                    say(sample=self._sample())
                else:
                    self._stopped = True
                    group.create_task(self._stop(workers))
        await self._net.aclose()

    async def _stop(self, workers: list[asyncio.Task[None]]) -> None:
        await asyncio.gather(*workers)
        say(stopped=self._sample())

    async def _work(self, lane: Lane, worker: int) -> None:
        name, number = f"{lane.name.lower()} {worker}", 0
        while not self._stopped:
            payload = os.urandom(int(GREATEST[lane] ** self._chance.random()))
            header = json.dumps([name, number, hashlib.sha256(payload).hexdigest()]).encode()
            began = time.monotonic()
            if number % STREAM_EVERY == STREAM_EVERY - 1:
                await self._net.send_stream(self._peer, lane, header, len(payload), pieces(payload))
            else:
                await self._net.send(self._peer, lane, header, payload)
            if lane is Lane.CONTROL:
                self._control.append(time.monotonic() - began)
            number += 1
            self._sent[name] = number

    async def _on_message(self, _: str, lane: Lane, header: bytes, payload: memoryview) -> None:
        name, number, digest = json.loads(header)
        if number != self._expected[name]:
            self._faults.append(f"{name}: message {number} came, {self._expected[name]} was due")
        if hashlib.sha256(payload).hexdigest() != digest:
            self._faults.append(f"{name}: message {number} of {payload.nbytes} bytes is damaged")
        if not name.startswith(lane.name.lower()):
            self._faults.append(f"{name}: message {number} came on lane {lane.name}")
        self._expected[name] = number + 1
        self._got[name] += 1
        self._bytes += payload.nbytes

    def _sample(self) -> dict[str, Any]:
        """What has happened so far; the control lane's round trips since the last sample."""
        control, self._control = self._control, []
        link = self._net.stats()[self._peer]
        return {
            "resident": resident_bytes(),
            "cpu_s": time.process_time(),
            "bytes": self._bytes,
            "sent": dict(self._sent),
            "got": dict(self._got),
            "faults": self._faults[:20],
            "control": len(control),
            "control_median_s": statistics.median(control) if control else None,
            "control_most_s": max(control, default=None),
            "link": dataclasses.asdict(link) | {"lanes": None},
        }

    async def _send_signal(self, recipient: str, envelope: bytes) -> None:
        assert recipient == self._peer
        say(signal=envelope.hex())


if __name__ == "__main__":
    known = [IceServer(*server) for server in json.loads(sys.argv[3])["servers"]]
    asyncio.run(Soak(NodeKey(bytes.fromhex(sys.argv[1])), sys.argv[2], known).run())

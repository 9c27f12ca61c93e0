"""Signed, acknowledged, resumable messages cost little over a bare aiortc data channel.

The peer is stock aiortc: two connections in one process on loopback, 64 KB messages, waiting on its buffer. Ours is two
``PeerNet``s in one process, 1 MB messages on the bulk lane. Same bytes, same run; both ends' CPU is counted. Then the same with
an end in a process of its own each (``apart``), as fast as they go for some seconds, each end's CPU by itself.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import cast

from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection

from benchmarks.common import publish
from benchmarks.links.home_links import between, both, transfer
from protocol.identity import NodeKey
from tests.testbed.homes import Homes
from transport.messages.lanes import Lane
from transport.peer.peer import PeerNet

MEGABYTES = 24
REPETITIONS = 3
CHUNK = 64 * 1024
MESSAGE = 1 << 20
WARM_S, MEASURED_S = 1.5, 3.0
SYSTEMS = {"stock aiortc": "aiortc", "cottage": "cottage"}


async def measured(work: Callable[[], Awaitable[None]]) -> dict[str, float]:
    """Megabytes a second and CPU milliseconds a megabyte of both ends together."""
    wall, cpu = time.perf_counter(), time.process_time()
    await work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"mb_per_s": round(MEGABYTES / wall, 2), "cpu_ms_per_mb": round(1000 * cpu / MEGABYTES, 1)}


async def stock() -> dict[str, float]:
    """A data channel as aiortc gives it."""
    left, right = (RTCPeerConnection(RTCConfiguration(iceServers=[])) for _ in range(2))  # Nobody outside is asked.
    channel = left.createDataChannel("bulk")
    opened, done, received = asyncio.Event(), asyncio.Event(), 0
    channel.on("open", opened.set)

    @right.on("datachannel")
    def incoming(other: RTCDataChannel) -> None:
        @other.on("message")
        def message(data: bytes) -> None:
            nonlocal received
            received += len(data)
            if received >= MEGABYTES << 20:
                done.set()

    await left.setLocalDescription(await left.createOffer())
    await right.setRemoteDescription(left.localDescription)
    await right.setLocalDescription(await right.createAnswer())
    await left.setRemoteDescription(right.localDescription)
    await opened.wait()
    room = asyncio.Event()
    channel.bufferedAmountLowThreshold = 8 * CHUNK
    channel.on("bufferedamountlow", room.set)
    piece = os.urandom(CHUNK)

    async def work() -> None:
        for _ in range((MEGABYTES << 20) // CHUNK):
            channel.send(piece)
            if channel.bufferedAmount > 16 * CHUNK:
                room.clear()
                await room.wait()
        await done.wait()

    result = await measured(work)
    await asyncio.gather(left.close(), right.close())
    return result


async def ours() -> dict[str, float]:
    """The same bytes between two PeerNets."""
    keys = (NodeKey.generate(), NodeKey.generate())
    nets: dict[str, PeerNet] = {}

    async def ignore(peer: str, lane: Lane, header: bytes, payload: bytes | memoryview) -> None:
        """The figures are of the transport alone."""

    for key in keys:

        async def signal(to: str, envelope: bytes, sender: str = key.address) -> None:
            await nets[to].on_signal(sender, envelope)

        nets[key.address] = PeerNet(key, signal, ignore, loopback=True)
    left, right = keys[0].address, keys[1].address
    await nets[left].allow({right})
    await nets[right].allow({left})
    await nets[left].send(right, Lane.BULK, b"", b"warm", timeout=30)
    payload = os.urandom(MESSAGE)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range((MEGABYTES << 20) // MESSAGE):
                group.create_task(nets[left].send(right, Lane.BULK, b"", payload))

    result = await measured(work)
    await asyncio.gather(*(net.aclose() for net in nets.values()))
    return result


class Loopback:
    """This machine in the place of two emulated homes."""

    address = "127.0.0.1"

    def home(self, _number: int) -> "Loopback":
        return self

    async def start(self, command: list[str], limit: int) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=limit)


async def apart(system: str) -> dict[str, float]:
    """Payload in Mbit/s, and CPU milliseconds a megabyte at the sender and at the receiver."""
    async with transfer(cast(Homes, Loopback()), system) as pair:
        pair[0].tell(go={"total": 0})
        await asyncio.sleep(WARM_S)
        before = await both(pair)
        await asyncio.sleep(MEASURED_S)
        return between(before, await both(pair))


async def main() -> None:
    """Alternate the two, so that a busy machine burdens both."""
    rows: dict[str, list[dict[str, float]]] = {"stock aiortc": [], "cottage": []}
    processes: dict[str, list[dict[str, float]]] = {"stock aiortc": [], "cottage": []}
    for _ in range(REPETITIONS):
        rows["stock aiortc"].append(await stock())
        rows["cottage"].append(await ours())
        for name, system in SYSTEMS.items():
            processes[name].append(await apart(system))
    median, each = medians(rows), medians(processes)
    ratio = median["cottage"]["cpu_ms_per_mb"] / median["stock aiortc"]["cpu_ms_per_mb"]
    document = {"median": median, "cpu_ratio": round(ratio, 2), "median_apart": each, "runs": rows, "apart": processes}
    publish("peer_link", str(__doc__).splitlines()[0], document)


def medians(rows: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Of each figure."""
    return {name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in rows.items()}


if __name__ == "__main__":
    asyncio.run(main())

"""A node of the transport in one of the homes: ``python -m tests.testbed.node SEED PEER OPTIONS``.

Standard input and output carry one JSON object a line:

    in   {"signal": [sender, hex]}             an envelope for this node
         {"send": [lane, header, size, seed]}  send random bytes; answered with {"sent": header} or {"failed": why}
         {"stats": true}                       answered with {"stats": the figures of the link}
    out  {"signal": hex}                       an envelope for the peer
         {"ready": address}
         {"got": [lane, header, size, sha256], "pause": seconds}   with the longest time without a byte since the last "got"
         {"state": state, "at": seconds}       whenever the state of the link changes; the clock is the machine's, shared by all
"""

import asyncio
import dataclasses
import hashlib
import json
import random
import sys
import time
from typing import Any

from common.errors import PeerUnreachableError
from protocol.identity import NodeKey
from transport.ice.ice import IceServer
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.peer import PeerNet

SAMPLE_S = 0.02


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def message(size: int, seed: int) -> bytes:
    """The bytes that ``send`` sends."""
    return random.Random(seed).randbytes(size)


class Node:
    """One ``PeerNet`` and what is observed of its only link."""

    def __init__(self, key: NodeKey, peer: str, options: dict[str, Any]) -> None:
        servers = [IceServer(*server) for server in options["servers"]]
        limits = PeerLimits(**options["limits"])
        self._peer = peer
        self._net = PeerNet(key, self._send_signal, self._on_message, ice_servers=servers, limits=limits)
        self._pause = 0.0

    async def run(self) -> None:
        """Serve standard input until it ends."""
        await self._net.allow({self._peer})
        say(ready=self._net.address)
        reader = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async with asyncio.TaskGroup() as group:
            observer = group.create_task(self._observe())
            while line := await reader.readline():
                command = json.loads(line)
                if "signal" in command:
                    sender, envelope = command["signal"]
                    await self._net.on_signal(sender, bytes.fromhex(envelope))
                elif "send" in command:
                    group.create_task(self._send(*command["send"]))
                else:
                    say(stats=dataclasses.asdict(self._net.stats()[self._peer]))
            observer.cancel()
            await self._net.aclose()

    async def _send_signal(self, recipient: str, envelope: bytes) -> None:
        assert recipient == self._peer
        say(signal=envelope.hex())

    async def _on_message(self, _: str, lane: Lane, header: bytes, payload: memoryview) -> None:
        say(got=[lane, header.decode(), payload.nbytes, hashlib.sha256(payload).hexdigest()], pause=self._pause)
        self._pause = 0.0

    async def _send(self, lane: int, header: str, size: int, seed: int) -> None:
        try:
            await self._net.send(self._peer, Lane(lane), header.encode(), message(size, seed))
        except PeerUnreachableError as error:
            say(failed=str(error))
        else:
            say(sent=header)

    async def _observe(self) -> None:
        """Watch the state, and how long nothing arrives once something has."""
        state, received, last = "", 0, time.monotonic()
        while True:
            stats, now = self._net.stats()[self._peer], time.monotonic()
            if stats.state != state:
                state = stats.state
                say(state=state, at=now)
            arrived = sum(lane.payload_received for lane in stats.lanes.values())
            if arrived != received:
                self._pause = max(self._pause, now - last if received else 0.0)
                received, last = arrived, now
            await asyncio.sleep(SAMPLE_S)


if __name__ == "__main__":
    asyncio.run(Node(NodeKey(bytes.fromhex(sys.argv[1])), sys.argv[2], json.loads(sys.argv[3])).run())

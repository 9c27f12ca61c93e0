"""Two nodes as programs in homes of the test-bed; the test carries their envelopes, as a coordinator outside would."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.testbed.homes import Host
from transport.ice import IceServer
from transport.identity import NodeKey
from transport.lane import Lane

LIMIT_S = 40.0


@dataclass
class BedNode:
    """A node in a host of the bed."""

    key: NodeKey
    process: asyncio.subprocess.Process
    events: list[dict[str, Any]] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    deaf: bool = False

    def tell(self, **message: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def wait_for(self, kind: str) -> Any:
        """The oldest event of a kind, which is used up."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                for event in self.events:
                    if kind in event:
                        self.events.remove(event)
                        return event[kind]
                self.came.clear()
                await self.came.wait()

    async def ask(self, kind: str) -> Any:
        self.tell(**{kind: True})
        return await self.wait_for(kind)

    async def read(self, other: "BedNode") -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            event = json.loads(line)
            if "signal" in event:
                other.tell(signal=[self.key.address, event["signal"]])
            else:
                self.events.append(event)
                self.came.set()

    async def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


@contextlib.asynccontextmanager
async def bed_nodes(
    first: Host,
    second: Host,
    servers: Sequence[IceServer],
    *,
    authority: str = "",
    offerer_first: bool = True,
    **limits: Any,
) -> AsyncIterator[tuple[BedNode, BedNode]]:
    """A node in each of two hosts, allowed to each other.

    Args:
        authority: PEM file of the authority of relays that are reached over TLS.
        offerer_first: the first node is the one that makes the offers.
        limits: of ``PeerLimits``.
    """
    entries = [[server.url, server.username, server.credential, authority] for server in servers]
    options = json.dumps({"servers": entries, "loopback": False, "limits": {"reach_s": LIMIT_S, **limits}})
    keys = sorted((NodeKey.generate(), NodeKey.generate()), key=lambda key: key.address, reverse=not offerer_first)
    nodes = []
    for host, key, peer in zip((first, second), keys, reversed(keys), strict=True):
        command = [sys.executable, "-m", "tests.transport.peer_program", key.seed.hex(), peer.address, options]
        nodes.append(BedNode(key, await host.start(command)))
    left, right = nodes
    reading = asyncio.gather(left.read(right), right.read(left))
    try:
        await asyncio.gather(left.wait_for("ready"), right.wait_for("ready"))
        yield left, right
    finally:
        await asyncio.gather(left.end(), right.end())
        await reading


async def exchange(left: BedNode, right: BedNode, size: int = 100_000) -> None:
    """One message each way."""
    left.tell(send=[Lane.BULK, "there", size])
    assert await right.wait_for("got") == [Lane.BULK, "there", size]
    right.tell(send=[Lane.CONTROL, "back", 100])
    assert await left.wait_for("got") == [Lane.CONTROL, "back", 100]
    assert await left.wait_for("sent") == "there"
    assert await right.wait_for("sent") == "back"

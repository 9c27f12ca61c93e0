"""Real PeerNets over loopback, joined by a signalling server that a test can turn hostile."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from protocol.identity import NodeKey
from tests.support.wait import HANGS_S
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.peer import PeerNet
from transport.sctp.allowance import Allowance

logging.getLogger("aioice").setLevel(logging.WARNING)

Tamper = Callable[[str, str, bytes], Sequence[tuple[str, str, bytes]]]


async def until(condition: Callable[[], bool], limit_s: float = HANGS_S) -> None:
    """Return once ``condition`` holds; TimeoutError says that it never did."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.005)


@dataclass
class Received:
    peer: str
    lane: Lane
    header: bytes
    payload: bytes


@dataclass
class Node:
    """One PeerNet and what has arrived at it."""

    key: NodeKey
    net: PeerNet
    received: list[Received] = field(default_factory=list)
    handler: Callable[[Received], Awaitable[None]] | None = None

    @property
    def address(self) -> str:
        return self.key.address

    @property
    def memory_held(self) -> int:
        """Bytes reserved for large messages that arrive."""
        return self.net._context.budget.held

    async def take(self, peer: str, lane: Lane, header: bytes, payload: memoryview) -> None:
        message = Received(peer, lane, header, bytes(payload))
        if self.handler is not None:
            await self.handler(message)
        self.received.append(message)


class Switchboard:
    """Carries envelopes between the nodes of a test, as the coordinator does; ``tamper`` may change, drop or add some."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.log: list[tuple[str, str, bytes]] = []
        self.tamper: Tamper | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    def join(
        self, key: NodeKey | None = None, limits: PeerLimits | None = None, allowance: Allowance | None = None
    ) -> Node:
        key = key or NodeKey.generate()

        async def send_signal(recipient: str, envelope: bytes) -> None:
            self.carry(key.address, recipient, envelope)

        async def on_message(peer: str, lane: Lane, header: bytes, payload: memoryview) -> None:
            await node.take(peer, lane, header, payload)

        node = Node(key, PeerNet(key, send_signal, on_message, loopback=True, limits=limits, allowance=allowance))
        self.nodes[key.address] = node
        return node

    async def pair(self, limits: PeerLimits | None = None) -> tuple[Node, Node]:
        """Two nodes that allow each other; the first has the smaller address and so makes the offers."""
        first, second = sorted((NodeKey.generate(), NodeKey.generate()), key=lambda key: key.address)
        nodes = self.join(first, limits), self.join(second, limits)
        await nodes[0].net.allow({nodes[1].address})
        await nodes[1].net.allow({nodes[0].address})
        return nodes

    def carry(self, sender: str, recipient: str, envelope: bytes) -> None:
        letters = [(sender, recipient, envelope)]
        self.log += letters
        for said_sender, to, data in self.tamper(sender, recipient, envelope) if self.tamper else letters:
            if to in self.nodes:
                job = asyncio.ensure_future(self.nodes[to].net.on_signal(said_sender, data))
                self._jobs.add(job)
                job.add_done_callback(self._jobs.discard)

    async def close(self) -> None:
        await asyncio.gather(*(node.net.aclose() for node in self.nodes.values()))
        await asyncio.gather(*self._jobs)


@pytest.fixture
async def switchboard() -> AsyncIterator[Switchboard]:
    board = Switchboard()
    yield board
    await board.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and "transport" in repr(task)]
    assert not left, "closing left tasks behind"

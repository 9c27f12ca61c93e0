"""A peer in another process is killed, stopped and restarted."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from common.errors import PeerUnreachableError
from protocol.identity import NodeKey
from tests.support.clock import VirtualClock
from tests.transport.conftest import Node, Switchboard, until
from transport.ice.stats import LinkState
from transport.messages.lanes import Lane
from transport.messages.limits import PeerLimits
from transport.peer.peer import PeerNet
from transport.sctp.connection import FastPeerConnection

ROOT = Path(__file__).parents[3]
QUICK = PeerLimits(ping_s=0.1, silent_s=1.0, answer_s=2.0, connect_s=5.0, reach_s=20.0, close_s=1.0)


class Other:
    """The other process, and the node in this one that talks to it."""

    def __init__(self, node: Node, board: Switchboard, key: NodeKey, limits: PeerLimits) -> None:
        self.node, self.key, self._board, self._limits = node, key, board, limits
        self.got: list[tuple[Lane, str, int]] = []
        self.sent: list[str] = []
        self.ready = asyncio.Event()

    async def start(self) -> None:
        self.ready.clear()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.transport.peer_program",
            self.key.seed.hex(),
            self.node.address,
            json.dumps({"limits": asdict(self._limits), "servers": []}),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            limit=1 << 20,
        )
        self._reading = asyncio.create_task(self._read())
        await asyncio.wait_for(self.ready.wait(), 20)

    def tell(self, **message: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            message = json.loads(line)
            if "signal" in message:
                self._board.carry(self.key.address, self.node.address, bytes.fromhex(message["signal"]))
            elif "got" in message:
                lane, header, size = message["got"]
                self.got.append((Lane(lane), header, size))
            elif "sent" in message:
                self.sent.append(message["sent"])
            else:
                self.ready.set()


@contextlib.asynccontextmanager
async def two_processes(board: Switchboard, limits: PeerLimits, *, offers_here: bool) -> AsyncIterator[Other]:
    keys = sorted((NodeKey.generate(), NodeKey.generate()), key=lambda key: key.address)
    here, there = keys if offers_here else reversed(keys)
    node = board.join(here, limits)
    await node.net.allow({there.address})
    other = Other(node, board, there, limits)

    def forward(sender: str, recipient: str, envelope: bytes) -> list[tuple[str, str, bytes]]:
        if recipient == there.address:
            other.tell(signal=[sender, envelope.hex()])
        return [(sender, recipient, envelope)]

    board.tamper = forward
    await other.start()
    try:
        yield other
    finally:
        if other.process.returncode is None:
            await other.kill()


@pytest.mark.parametrize("offers_here", [True, False])
async def test_a_killed_peer_is_noticed_and_its_successor_gets_the_message(
    switchboard: Switchboard, offers_here: bool
) -> None:
    async with two_processes(switchboard, QUICK, offers_here=offers_here) as other:
        net, address = other.node.net, other.key.address
        await net.send(address, Lane.CONTROL, b"before")
        await other.kill()
        waiting = asyncio.create_task(net.send(address, Lane.BULK, b"meanwhile", bytes(100_000)))
        await until(lambda: net.stats()[address].state is not LinkState.UP)
        await other.start()
        start = time.monotonic()
        await asyncio.wait_for(waiting, 10)
        assert time.monotonic() - start < 5
        await until(lambda: len(other.got) == 2)
        assert other.got == [(Lane.CONTROL, "before", 0), (Lane.BULK, "meanwhile", 100_000)]


@pytest.mark.parametrize("offers_here", [True, False])
async def test_a_restarted_peer_need_not_wait_until_its_death_is_noticed(
    switchboard: Switchboard, offers_here: bool
) -> None:
    patient = PeerLimits(silent_s=60, reach_s=60)
    async with two_processes(switchboard, patient, offers_here=offers_here) as other:
        net, address = other.node.net, other.key.address
        await net.send(address, Lane.CONTROL, b"before")
        await other.kill()
        assert net.stats()[address].state is LinkState.UP
        await other.start()
        other.tell(send=[Lane.CONTROL, "I am back", 10])
        await until(lambda: other.sent == ["I am back"])
        assert [m.header for m in other.node.received] == [b"I am back"]
        await net.send(address, Lane.CONTROL, b"welcome")


async def test_a_frozen_peer_is_noticed_and_nothing_arrives_twice(switchboard: Switchboard) -> None:
    async with two_processes(switchboard, QUICK, offers_here=True) as other:
        net, address = other.node.net, other.key.address
        await net.send(address, Lane.CONTROL, b"0")
        jobs = [
            # More than fits in the window.
            asyncio.create_task(net.send(address, Lane.ACTIVATIONS, str(i).encode(), bytes(3_000_000)))
            for i in range(1, 30)
        ]
        await until(lambda: len(other.got) > 3)
        other.send_signal(signal.SIGSTOP)
        await until(lambda: net.stats()[address].state is not LinkState.UP)
        other.send_signal(signal.SIGCONT)
        await asyncio.wait_for(asyncio.gather(*jobs), 15)
        await until(lambda: len(other.got) == 30)
        assert sorted(int(header) for _, header, _ in other.got) == list(range(30))
        assert net.stats()[address].links >= 2


@pytest.mark.slow
async def test_with_the_usual_limits_a_killed_peer_is_noticed_within_five_seconds(switchboard: Switchboard) -> None:
    async with two_processes(switchboard, PeerLimits(), offers_here=True) as other:
        net, address = other.node.net, other.key.address
        await net.send(address, Lane.CONTROL, b"before")
        await other.kill()
        start = time.monotonic()
        await until(lambda: net.stats()[address].state is not LinkState.UP)
        assert 0.8 < time.monotonic() - start < 5, "a killed peer is known by ten probes without an answer"


@pytest.mark.long
@pytest.mark.slow
async def test_sixty_four_megabytes_between_two_processes(switchboard: Switchboard) -> None:
    async with two_processes(switchboard, PeerLimits(), offers_here=True) as other:
        net, address = other.node.net, other.key.address
        other.tell(send=[Lane.BULK, "back", 64 << 20])
        await net.send(address, Lane.BULK, b"there", bytes(64 << 20))
        await until(lambda: other.sent == ["back"], 60)
        await until(lambda: other.got == [(Lane.BULK, "there", 64 << 20)])
        assert [len(m.payload) for m in other.node.received] == [64 << 20]


@pytest.mark.parametrize("steps", range(8))
async def test_a_node_that_closes_while_a_try_to_reach_a_dead_peer_ends_is_not_kept_waiting(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whatever order the two come; where the end of the try won, the node went on trying and never closed."""
    first, second = sorted((NodeKey.generate(), NodeKey.generate()), key=lambda key: key.address)
    clock, offered, closing = VirtualClock(), asyncio.Event(), list[asyncio.Future[None]]()

    async def send_signal(*_: object) -> None:
        offered.set()

    async def on_message(*_: object) -> None:
        raise AssertionError("nobody is there to send anything")

    net = PeerNet(first, send_signal, on_message, loopback=True, clock=clock, limits=QUICK)
    end = FastPeerConnection.close

    async def close_soon() -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        await net.aclose()

    async def end_slowly(connection: FastPeerConnection) -> None:
        await end(connection)
        if not closing:
            closing.append(asyncio.ensure_future(close_soon()))
        for _ in range(4):
            await asyncio.sleep(0)

    monkeypatch.setattr(FastPeerConnection, "close", end_slowly)
    await net.allow({second.address})
    sending = asyncio.ensure_future(net.send(second.address, Lane.CONTROL, b"anybody?"))
    await offered.wait()
    await clock.advance(QUICK.answer_s)
    await until(lambda: bool(closing))
    done, _ = await asyncio.wait(closing, timeout=10)
    assert done, "closing waits for a try that goes on"
    with pytest.raises(PeerUnreachableError, match="this node is closing"):
        await sending

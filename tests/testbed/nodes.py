"""Two nodes in two hosts of the bed; the test carries their envelopes, as a coordinator outside both homes would."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol.identity import NodeKey
from tests.testbed.homes import Host
from transport.ice.ice import IceServer

LIMIT_S = 45.0  # For anything that a test waits for, on a machine that does other things.
END_LIMIT_S = 10.0


class Program:
    """A running ``tests.testbed.node``."""

    def __init__(self, key: NodeKey, process: asyncio.subprocess.Process) -> None:
        """Take a started process."""
        self.key, self.process = key, process
        self.events: list[dict[str, Any]] = []
        self._news = asyncio.Condition()

    def tell(self, **message: Any) -> None:
        """Send a command; see ``node``."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")

    async def wait_for(self, kind: str, value: Any = None) -> dict[str, Any]:
        """Take the next event of a kind, and of a value where one is given; what came before it is forgotten.

        Raises:
            AssertionError: the program ended or failed to send.
            TimeoutError: it did not come within ``LIMIT_S``.
        """
        async with asyncio.timeout(LIMIT_S), self._news:
            while True:
                while self.events:
                    event = self.events.pop(0)
                    if kind in event and value in (None, event[kind]):
                        return event
                    assert "failed" not in event, event
                assert self.process.returncode is None, f"the node ended with {self.process.returncode}"
                await self._news.wait()

    async def stats(self) -> dict[str, Any]:
        """The figures of its link."""
        self.tell(stats=True)
        figures: dict[str, Any] = (await self.wait_for("stats"))["stats"]
        return figures

    async def read(self, other: "Program") -> None:
        """Take its events and carry its envelopes until it ends."""
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            event = json.loads(line)
            if "signal" in event:
                other.tell(signal=[self.key.address, event["signal"]])
                continue
            async with self._news:
                self.events.append(event)
                self._news.notify_all()
        await self.process.wait()
        async with self._news:
            self._news.notify_all()

    async def kill(self) -> None:
        """As by the system: nothing is said any more."""
        self.process.kill()
        await self.process.wait()

    async def end(self) -> None:
        """Orderly, as far as that goes."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), END_LIMIT_S)
        except TimeoutError:
            await self.kill()


@contextlib.asynccontextmanager
async def nodes(
    first: Host,
    second: Host,
    servers: Sequence[IceServer],
    *,
    limits: Mapping[str, float] | None = None,
    authority: Path | None = None,
    second_offers: bool = False,
    module: str = "tests.testbed.node",
) -> AsyncIterator[tuple[Program, Program]]:
    """Two nodes that may talk to each other.

    Args:
        servers: STUN and TURN servers of both.
        limits: of ``PeerLimits``, where they are not the usual ones.
        authority: a certificate that both trust, for relays over TLS.
        second_offers: which of them makes the offers.
        module: the program; another one takes the same arguments and carries envelopes alike.
    """
    keys = sorted((NodeKey(bytes([n]) * 32) for n in (1, 2)), key=lambda key: key.address, reverse=second_offers)
    options = json.dumps({"servers": [dataclasses.astuple(server) for server in servers], "limits": limits or {}})
    env = {"SSL_CERT_FILE": str(authority)} if authority else {}
    programs = []
    for host, key, peer in zip((first, second), keys, reversed(keys), strict=True):
        process = await host.python(module, key.seed.hex(), peer.address, options, env=env)
        programs.append(Program(key, process))
    left, right = programs
    reading = asyncio.gather(left.read(right), right.read(left))
    try:
        await asyncio.gather(left.wait_for("ready"), right.wait_for("ready"))
        yield left, right
    finally:
        await asyncio.gather(left.end(), right.end())
        await reading

"""A run whose nodes and people come in at any of three coordinators, which are killed and frozen, working or not."""

import asyncio
import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import aiohttp

from tests.chaos.storm import LOOPBACK
from tests.chaos.takeovers import LOOK_S, Door, Manner, Takeovers, pass_on, says, works

MANNERS: Sequence[Manner] = ("killed", "front killed", "frozen")


class EveryDoor(Door):
    """As a load balancer that takes in turn whoever answers ``/readyz``, and cuts what leads to others."""

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(ports)
        self.ready: list[int] = []
        self.led: defaultdict[int, int] = defaultdict(int)
        self._turns: Iterator[int] = itertools.count()
        self._at: defaultdict[int, set[asyncio.StreamWriter]] = defaultdict(set)

    async def _look(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self.answer_s)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                working = await asyncio.gather(*(works(http, port) for port in self.ports))
                ready = await asyncio.gather(*(says(http, port, "/readyz", "ready") for port in self.ports))
                self.ready = [port for port, found in zip(self.ports, ready, strict=True) if found]
                self.leads = next((port for port, found in zip(self.ports, working, strict=True) if found), None)
                for port in self.ports:
                    if port not in self.ready:
                        self._cut_off(port)
                await asyncio.sleep(LOOK_S)

    def _cut_off(self, port: int) -> None:
        for writer in self._at.pop(port, set()):
            writer.transport.abort()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.ready:
                port = self.ready[next(self._turns) % len(self.ready)]
                far_reader, far_writer = await asyncio.open_connection(LOOPBACK, port)
                self.led[port] += 1
                both = {writer, far_writer}
                self._at[port] |= both
                await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))
                self._at[port] -= both
        writer.close()


@dataclass
class Fronts(Takeovers):
    """Three coordinators, of which one works; ``strikes`` as there."""

    door_kind: ClassVar[type[Door]] = EveryDoor
    coordinators: int = 3
    manners: Sequence[Manner] = MANNERS

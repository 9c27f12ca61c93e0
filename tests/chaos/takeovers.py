"""A run whose coordinators are killed, frozen and ended, one after the other: two on one PostgreSQL, behind a door.

The door leads everybody to the one that says that it works, and cuts what leads to another: who stands by answers as well, and
would hide how long nobody is at work.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import aiohttp

from coordinator.client import Client
from coordinator.client.errors import ClientError
from cottage.demo.processes import DemoProcess
from protocol.rest import api
from tests.chaos.storm import ENDED, LOOPBACK, PRICE_PER_PETAFLOP, RETURN_S, STARTING_S, Storm
from tests.support.addresses import free_port
from tests.support.databases import Postgres

Manner = Literal["killed", "frozen", "ended", "cut off", "front killed", "database killed"]
MANNERS: Sequence[Manner] = ("killed", "frozen", "ended")
LOOK_S = 0.1
ANSWER_S = 0.5


class Door:
    """A port that leads to the coordinator that is at work. ``answer_s``: within which one answers that is there."""

    answer_s: ClassVar[float] = ANSWER_S

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = ports
        self.port = free_port()
        self.leads: int | None = None
        self._server: asyncio.Server | None = None
        self._looking: asyncio.Task[None] | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._lead, LOOPBACK, self.port)
        self._looking = asyncio.create_task(self._look())

    async def close(self) -> None:
        if self._looking is not None and self._server is not None:
            self._looking.cancel()
            self._server.close()
        self._cut()

    async def _look(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self.answer_s)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                found = [port for port in self.ports if await works(http, port)]
                if self.leads not in found:
                    self._cut()
                    self.leads = found[0] if found else None
                await asyncio.sleep(LOOK_S)

    def _cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if self.leads is not None:
                far_reader, far_writer = await asyncio.open_connection(LOOPBACK, self.leads)
                both = {writer, far_writer}
                self._open |= both
                await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))
                self._open -= both
        writer.close()


async def works(http: aiohttp.ClientSession, port: int) -> bool:
    """Whether a coordinator is the one at work."""
    return await says(http, port, "/healthz", "ok")


async def says(http: aiohttp.ClientSession, port: int, path: str, status: str) -> bool:
    """Whether a coordinator says of itself, at ``/healthz`` or ``/readyz``, that it is so."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with http.get(f"http://{LOOPBACK}:{port}{path}") as answer:
            return answer.status == 200 and (await answer.json()).get("status") == status
    return False


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


@dataclass(frozen=True)
class Takeover:
    """What befell a coordinator, and after how many seconds the other one answered."""

    manner: Manner
    seconds: float


@dataclass
class Takeovers(Storm):
    """A run without kills of nodes; ``strikes``: of coordinators, spread over it. ``cells``: that carry the jobs."""

    door_kind: ClassVar[type[Door]] = Door

    strikes: int = 6
    coordinators: int = 2
    cells: int = 1
    manners: Sequence[Manner] = MANNERS
    made: list[Takeover] = field(default_factory=list)
    roles: dict[int, DemoProcess] = field(default_factory=dict)
    postgres: Postgres | None = None
    door: Door | None = None
    database: str = ""

    async def __aexit__(self, *errors: object) -> None:
        for role in self.roles.values():
            thaw(role)
        await super().__aexit__(*errors)
        if self.door is not None:
            await self.door.close()
        if self.postgres is not None:
            self.postgres.remove()

    async def start_coordinator(self, ledger_url: str) -> None:
        """PostgreSQL, the door, and both."""
        self.postgres = Postgres()
        self.postgres.start()
        self.database = self.postgres.url()
        self.door = self.door_kind(tuple(free_port() for _ in range(self.coordinators)))
        await self.door.start()
        for port in self.door.ports:
            await self._run(port)
        await self._other_than(None)
        self.web = f"http://{LOOPBACK}:{self.door.port}"

    async def strike(self, manner: Manner) -> None:
        """Let something befall the one that is at work, and wait for the other one."""
        assert self.door is not None
        port = self.door.leads
        assert port is not None
        if manner == "front killed":
            await self._strike_front(port)
            return
        role, began = self.roles[port], time.monotonic()
        match manner:
            case "killed":
                await self.household.kill(role)
            case "frozen":
                self.household.freeze(role)
            case "ended":
                role.may_end = True
                role.process.terminate()
        await self._other_than(port)
        self.made.append(Takeover(manner, time.monotonic() - began))
        if manner == "frozen":
            thaw(role)
        else:
            await self.household.kill(role)
            await self._run(port)

    async def _strike_front(self, worker: int) -> None:
        """Kill one that stands by; nobody has to take over."""
        assert self.door is not None
        port = next(one for one in self.door.ports if one != worker)
        await self.household.kill(self.roles[port])
        self.made.append(Takeover("front killed", 0.0))
        await self._run(port)

    async def _watch(self, client: Client, job_id: str) -> api.JobView:
        while True:
            job = await _asked(client, job_id)
            if job.state in ENDED:
                return job
            share = job.rounds_done / max(1, job.rounds_total)
            if job.state == "running" and len(self.made) < self.strikes * min(1.0, 1.1 * share):
                await self.strike(self.manners[len(self.made) % len(self.manners)])
            self._check_roles()
            await asyncio.sleep(0.2)

    async def _run(self, port: int) -> None:
        weather, folder = self.weather, self.folder / "coordinator"
        values = {
            "--data": folder,
            "--port": port,
            "--database-url": await self._database_for(port),
            "--ledger-url": self.ledger_url,
            "--lease-seconds": weather.lease_seconds,
            "--heartbeat-seconds": weather.heartbeat_seconds,
            "--return-seconds": RETURN_S,
            "--audits-per-round": weather.audits,
            "--price-per-petaflop": PRICE_PER_PETAFLOP,
            "--store-every": weather.store_every,
            "--cells": self.cells,
        }
        given = [str(word) for pair in values.items() for word in pair]
        words = ["-m", "cottage", "serve", "--open", "--no-own-auditor", *given]
        self.roles[port] = await self.household.start(f"coordinator-{port}", words)

    async def _database_for(self, _port: int) -> str:
        """Its address, for the coordinator at a port."""
        return self.database

    async def _other_than(self, port: int | None) -> None:
        assert self.door is not None
        deadline = time.monotonic() + STARTING_S
        while self.door.leads in (port, None):
            assert time.monotonic() < deadline, "nobody took over"
            await asyncio.sleep(LOOK_S / 4)


def thaw(role: DemoProcess) -> None:
    """Let one that was frozen go on."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(role.pid, signal.SIGCONT)


async def _asked(client: Client, job: str) -> api.JobView:
    """The job, from whoever is at work by now."""
    async with asyncio.timeout(STARTING_S):
        while True:
            try:
                return await client.get(job)
            except ClientError:
                await asyncio.sleep(LOOK_S)

"""Jobs of a network in cells, one after the other on each of several places, while coordinators and their database are struck.

Three coordinators carry the cells beside each other. At instants that a seed draws one is killed, frozen until others carry its
cells, cut off from the database for as long, or ended, or PostgreSQL is killed and started again; some strikes come while cells
still change hands. It goes on until all strikes were made, and every job that was handed in has ended.
"""

import asyncio
import contextlib
import random
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import aiohttp
import psutil

from coordinator.cli import EXIT_DATA
from coordinator.client import Client
from coordinator.client.errors import ClientError, ProblemError
from ledger.client import Ledger
from tests.chaos.database_line import DatabaseLine
from tests.chaos.fronts import EveryDoor
from tests.chaos.storm import ANY_BUDGET, ENDED, LOOPBACK, STARTING_S, Outcome
from tests.chaos.takeovers import LOOK_S, Door, Manner, Takeovers, says, thaw

ALL = ("killed", "frozen", "cut off", "ended", "database killed")
UP = "cottage_database_up 1"
TOO_FEW = "are free: ask for fewer, or wait until more nodes have joined"
ANSWER_S = 20.0  # A request waits at a front for as long as somebody may take over.
ENDS_S = 10.0
BACK_S = 180.0  # A coordinator starts, on two busy cores.
JOB_S = 1_200.0
TOLD_S = 3.0  # Within it every front has heard how each cell does.
PAUSE_S = (1.0, 6.0)
SOON_S = (0.0, 4.0)  # After the strike before, whose cells are about to be taken over.
DOWN_S = (0.2, 3.0)
AWAY_S = (0.0, 4.0)  # Frozen or cut off: beyond what others need to take over.


@dataclass(frozen=True)
class CellStrike:
    """What befell somebody, and after how many ``seconds`` every cell was reached by way of everybody else.

    Attributes:
        cells: that the struck one carried.
        together: with another one, before all cells were reached again.
    """

    manner: Manner
    seconds: float
    cells: int
    together: bool


class PatientDoor(EveryDoor):
    """On a machine where a coordinator that is there may take a second to say so."""

    answer_s: ClassVar[float] = 2.0


@dataclass
class CellStorm(Takeovers):
    """A network in cells.

    Attributes:
        at_once: jobs at a time.
        plan: what befalls somebody, in this order. ``doubles``: share of strikes that come together with the next one.
        told: is called after each strike, and each job.
        struck: what befell whom. ``handed_in``: all jobs. ``over``: how many of them have ended.
        started_again: coordinators that began while the database was away, and had to begin once more.
    """

    door_kind: ClassVar[type[Door]] = PatientDoor
    coordinators: int = 3
    cells: int = 3
    at_once: int = 3
    plan: Sequence[Manner] = ()
    doubles: float = 0.15
    struck: list[CellStrike] = field(default_factory=list)
    told: Callable[["CellStorm"], None] = lambda _storm: None
    handed_in: list[str] = field(default_factory=list)
    over: int = 0
    started_again: int = 0
    lines: dict[int, DatabaseLine] = field(default_factory=dict)

    async def __aexit__(self, *errors: object) -> None:
        for line in self.lines.values():
            line.heal(breaks=True)
        await super().__aexit__(*errors)
        for line in self.lines.values():
            await line.close()

    async def jobs_to_the_end(self) -> list[Outcome]:
        """Everything, in order."""
        ledger = await self.start()
        async with Client(self.web) as client:
            text = await self.upload(client)
            first = await self._one_for_each_cell(client, ledger, text)
            async with asyncio.TaskGroup() as group:
                striking = group.create_task(self._strike_all(), name="strikes")
                places = [group.create_task(self._jobs_in_turn(client, ledger, text, job, striking)) for job in first]
            return [outcome for place in places for outcome in place.result()]

    async def start_coordinator(self, ledger_url: str) -> None:
        """All of them."""
        await super().start_coordinator(ledger_url)
        await self._until_served(self._ports())
        assert isinstance(self.door, EveryDoor)
        while len(self.door.ready) < self.coordinators:
            await asyncio.sleep(LOOK_S)

    def cells_of_jobs(self) -> Counter[int]:
        """How many jobs each cell has had."""
        return Counter(int(job[:7], 16) % self.cells for job in self.handed_in)

    # --- jobs -----------------------------------------------------------------------------------------------------------

    async def _one_for_each_cell(self, client: Client, ledger: Ledger, text: str) -> list[str]:
        """So many jobs as run at a time, or some more until every cell has one: they are seen by all before the next comes."""
        found: list[str] = []
        while len(found) < self.at_once or len(self.cells_of_jobs()) < self.cells:
            assert len(found) < 4 * self.at_once, "jobs are not spread"
            found.append(await self._handed_in(client, ledger, text))
            await asyncio.sleep(TOLD_S)
        return found

    async def _handed_in(self, client: Client, ledger: Ledger, text: str) -> str:
        """One more job, as soon as nodes have come back from the last strike."""
        async with asyncio.timeout(BACK_S):
            while True:
                while (await client.quote(self.spec(text, ANY_BUDGET))).problems:
                    await asyncio.sleep(1.0)
                try:
                    job = (await self.hand_in(client, ledger, text)).id
                except ProblemError as error:
                    if TOO_FEW not in error.detail:
                        raise
                else:
                    self.handed_in.append(job)
                    return job

    async def _jobs_in_turn(
        self, client: Client, ledger: Ledger, text: str, job: str, striking: asyncio.Task[None]
    ) -> list[Outcome]:
        found: list[Outcome] = []
        while True:
            began = time.monotonic()
            await self._ended(client, job)
            found.append(outcome := await self.outcome(client, await client.get(job), time.monotonic() - began))
            lines = [f"{event.time:.1f} {event.kind}: {event.text}" for event in outcome.events]
            lines += [
                f"audit {one.audit} of round {one.round}, {one.state} {one.blame}: {one.detail}"
                for one in outcome.audits
            ]
            (self.folder / f"{job}.txt").write_text("\n".join(lines))
            self.over += 1
            self.told(self)
            if striking.done():
                return found
            job = await self._handed_in(client, ledger, text)

    async def _ended(self, client: Client, job: str) -> None:
        """Wait until a job has ended, or should have long ago."""
        deadline = time.monotonic() + JOB_S
        while time.monotonic() < deadline:
            self.household.check()
            with contextlib.suppress(ClientError):
                if (await client.get(job)).state in ENDED:
                    return
            await asyncio.sleep(1.0)

    # --- strikes --------------------------------------------------------------------------------------------------------

    async def _strike_all(self) -> None:
        """One after the other, and some of them together."""
        left = list(self.plan)
        while left:
            await asyncio.sleep(self._chance.uniform(*PAUSE_S))
            ports = await self._several_ready()
            now = [left.pop(0)]
            if left and len(ports) == self.coordinators and self._chance.random() < self.doubles:
                now.append(left.pop(0))
            await self._strike_together(now, ports)
            self.told(self)

    async def _strike_together(self, manners: Sequence[Manner], ports: list[int]) -> None:
        backs: list[Callable[[], Awaitable[None]]] = []
        begun: list[tuple[Manner, float, int]] = []
        for number, manner in enumerate(manners):
            if number:
                await asyncio.sleep(self._chance.uniform(*SOON_S))
            port, cells = self._chance.choice(ports), 0
            if manner != "database killed":
                ports.remove(port)
                cells = _carried(self.roles[port].pid)
            began, back = await self._harm(manner, port)
            begun.append((manner, began, cells))
            backs.append(back)
        await self._until_served(ports)
        over = time.monotonic()
        for manner, began, cells in begun:
            self.struck.append(CellStrike(manner, over - began, cells, len(manners) > 1))
        for back in backs:
            await back()

    async def _harm(self, manner: Manner, port: int) -> tuple[float, Callable[[], Awaitable[None]]]:
        """Strike; returns the instant from which on others can do something about it, and what makes it good."""
        role, began = self.roles[port], time.monotonic()

        async def again() -> None:
            await self.household.kill(role)
            await self._run_again(port)

        async def goes_on() -> None:
            await asyncio.sleep(self._chance.uniform(*AWAY_S))
            thaw(role)

        async def reached() -> None:
            await asyncio.sleep(self._chance.uniform(*AWAY_S))
            self.lines[port].heal(breaks=self._chance.random() < 0.5)

        async def nothing() -> None:
            """It is made good already."""

        match manner:
            case "database killed":
                assert self.postgres is not None
                await asyncio.to_thread(self.postgres.kill)
                await asyncio.sleep(self._chance.uniform(*DOWN_S))
                await asyncio.to_thread(self.postgres.start)
                return time.monotonic(), nothing
            case "frozen":
                self.household.freeze(role)
                return began, goes_on
            case "cut off":
                self.lines[port].cut_off()
                return began, reached
            case "ended":
                role.may_end = True
                role.process.terminate()
                status = await asyncio.wait_for(role.process.wait(), ENDS_S)
                assert status == 0, f"it ended with {status}. Its log ends:\n{role.tail()}"
            case _:
                await self.household.kill(role)
        return began, again

    async def _until_served(self, ports: Sequence[int]) -> None:
        """Wait until every one of these leads to whoever carries each cell, and that one reaches the database."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with asyncio.timeout(STARTING_S), aiohttp.ClientSession(timeout=timeout) as http:
            await asyncio.gather(*(_until_up(http, port, cell) for port in ports for cell in range(self.cells)))

    async def _several_ready(self) -> list[int]:
        """Those that are ready, once all are but one at the most, which may be about to start."""
        async with asyncio.timeout(BACK_S), aiohttp.ClientSession() as http:
            while True:
                ready = [port for port in self._ports() if await says(http, port, "/readyz", "ready")]
                for port in self._ports():
                    await self._see_to(port, port in ready)
                if len(ready) >= self.coordinators - 1:
                    return ready
                await asyncio.sleep(LOOK_S)

    async def _see_to(self, port: int, is_ready: bool) -> None:
        """As a service manager: one that finds no database when it starts ends with words, and is started again."""
        role = self.roles[port]
        if is_ready:
            role.may_end = False
        elif role.may_end and not role.running:
            assert role.process.returncode == EXIT_DATA, role.tail()
            self.started_again += 1
            self.household.roles.remove(role)
            await self._run_again(port)

    async def _run_again(self, port: int) -> None:
        await self._run(port)
        self.roles[port].may_end = True  # Until it is ready.

    async def _database_for(self, port: int) -> str:
        assert self.postgres is not None
        if port not in self.lines:
            self.lines[port] = DatabaseLine(self.postgres.folder)
            await self.lines[port].start()
        return self.database.replace(str(self.postgres.folder), str(self.lines[port].folder))

    def _ports(self) -> list[int]:
        assert self.door is not None
        return list(self.door.ports)


async def _until_up(http: aiohttp.ClientSession, port: int, cell: int) -> None:
    while True:
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with http.get(f"http://{LOOPBACK}:{port}/metrics?cell={cell + 1}") as answer:
                if answer.status == 200 and UP in await answer.text():
                    return
        await asyncio.sleep(LOOK_S)


def _carried(process: int) -> int:
    """How many cells a coordinator carries: it listens for people and nodes, and for each cell."""
    connections = psutil.Process(process).net_connections()
    return sum(one.status == psutil.CONN_LISTEN for one in connections) - 1


def planned(seed: int, kills: int, crashes: int) -> list[Manner]:
    """So many ``kill -9`` of coordinators, half as many other strikes, and crashes of the database, in an order by lot."""
    turn: Sequence[Manner] = ("frozen", "cut off", "ended")
    others = [turn[number % len(turn)] for number in range(kills // 2)]
    plan: list[Manner] = [*["killed"] * kills, *others, *["database killed"] * crashes]
    random.Random(seed).shuffle(plan)
    return plan


def seconds_by_manner(struck: Sequence[CellStrike]) -> dict[str, dict[str, Any]]:
    """How many there were, and after how many seconds all cells were served again, where the struck one carried any."""
    found: dict[str, dict[str, Any]] = {}
    for manner in ALL:
        every = [one for one in struck if one.manner == manner]
        alone = [one.seconds for one in every if not one.together and (one.cells or manner == "database killed")]
        if every:
            found[manner] = {"times": len(every), "together_with_another": sum(one.together for one in every)}
        if alone:
            found[manner] |= {"median_s": round(statistics.median(alone), 2), "longest_s": round(max(alone), 2)}
    return found

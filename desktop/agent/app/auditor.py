"""The operator's auditor: looks at others' work and does nothing else. It lends nothing, links to nobody and has no money.

To the coordinator it is a node that says what it is, so it gets spare leases only, in jobs that have audits waiting. What it runs
again comes and goes over the coordinator's own connection.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Coroutine
from typing import Any

from common.clock import backoff, within
from desktop.agent.app import startup
from desktop.agent.app.parts import AgentParts
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.log import LOG, printable
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.coordinator.cache_contents import CacheContents
from desktop.agent.coordinator.session import CoordinatorSession, Introduction
from desktop.agent.errors import CoordinatorRefusedError, SandboxError
from desktop.agent.jobs.holdings import Holdings
from desktop.agent.jobs.peer_router import Peers
from desktop.agent.jobs.state_replication import States
from desktop.agent.jobs.state_store import StateStore
from desktop.agent.jobs.tasks import HeldTask, Tools
from protocol.node import (
    Acknowledged,
    Assign,
    Beat,
    Command,
    HeldLease,
    IceServers,
    JobEarned,
    KeepRecords,
    ListRecords,
    Promised,
    Report,
    ReturnRecords,
    Signal,
    TaskMessage,
    Unanswered,
    Welcome,
)
from protocol.task import AuditReport, ReplayAcross, ReplayOuter, ReplayStep

DRAIN_S = 60.0  # A step that is being run again takes seconds; one that takes longer somebody else begins anew.
LOOK_S = 0.2
AT_ONCE = 2  # Steps that a worker has: the next one's opening, which may be large, comes while one is run again.
STUCK_S = 1800.0  # Several times what the slowest step takes that an auditor is given.
RETRY_S = 30.0  # Until the engine has started, or the operator has named this auditor.
LEAVING = "the auditor was stopped"


class Auditor:
    """One connection's worth of looking. ``work`` it once."""

    def __init__(self, parts: AgentParts, cache: CacheContents) -> None:
        """Build everything; nothing runs yet. ``cache``: what this process has cached already."""
        settings, clock, address = parts.settings, parts.clock, parts.key.address
        self._parts = parts
        self._artifacts = Artifacts(settings.coordinator, parts.home.cache, clock, settings.disk_gb * 10**9, cache)
        introduction = Introduction(parts.key, settings.payout, parts.profile)
        self._session = CoordinatorSession(settings.coordinator, introduction, self, clock)
        peers = Peers(address, clock)
        store = StateStore(parts.home.states, parts.key.seed)
        store.lend(settings.disk_gb * 10**9)
        tools = Tools(
            parts.sandbox,
            self._artifacts,
            States(address, store, peers.carry, clock),
            peers,
            self._send,
            parts.home.jobs,
            settings.threads,
            "cuda" if parts.profile.kind == "cuda" else "cpu",
            clock,
        )
        self._holdings = Holdings(tools, self._spawn, self._refuses, self._live, self._session.beat_soon)
        self._group = asyncio.TaskGroup()
        self._looks: dict[str, tuple[str, str]] = {}
        self._waiting: deque[Command] = deque()
        self._failures, self._rests_until, self._heard = 0, 0.0, 0.0
        self._leaving = False

    async def work(self, stop: asyncio.Event, hurry: asyncio.Event) -> None:
        """Look until ``stop`` is set; then finish what is being run again, unless ``hurry`` is set, and leave nothing behind.

        Raises:
            RefusedError: the coordinator does not want this auditor until its operator changes something.
        """
        try:
            async with self._group as group:
                running = [
                    group.create_task(self._session.run(), name="session"),
                    group.create_task(self._watch_silence(), name="silence"),
                ]
                await stop.wait()
                self._leaving = True
                self._session.beat_soon()
                self._leave_waiting()
                await self._drain(hurry)
                await self._session.goodbye(LEAVING)
                for task in running:
                    task.cancel()
                await self._holdings.end(LEAVING)
        except BaseExceptionGroup as errors:
            raise main_error(errors) from None
        finally:
            await self._artifacts.aclose()
            await self._parts.sandbox.aclose()

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Let what is being run again come to its end, and the coordinator take the answer."""
        deadline = self._parts.clock.now() + DRAIN_S
        if self._looks:
            LOG.info("leaving once %d steps that are being run again are done", len(self._looks))
        while self._owes() and self._session.online and self._parts.clock.now() < deadline:
            with contextlib.suppress(TimeoutError):
                await within(LOOK_S, hurry.wait())
            if hurry.is_set():
                return

    def _owes(self) -> bool:
        return bool(self._looks) or any(task.outbox for task in self._holdings.alive())

    # --- the session's listener -----------------------------------------------------------------------------------------

    def accepting(self) -> bool:
        """Whether another lease is welcome."""
        return not self._leaving and self._parts.clock.now() >= self._rests_until

    def held(self) -> tuple[HeldLease, ...]:
        """The leases to renew."""
        return self._holdings.leases()

    async def welcomed(self, welcome: Welcome) -> None:
        """Say again what was not acknowledged."""
        self._artifacts.authorise(welcome.token)
        await self._holdings.send_again(self._session.send)

    def received(self, message: TaskMessage) -> None:
        """One message from the coordinator."""
        match message:
            case Command(body=ReplayStep() | ReplayAcross() | ReplayOuter()):
                self._take(message)
            case Assign() | Command() | Acknowledged() | Beat():
                self._holdings.received(message)
            case JobEarned() | Promised() | Unanswered() | Signal() | IceServers():
                pass  # Nothing is earned, shown or linked here.
            case KeepRecords() | ListRecords() | ReturnRecords():
                pass  # Nor kept: nodes with seats are asked.

    # --- looking --------------------------------------------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        """Queue a step to run again, which a coordinator may ask for twice; what comes when this one leaves is for others."""
        audit = _step_of(command).audit
        if self._leaving or audit in self._looks or any(_step_of(other).audit == audit for other in self._waiting):
            return
        self._waiting.append(command)
        self._hand_on()

    def _hand_on(self) -> None:
        """Give workers what waits, in order, while they have little."""
        while self._waiting and len(self._looks) < AT_ONCE:
            command = self._waiting.popleft()
            if self._holdings.received(command):
                step = _step_of(command)
                self._looks[step.audit] = command.lease, _place(step)
                self._heard = self._parts.clock.now() if len(self._looks) == 1 else self._heard

    def _leave_waiting(self) -> None:
        if self._waiting:
            LOG.info("%d steps that waited here are left to others", len(self._waiting))
        self._waiting.clear()

    async def _send(self, report: Report) -> None:
        match report.body:
            case AuditReport(audit=audit, verdict=verdict, detail=detail):
                lease, place = self._looks.pop(audit, ("", audit))
                told = f" ({printable(detail)})" if detail else ""
                LOG.info("%s: %s: %s%s", self._holdings.tasks.get(lease, "a job"), place, verdict, told)
                self._failures, self._heard = 0, self._parts.clock.now()
                self._hand_on()
            case _:
                pass
        await self._session.send(report)

    def _refuses(self, assign: Assign) -> str:
        if assign.stage is not None:
            return f"an auditor takes no seat, and stage {assign.stage} was offered"
        return "" if self.accepting() else "the auditor is leaving, or rests after failures"

    async def _live(self, task: HeldTask) -> None:
        await task.run()
        self._looks = {audit: look for audit, look in self._looks.items() if look[0] != task.assign.lease}
        self._waiting = deque(command for command in self._waiting if command.lease != task.assign.lease)
        self._hand_on()
        if task.state != "failed":
            return
        if task.cause != "machine":
            LOG.warning("the job itself cannot go on: %s", task.reason)
            return
        self._failures += 1
        rest = backoff(self._failures, random.random)
        LOG.error(
            "%d workers failed in a row, the last one: %s; next lease in %.1f s", self._failures, task.reason, rest
        )
        self._rests_until = self._parts.clock.now() + rest

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        return self._group.create_task(work, name=name)

    async def _watch_silence(self) -> None:
        while True:
            await self._parts.clock.sleep(RETRY_S)
            self._holdings.end_orphans(self._session.silent())
            if self._looks and self._parts.clock.now() - self._heard > STUCK_S:
                self._holdings.stop(f"its worker has not come to an end of a step for {STUCK_S:.0f} s")


def _step_of(command: Command) -> ReplayStep | ReplayOuter:
    body = command.body
    assert isinstance(body, ReplayStep | ReplayAcross | ReplayOuter)
    return body.replay if isinstance(body, ReplayAcross) else body


def _place(step: ReplayStep | ReplayOuter) -> str:
    if isinstance(step, ReplayOuter):
        return f"round {step.round + 1}, the outer step of stage {step.stage}"
    return f"round {step.round + 1}, step {step.step} of stage {step.stage} replica {step.replica}"


async def look(home: Home, settings: Settings, stop: asyncio.Event, hurry: asyncio.Event) -> None:
    """Look at others' work until ``stop``, through whatever passes: no engine yet, no coordinator, one that refuses.

    Args:
        hurry: do not finish what is being run again.
    Raises:
        SettingsError: a setting or the key cannot be used.
    """
    cache = CacheContents()
    while not stop.is_set():
        try:
            parts = await _or_stop(startup.prepare(home, settings, auditor=True), stop)
            if parts is None:
                return
            await Auditor(parts, cache).work(stop, hurry)
        except (SandboxError, CoordinatorRefusedError) as error:
            LOG.error("%s; next try in %.0f s", error, RETRY_S)
            with contextlib.suppress(TimeoutError):
                await within(RETRY_S, stop.wait())


async def _or_stop(preparing: Coroutine[Any, Any, AgentParts], stop: asyncio.Event) -> AgentParts | None:
    """What ``preparing`` comes to, or None where ``stop`` is set first."""
    work, ending = asyncio.create_task(preparing, name="prepare"), asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait((work, ending), return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        for task in (work, ending):
            task.cancel()
        await asyncio.wait((work, ending))

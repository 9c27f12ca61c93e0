"""The leases that this node holds, and what the coordinator says about them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from desktop.agent.base.log import LOG, printable
from desktop.agent.coordinator.report_outbox import ALL
from desktop.agent.errors import NotConnectedError
from desktop.agent.jobs.crash_records import FoundLease
from desktop.agent.jobs.tasks import HeldTask, Tools
from protocol.node import MAX_LEASES, Acknowledged, Assign, Beat, Command, HeldLease, Report
from protocol.task import BeginRound, ExpectPeers, JoinStages, StopTask

RESEND_BURST = 150  # Reports in a row after a reconnect, and then a pause: a coordinator takes so many at once.
RESEND_PAUSE_S = 4.0
END_TASKS_S = 15.0  # A worker gets two seconds, a container a little longer; then the agent leaves anyway.
ORPHAN_S = 600.0  # A coordinator that is away for longer has given the leases to others: their workers only burn power.
MAX_FORGOTTEN = 64  # Ended leases whose last reports are not acknowledged; the oldest are given up.

LeaseMessage = Assign | Command | Acknowledged | Beat


class Holdings:
    """Every lease from the message that grants it to the acknowledgement of its last report."""

    def __init__(
        self,
        tools: Tools,
        spawn: Callable[[Coroutine[Any, Any, None], str], "asyncio.Task[None]"],
        refuses: Callable[[Assign], str],
        live: Callable[[HeldTask], Coroutine[Any, Any, None]],
        ended: Callable[[], None],
        make: Callable[..., HeldTask] = HeldTask,
    ) -> None:
        """Hold nothing yet.

        Args:
            spawn: starts work, with a name, that ends with its owner.
            refuses: why a lease is not taken, for the log; empty to take it.
            live: sees a task through from its beginning to its end.
            ended: told whenever one has ended.
            make: a task of a new lease.
        """
        self._tools = tools
        self._spawn = spawn
        self._refuses, self._live, self._ended, self._make = refuses, live, ended, make
        self._running: set[asyncio.Task[None]] = set()
        self._mourned: set[str] = set()  # Jobs of which a worker died: of one that kills them, the second is a failure.
        self._traffic_told: dict[str, object] = {}
        self.tasks: dict[str, HeldTask] = {}

    def alive(self) -> list[HeldTask]:
        """Those whose leases are to be renewed."""
        return [task for task in self.tasks.values() if task.alive]

    def leases(self) -> tuple[HeldLease, ...]:
        """The leases to renew."""
        return tuple(task.lease for task in self.alive())

    def received(self, message: LeaseMessage) -> bool:
        """One message about leases; whether it had an effect, where it is a command."""
        match message:
            case Assign():
                self._assign(message)
            case Command():
                return self._command(message)
            case Acknowledged(lease=lease, seq=seq):
                if lease in self.tasks:
                    self.tasks[lease].outbox.acknowledge(seq)
                    self._forget_ended()
            case Beat(gone=gone):
                for lease in gone:
                    self._drop(lease)
        return True

    def _assign(self, assign: Assign) -> None:
        known = self.tasks.get(assign.lease)
        if known is not None and known.assign.fence >= assign.fence:
            return  # Sent again after a reconnect.
        if why := self._refuses(assign):
            LOG.warning("a lease is not taken: %s", why)
            return
        if len(self.alive()) >= MAX_LEASES:
            LOG.warning("no room for another lease: %d are held", MAX_LEASES)
            return
        if known is not None:
            known.stop("the lease was granted anew")
        task = self._make(assign, self._tools, may_die=assign.job not in self._mourned)
        LOG.info("%s: assigned, job %r", task, printable(assign.spec.name))
        self._begin(task)

    def _begin(self, task: HeldTask) -> None:
        self.tasks[task.assign.lease] = task
        run = self._spawn(self._lived(task), f"task-{task.assign.lease[:8]}")
        self._running.add(run)
        run.add_done_callback(self._task_ended)

    async def restore(self, lease: FoundLease, *, frozen: bool = False) -> None:
        """Open what is drawn of a lease whose agent, or worker, died; ``frozen``: once jobs may compute."""
        task = HeldTask(lease.assign, self._tools, lease, ready=self._ended)
        await task.freeze(frozen)
        LOG.info("%s: its rounds %s are on the disk whole", task, ", ".join(str(n + 1) for n in lease.rounds))
        self._begin(task)

    async def _lived(self, task: HeldTask) -> None:
        await self._live(task)
        if task.died and self._tools.records is not None:
            self._mourned.add(task.assign.job)
            found = await asyncio.to_thread(self._tools.records.found_of, task.assign, task.died)
            if found is not None and self.tasks.get(task.assign.lease) is task:
                await self.restore(found, frozen=task.frozen)

    def _task_ended(self, run: "asyncio.Task[None]") -> None:
        self._running.discard(run)
        self._forget_ended()
        self._ended()

    def _command(self, command: Command) -> bool:
        task = self.tasks.get(command.lease)
        if task is None or task.assign.fence != command.fence or not task.alive:
            LOG.info("a %s for a lease that is not held here (any more)", type(command.body).__name__)
            return False
        if isinstance(command.body, StopTask):
            task.stop(printable(command.body.reason) or "the coordinator ended it")
            return True
        task.bridge.traces.told(command.body, command.trace)
        taken = task.command(command.body)
        if not taken:
            LOG.warning("%s: the worker reads no commands", task)
        if isinstance(command.body, BeginRound | ExpectPeers | JoinStages):
            self._spawn(self._tools.peers.refresh(), "allow-peers")
        return taken

    def _drop(self, lease: str) -> None:
        """The coordinator has given the lease to somebody else, or never knew it."""
        task = self.tasks.get(lease)
        if task is None:
            return
        task.stop("the lease is gone")
        task.outbox.acknowledge(ALL)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Let go of leases that are over and have nothing more to say; of the silent ones, all but the last few."""
        ended = [lease for lease, task in self.tasks.items() if task.state in ("ended", "failed")]
        excess = len(ended) - MAX_FORGOTTEN
        for number, lease in enumerate(ended):
            task = self.tasks[lease]
            if (task.state == "ended" or not task.outbox) or number < excess:
                del self.tasks[lease]

    async def send_again(self, send: Callable[..., Awaitable[None]]) -> None:
        """After a reconnect: whatever was not acknowledged, in bursts that a coordinator takes."""
        waiting = [report for task in self.tasks.values() for report in task.outbox.waiting()]
        for start in range(0, len(waiting), RESEND_BURST):
            for report in waiting[start : start + RESEND_BURST]:
                await send(report)
            if start + RESEND_BURST < len(waiting):
                await self._tools.clock.sleep(RESEND_PAUSE_S)

    async def tell_traffic(self, send: Callable[[Report], Awaitable[None]]) -> None:
        """Say of each lease what it has moved, where that has changed."""
        for lease, task in list(self.tasks.items()):
            report = task.bridge.traffic.report()
            if task.alive and task.restored is None and self._traffic_told.get(lease) != report:
                with contextlib.suppress(NotConnectedError):
                    await send(task.outbox.lossy(report))
                    self._traffic_told[lease] = report
        self._traffic_told = {lease: told for lease, told in self._traffic_told.items() if lease in self.tasks}

    def end_orphans(self, silent: float) -> None:
        """End what nobody will ask for any more; ``silent``: for how many seconds the coordinator has been away."""
        if silent > ORPHAN_S:
            self.stop(f"the coordinator has been away for {silent:.0f} s")

    def stop(self, reason: str) -> None:
        """Have every task end."""
        for task in self.tasks.values():
            task.stop(reason)

    async def end(self, reason: str) -> None:
        """End every task, by force those that do not end in time."""
        LOG.info("leaving: ending %d tasks", len(self.alive()))
        self.stop(reason)
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=END_TASKS_S)
            for run in late:
                run.cancel()

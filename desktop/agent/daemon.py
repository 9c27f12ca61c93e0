"""Puts the parts of the agent together, and ends them in order."""

import asyncio
import contextlib
import os
from collections.abc import Coroutine
from dataclasses import dataclass

from desktop.agent import network, status, wallet
from desktop.agent.artifacts import Artifacts
from desktop.agent.config import Home, Settings
from desktop.agent.earnings import Earnings, Summary
from desktop.agent.errors import NotConnectedError
from desktop.agent.groups import main_error
from desktop.agent.lending.keeper import Keeper, Readings
from desktop.agent.lending.policy import Decision, State
from desktop.agent.limits import Limits, LimitsChange, LimitsView
from desktop.agent.log import LOGGER, printable
from desktop.agent.nettest import LineTests
from desktop.agent.network import usable
from desktop.agent.peers import Peers
from desktop.agent.promises import Promises
from desktop.agent.sandbox.base import Sandbox
from desktop.agent.session import Introduction, Session, TaskMessage
from desktop.agent.shelf import Shelf
from desktop.agent.states import States
from desktop.agent.tasks import HeldTask, Tools
from desktop.agent.usage import Share
from desktop.agent.views import link_views, task_view
from transport.clock import Clock
from transport.errors import BadAddressError
from transport.identity import NodeKey
from transport.nettest.errors import NettestError
from transport.nettest.peer import PeerTests
from transport.nettest.result import NetTest, PeerTest
from transport.peer import PeerNet
from transport.wire.network import NetworkReport
from transport.wire.node import (
    MAX_LEASES,
    Acknowledged,
    Assign,
    Beat,
    Claim,
    Command,
    Earned,
    HeldLease,
    IceServers,
    LedgerInfo,
    NodeProfile,
    Promised,
    Signal,
    Welcome,
)
from transport.wire.task import BeginRound, StopTask

TRAFFIC_S = 2.0
NETWORK_S = 30.0  # Links change slowly; the coordinator plans with what is an hour old.
NETWORK_PAUSE_S = 6.0  # The coordinator takes a report in five seconds.
RESEND_BURST = 150  # Reports in a row after a reconnect, and then a pause: a coordinator takes so many at once.
RESEND_PAUSE_S = 4.0
ORPHAN_S = 600.0  # A coordinator that is away for longer has given the leases to others: their workers only burn power.
END_TASKS_S = 15.0  # A worker gets two seconds, a container a little longer; then the agent leaves anyway.
MAX_FORGOTTEN = 64  # Ended leases whose last reports are not acknowledged; the oldest are given up.


@dataclass(frozen=True)
class Parts:
    """What the agent is built from."""

    home: Home
    settings: Settings
    key: NodeKey
    profile: NodeProfile
    sandbox: Sandbox
    clock: Clock
    note: str = ""
    readings: Readings | None = None


class Agent:
    """One provider node. ``run`` it once."""

    def __init__(self, parts: Parts) -> None:
        """Build everything; nothing runs yet."""
        self._parts = parts
        settings, clock = parts.settings, parts.clock
        self._earnings = Earnings(parts.home.earnings)
        self._promises = Promises(parts.home.promises)
        self._artifacts = Artifacts(settings.coordinator, parts.home.cache, clock)
        self._peers = Peers(parts.key.address, clock)
        self._states = States(parts.key.address, Shelf(parts.home.states), self._peers.carry, clock)
        self._peers.states = self._states
        self._session = Session(
            settings.coordinator, Introduction(parts.key, settings.payout, parts.profile), self, clock
        )
        self._keeper = Keeper(parts.home.lending, parts.readings, clock)
        self._network: PeerNet | None = None
        self._limits = Limits.of(settings)
        self._share = Share(parts.home.usage, self._limits, clock.time())
        self._line: NetworkReport | None = None
        self._tests = LineTests(
            parts.home, parts.key, settings.coordinator, self._share.allowance, clock, self.measured
        )
        self._tell_network = asyncio.Event()
        self._ordered: set[str] = set()
        self._tools = Tools(
            parts.sandbox,
            self._artifacts,
            self._states,
            self._peers,
            self._session.send,
            parts.home.jobs,
            settings.threads,
            "cuda" if parts.profile.kind == "cuda" else "cpu",
            clock,
        )
        self._tasks: dict[str, HeldTask] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._ledger: LedgerInfo | None = None
        self._group = asyncio.TaskGroup()
        self._wallet_changed = asyncio.Event()
        self._started = clock.now()
        self._stopping = False

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; then say goodbye and leave nothing behind.

        Raises:
            RefusedError: the coordinator does not want this node until its owner changes something.
        """
        answers = status.Answers(
            self.status, self._earnings.summary, self.limits, self.change_limits, self._keeper.view, self._keeper.change,
            self.test_line, self.test_peer, self.claim,
        )  # fmt: skip
        runner = await status.serve(self._parts.home.socket, answers)
        try:
            async with self._group as group:
                await self._keeper.look(self)  # Whoever sits here now is not to see work come and go.
                session = group.create_task(self._session.run(), name="session")
                background = [
                    group.create_task(self._report_traffic(), name="traffic"),
                    group.create_task(self._watch_wallet(), name="wallet"),
                    group.create_task(self._report_network(), name="network"),
                    group.create_task(self._tests.watch(self._is_idle), name="nettest"),
                    group.create_task(self._lend(stop), name="lending"),
                ]
                await stop.wait()
                self._stopping = True
                await self._session.goodbye("the owner stopped the agent")
                for task in (session, *background):
                    task.cancel()
                await self._end_tasks()
        except BaseExceptionGroup as errors:
            raise main_error(errors) from None
        finally:
            await runner.cleanup()
            self._parts.home.socket.unlink(missing_ok=True)
            if self._network is not None:
                if self._peers.tests is not None:
                    await self._peers.tests.aclose()
                await self._states.aclose()
                await self._network.aclose()
            self._share.save(self._parts.clock.time())
            await self._artifacts.aclose()
            await self._parts.sandbox.aclose()
            self._earnings.close()

    async def _end_tasks(self) -> None:
        LOGGER.info("leaving: ending %d tasks", sum(task.alive for task in self._tasks.values()))
        for task in self._tasks.values():
            task.stop("the owner stopped the agent")
        if self._running:
            _, late = await asyncio.wait(self._running, timeout=END_TASKS_S)
            for run in late:
                run.cancel()

    # --- when the owner lends -------------------------------------------------------------------------------------------

    async def _lend(self, stop: asyncio.Event) -> None:
        await self._keeper.run(self)
        stop.set()  # What was to be finished is.

    def workers(self) -> tuple[bool, tuple[int, ...]]:
        """Whether jobs hold this computer (a spare that waits does not), and the processes of their workers."""
        seated = [task for task in self._tasks.values() if task.alive and task.assign.stage is not None]
        return bool(seated), tuple(task.pid for task in seated if task.pid is not None)

    def cap_used(self) -> bool:
        """Whether this month's allowance is used up."""
        return self._share.allowance.exhausted

    async def follow(self, decision: Decision, sentence: str) -> None:
        """Let the tasks work, freeze them, or leave."""
        for task in self._tasks.values():
            await task.freeze(decision.state is State.PAUSED)
        if decision.state is State.AWAY:
            for task in self._tasks.values():
                task.stop(sentence)
            await self._session.leave(sentence)
        elif decision.works:
            self._session.come_back()
        self._session.beat_soon()

    def accepting(self) -> bool:
        """Whether new leases are welcome."""
        return self._keeper.decision.takes_work

    # --- the session's listener -----------------------------------------------------------------------------------------

    def held(self) -> tuple[HeldLease, ...]:
        """The leases to renew."""
        return tuple(task.lease for task in self._tasks.values() if task.alive)

    async def welcomed(self, welcome: Welcome) -> None:
        """Take what the coordinator offers, and send again what it has not acknowledged."""
        self._artifacts.authorise(welcome.token)
        servers = usable(welcome.ice_servers)
        if self._network is None:
            self._network = PeerNet(
                self._parts.key,
                self._send_signal,
                self._peers.on_message,
                ice_servers=servers,
                clock=self._parts.clock,
                loopback=self._parts.settings.loopback,
                polite=self._limits.polite,
                allowance=self._share.allowance,
            )
            self._peers.tests = PeerTests(self._network, self._parts.clock, self._tests.why_no_rates)
            await self._peers.connect(self._network)
        self._network.set_ice_servers(servers)
        self._tell_network.set()
        await self._send_again()
        if welcome.ledger is not None:
            self._ledger = welcome.ledger
            self._wallet_changed.set()
            stake = max(self._parts.settings.stake, welcome.min_stake if self._parts.settings.stake else 0)
            self._spawn(wallet.ensure_stake(welcome.ledger, self._parts.key, stake), "stake")

    async def _send_again(self) -> None:
        waiting = [report for task in self._tasks.values() for report in task.outbox.waiting()]
        for start in range(0, len(waiting), RESEND_BURST):
            for report in waiting[start : start + RESEND_BURST]:
                await self._session.send(report)
            if start + RESEND_BURST < len(waiting):
                await self._parts.clock.sleep(RESEND_PAUSE_S)

    def received(self, message: TaskMessage) -> None:
        """One message from the coordinator."""
        match message:
            case Assign():
                self._assign(message)
            case Command():
                self._command(message)
            case Acknowledged(lease=lease, seq=seq):
                if lease in self._tasks:
                    self._tasks[lease].outbox.acknowledge(seq)
                    self._forget_ended()
            case Beat(gone=gone):
                for lease in gone:
                    self._drop(lease)
            case Earned() | Promised():
                self._earned(message)
            case IceServers():
                self._take_servers(message)
            case Signal(peer=peer, envelope=envelope):
                if self._network is not None:
                    self._spawn(self._network.on_signal(peer, envelope), "signal")

    def _assign(self, assign: Assign) -> None:
        known = self._tasks.get(assign.lease)
        if known is not None and known.assign.fence >= assign.fence:
            return  # Sent again after a reconnect.
        if not self._keeper.decision.takes_work:
            LOGGER.info("a lease came too late: %s", self._keeper.sentence())
            return
        if self._stopping or len(self.held()) >= MAX_LEASES:
            LOGGER.warning("no room for another lease: %d are held", len(self.held()))
            return
        if known is not None:
            known.stop("the lease was granted anew")
        task = HeldTask(assign, self._tools)
        LOGGER.info("%s: assigned, job %r", task, printable(assign.spec.name))
        self._tasks[assign.lease] = task
        run = self._spawn(task.run(), f"task-{assign.lease[:8]}")
        self._running.add(run)
        run.add_done_callback(self._task_ended)

    def _task_ended(self, run: asyncio.Task[None]) -> None:
        self._running.discard(run)
        self._forget_ended()
        self._session.beat_soon()

    def _command(self, command: Command) -> None:
        task = self._tasks.get(command.lease)
        if task is None or task.assign.fence != command.fence or not task.alive:
            LOGGER.info("a %s for a lease that is not held here (any more)", type(command.body).__name__)
            return
        if isinstance(command.body, StopTask):
            task.stop(printable(command.body.reason) or "the coordinator ended it")
            return
        if not task.bridge.command(command.body):
            LOGGER.warning("%s: the worker reads no commands", task)
        if isinstance(command.body, BeginRound):
            self._spawn(self._peers.refresh(), "allow-peers")

    def _drop(self, lease: str) -> None:
        """The coordinator has given the lease to somebody else, or never knew it."""
        task = self._tasks.get(lease)
        if task is None:
            return
        task.stop("the lease is gone")
        task.outbox.acknowledge(2**63)
        self._forget_ended()

    def _forget_ended(self) -> None:
        """Let go of leases that are over and have nothing more to say; of the silent ones, all but the last few."""
        ended = [lease for lease, task in self._tasks.items() if task.state in ("ended", "failed")]
        excess = len(ended) - MAX_FORGOTTEN
        for number, lease in enumerate(ended):
            task = self._tasks[lease]
            if (task.state == "ended" or not task.outbox) or number < excess:
                del self._tasks[lease]

    def _take_servers(self, offered: IceServers) -> None:
        """Use these relays for links made from now on; for each peer the best first, which the peer uses too."""
        if self._network is None:
            return  # Only a Welcome opens the network, and it comes first.
        self._network.set_ice_servers(usable(offered.servers))
        for peer in self._ordered - offered.peers.keys():
            self._network.set_peer_ice_servers(peer, ())
        self._ordered = set()
        for peer, servers in offered.peers.items():
            try:
                self._network.set_peer_ice_servers(peer, usable(servers))
            except BadAddressError as error:
                LOGGER.warning("the coordinator names a peer that is none: %s", printable(str(error)))
                continue
            self._ordered.add(peer)

    def _earned(self, earned: Earned | Promised) -> None:
        if isinstance(earned, Promised):
            if self._ledger is not None:
                self._promises.keep(self._ledger, earned)
            return
        if self._earnings.record(self._parts.settings.coordinator, earned, self._parts.clock.time()):
            LOGGER.info("job %s: verified %d, paid %d millionths so far", earned.job[:8], earned.verified, earned.paid)
            self._wallet_changed.set()

    async def _send_signal(self, peer: str, envelope: bytes) -> None:
        await self._session.send(Signal(peer, envelope))

    # --- in the background ----------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        return self._group.create_task(work, name=name)

    async def _report_traffic(self) -> None:
        told: dict[str, object] = {}
        while True:
            await self._parts.clock.sleep(TRAFFIC_S)
            self._peers.share_wire_bytes()
            self._share.look(self._parts.clock.time())
            self._end_orphans()
            for lease, task in list(self._tasks.items()):
                report = task.bridge.traffic.report()
                if task.alive and told.get(lease) != report:
                    with contextlib.suppress(NotConnectedError):
                        await self._session.send(task.outbox.lossy(report))
                        told[lease] = report
            told = {lease: report for lease, report in told.items() if lease in self._tasks}

    async def _report_network(self) -> None:
        """Tell the coordinator of the line and the links: now and then, once connected, and after a network test."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with self._parts.clock.timeout(NETWORK_S):
                    await self._tell_network.wait()
            self._tell_network.clear()
            with contextlib.suppress(NotConnectedError):
                await self._session.send(network.report(self._line, self._peers.links()))
            await self._parts.clock.sleep(NETWORK_PAUSE_S)

    def measured(self, line: NetworkReport) -> None:
        """Take what a network test has found of this node's line and its relays, and tell the coordinator."""
        self._line = line
        self._tell_network.set()

    async def test_line(self, order: status.Order) -> NetTest:
        """Test the line because the owner asks, whatever else uses it; raises NettestError where that is not possible."""
        return await self._tests.run(speed=order.speed)

    async def test_peer(self, order: status.PeerOrder) -> PeerTest:
        """Test the link to a peer of a present plan, its rates only while it is idle; raises NettestError."""
        if self._peers.tests is None or order.peer not in self._peers.links():
            raise NettestError(f"{order.peer} is no peer of this node now: `cottage node status` names them")
        return await self._peers.tests.measure(order.peer, speed=order.speed)

    def _is_idle(self) -> bool:
        return self._session.online and not self.held()

    def _end_orphans(self) -> None:
        silent = self._parts.clock.now() - self._session.last_seen
        if not self._session.online and silent > ORPHAN_S:
            for task in self._tasks.values():
                task.stop(f"the coordinator has been away for {silent:.0f} s")

    async def _watch_wallet(self) -> None:
        while True:
            await self._wallet_changed.wait()
            self._wallet_changed.clear()
            if self._ledger is None:
                continue
            held = await wallet.balance(self._ledger, self._parts.settings.payout)
            if held is not None:
                self._earnings.record_wallet(self._parts.settings.payout, held, self._parts.clock.time())

    async def claim(self, _: status.ClaimOrder) -> Summary:
        """Ask the coordinator to pay what has been earned, though it be little.

        Raises:
            NotConnectedError: there is no connection now.
        """
        await self._session.send(Claim())
        return self._earnings.summary()

    # --- how much of the line it may use --------------------------------------------------------------------------------

    def limits(self) -> LimitsView:
        """The limits in force, and what this month has used."""
        usage = self._share.usage
        return LimitsView(self._limits, usage.month, usage.used, applied=True)

    def change_limits(self, change: LimitsChange) -> LimitsView:
        """Change limits at once, and for the next start.

        Raises:
            SettingsError: a value cannot be used, or the settings cannot be kept.
        """
        limits = change.apply(self._limits)
        home = self._parts.home
        home.remember(limits.into(home.settings()))
        self._limits = limits
        self._share.change(limits)
        if self._network is not None:
            self._network.set_polite(limits.polite)
        told = self._tests.report()
        if told is not None:
            self.measured(told)
        return self.limits()

    # --- what it says of itself -----------------------------------------------------------------------------------------

    def status(self) -> status.Status:
        """Everything that the owner may want to know now."""
        parts, earned = self._parts, self._earnings.summary()
        return status.Status(
            node=parts.key.address,
            payout=parts.settings.payout,
            name=parts.settings.name,
            coordinator=parts.settings.coordinator,
            state="stopping" if self._stopping else self._session.state,
            reason=self._session.reason,
            note=parts.note,
            pid=os.getpid(),
            uptime=parts.clock.now() - self._started,
            profile=parts.profile,
            tasks=tuple(task_view(task) for task in self._tasks.values()),
            links=link_views(self._peers.links()),
            dropped=dict(self._peers.dropped),
            verified=earned.verified,
            paid=earned.paid,
            line=self._tests.last,
            lending=self._keeper.sentence(),
            lending_state=self._keeper.decision.state,
            paused=self._keeper.is_paused,
        )

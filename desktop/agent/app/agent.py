"""Puts the parts of the agent together, and ends them in order."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Coroutine
from functools import partial

import msgspec

from common.untrusted_text import untrusted
from desktop.agent.app import status
from desktop.agent.app.array_parts import array_tools, held_task, lend_disk, look_after
from desktop.agent.app.parts import AgentParts
from desktop.agent.app.views import link_views, task_view
from desktop.agent.base.activity import Kind, Severity
from desktop.agent.base.config import Settings
from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.log import LOG, printable
from desktop.agent.coordinator import network_report
from desktop.agent.coordinator.artifacts import Artifacts
from desktop.agent.coordinator.nettest import LineTests
from desktop.agent.coordinator.network_report import usable
from desktop.agent.coordinator.relay_orders import RelayOrders
from desktop.agent.coordinator.session import CoordinatorSession, Introduction
from desktop.agent.coordinator.transfer_pacing import TransferPacing
from desktop.agent.earnings import stake_warnings, wallet
from desktop.agent.earnings.earnings_estimate import WorthWatch
from desktop.agent.earnings.promises import PromiseFolder
from desktop.agent.earnings.records import EarningRecords
from desktop.agent.errors import GaveUpError, NotConnectedError, SandboxError
from desktop.agent.federated.joining import Joining
from desktop.agent.federated.memberships import Memberships
from desktop.agent.hardware import meters
from desktop.agent.hardware.benchmark import measure_now
from desktop.agent.hardware.power import PowerCap
from desktop.agent.jobs.coordinator_records import CoordinatorRecords
from desktop.agent.jobs.crash_records import CrashRecords
from desktop.agent.jobs.holdings import Holdings
from desktop.agent.jobs.line_limits import LimitsChange, LimitsView, LineLimits
from desktop.agent.jobs.peer_audits import Accusation
from desktop.agent.jobs.peer_router import Peers
from desktop.agent.jobs.private_door import PrivateDoor
from desktop.agent.jobs.state_replication import States
from desktop.agent.jobs.state_store import StateStore
from desktop.agent.jobs.tasks import HeldTask, Tools
from desktop.agent.jobs.traffic_usage import LineShare
from desktop.agent.jobs.weight_exchange import WeightExchange
from desktop.agent.lending.keeper import LendingChange, LendingKeeper, LendingView
from desktop.agent.lending.policy import Decision, State
from ledger.money import show
from protocol.federated.federations import FederationTold
from protocol.network import NetworkReport
from protocol.node import (
    Accounts,
    Acknowledged,
    Assign,
    Beat,
    Claim,
    Command,
    HeldLease,
    IceServers,
    JobEarned,
    KeepRecords,
    LedgerInfo,
    ListRecords,
    Promised,
    RecordsMessage,
    ReturnRecords,
    Signal,
    TaskMessage,
    Unanswered,
    Welcome,
)
from protocol.private.sessions import PrivateOffer
from transport.ice.context import LinkOptions
from transport.nettest.errors import NettestError
from transport.nettest.peer import PeerTests
from transport.nettest.result import NetTest, PeerTest
from transport.peer.peer import PeerNet

TRAFFIC_S = 2.0
NETWORK_S = 30.0  # Links change slowly; the coordinator plans with what is an hour old.
NETWORK_PAUSE_S = 6.0  # The coordinator takes a report in five seconds.
MAX_FAILURES = 5  # In a row: then something is wrong with this computer, or with the jobs; its own test tells which.


class Agent:
    """One provider node. ``run`` it once."""

    def __init__(self, parts: AgentParts, books: EarningRecords) -> None:
        """Build everything; nothing runs yet. ``books`` stay open."""
        self._parts, self._books = parts, books
        settings, clock = parts.settings, parts.clock
        self._promises = PromiseFolder(parts.home.promises)
        self._kept_records = CoordinatorRecords(parts.home.coordinator_records)
        self._limits = LineLimits.of(settings)
        self._share = parts.others.line or LineShare(parts.home.usage, self._limits, clock.time())
        self._peers = Peers(parts.key.address, clock)
        pacing, cache = TransferPacing(clock, self._share.allowance, self._peers.links), settings.disk_gb * 10**9
        self._artifacts = Artifacts(settings.coordinator, parts.home.cache, clock, cache, books.cache, pacing)
        self._store = store = StateStore(parts.home.states, parts.key.seed)
        store.lend(cache)
        self._states = States(parts.key.address, store, self._peers.carry, clock)
        self._records = CrashRecords(parts.home.records, parts.key.seed, store, settings.coordinator, cache, clock.time)
        self._peers.states = self._states
        self._peers.weights = self._weights = WeightExchange(self._peers.carry, self._peers.weights_for, clock)
        self._session = CoordinatorSession(
            settings.coordinator,
            Introduction(parts.key, settings.payout, parts.profile, parts.computer),
            self,
            clock,
            settings.coordinator_key,
            settings.invitation,
        )
        self._keeper = LendingKeeper(parts.home.lending, parts.readings, clock)
        self._network: PeerNet | None = None
        self._line: NetworkReport | None = None
        self._tests = LineTests(
            parts.home, parts.key, settings.coordinator, self._share.allowance, clock, self.measured
        )
        self._tell_network = asyncio.Event()
        self._relays = RelayOrders()
        tools = Tools(
            parts.sandbox,
            self._artifacts,
            self._states,
            self._peers,
            self._session.send,
            parts.home.jobs,
            settings.threads,
            "cuda" if parts.profile.kind == "cuda" else "cpu",
            clock,
            self._accuse if settings.bond > 0 else None,
            self._records,
            federations := Memberships(parts.home.federations, parts.key),
        )
        self.joining = Joining(federations, parts.sandbox, self._session.send)
        line = LinkOptions(self._limits.polite, self._share.allowance)
        self._private = PrivateDoor(parts.key, clock, settings.loopback, line, self._session.send, self._spawn)
        self._arrays = array_tools(parts, self._artifacts)
        made = partial(held_task, self._arrays)
        self._holdings = Holdings(tools, self._spawn, self._refuses, self._live, self._session.beat_soon, made)
        self.ledger: LedgerInfo | None = None
        self.finished = self._stopping = False
        self._failures, self._testing = 0, False
        self.cap = PowerCap(parts.device.gpu, lambda: tuple(self._holdings.tasks.values()), clock)
        self._gave_up: GaveUpError | None = None
        self._stop, self._group = asyncio.Event(), asyncio.TaskGroup()
        self._worth = WorthWatch(settings.coordinator, clock)
        self._wallet_changed, self._started = asyncio.Event(), clock.now()

    async def work(self, stop: asyncio.Event) -> None:
        """Lend until ``stop`` is set; then say goodbye and leave nothing behind.

        Raises:
            RefusedError: the coordinator does not want this node until its owner changes something.
            GaveUpError: one job after the other has failed here.
        """
        self._stop = stop
        try:
            async with self._group as group:
                await self._keeper.look(self)  # Whoever sits here now is not to see work come and go.
                await self._return()
                session = group.create_task(self._session.run(), name="session")
                background = [
                    group.create_task(self._report_traffic(), name="traffic"),
                    group.create_task(self._watch_wallet(), name="wallet"),
                    group.create_task(self._report_network(), name="network"),
                    group.create_task(self._tests.watch(self._is_idle), name="nettest"),
                    group.create_task(self._lend(stop), name="lending"),
                    group.create_task(self.cap.run(), name="power"),
                    group.create_task(self._worth.run(), name="worth"),
                    group.create_task(look_after(self._arrays, self._offer), name="images"),
                ]
                await stop.wait()
                self._stopping = True
                await self._private.aclose()
                await self._session.goodbye("the owner stopped the agent")
                for task in (session, *background):
                    task.cancel()
                await self._holdings.end("the owner stopped the agent")
        except BaseExceptionGroup as errors:
            raise main_error(errors) from None
        finally:
            self.cap.hold(0)
            if self._network is not None:
                if self._peers.tests is not None:
                    await self._peers.tests.aclose()
                await self._states.aclose()
                await self._weights.aclose()
                await self._network.aclose()
            self._share.save(self._parts.clock.time())
            await self._artifacts.aclose()
            await self._parts.sandbox.aclose()
        if self._gave_up is not None:
            raise self._gave_up

    async def _return(self) -> None:
        """Take up the leases that a process before this one had when it died, to open what is drawn of them."""
        try:
            found = await asyncio.to_thread(self._records.found)
        except OSError as error:
            LOG.warning("what is left of a crash cannot be read: %s", error)
            return
        for lease in found:
            if self._keeper.decision.works or self._keeper.decision.state is State.PAUSED:
                await self._holdings.restore(lease, frozen=not self._keeper.decision.works)
            else:  # Its owner does not lend now, which ends leases for good.
                await asyncio.to_thread(self._records.forget, lease.assign)

    # --- when the owner lends -------------------------------------------------------------------------------------------

    async def _lend(self, stop: asyncio.Event) -> None:
        await self._keeper.run(self)
        self.finished = self._keeper.view().wish.finish
        stop.set()  # What was to be finished is.

    def renew(self) -> None:
        """Take no new jobs, and end once none has a seat here."""
        self._keeper.renew()

    def workers(self) -> tuple[bool, tuple[int, ...]]:
        """Whether jobs hold this card (a spare that waits does not), and the processes of this computer's workers."""
        seated = any(task.assign.stage is not None for task in self._holdings.alive())
        return seated, (*self.pids(), *self._parts.others.pids())

    def pids(self) -> tuple[int, ...]:
        """The processes of this card's workers that have a seat."""
        seated = [task for task in self._holdings.alive() if task.assign.stage is not None]
        return tuple(task.pid for task in seated if task.pid is not None)

    def cap_used(self) -> bool:
        """Whether this month's allowance is used up."""
        return self._share.allowance.exhausted

    async def follow(self, decision: Decision, sentence: str) -> None:
        """Let the tasks work, freeze them, or leave."""
        cause = decision.reasons[0] if decision.reasons else None
        why, what = (cause.cause, cause.detail) if cause else ("", "")
        self._note("lending", sentence, state=decision.state, cause=why, what=what)
        for task in self._holdings.tasks.values():
            await task.freeze(decision.state is State.PAUSED)
        self._cap_power()
        if decision.state is State.AWAY:
            self._holdings.stop(sentence)
            await self._session.leave(sentence)
        elif decision.works:
            self._session.come_back()
        self._session.beat_soon()

    def accepting(self) -> bool:
        """Whether new leases are welcome."""
        return self._keeper.decision.takes_work and not self._gave_up and not self._testing

    # --- the session's listener -----------------------------------------------------------------------------------------

    def held(self) -> tuple[HeldLease, ...]:
        """The leases to renew."""
        return self._holdings.leases()

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
        self._private.use(servers)
        self._tell_network.set()
        await self._private.send_again()
        await self._holdings.send_again(self._session.send)
        if open_jobs := self._books.earnings.unsettled(self._parts.settings.coordinator):
            await self._session.send(Accounts(open_jobs))
        if welcome.ledger is not None:
            self.ledger = welcome.ledger
            self._books.earnings.record_ledger(self._parts.settings.coordinator, welcome.ledger)
            self._wallet_changed.set()
            stake = max(self._parts.settings.stake, welcome.min_stake if self._parts.settings.stake else 0)
            self._spawn(wallet.ensure_stake(welcome.ledger, self._parts.key, stake, self._parts.others.purse), "stake")

    def _accuse(self, found: Accusation) -> None:
        """Put a bond against what a re-run of a neighbour's step has found false."""
        if self.ledger is not None:
            self._spawn(self._put_bond(self.ledger, found), "bond")

    async def _put_bond(self, ledger: LedgerInfo, found: Accusation) -> None:
        most = self._parts.settings.bond
        bond = await wallet.accuse(ledger, self._parts.key, found.node, found.audit, most)
        if bond:
            text = f"{show(bond)} put up against node {found.node}, whose work was found false"
            self._note("bond", text, audit=found.audit, node=found.node, amount=str(bond))

    def received(self, message: TaskMessage) -> None:
        """One message from the coordinator."""
        match message:
            case Assign() | Command() | Acknowledged() | Beat():
                self._holdings.received(message)
            case JobEarned() | Promised():
                self._earned(message)
            case Unanswered(at=at):
                self._give_up(stake_warnings.unanswered(self._books.activity, self._parts.clock.time(), at))
            case IceServers():
                if self._network is not None:  # Only a Welcome opens the network, and it comes first.
                    self._relays.follow(self._network, message)
                    self._private.use(usable(message.servers))
            case KeepRecords() | ListRecords() | ReturnRecords():
                self._spawn(self._keep_records(message), "records")
            case FederationTold():
                self.joining.told(message)
            case PrivateOffer():
                self._private.offered(message, self._holdings.tasks.get(message.lease))
            case Signal(peer=peer, envelope=envelope):
                if self._network is not None:
                    self._spawn(self._network.on_signal(peer, envelope), "signal")

    def _refuses(self, assign: Assign) -> str:
        if not self._keeper.decision.takes_work:
            return f"it came too late: {self._keeper.sentence()}"
        return "the agent ends" if self._stopping or self._gave_up else ""

    async def _live(self, task: HeldTask) -> None:
        """A task from its beginning to its end, with what the owner is told of it."""
        assign, began = task.assign, self._parts.clock.time()
        name, coordinator = printable(assign.spec.name), self._parts.settings.coordinator
        self._books.earnings.record_seat(coordinator, assign.lease, assign.job, name, began)
        if task.restored is None:
            self._note("job began", f"job {name!r} began", job=assign.job, name=name)
        else:
            shown = str(max(task.restored.rounds) + 1)
            text = f"back after a crash: shows the work of round {shown} of job {name!r}, so that it is paid"
            self._note("returned", text, job=assign.job, name=name, round=shown)
        await task.run()
        self._private.end(assign.lease)
        failed = task.state == "failed"
        trouble = task.reason if failed else task.restored.why if task.restored is not None else ""
        seconds = self._parts.clock.time() - began
        self._books.earnings.record_work(coordinator, assign.lease, assign.job, name, began, seconds, trouble)
        if failed:
            self._note(
                "job failed", f"job {name!r} failed: {trouble}", "warning", job=assign.job, name=name, why=trouble
            )
        elif task.restored is None:
            self._note("job ended", f"job {name!r} ended after {seconds / 60:.0f} minutes", job=assign.job, name=name)
        if not failed or task.bridge.progress is not None:
            self._failures = 0
        elif task.cause == "machine":  # What a job brought says nothing of this machine.
            self._failures += 1
        if task.tampered:
            self._gave_up = stake_warnings.tampered(trouble)
            await task.acknowledged()
            self._stop.set()
        elif self._failures >= MAX_FAILURES and not self._testing:
            await self._after_failures(task, trouble)

    async def _after_failures(self, task: HeldTask, trouble: str) -> None:
        """Give up where the machine's own test fails, too: jobs fail in ways that nobody has thought of, and stop no machine."""
        count, self._testing = self._failures, True
        text = f"{count} jobs in a row failed before their first step; the last one: {trouble}"
        try:
            if not task.by_system:
                await measure_now(self._parts.sandbox, self._parts.device, self._parts.settings.threads)
                self._failures = 0
                told = f"{text}. This computer's own test passed, so it goes on lending"
                self._note("jobs failed", told, "warning", jobs=str(count), why=trouble)
                return
        except SandboxError as error:
            text = f"{text}. This computer's own test: {error}"
        finally:
            self._testing = False
        self._give_up(GaveUpError(text, "failures", jobs=str(count), what=trouble))

    def _give_up(self, why: GaveUpError | None) -> None:
        if why is not None:
            self._gave_up = why
            self._stop.set()

    def _note(self, kind: Kind, text: str, severity: Severity = "info", **detail: str) -> None:
        if self._parts.computer is not None:
            text, detail = f"{self._parts.settings.name}: {text}", detail | {"gpu": self._parts.device.gpu}
        self._books.activity.add(self._parts.clock.time(), kind, text, severity, **detail)

    def _earned(self, earned: JobEarned | Promised) -> None:
        if isinstance(earned, Promised):
            if self.ledger is not None:
                self._promises.keep(self.ledger, earned)
            return
        grown = self._books.earnings.record(self._parts.settings.coordinator, earned, self._parts.clock.time())
        if grown is None:
            return
        LOG.info("job %s: verified %d, paid %d millionths so far", earned.job[:8], earned.verified, earned.paid)
        if grown.verified:
            text = f"{show(grown.verified)} verified"
            self._note("earned", text, job=earned.job, amount=str(grown.verified))
        if grown.paid:
            text, receipt = f"{show(grown.paid)} paid", earned.signature
            self._note("paid", text, job=earned.job, amount=str(grown.paid), signature=receipt)
        self._wallet_changed.set()

    async def _keep_records(self, message: RecordsMessage) -> None:
        answer = await asyncio.to_thread(self._kept_records.answer, message)
        if answer is not None:
            with contextlib.suppress(NotConnectedError):
                await self._session.send(answer)

    async def _send_signal(self, peer: str, envelope: bytes) -> None:
        await self._session.send(Signal(peer, envelope))

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        return self._group.create_task(work, name=name)

    async def _report_traffic(self) -> None:
        while True:
            await self._parts.clock.sleep(TRAFFIC_S)
            self._peers.share_wire_bytes()
            self._share.look(self._parts.clock.time())
            self._holdings.end_orphans(self._session.silent())
            await self._holdings.tell_traffic(self._session.send)

    async def _report_network(self) -> None:
        """Tell the coordinator of the line and the links: now and then, once connected, and after a network test."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with self._parts.clock.timeout(NETWORK_S):
                    await self._tell_network.wait()
            self._tell_network.clear()
            with contextlib.suppress(NotConnectedError):
                await self._session.send(network_report.report(self._line, self._peers.links()))
            await self._parts.clock.sleep(NETWORK_PAUSE_S)

    def measured(self, line: NetworkReport) -> None:
        """Take what a network test has found of this node's line and its relays, and tell the coordinator."""
        self.told_line(line)
        self._parts.others.measured(line)

    def told_line(self, line: NetworkReport) -> None:
        """The same of a test that another card of this computer has made."""
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
        return self._session.online and not self.held() and self._parts.others.may_test()

    async def _watch_wallet(self) -> None:
        while True:
            await self._wallet_changed.wait()
            self._wallet_changed.clear()
            if self.ledger is None:
                continue
            held = await wallet.balance(self.ledger, self._parts.settings.payout)
            if held is not None:
                self._books.earnings.record_wallet(self._parts.settings.payout, held, self._parts.clock.time())

    async def claim(self) -> None:
        """Ask the coordinator to pay what has been earned, though it be little; raises NotConnectedError."""
        await self._session.send(Claim())

    # --- the owner's settings -------------------------------------------------------------------------------------------

    async def adopt(self, settings: Settings) -> None:
        """Take over settings that need no new start: what the coordinator is told, and what nobody is told."""
        settings = settings.completed(self._parts.key.address)
        profile = msgspec.structs.replace(self._parts.profile, name=settings.name, floor=settings.floor)
        told = (profile, settings.payout) != (self._parts.profile, self._parts.settings.payout)
        self._parts = dataclasses.replace(self._parts, settings=settings, profile=profile)
        self._artifacts.limit(settings.disk_gb * 10**9)
        self._records.limit = settings.disk_gb * 10**9
        lend_disk(self._arrays, settings.disk_gb * 10**9)
        self._store.lend(settings.disk_gb * 10**9)
        self._cap_power()
        if told:
            await self._introduce()

    async def _offer(self, containers: bool) -> None:
        """Say whether containers of others run here, where that has changed."""
        if containers != self._parts.profile.containers:
            profile = msgspec.structs.replace(self._parts.profile, containers=containers)
            self._parts = dataclasses.replace(self._parts, profile=profile)
            await self._introduce()

    async def _introduce(self) -> None:
        parts = self._parts
        await self._session.introduce(Introduction(parts.key, parts.settings.payout, parts.profile, parts.computer))

    def _cap_power(self) -> None:
        """While jobs may compute; at other times the GPU is its owner's."""
        watts = self._parts.settings.watts if self._keeper.decision.works else 0
        if self.cap.hold(watts) and self.cap.why:
            self._note("settings", f"{watts} W are held by pauses: {self.cap.why}", "warning", why=self.cap.why)

    def lending(self) -> LendingView:
        """When it lends."""
        return self._keeper.view()

    async def lend(self, change: LendingChange) -> LendingView:
        """Change that at once, and say what follows; raises SettingsError."""
        return await self._keeper.change_and_look(change)

    @property
    def heard(self) -> str | None:
        """The coordinator that is connected now."""
        return self._parts.settings.coordinator if self._session.online else None

    def working(self) -> frozenset[str]:
        """Jobs in which this node has a seat, or stands by."""
        return frozenset(task.assign.job for task in self._holdings.alive())

    @property
    def flops(self) -> float:
        """As measured when it began."""
        return self._parts.profile.flops

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
        self.keep_to(limits)
        return self.limits()

    def keep_to(self, limits: LineLimits) -> None:
        """Keep to these from now on."""
        self._limits = limits
        self._share.change(limits)
        self._private.options.polite = limits.polite
        if self._network is not None:
            self._network.set_polite(limits.polite)
        told = self._tests.report()
        if told is not None:
            self.measured(told)

    def status(self) -> status.AgentStatus:
        """Everything that the owner may want to know now."""
        parts, settings = self._parts, self._parts.settings
        links = self._peers.links()
        up, down = (sum(getattr(link, way) for link in links.values()) for way in ("send_rate", "receive_rate"))
        return status.AgentStatus(
            node=parts.key.address,
            payout=parts.settings.payout,
            name=parts.settings.name,
            coordinator=parts.settings.coordinator,
            state="stopping" if self._stopping else self._session.state,
            reason=untrusted(self._session.reason),
            note=parts.device.note,
            pid=os.getpid(),
            uptime=parts.clock.now() - self._started,
            profile=parts.profile,
            tasks=tuple(task_view(task) for task in self._holdings.tasks.values()),
            links=link_views(links),
            dropped=dict(self._peers.dropped),
            verified=0,
            paid=0,
            line=self._tests.last,
            lending=self._keeper.sentence(),
            lending_state=self._keeper.decision.state,
            paused=self._keeper.is_paused,
            reasons=self._keeper.decision.reasons,
            meters=meters.read(self.workers()[1], up, down),
            max_celsius=self._keeper.rules.max_celsius,
            memory_mb=settings.memory_mb,
            watts=settings.watts,
            gpu=parts.device.gpu,
            electricity=settings.electricity,
            currency=settings.currency,
            worth=settings.worth_of(self._worth.said),
        )

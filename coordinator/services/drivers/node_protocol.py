"""What is said over the nodes' connections: each message has its effect stored before it is acknowledged."""

from functools import partial
from typing import TypeGuard, assert_never

import msgspec
from msgspec import UNSET

from common import tracing
from coordinator.domain import placement
from coordinator.domain.job import LIVE, JobState
from coordinator.domain.lease import TAKES_ANY, Lease
from coordinator.domain.placement import MEGABYTE
from coordinator.domain.rounds.round import Round
from coordinator.domain.rounds.run import training_of
from coordinator.domain.wanted import folder_of
from coordinator.errors import StoreAwayError
from coordinator.services.accounts.throttle import Throttle
from coordinator.services.arrays.element_results import ElementResults
from coordinator.services.artifacts.access import ArtifactAccess
from coordinator.services.audits.auditor_capacity import Watching
from coordinator.services.audits.late_openings import Returns
from coordinator.services.audits.verification import Verification
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import (
    AuditEvaded,
    LedgerRowQueued,
    NodeExpelled,
    OutcomeChanged,
    PaymentConfirmed,
    SandboxTampered,
    SharesMayBeDue,
    SharesPromised,
    StandingChanged,
)
from coordinator.services.core.leases import Leases
from coordinator.services.core.logs import JobLogs
from coordinator.services.core.trace_parts import parent_of
from coordinator.services.core.unit_of_work import JobDesk, UnitOfWork
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.nodes import FOUND_FALSE, Nodes, NodeSession
from coordinator.services.payments import tallies
from coordinator.services.payments.promises import PromiseService
from coordinator.services.payments.settlement import Settlement
from coordinator.services.serving import seating
from coordinator.services.serving.homes import Homes
from coordinator.services.serving.private import PrivateSessions
from coordinator.services.serving.proofs import AnswerProofs
from coordinator.services.training.federations import Federations
from coordinator.services.training.runs import Runs
from coordinator.services.training.staffing import UNSEEN, memory_needed, shape_of
from coordinator.store.ports import Condition, col
from coordinator.store.records import MetricRecord
from protocol.federated.federations import FederationWish
from protocol.job.job import without_settings
from protocol.network import NetworkReport
from protocol.node import (
    Accounts,
    Acknowledged,
    Assign,
    Beat,
    Claim,
    Goodbye,
    Heartbeat,
    Hello,
    NodeMessage,
    RecordsKept,
    RecordsReturned,
    Report,
    Signal,
)
from protocol.private.sessions import PrivateAnswer, PrivateCounts
from protocol.task import (
    ArrayReady,
    AuditReport,
    BisectAnswer,
    ElementsMoved,
    LeafShown,
    ModelSaid,
    OpeningMade,
    Progress,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    StepChallenge,
    StepOpened,
    SumSaid,
    TaskCommand,
    TaskFailed,
    TaskReady,
    TaskReport,
    Traffic,
    Validation,
    WorkerLog,
)

ASKS, ASK_S = 8.0, 5.0  # Questions of a node about its money: at once, and then one in so many seconds.
MAX_TOLD = 20  # Jobs whose nodes are told how their work stands, at a time.
# Points of loss curves between two flushes, of all jobs; more are dropped, they are lossy.
MAX_UNSAVED_METRICS = 10_000


def together(one: NodeMessage, other: NodeMessage) -> bool:
    """Whether two messages are reports under one lease that are to be stored: many come at a time, and are one change."""
    return _is_stored(one) and _is_stored(other) and (one.lease, one.fence) == (other.lease, other.fence)


def _is_stored(message: NodeMessage) -> TypeGuard[Report]:
    return isinstance(message, Report) and message.seq > 0


class NodeProtocol:
    """Understands nodes and answers them."""

    def __init__(
        self,
        context: Context,
        desk: JobDesk,
        leases: Leases,
        nodes: Nodes,
        runs: Runs,
        verification: Verification,
        links: Links,
        settlement: Settlement,
        promises: PromiseService,
        logs: JobLogs,
        watching: Watching,
        doors: ArtifactAccess,
        returns: Returns,
        homes: Homes,
        proofs: AnswerProofs,
        private: PrivateSessions,
        results: ElementResults,
        federations: Federations,
    ) -> None:
        self._context = context
        self._results = results
        self._homes, self._proofs, self._private, self._federations = homes, proofs, private, federations
        self._returns = returns
        self._settlement = settlement
        self._promises = promises
        self._desk = desk
        self._leases = leases
        self._nodes = nodes
        self._runs = runs
        self._verification = verification
        self._links = links
        self._logs = logs
        self._watching = watching
        self._doors = doors
        self._traffic: dict[str, Traffic] = {}
        self._steps: dict[str, tuple[tuple[int, int], int, int]] = {}  # Lease -> its round, last step, and how many.
        self._rounds: dict[str, tuple[Round, int]] = {}
        self._points: list[MetricRecord] = []
        # Job -> nodes that are to hear how their work in it stands; None: all that ever had a lease of it.
        self._untold: dict[str, set[str] | None] = {}
        self._asks = Throttle(context.clock, 1 / ASK_S, ASKS)
        desk.on_stored(self._tell)
        for kind in (LedgerRowQueued, SharesMayBeDue, OutcomeChanged, PaymentConfirmed):
            desk.on(kind, lambda work, _event: self._stir(work.job.id, None))
        desk.on(SharesPromised, self._on_promises)
        desk.on(AuditEvaded, lambda work, evaded: self._nodes.unanswered(evaded.node, work.now))
        desk.on(StandingChanged, lambda _work, changed: self._nodes.stands(changed.node, changed.rounds))
        desk.on(NodeExpelled, self._on_expulsion)

    async def begin(self, session: NodeSession, hello: Hello) -> None:
        """Pick up where the node's last connection ended."""
        # Where its last connection is not known to be over, what was lost with that one is missing in what comes now.
        self._homes.left(session.node)
        named = {held.lease for held in hello.leases}
        for lease in self._leases.of_node(session.node):
            async with self._desk.open(lease.job) as work:
                if lease.id not in named and lease.seq != 0:
                    # It was at work and does not know of it any more: the agent has started anew, its worker is dead.
                    work.note("lost", f"node {session.node} has started anew, without what it was working on")
                    work.end(lease.id, "left", "the agent came back without this task")
                await self._runs.advance(work)
        await self._returns.attend(session.node)
        session.begun.set()
        self._homes.back(session.node)
        for promised in await self._promises.of_payee(session.payout):
            session.send(promised)

    def left(self, session: NodeSession) -> None:
        """A connection is over."""
        self._nodes.leave(session)
        if self._nodes.session(session.node) is None:
            self._homes.left(session.node)
        if self._nodes.session(session.node) is None and not self._leases.of_node(session.node):
            self._links.left(session.node)

    async def receive(self, session: NodeSession, message: NodeMessage, *more: Report) -> None:
        """Act on one message, and on ``more`` that go ``together`` with it."""
        self._context.metrics.count("messages_total", 1 + len(more))
        self._homes.presence.speaks(session.node)
        match message:
            case Heartbeat():
                session.accepting = message.accepting
                gone = self._leases.renew(session.node, message.leases)
                session.send(Beat(self._context.config.heartbeat_seconds, gone))
            case Report():
                await self._report(session, message, *more)
            case Signal():
                self._signal(session, message)
            case NetworkReport():
                self._links.report(session.node, message, linked=bool(self._leases.of_node(session.node)))
            case Goodbye():
                await self._goodbye(session, message.reason)
            case Claim() | Accounts():
                await self._asked(session, message)
            case RecordsKept() | RecordsReturned():
                self._context.metrics.count("reports_stale_total")  # Asked for by a process before this one.
            case PrivateAnswer():
                self._private.answered(session, message)
            case PrivateCounts():
                self._private.counted(session, message)
            case FederationWish():
                await self._wished(session, message)
            case Hello():
                session.close("Hello was said before: it opens a connection")
            case _:
                assert_never(message)

    def traffic(self, lease: Lease) -> Traffic | None:
        """What a lease has moved, as last heard."""
        return self._traffic.get(lease.id, lease.traffic)

    async def flush(self) -> None:
        """Store the points of the loss curves, and the lines of logs, that have come in; tell nodes how their work stands."""
        await self._tell_accounts()
        points = tuple(self._points)
        if points or self._logs.waiting:
            async with self._context.store.transaction() as tx:
                await tx.insert_all(points)
                lines = await self._logs.flush(tx)
            del self._points[: len(points)]
            self._logs.flushed(lines)
            for job in {point.job for point in points}:
                self._context.bus.publish(job)

    async def _report(self, session: NodeSession, report: Report, *more: Report) -> None:
        lease = self._leases.get(report.lease) or self._leases.returned(report.lease)
        if lease is None or (lease.node, lease.fence) != (session.node, report.fence):
            self._context.metrics.count("reports_stale_total")
            if report.seq > 0 or not self._leases.may_return(report.lease):  # Its worker may still be on its way.
                session.send(Beat(self._context.config.heartbeat_seconds, (report.lease,)))
            return
        if report.seq == 0:
            if self._leases.get(lease.id) is not None:
                self._lossy(lease, report)
            return
        reports = [await self._results.kept(lease, one) for one in (report, *more)]
        with tracing.span(f"report {type(report.body).__name__}", parent_of(lease.job, report), job=lease.job):
            # Each is an errand of its own, so that one that fails harms none before it.
            asked = [
                self._desk.ask(lease.job, partial(self._store, session, lease, one), self._runs.advance)
                for one in reports
            ]
            stored = None
            try:
                for done in asked:
                    stored = await done or stored
            finally:
                if stored is not None:
                    session.send(Acknowledged(report.lease, stored))
                for done in asked:
                    done.cancel()  # Behind one that failed, or once the connection is over, they are said again.

    async def _store(self, session: NodeSession, known: Lease, report: Report, work: UnitOfWork) -> int | None:
        """Give a report of a lease its effect, once; returns the last number that is stored, None where none is."""
        own = work.leases if known.id in work.leases else work.returned
        lease = own.get(known.id)
        if lease is None:
            return None
        if report.seq <= lease.seq:
            work.count("reports_stale_total")
            return lease.seq
        if report.seq != lease.seq + 1 and lease.seq != TAKES_ANY:
            session.close(f"report {report.seq} of lease {lease.id} came after {lease.seq}: one is missing")
            return None
        traffic = self._traffic.get(lease.id, lease.traffic)
        own[lease.id] = msgspec.structs.replace(lease, seq=report.seq, traffic=traffic)
        body = await self._doors.believed(work.tx, lease.id, report.body)
        if own is work.returned:
            self._take_late(work, lease.id, body)
        else:
            self._take(work, lease.id, msgspec.structs.replace(report, body=body))
        if isinstance(report.body, StepChallenge) and own is work.leases:
            await self._runs.challenge(work, lease.id, report.body)
        if isinstance(body, ElementsMoved) and own is work.leases and work.job.spec.array is not None:
            await self._runs.arrays.moved(work, work.leases[lease.id], body)
        work.count("reports_total")
        return report.seq

    def _take(self, work: UnitOfWork, lease: str, report: Report) -> None:
        body = report.body
        match body:
            case TaskReady() | ArrayReady():
                self._ready(work, work.leases[lease], body)
            case RoundCommit():
                self._time(work, work.leases[lease], body)
                self._runs.fold(work, lease, body)
            case RoundHolding() | RoundApplied() | Validation():
                self._runs.fold(work, lease, body)
            case SumSaid():
                self._runs.answer(work, lease, body)
            case OpeningMade() | StepOpened():
                self._verification.opened(work, lease, body)
            case LeafShown():
                self._verification.shown(work, lease, body)
            case AuditReport():
                self._verification.judged(work, lease, body)
            case BisectAnswer():
                self._verification.bisected(work, lease, body)
            case TaskFailed():
                self._failed(work, work.leases[lease], body)
            case StepChallenge() | ElementsMoved():
                pass  # Takes reading the round, or the array, so ``_store`` sees to it.
            case Progress() | Traffic() | WorkerLog() | ModelSaid():
                self._lossy(work.leases[lease], report)
            case _:
                assert_never(body)

    def _failed(self, work: UnitOfWork, lease: Lease, body: TaskFailed) -> None:
        work.note("fault", f"node {lease.node} failed: {body.reason}")
        if body.tampered:
            work.record(SandboxTampered(lease))
        if body.cause == "memory":
            self._lacks_memory(work, lease)
        if body.tampered or body.cause == "machine" or body.cause == "memory":
            work.end(lease.id, "failed", body.reason)
        else:
            work.end(lease.id, body.cause, body.reason)

    def _lacks_memory(self, work: UnitOfWork, lease: Lease) -> None:
        """A stage did not fit where the plan said that it would: until the node comes anew, it counts with less than that."""
        session = self._nodes.session(lease.node)
        if session is None or lease.seat is None or work.run is None or work.job.spec.array is not None:
            return
        needs = memory_needed(work) if work.job.spec.serve is None else seating.memory_needed(work)
        needed = needs["card" if session.profile.kind == "cuda" else "main"][lease.seat[0]] // MEGABYTE
        less = max(1, min(session.profile.memory_mb, needed * 9 // 10))
        work.note("fault", f"node {lease.node} gets no stage of {needed:,} MB any more: it counts with {less:,} MB")
        session.profile = msgspec.structs.replace(session.profile, memory_mb=less)

    def _take_late(self, work: UnitOfWork, lease: str, body: TaskReport) -> None:
        """What the holder of a lease says that had run out before it came back: only what was drawn of it counts."""
        match body:
            case OpeningMade() | StepOpened():
                self._verification.opened(work, lease, body)
            case LeafShown():
                self._verification.shown(work, lease, body)
            case TaskFailed():
                work.moved_memory = True
                self._leases.forget(lease)
            case _:
                work.count("reports_stale_total")

    def _ready(self, work: UnitOfWork, lease: Lease, body: TaskReady | ArrayReady) -> None:
        if isinstance(body, ArrayReady):
            self._runs.arrays.ready(work, lease, body)
            return
        if lease.state != "starting":
            work.count("reports_stale_total")  # What a worker is, it says once.
            return
        if lease.seat and work.job.spec.trains and not self._watching.seats(work.job.spec.training, body.env_class):
            work.note("unused", f"node {lease.node} loses its seat: {UNSEEN}")
            work.end(lease.id, "rejected", f"it computes as {body.env_class}: {UNSEEN}")
            return
        ready = msgspec.structs.replace(lease, state="ready", env_class=body.env_class)
        work.leases[lease.id] = ready
        work.note("ready", f"node {ready.node} is ready")

    def _lossy(self, lease: Lease, report: Report) -> None:
        match report.body:
            case Traffic():
                self._traffic[lease.id] = report.body
            case Progress() as progress:
                if self._goes_on(lease, progress):
                    self._runs.heard(lease.job)
                self._point(lease, progress)
            case WorkerLog() as log:
                self._logs.offer(lease, log)
            case ModelSaid() as said:
                self._homes.said(lease, said)
                self._proofs.said(lease, said)
            case _:
                self._context.metrics.count("reports_stale_total")  # Only these may go without a number.

    def _goes_on(self, lease: Lease, progress: Progress) -> bool:
        """Whether a seat is further in the round in flight than it was: saying so again, or from elsewhere, is no work."""
        current, _ = self._rounds.get(lease.job, (None, 0))
        place = (progress.epoch, progress.round)
        if current is None or current.seat(lease.id) is None or place != (current.epoch, current.number):
            return False
        known, step, times = self._steps.get(lease.id, (place, -1, 0))
        step, times = (step, times) if known == place else (-1, 0)
        if progress.step <= step or times >= max(1, current.steps):
            return False
        self._steps[lease.id] = (place, progress.step, times + 1)
        return True

    def _point(self, lease: Lease, progress: Progress) -> None:
        """A point of the training curve, from the last stage of the lowest replica."""
        current, tokens = self._rounds.get(lease.job, (None, 0))
        if (
            current is None
            or progress.loss is None
            or (progress.epoch, progress.round) != (current.epoch, current.number)
        ):
            return
        seat = current.seat(lease.id)
        whole = current.whole()
        if seat is None or not whole or seat.replica != whole[0] or len(self._points) >= MAX_UNSAVED_METRICS:
            return
        seen = tokens + progress.tokens * len(whole)
        now = self._context.clock.time()
        self._points.append(MetricRecord(lease.job, current.number, progress.step, seen, "train", progress.loss, now))

    def _signal(self, session: NodeSession, signal: Signal) -> None:
        peer = self._nodes.session(signal.peer)
        if peer is None or not self._leases.share_a_job(session.node, signal.peer):
            self._context.metrics.count("signals_dropped_total")
            return
        self._context.metrics.count("signals_total")
        peer.send(Signal(session.node, signal.envelope))

    async def _goodbye(self, session: NodeSession, reason: str) -> None:
        self._leases.forget_all(session.node)
        for lease in self._leases.of_node(session.node):
            async with self._desk.open(lease.job) as work:
                work.note("lost", f"node {session.node} has left" + (f": {reason}" if reason else ""))
                work.end(lease.id, "left", reason or "the node said goodbye")
                await self._runs.advance(work)
        session.close("goodbye")

    def _tell(self, work: UnitOfWork) -> None:
        """After each commit: everybody concerned hears what is new to them."""
        for lease in work.ended:
            self._traffic.pop(lease.id, None)
            self._steps.pop(lease.id, None)
            self._doors.ended(lease)
            session = self._nodes.session(lease.node)
            if session is not None and not self._leases.may_return(lease.id):
                session.stop(lease, lease.reason)
        newcomers = work.newcomers()
        for lease in work.leases.values():
            session = self._nodes.session(lease.node)
            if session is None:
                continue
            if not session.knows(lease.id) and lease.seq == 0:
                session.assign(_assignment(work, lease))
            commands: tuple[TaskCommand, ...] = ()
            if lease.state == "ready":
                commands = (*work.commands(lease.id, newcomers), *self._runs.sums.commands(work, lease.id))
            self._doors.told(work, lease, commands)
            if lease.state == "ready":
                session.tell(lease, commands)
        self._returns.tell(work)
        over = work.job.state not in LIVE
        if over or work.ended:
            self._stir(work.job.id, None if over else {lease.node for lease in work.ended})
        self._remember_round(work)

    async def _asked(self, session: NodeSession, message: Claim | Accounts) -> None:
        """Answer what makes the store search; a node that asks for more of it than an honest one ever does hears nothing."""
        if self._asks.take(session.node):
            self._context.metrics.count("asks_dropped_total")
        elif isinstance(message, Claim):
            await self._settlement.claim(session.payout)
        else:
            mine: tuple[Condition, ...] = (col(Lease.job).in_(message.jobs), col(Lease.node).equals(session.node))
            async with self._context.everywhere.transaction() as tx:  # It may have come from another cell.
                held = await tx.sums(Lease, col(Lease.fence), (col(Lease.job),), *mine) if message.jobs else {}
            for (job,) in held:
                self._stir(str(job), {session.node})

    async def _wished(self, session: NodeSession, message: FederationWish) -> None:
        if self._asks.take(session.node):
            self._context.metrics.count("asks_dropped_total")
        else:
            await self._federations.wish(session, message)

    def _stir(self, job: str, nodes: set[str] | None) -> None:
        """Note whose accounts may have changed."""
        known = self._untold.setdefault(job, set())
        self._untold[job] = None if known is None or nodes is None else known | nodes

    async def _tell_accounts(self) -> None:
        """Tell some jobs' nodes, the longest waiting first; the rest follows at the next turn."""
        untold = {job: self._untold.pop(job) for job in list(self._untold)[:MAX_TOLD]}
        if not untold:
            return
        try:
            async with self._context.everywhere.transaction() as tx:  # A node may have come from another cell.
                told = [await tallies.of_nodes(tx, job, nodes) for job, nodes in untold.items()]
        except StoreAwayError:
            for job, nodes in untold.items():
                self._stir(job, nodes)
            raise
        for node, account in (pair for accounts in told for pair in accounts.items()):
            session = self._nodes.session(node)
            if session is not None:
                session.account(account)

    def _on_promises(self, _work: UnitOfWork, event: SharesPromised) -> None:
        for session in self._nodes.sessions() if event.promised else ():
            if session.payout in event.promised:
                session.send(event.promised[session.payout])

    def _on_expulsion(self, _work: UnitOfWork, event: NodeExpelled) -> None:
        self._nodes.ban(event.node, FOUND_FALSE)
        self._leases.expire(lease.id for lease in self._leases.of_node(event.node))

    def _time(self, work: UnitOfWork, lease: Lease, commit: RoundCommit) -> None:
        """Learn how quick the node is at what it does, for the next look at who sits where."""
        current = work.run.round if work.run is not None else None
        if current is None or lease.stage is None or (commit.epoch, commit.round) != (current.epoch, current.number):
            return
        self._nodes.timed(lease.node, _operations(work, lease.stage, min(commit.leaves, current.steps)), commit.busy)

    def _remember_round(self, work: UnitOfWork) -> None:
        current = work.run.round if work.run is not None and work.job.state is JobState.RUNNING else None
        before, _ = self._rounds.get(work.job.id, (None, 0))
        if before is not None and (current is None or (before.epoch, before.number) != (current.epoch, current.number)):
            tracing.end_round(work.job.id, before.epoch, before.number, before.started, work.now)
        if current is None:
            self._rounds.pop(work.job.id, None)
        else:
            self._rounds[work.job.id] = (current, work.job.tokens_done)

    def final_traffic(self, work: UnitOfWork) -> None:
        """Keep what leases have moved before they end."""
        for lease in work.leases.values():
            traffic = self._traffic.get(lease.id)
            if traffic is not None and traffic != lease.traffic:
                work.leases[lease.id] = msgspec.structs.replace(lease, traffic=traffic)


def _operations(work: UnitOfWork, stage: int, leaves: int) -> float:
    """Of so many steps of a stage."""
    assert work.run is not None
    training, layers = training_of(work.run, work.job.spec.training), work.run.layers
    tokens = leaves * training.batch * training.sequence
    return placement.operations_of(shape_of(work), training, layers[stage], stage == len(layers) - 1, tokens)


def _assignment(work: UnitOfWork, lease: Lease) -> Assign:
    spec = work.job.spec  # An owner's node writes conversations by the model's template, and has agreed to all of this.
    spec = without_settings(spec) if spec.federated is None else spec
    if spec.serve is not None:  # Compared here alone, and unknown to nodes of before.
        spec = msgspec.structs.replace(spec, serve=msgspec.structs.replace(spec.serve, draft_tokenizer=UNSET))
    plan = work.plan(None if spec.trains else lease.replica)
    return Assign(
        lease=lease.id,
        fence=lease.fence,
        job=work.job.id,
        spec=msgspec.structs.replace(spec, training=training_of(work.run, spec.training)),
        stage=lease.stage,
        replica=lease.replica,
        plan=plan,
        files=folder_of(work.job, len(plan.layers), lease.stage),
    )

"""One job on the desk: loaded whole, changed by pure decisions, stored in one transaction with everything that follows.

Whatever happens to a job happens inside ``JobDesk.open``. If the body raises, nothing has happened; when it ends, state, timeline
and outbox are in the database together, and only then is anybody told.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from common.log_lines import about
from common.untrusted_text import untrusted
from coordinator.domain import job as lifecycle
from coordinator.domain import lease as lease_rules
from coordinator.domain.audits.dispute import SIDES, query_for
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease, LeaseEnd
from coordinator.domain.rounds import round as rounds
from coordinator.domain.rounds.run import Run
from coordinator.domain.serving import sketch_key
from coordinator.errors import NotFoundError
from coordinator.services.core import notifications
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import DomainEvent, LedgerRowQueued, OutcomeChanged, SharesMayBeDue
from coordinator.services.core.leases import Leases
from coordinator.services.core.logs import log_of
from coordinator.store.ports import R, Transaction, col
from coordinator.store.records import DisputeRecord, EventRecord, MetricRecord, OutboxRecord, RunRecord
from ledger import events as ledger_events
from protocol.models.weights import WEIGHT_INDEX
from protocol.task import AwaitStages, ExpectPeers, JoinStages, Member, Plan, TaskCommand

Event = TypeVar("Event", bound=DomainEvent)


class UnitOfWork:
    """A job's state within one transaction.

    Attributes:
        leases: the live ones. ``granted`` and ``ended``: what this work did to them. ``returned``: those that ran out, and whose
            holders are back to open what was drawn of them.
        audits: those that are not over. ``concluded``: those that have just ended.
        disputes: those that are not over, by their audit. ``ended_disputes``: those that have just ended.
        disputed: open audits of which there is a dispute, or was.
    """

    def __init__(
        self,
        context: Context,
        tx: Transaction,
        job: Job,
        run: Run | None,
        leases: Sequence[Lease],
        audits: Sequence[Audit],
        returned: Sequence[Lease] = (),
    ) -> None:
        self.tx = tx
        self.job = job
        self.run = run
        self.leases = {lease.id: lease for lease in leases}
        self.returned = {lease.id: lease for lease in returned}
        self.audits = {audit.id: audit for audit in audits}
        self.now = context.clock.time()
        self.ended: list[Lease] = []
        self.concluded: list[Audit] = []
        self.granted: list[Lease] = []
        self.disputes: dict[str, DisputeRecord] = {}
        self.ended_disputes: list[DisputeRecord] = []
        self.disputed: set[str] = set()
        self._looked_up: tuple[list[Audit], dict[str, list[Audit]]] = ([], {})
        self._context = context
        self._events: list[EventRecord] = []
        self._outbox: list[OutboxRecord] = []
        self._metrics: list[MetricRecord] = []
        self._recorded: list[DomainEvent] = []
        self._taken: Counter[type[DomainEvent]] = Counter()

    def record(self, event: DomainEvent) -> None:
        """Note what has happened, for those who follow it up."""
        self._recorded.append(event)

    def recorded(self, kind: type[Event]) -> list[Event]:
        """All of one kind so far."""
        return [event for event in self._recorded if isinstance(event, kind)]

    def take(self, kind: type[Event]) -> list[Event]:
        """Those of one kind that were not taken before, so that each is followed up once."""
        found = self.recorded(kind)[self._taken[kind] :]
        self._taken[kind] += len(found)
        return found

    def note(self, kind: str, text: str) -> None:
        """Add a line to the timeline."""
        self._events.append(EventRecord(self.job.id, self.now, kind, untrusted(text)))

    def advance(self, to: JobState, reason: str = "") -> None:
        """Move the job along its lifecycle; IllegalTransitionError where the table forbids it."""
        self.job = lifecycle.advance(self.job, to, self.now, reason)
        self.note(to, reason or f"the job is {to}")

    def change(self, **fields: object) -> None:
        """Replace fields of the job."""
        self.job = msgspec.structs.replace(self.job, **fields)

    def change_run(self, **fields: object) -> None:
        """Replace fields of the run."""
        assert self.run is not None
        self.run = msgspec.structs.replace(self.run, **fields)

    def queue(self, record: OutboxRecord) -> None:
        """Tell the ledger something once this transaction is stored."""
        self._outbox.append(record)
        self.record(LedgerRowQueued())

    def measure(self, record: MetricRecord) -> None:
        """Add a point to a chart of the job."""
        self._metrics.append(record)

    def memo(self, key: str, event: ledger_events.Event) -> None:
        """Write a lifecycle event on the ledger."""
        text = ledger_events.encode(event)
        kind = type(event).__name__.lower()
        self.queue(
            OutboxRecord(f"{key}:{self.job.id}", self.job.id, "event", {"text": text}, self.now, detail=untrusted(kind))
        )

    async def store_now(self, record: OutboxRecord) -> OutboxRecord:
        """Queue a row and learn its number."""
        self.record(LedgerRowQueued())
        return await self.tx.insert(record)

    def grant(self, node: str, payout: str, seat: tuple[int, int] | None) -> Lease:
        """Give a node a seat, or make it a spare."""
        assert self.run is not None
        fence = self.run.fence + 1
        self.change_run(fence=fence)
        stage, replica = seat or (None, None)
        lease = Lease(
            id=self._context.new_id(),
            job=self.job.id,
            node=node,
            payout=payout,
            fence=fence,
            stage=stage,
            replica=replica,
            granted=self.now,
        )
        self.leases[lease.id] = lease
        self.granted.append(lease)
        return lease

    def end(self, lease: str, how: LeaseEnd, reason: str = "") -> None:
        """End a live lease; the round in flight loses its member."""
        held = self.leases.pop(lease, None)
        if held is None:
            return
        self.ended.append(lease_rules.end(held, how, self.now, reason))
        if self.run is not None and self.run.round is not None:
            self.change_run(round=rounds.fold(self.run.round, lease, rounds.Lost(), self.now))

    def conclude(self, audit: Audit) -> None:
        """Put away an audit that is over."""
        del self.audits[audit.id]
        self.concluded.append(audit)
        self.record(SharesMayBeDue())
        if not audit.canary:
            self.record(OutcomeChanged(audit.epoch, audit.round))

    def dispute(self, record: DisputeRecord) -> None:
        """Keep a dispute as it is now."""
        self.disputes.pop(record.id, None)
        self.disputed.add(record.id)
        if record.over:
            self.ended_disputes.append(record)
        else:
            self.disputes[record.id] = record

    def plan(self, replica: int | None = None) -> Plan:
        """Seats as they are held now, for nodes that are being assigned: all of them, or those of one ``replica``."""
        assert self.run is not None
        seated = sorted(
            (lease.replica or 0, lease.stage or 0, lease.node)
            for lease in self.leases.values()
            if lease.seat and replica in (None, lease.replica)
        )
        members = tuple(Member(stage, number, node) for number, stage, node in seated)
        return Plan(self.run.epoch, self.run.layers, members)

    def commands(self, lease: str, newcomers: Mapping[int, frozenset[str]]) -> tuple[TaskCommand, ...]:
        """What the holder of a lease must have been told by now; ``newcomers``: as there."""
        told: list[TaskCommand] = []
        if self.run is not None and self.run.round is not None:
            told += rounds.commands(self.run.round, lease)
        told += self._joined(lease)
        told += self.openings(lease)
        told += self._expected(lease, newcomers)
        node = self.leases[lease].node if lease in self.leases else None
        for record in self.disputes.values():
            sides = [side for side in SIDES if getattr(record.dispute, side) == node]
            told += [query for side in sides if (query := query_for(record.dispute, side)) is not None]
        return tuple(told)

    def newcomers(self) -> Mapping[int, frozenset[str]]:
        """Nodes of each stage that are in no round yet."""
        round_ = self.run.round if self.run is not None else None
        known = {seat.lease for seat in round_.seats} if round_ is not None else set()
        found: dict[int, set[str]] = {}
        for lease in self.leases.values():
            if lease.stage is not None and lease.id not in known:
                found.setdefault(lease.stage, set()).add(lease.node)
        return {stage: frozenset(nodes) for stage, nodes in found.items()}

    def _joined(self, lease: str) -> list[JoinStages | AwaitStages]:
        """Who holds a replica that answers together with this lease; where it is not whole, that this one waits."""
        if self.run is None or lease not in self.leases or self.job.spec.serve is None or len(self.run.layers) == 1:
            return []
        number = self.leases[lease].replica
        if number is None:
            return []
        join = self.run.joins.get(number)
        if join is None or lease not in join.leases or any(other not in self.leases for other in join.leases):
            return [AwaitStages()]
        nodes = [self.leases[member].node for member in join.leases]
        members = tuple(Member(stage, number, node) for stage, node in enumerate(nodes))
        return [JoinStages(Plan(join.epoch, self.run.layers, members), sketch_key(self.run.secret, lease))]

    def _expected(self, lease: str, newcomers: Mapping[int, frozenset[str]]) -> tuple[ExpectPeers, ...]:
        """Who comes to this seat's stage, where that fetches weights: its peers have them. Deployments have no such peers."""
        held = self.leases.get(lease)
        if self.job.spec.serve is not None or held is None or held.stage is None or WEIGHT_INDEX not in self.job.files:
            return ()
        return (ExpectPeers(tuple(sorted(newcomers.get(held.stage, frozenset()) - {held.node}))),)

    def openings(self, lease: str, anew: bool = False) -> tuple[TaskCommand, ...]:
        """What the holder of a lease must have been asked, by now, about audits; ``anew``: by another worker than before."""
        audits = self.audits_with(lease)
        told = [command for audit in audits if (command := audit.command_for(lease, anew)) is not None]
        told += [asked for audit in audits if (asked := audit.question_for(lease)) is not None]
        return tuple(told)

    def audits_with(self, lease: str) -> list[Audit]:
        """Open audits about which the holder of a lease may be asked now; looked up once for all leases."""
        now = list(self.audits.values())
        if now != self._looked_up[0]:
            found: dict[str, list[Audit]] = {}
            for audit in now:
                for holder in audit.holders:
                    found.setdefault(holder, []).append(audit)
            self._looked_up = now, found
        return self._looked_up[1].get(lease, [])

    @property
    def events(self) -> tuple[EventRecord, ...]:
        """Lines added so far."""
        return tuple(self._events)

    @property
    def outbox(self) -> tuple[OutboxRecord, ...]:
        """Rows queued so far."""
        return tuple(self._outbox)

    @property
    def metrics(self) -> tuple[MetricRecord, ...]:
        """Points added so far."""
        return tuple(self._metrics)


class JobDesk:
    """Opens one job at a time. Who asked for it is called after each commit, before anybody else gets the desk."""

    def __init__(self, context: Context, leases: Leases) -> None:
        self._context = context
        self._leases = leases
        self._turn = asyncio.Lock()
        self._listeners: list[Callable[[UnitOfWork], None]] = []
        self._handlers: list[tuple[type[DomainEvent], Callable[[UnitOfWork, Any], None]]] = []

    def on_stored(self, listener: Callable[[UnitOfWork], None]) -> None:
        """Call ``listener`` with every piece of work that was stored; it must neither wait nor raise."""
        self._listeners.append(listener)

    def on(self, kind: type[Event], handler: Callable[[UnitOfWork, Event], None]) -> None:
        """Call ``handler`` with each event of a kind once its work is stored; it must neither wait nor raise.

        Handlers are called in the order in which they were given here: a node is told why before it is sent away.
        """
        self._handlers.append((kind, handler))

    @asynccontextmanager
    async def open(self, job: str) -> AsyncIterator[UnitOfWork]:
        """Load a job; store what the body made of it.

        Raises:
            NotFoundError: there is no such job.
        """
        async with self._turn:
            with about(job=job):
                async with self._context.store.transaction() as tx:
                    work, before = await self._load(tx, job)
                    missed = await self._missed(tx, work)
                    yield work
                    if work.job != before.job:
                        self._context.job_sums.changed(before.job)
                    await _save(work, before)
                for lease in (*missed, *work.leases.values(), *work.ended):
                    self._leases.remember(lease)
                for listener in self._listeners:
                    listener(work)
                for kind, handler in self._handlers:
                    for event in work.recorded(kind):
                        handler(work, event)
                self._context.bus.publish(job)

    async def _missed(self, tx: Transaction, work: UnitOfWork) -> Sequence[Lease]:
        """Leases that have ended without a word: a commit that was stored, and of which nobody could be told."""
        live = tuple(
            lease.id for lease in self._leases.live() if lease.job == work.job.id and lease.id not in work.leases
        )
        return await tx.find(Lease, col(Lease.id).in_(live)) if live else ()

    async def _load(self, tx: Transaction, job: str) -> tuple[UnitOfWork, "_Before"]:
        try:
            stored = await tx.get(Job, job)
        except NotFoundError:
            raise NotFoundError(f"there is no job {job}: look it up in the list of jobs", field="job") from None
        runs = await tx.find(RunRecord, col(RunRecord.job).equals(job))
        leases = await tx.find(Lease, col(Lease.job).equals(job), col(Lease.state).in_(("starting", "ready")))
        audits = await tx.find(
            Audit, col(Audit.job).equals(job), col(Audit.state).in_(("drawn", "opening", "showing", "replaying"))
        )
        back = tuple(lease.id for lease in self._leases.back_with() if lease.job == job)
        returned = await tx.find(Lease, col(Lease.id).in_(back)) if back else []
        work = UnitOfWork(self._context, tx, stored, runs[0].run if runs else None, leases, audits, returned)
        for record in await tx.find(
            DisputeRecord, col(DisputeRecord.job).equals(job), col(DisputeRecord.over).equals(False)
        ):
            work.disputes[record.id] = record
        judged = tuple(audit.id for audit in audits if audit.state == "replaying")
        known = await tx.find(DisputeRecord, col(DisputeRecord.id).in_(judged)) if judged else []
        work.disputed = {record.id for record in known}
        before = _Before(
            stored,
            runs[0] if runs else None,
            dict(work.leases),
            dict(work.returned),
            dict(work.audits),
            dict(work.disputes),
        )
        return work, before


class _Before(msgspec.Struct, frozen=True):
    job: Job
    run: RunRecord | None
    leases: dict[str, Lease]
    returned: dict[str, Lease]
    audits: dict[str, Audit]
    disputes: dict[str, DisputeRecord]


async def _save(work: UnitOfWork, before: _Before) -> None:
    if work.job != before.job:
        work.job = await work.tx.update(work.job)
    if work.run is not None and before.run is None:
        await work.tx.insert(RunRecord(work.job.id, work.run))
    elif work.run is not None and before.run is not None and work.run != before.run.run:
        await work.tx.update(msgspec.structs.replace(before.run, run=work.run))
    ended = {lease.id: lease for lease in work.ended}
    await _save_all(work.tx, ended, before.leases)
    await _save_all(work.tx, {audit.id: audit for audit in work.concluded}, before.audits)
    await _save_all(work.tx, {record.id: record for record in work.ended_disputes}, before.disputes)
    work.disputes |= await _save_all(work.tx, work.disputes, before.disputes)
    work.leases |= await _save_all(work.tx, work.leases, before.leases)
    await _save_all(work.tx, work.returned, before.returned)
    work.audits |= await _save_all(work.tx, work.audits, before.audits)
    for added in (*work.events, *map(log_of, work.events), *work.outbox, *work.metrics):
        await work.tx.insert(added)
    await notifications.queue(work.tx, work.job, work.events)


async def _save_all(tx: Transaction, records: Mapping[str, R], before: Mapping[str, R]) -> dict[str, R]:
    """Store what is new or has changed; returns it as stored."""
    stored: dict[str, R] = {}
    for key, record in records.items():
        if key not in before:
            stored[key] = await tx.insert(record)
        elif record != before[key]:
            stored[key] = await tx.update(record)
    return stored

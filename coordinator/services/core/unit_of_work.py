"""One job on the desk: loaded whole, changed by pure decisions, stored in one transaction with everything that follows.

Whatever happens to a job happens inside ``JobDesk.open``. If the body raises, nothing has happened; when it ends, state, timeline
and outbox are in the database together, and only then is anybody told.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

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
from coordinator.errors import ConflictError, StoreAwayError
from coordinator.metrics import Metrics
from coordinator.services.core import notifications
from coordinator.services.core.context import Context
from coordinator.services.core.domain_events import (
    DomainEvent,
    LedgerRowQueued,
    OutcomeChanged,
    PaymentConfirmed,
    SharesMayBeDue,
)
from coordinator.services.core.errands import MAX_SHARING, Errand, Errands, told
from coordinator.services.core.kept_jobs import KeptJob, KeptJobs, in_order
from coordinator.services.core.leases import Leases
from coordinator.services.core.logs import log_of
from coordinator.store.noticing import NoticingStore, unnoticed
from coordinator.store.ports import R, Transaction, col
from coordinator.store.records import DisputeRecord, EventRecord, MetricRecord, OutboxRecord, RunRecord
from ledger import events as ledger_events
from protocol.models.weights import WEIGHT_INDEX
from protocol.task import AwaitStages, ExpectPeers, JoinStages, Member, Plan, TaskCommand

Event = TypeVar("Event", bound=DomainEvent)
T = TypeVar("T")
Kept = TypeVar("Kept", Lease, Audit, DisputeRecord)

MAX_FAULTY = 1_024  # Jobs that are known to have failed; beyond that all are tried together again.

# What follows of these concerns their own job, and can wait until others are done.
_QUIET = (LedgerRowQueued, OutcomeChanged, PaymentConfirmed, SharesMayBeDue)


class UnitOfWork:
    """A job's state within one transaction.

    Attributes:
        leases: the live ones. ``granted`` and ``ended``: what this work did to them. ``returned``: those that ran out, and whose
            holders are back to open what was drawn of them; ``loaded``: as they were.
        audits: those that are not over. ``concluded``: those that have just ended.
        disputes: those that are not over, by their audit. ``ended_disputes``: those that have just ended.
        disputed: open audits of which there is a dispute, or was.
        figures: what counters and histograms are to be told once this is stored.
        holds_shared: nobody else may change records that cells have in common until this is stored.
        moved_memory: something beside this work remembers a step of it that cannot be taken twice: it is stored before another
            job is worked on, whose fault would have all of it done again.
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
        self.loaded = tuple(returned)
        self.audits = {audit.id: audit for audit in audits}
        self.now = context.clock.time()
        self.ended: list[Lease] = []
        self.concluded: list[Audit] = []
        self.granted: list[Lease] = []
        self.disputes: dict[str, DisputeRecord] = {}
        self.ended_disputes: list[DisputeRecord] = []
        self.disputed: set[str] = set()
        self.moved_memory = self.holds_shared = False
        self._looked_up: tuple[list[Audit], dict[str, list[Audit]]] = ([], {})
        self._context = context
        self._events: list[EventRecord] = []
        self._outbox: list[OutboxRecord] = []
        self._metrics: list[MetricRecord] = []
        self.figures: list[Callable[[Metrics], None]] = []
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
        """Add a line to the timeline.

        Args:
            kind: has a picture in ``EVENT_ICONS`` (``web.pages.render``). Some are more: ``KINDS`` of ``notifications`` are
                told to the account, ``_WARNINGS`` of ``logs`` are warnings, ``INCIDENTS`` of ``views.market_views`` are
                counted by day.
        """
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

    def count(self, name: str, by: int = 1) -> None:
        """Add to one of the coordinator's counters once this is stored: what is done again counts once."""
        self.figures.append(lambda metrics: metrics.count(name, by))

    def observe(self, name: str, value: float) -> None:
        """Put a value into a histogram, likewise."""
        self.figures.append(lambda metrics: metrics.observe(name, value))

    def memo(self, key: str, event: ledger_events.Event) -> None:
        """Write a lifecycle event on the ledger."""
        text = ledger_events.encode(event)
        kind = type(event).__name__.lower()
        self.queue(
            OutboxRecord(f"{key}:{self.job.id}", self.job.id, "event", {"text": text}, self.now, detail=untrusted(kind))
        )

    async def hold_shared(self) -> None:
        """Before a node's record, credit or days are read in order to change them: ``Transaction.hold_shared``."""
        await self.tx.hold_shared()
        self.holds_shared = self._context.cell.of > 1

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
        self.count("leases_granted_total")
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
    def is_quiet(self) -> bool:
        """Whether others may be worked on before this is stored: nobody was given or lost a place, it can be done again, and no
        other cell waits for it."""
        known_at_once = self.granted or self.ended or self.moved_memory or self.holds_shared
        return not known_at_once and all(isinstance(event, _QUIET) for event in self._recorded)

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


class _Opened(NamedTuple):
    """A job on the desk, and as it was before."""

    work: UnitOfWork
    before: KeptJob
    missed: Sequence[Lease]


class _Shared(NamedTuple):
    """What was done in one transaction: works, what was made of them, what errands came to; and who is ``left``."""

    done: list[tuple[_Opened, KeptJob]]
    answers: list[tuple[Errand[Any], Any]]
    left: list[Errand[Any]]


class JobDesk:
    """Opens jobs, in one transaction at a time. Who asked for it is called after each commit, before anybody gets the desk."""

    def __init__(self, context: Context, leases: Leases) -> None:
        self._context = context
        self._leases = leases
        self._turn = asyncio.Lock()
        self._errands: Errands[Errand[Any]] = Errands(self._carry)
        self._kept = KeptJobs(isinstance(context.store, NoticingStore))
        self._faulty: set[str] = set()  # Jobs whose last work failed: they share no transaction until one is stored.
        if isinstance(context.store, NoticingStore):
            context.store.on_change(self._kept.forget)
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

    def forget(self) -> None:
        """Read every job anew: the store was away, or somebody else's."""
        self._kept.forget(None)

    async def close(self) -> None:
        """Before the store is closed: end what is under way."""
        await self._errands.close()

    @asynccontextmanager
    async def open(self, job: str) -> AsyncIterator[UnitOfWork]:
        """Load a job; store what the body made of it.

        Raises:
            NotFoundError: there is no such job.
            OtherCellError: another cell carries it; nothing was done.
        """
        self._context.check_own(job)
        async with self._turn:
            with about(job=job):
                async with self._context.store.transaction() as tx:
                    self._kept.begin()
                    opened = await self._load(tx, job)
                    yield opened.work
                    after = await _save(opened)
                self._stored(opened, after)

    def ask(
        self,
        job: str,
        act: Callable[[UnitOfWork], Awaitable[T]],
        then: Callable[[UnitOfWork], Awaitable[None]] | None = None,
    ) -> "asyncio.Future[T]":
        """Have something done with a job soon, in a transaction that others may share.

        It may be done again as if it had not been tried: what it does beside changing its work must bear that.

        Args:
            then: done after all that is asked of this job in the same transaction, once.
        Returns:
            what ``act`` has returned, once it is stored; or why nothing of it is.
        Raises:
            OtherCellError: at once, as ``open``.
        """
        self._context.check_own(job)
        errand = Errand(job, act, then)
        self._errands.add(errand)
        return errand.done

    async def _carry(self) -> None:
        """Do what has waited longest."""
        async with self._turn:
            errands = self._errands.take(MAX_SHARING)
            if errands and errands[0].job in self._faulty:
                self._errands.put_back([errand for errand in errands if errand.job != errands[0].job])
                errands = [errand for errand in errands if errand.job == errands[0].job]
            if errands:
                await self._attempt(errands)

    async def _attempt(self, errands: Sequence[Errand[Any]]) -> None:
        """Whoever asked is told, whatever happens."""
        with told(errands):
            await self._try(errands)

    async def _try(self, errands: Sequence[Errand[Any]]) -> None:
        """Together; where that fails each by itself, so that nobody's fault is another's."""
        try:
            shared = await self._together(errands)
        except StoreAwayError:
            raise
        except Exception as error:
            if len(errands) > 1:
                await self._one_by_one(errands)
                return
            if self._context.cell.of == 1 or not isinstance(error, ConflictError):
                raise
            # Perhaps another cell has just changed a record that both know. All is read anew.
            shared = await self._together(errands)
        self._errands.put_back(shared.left)
        self._conclude(shared)

    async def _one_by_one(self, errands: Sequence[Errand[Any]]) -> None:
        """Each in a transaction of its own. Where the store goes away, nobody else waits for it in turn."""
        for errand in errands:
            # Who asked for several, and has heard that one failed, takes back what comes after it.
            await asyncio.sleep(0)
            if errand.done.done():
                continue
            try:
                await self._try([errand])
            except StoreAwayError:
                raise
            except Exception as error:  # noqa: BLE001 - as above.
                errand.fail(error)

    async def _together(self, errands: Sequence[Errand[Any]]) -> _Shared:
        """In one transaction, up to a work that others must know of before they are worked on."""
        by_job: dict[str, list[Errand[Any]]] = {}
        for errand in errands:
            by_job.setdefault(errand.job, []).append(errand)
        shared = _Shared([], [], [])
        async with self._context.store.transaction() as tx:
            self._kept.begin()
            while by_job and all(opened.work.is_quiet for opened, _ in shared.done[-1:]):
                job = next(iter(by_job))
                if job in self._faulty and shared.done:
                    break
                await self._done(tx, job, by_job.pop(job), shared)
        self._faulty.difference_update(opened.work.job.id for opened, _ in shared.done)
        shared.left.extend(errand for waiting in by_job.values() for errand in waiting)
        return shared

    async def _done(self, tx: Transaction, job: str, asked: Sequence[Errand[Any]], shared: _Shared) -> None:
        """All that is asked of one job."""
        try:
            opened = await self._load(tx, job)
            for errand in asked:
                shared.answers.append((errand, await errand.carry_out(opened.work)))
            for errand in {errand.then: errand for errand in asked}.values():
                await errand.follow_up(opened.work)
            shared.done.append((opened, await _save(opened)))
        except Exception as error:
            if not isinstance(error, StoreAwayError):
                self._faulty = {job, *self._faulty} if len(self._faulty) < MAX_FAULTY else {job}
            raise

    def _conclude(self, shared: _Shared) -> None:
        """It is stored, and never done again: tell everybody. A fault in telling of one job keeps no other from being told of."""
        for opened, after in shared.done:
            try:
                self._stored(opened, after)
            except Exception as error:  # noqa: BLE001 - whoever asked is told, as where a job was opened.
                for errand, _ in shared.answers:
                    if errand.job == opened.work.job.id:
                        errand.fail(error)
        for errand, answer in shared.answers:
            errand.succeed(answer)

    def _stored(self, opened: _Opened, after: KeptJob) -> None:
        work = opened.work
        self._kept.keep(after)
        for lease in (*opened.missed, *work.leases.values(), *work.ended):
            self._leases.remember(lease)
        for figure in work.figures:
            figure(self._context.metrics)
        for listener in self._listeners:
            listener(work)
        for kind, handler in self._handlers:
            for event in work.recorded(kind):
                handler(work, event)
        self._context.bus.publish(work.job.id)

    async def _missed(self, tx: Transaction, work: UnitOfWork) -> Sequence[Lease]:
        """Leases that have ended without a word: a commit that was stored, and of which nobody could be told."""
        live = tuple(lease.id for lease in self._leases.of_job(work.job.id) if lease.id not in work.leases)
        return await tx.find(Lease, col(Lease.id).in_(live)) if live else ()

    async def _load(self, tx: Transaction, job: str) -> _Opened:
        kept = await self._kept.take(tx, job)
        back = tuple(lease.id for lease in self._leases.back_in(job))
        returned = await tx.find(Lease, col(Lease.id).in_(back)) if back else []
        run = None if kept.run is None else kept.run.run
        work = UnitOfWork(self._context, tx, kept.job, run, kept.leases, kept.audits, returned)
        work.disputes = {record.id: record for record in kept.disputes}
        work.disputed = {audit.id for audit in kept.audits if audit.state == "replaying"} & kept.disputed
        return _Opened(work, kept, await self._missed(tx, work))


async def _save(opened: _Opened) -> KeptJob:
    """Store what was made of a job; returns it as it is stored now."""
    work, before = opened.work, opened.before
    tx = unnoticed(work.tx)
    if work.job != before.job:
        work.job = await tx.update(work.job, before.job)
    run = before.run
    if work.run is not None and run is None:
        run = await tx.insert(RunRecord(work.job.id, work.run))
    elif work.run is not None and run is not None and work.run is not run.run and work.run != run.run:
        run = await tx.update(msgspec.structs.replace(run, run=work.run), run)
    leases, audits = _by_id((*before.leases, *work.loaded)), _by_id(before.audits)
    disputes = _by_id(before.disputes)
    await _save_all(tx, _by_id(work.ended), leases)
    await _save_all(tx, _by_id(work.concluded), audits)
    await _save_all(tx, _by_id(work.ended_disputes), disputes)
    work.disputes |= await _save_all(tx, work.disputes, disputes)
    work.leases |= await _save_all(tx, work.leases, leases)
    await _save_all(tx, work.returned, leases)
    work.audits |= await _save_all(tx, work.audits, audits)
    for record in work.outbox:
        await tx.insert(record)
    for added in (work.events, tuple(map(log_of, work.events)), work.metrics):
        await tx.insert_all(added)
    await notifications.queue(tx, work.job, work.events)
    return KeptJob(
        work.job,
        run,
        in_order(work.leases.values()),
        in_order(work.audits.values()),
        in_order(work.disputes.values()),
        frozenset((before.disputed | work.disputed) & work.audits.keys()),
    )


def _by_id(records: Iterable[Kept]) -> dict[str, Kept]:
    return {record.id: record for record in records}


async def _save_all(tx: Transaction, records: Mapping[str, R], before: Mapping[str, R]) -> dict[str, R]:
    """Store what is new or has changed; returns that as stored."""
    new = {key: record for key, record in records.items() if key not in before}
    await tx.insert_all(tuple(new.values()))
    changed = [
        key for key, record in records.items() if key in before and record is not before[key] and record != before[key]
    ]
    after = await tx.update_all([records[key] for key in changed], [before[key] for key in changed])
    return new | dict(zip(changed, after, strict=True))

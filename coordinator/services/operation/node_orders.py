"""Nodes in an operator's hands: looked for, drained, banned, and both taken back."""

from collections.abc import Collection, Sequence
from typing import assert_never

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError, InvalidError, NotFoundError
from coordinator.services.accounts.accounts import AccountService
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.jobs.ports import ListWindow
from coordinator.services.network.nodes import BY_OPERATOR, Nodes
from coordinator.services.operation.ports import NodeQuery, NodeSlice, OrderedBy
from coordinator.store.kinds import KINDS
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import NodeRecord
from protocol.rest.admin import MAX_REASON, AdminLease, AdminNode, AdminNodeState, NodeOrder

PAGE = 500  # Records read at a time while a text is looked for.
MAX_LOOKED = 10_000  # Records that one answer looks through: some tenths of a second. The next one goes on there.
TRIES = 3  # Of an order, where somebody else changes the same record meanwhile.


class NodeOrders:
    """Finds nodes, and does with them what an operator orders."""

    def __init__(self, context: Context, leases: Leases, nodes: Nodes) -> None:
        self._context = context
        self._leases = leases
        self._nodes = nodes
        self._accounts = AccountService(context.store, context.clock)

    async def find(self, asked: NodeQuery, window: ListWindow) -> NodeSlice:
        """Nodes that fit, longest known first."""
        await self._nodes.elsewhere.look()
        where = self._where(asked.state)
        if where is None:
            return NodeSlice(())
        text, after, looked = asked.text.casefold(), window.after, 0
        size = PAGE if text else window.limit
        records: list[NodeRecord] = []
        while True:
            async with self._context.store.transaction() as tx:
                page = await tx.find(NodeRecord, *where, limit=size, after=after)
            records += [record for record in page if _fits(record, asked.text, text)]
            looked += len(page)
            if len(page) < size or len(records) >= window.limit:
                return NodeSlice(await self._views(records[: window.limit]))
            after = KINDS[NodeRecord].place_of(page[-1])
            if looked >= MAX_LOOKED:
                return NodeSlice(await self._views(records), after)

    async def one(self, node: str) -> AdminNode:
        """One node.

        Raises:
            NotFoundError: it never was here.
        """
        await self._nodes.elsewhere.look()
        async with self._context.store.transaction() as tx:
            record = await _known(tx, node)
        return (await self._views([record]))[0]

    async def order(self, node: str, order: NodeOrder, reason: str, by: OrderedBy) -> AdminNode:
        """Do it, and write it into the trail; what is so already stays as it is, with the reason that it has.

        A ban costs nothing that was verified, and no stake.

        Raises:
            NotFoundError: the node never was here.
            InvalidError: a ban, or its end, without a reason.
            ConflictError: its record changes all the time.
        """
        reason = untrusted(reason.strip(), MAX_REASON)
        if order in ("ban", "unban") and not reason:
            raise InvalidError(f"to {order} a node needs a reason: its owner reads it, and so does the trail", "reason")
        for left in reversed(range(TRIES)):
            try:
                record, changed = await self._store(node, order, reason, by)
            except ConflictError:
                if not left:
                    raise
            else:
                break
        if changed:
            self._take_over(record, order)
        return (await self._views([record]))[0]

    async def _store(self, node: str, order: NodeOrder, reason: str, by: OrderedBy) -> tuple[NodeRecord, bool]:
        async with self._context.store.transaction() as tx:
            await tx.hold_shared()
            before = await _known(tx, node)
            after = _after(before, order, reason)
            if after == before:
                return before, False
            subject = f"{node}: {reason}" if reason else node
            await self._accounts.note_within(tx, by.who, by.via, f"node.{order}", subject, by.address)
            return await tx.update(after), True

    def _take_over(self, record: NodeRecord, order: NodeOrder) -> None:
        node = record.address
        match order:
            case "drain":
                self._nodes.drain(node)
            case "undrain":
                self._nodes.undrain(node)
            case "ban":
                self._nodes.ban(node, record.reason)
                self._leases.expire(lease.id for lease in self._leases.of_node(node))
            case "unban":
                self._nodes.unban(node)
            case _:
                assert_never(order)
        self._context.bus.publish(node)

    def _where(self, state: AdminNodeState | None) -> tuple[Condition, ...] | None:
        """What the store can tell of who is meant; None: nobody."""
        match state:
            case None:
                return ()
            case "banned":
                return (col(NodeRecord.banned).equals(True),)
            case "draining":
                return (col(NodeRecord.draining).equals(True),)
            case "busy":
                named = self._busy()
            case "online":
                named = self._here() | self._nodes.elsewhere.all().keys()
            case _:
                assert_never(state)
        return (col(NodeRecord.address).in_(tuple(sorted(named))),) if named else None

    def _here(self) -> frozenset[str]:
        return frozenset(session.node for session in self._nodes.sessions())

    def _busy(self) -> frozenset[str]:
        """Nodes that are online and hold something, in whichever cell they are."""
        far = {node for node, one in self._nodes.elsewhere.all().items() if one.busy}
        return frozenset(far | (self._leases.busy() & self._here()))

    async def _views(self, records: Sequence[NodeRecord]) -> list[AdminNode]:
        held: dict[str, list[AdminLease]] = {record.address: [] for record in records}
        async with self._context.everywhere.transaction() as tx:
            live = await self._held(tx, held)
            where = col(Job.id).in_(tuple(sorted({lease.job for lease in live})))
            serve = {job.id for job in await tx.find(Job, where) if job.spec.serve is not None}
        for one in live:
            told = AdminLease(one.job, one.stage, one.replica, one.state, one.granted, one.job in serve)
            held[one.node].append(told)
        busy = self._busy()
        return [self._view(record, record.address in busy, held[record.address]) for record in records]

    async def _held(self, tx: Transaction, nodes: Collection[str]) -> Sequence[Lease]:
        """Their live leases; of nodes that are in other cells the store alone knows."""
        if self._context.cell.of == 1:
            return [lease for lease in self._leases.live() if lease.node in nodes]
        live: Condition = col(Lease.state).in_(("starting", "ready"))
        return await tx.find(Lease, col(Lease.node).in_(tuple(sorted(nodes))), live)

    def _view(self, record: NodeRecord, busy: bool, held: Sequence[AdminLease]) -> AdminNode:
        session, profile = self._nodes.session(record.address), record.profile
        online = session is not None or self._nodes.elsewhere.get(record.address) is not None
        return AdminNode(
            node=record.address,
            payout=record.payout,
            name=profile.name,
            device=profile.device,
            online=online,
            busy=busy,
            draining=record.draining,
            banned=record.banned,
            reason=record.reason if record.banned else untrusted(""),
            stake=record.stake,
            earned=record.earned,
            rounds=record.rounds,
            faults=record.faults,
            since=record.since,
            seen=self._context.clock.time() if online else record.seen,
            address="" if session is None else session.address,
            leases=tuple(held),
            why_not=untrusted(self._nodes.lenders.why_not(record.address)),
        )


def _fits(record: NodeRecord, text: str, folded: str) -> bool:
    begins = record.address.startswith(text) or record.payout.startswith(text)
    return begins or folded in record.profile.name.casefold()


def _after(record: NodeRecord, order: NodeOrder, reason: str) -> NodeRecord:
    """The record as it is to be."""
    match order:
        case "drain" | "undrain":
            return msgspec.structs.replace(record, draining=order == "drain")
        case "ban":
            return (
                record if record.banned else msgspec.structs.replace(record, banned=True, reason=BY_OPERATOR + reason)
            )
        case "unban":
            return msgspec.structs.replace(record, banned=False, reason="") if record.banned else record


async def _known(tx: Transaction, node: str) -> NodeRecord:
    found = await tx.find(NodeRecord, col(NodeRecord.address).equals(node))
    if not found:
        raise NotFoundError(
            f"no node {node[:60]} has ever been here: `cottage admin nodes` and /admin list all", "node"
        )
    return found[0]

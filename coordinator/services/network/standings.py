"""What was decided of nodes and holds until it is taken back: who is banned, who drains, who has evaded an audit lately.

Each cell decides, and stores it; the others look at what is stored every few seconds, and act upon what is new.

The reasons of bans are made in ``audits.audit_outcomes.send_away``, and of the operator's in ``operation.node_orders``; what an
owner is told of them is ``nodes.why_banned``.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from coordinator.services.core.context import Context
from coordinator.store.ports import Transaction, col
from coordinator.store.records import NodeRecord
from protocol.task import EVASION_AGAIN_S


class StoredStandings(msgspec.Struct, frozen=True):
    """What is stored. ``records``: of all that are named here.

    Attributes:
        banned: why, as a node's owner is told. ``evaded``: when.
    """

    banned: Mapping[str, str] = {}
    draining: frozenset[str] = frozenset()
    evaded: Mapping[str, float] = {}
    records: Mapping[str, NodeRecord] = {}


class NodeStandings:
    """What holds now, as far as it is known here.

    Attributes:
        banned: why, as a node's owner is told. ``evaded``: when. ``own``: the operator's own auditors that have ever been here.
    """

    def __init__(self, context: Context, why: Callable[[NodeRecord], str]) -> None:
        """``why`` somebody is banned, as its owner is told."""
        self._context, self._why = context, why
        self._stored = StoredStandings()
        self.banned: dict[str, str] = {}
        self.draining: set[str] = set()
        self.evaded: dict[str, float] = {}
        self.own: dict[str, NodeRecord] = {}

    async def recover(self, holding: Sequence[str]) -> list[NodeRecord]:
        """Read everything; returns what is known of those that are banned, or among ``holding``."""
        async with self._context.store.transaction() as tx:
            self._stored = stored = await self._read(tx)
            held = await tx.find(NodeRecord, col(NodeRecord.address).in_(tuple(holding))) if holding else []
        self.banned, self.draining = dict(stored.banned), set(stored.draining)
        self.evaded = dict(stored.evaded)
        return [*(stored.records[node] for node in stored.banned), *held]

    def left(self, auditor: str) -> None:
        """One of the operator's own has gone just now."""
        self.own[auditor] = msgspec.structs.replace(self.own[auditor], seen=self._context.clock.time())

    async def look(self) -> tuple[StoredStandings, StoredStandings]:
        """What was stored at the last look, and what is now."""
        async with self._context.store.transaction() as tx:
            now = await self._read(tx)
        before, self._stored = self._stored, now
        return before, now

    async def _read(self, tx: Transaction) -> StoredStandings:
        since = max(0.0, self._context.clock.time() - EVASION_AGAIN_S)
        banned = await tx.find(NodeRecord, col(NodeRecord.banned).equals(True))
        draining = await tx.find(NodeRecord, col(NodeRecord.draining).equals(True))
        evaded = await tx.find(NodeRecord, col(NodeRecord.evaded) > since)
        auditors = tuple(sorted(self._context.config.auditors))
        own = await tx.find(NodeRecord, col(NodeRecord.address).in_(auditors)) if auditors else []
        for record in own:
            known = self.own.get(record.address, record)  # When one went is known here alone.
            self.own[record.address] = msgspec.structs.replace(record, seen=max(record.seen, known.seen))
        return StoredStandings(
            {one.address: self._why(one) for one in banned},
            frozenset(one.address for one in draining),
            {one.address: one.evaded for one in evaded},
            {one.address: one for one in (*banned, *draining, *evaded)},
        )

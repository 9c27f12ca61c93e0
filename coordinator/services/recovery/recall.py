"""Asks the nodes of a restored coordinator for what they keep, before anything else is said to them."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping

from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.nodes import Nodes, NodeSession
from coordinator.services.recovery.job_records import JobRecords, RecordsSeal
from protocol.node import (
    Beat,
    Heartbeat,
    HeldLease,
    Hello,
    ListRecords,
    NodeMessage,
    RecordsEntry,
    RecordsKept,
    RecordsReturned,
    Report,
    ReturnRecords,
)

MAX_ASKED = 4_096  # Entries of all jobs; a restore from a backup of a month before with a hundred jobs has as many.


class NobodysLeases(Leases):
    """While nodes are asked nobody is told that it holds nothing: who holds what is what they are asked for."""

    def renew(self, node: str, held: Iterable[HeldLease]) -> tuple[str, ...]:
        """Nothing is gone."""
        return ()


class Recall:
    """Speaks with nodes in place of ``drivers.node_protocol``: one entry at a time with each.

    Attributes:
        found: the records that came back, by job.
    """

    def __init__(self, context: Context, nodes: Nodes, seal: RecordsSeal, known: Mapping[str, tuple[int, int]]) -> None:
        """Take ``known`` as where each job stands in the backup (epoch, rounds); only what is newer is asked for."""
        self._context, self._nodes, self._seal, self._known = context, nodes, seal, known
        self._wanted: dict[str, deque[RecordsEntry]] = defaultdict(deque)
        self._asked: dict[RecordsEntry, str] = {}
        self._offered: dict[RecordsEntry, list[str]] = defaultdict(list)
        self._listening: set[str] = set()
        self.found: dict[str, list[JobRecords]] = defaultdict(list)

    @property
    def waits(self) -> bool:
        """Whether somebody is about to return something."""
        return bool(self._asked or self._listening)

    async def begin(self, session: NodeSession, _hello: Hello) -> None:
        """Ask what a node keeps."""
        session.begun.set()
        self._listening.add(session.node)
        session.send(ListRecords())

    async def receive(self, session: NodeSession, message: NodeMessage, *_more: Report) -> None:
        """Take one message; whatever a node reports of its work it says again later, since nothing is acknowledged."""
        match message:
            case Heartbeat():
                session.send(Beat(self._context.config.heartbeat_seconds))
            case RecordsKept(entries=entries):
                self._listening.discard(session.node)
                for entry in entries:
                    self._offer(entry, session.node)
                self._ask(session)
            case RecordsReturned(entry=entry, data=data):
                self._take(session, entry, data)
                self._ask(session)
            case _:
                pass

    def left(self, session: NodeSession) -> None:
        """A connection is over: what it was to return others may have."""
        self._nodes.leave(session)
        self._listening.discard(session.node)
        for entry in [entry for entry, node in self._asked.items() if node == session.node]:
            self._again(entry)
        self._wanted.pop(session.node, None)

    def _offer(self, entry: RecordsEntry, node: str) -> None:
        if entry.stands <= self._known.get(entry.job, (-1, 0)) or len(self._offered) >= MAX_ASKED:
            return
        if not self._offered[entry]:
            self._wanted[node].append(entry)
        self._offered[entry].append(node)

    def _ask(self, session: NodeSession) -> None:
        if session.node in self._asked.values() or not self._wanted[session.node]:
            return
        entry = self._wanted[session.node].popleft()
        self._asked[entry] = session.node
        session.send(ReturnRecords(entry))

    def _take(self, session: NodeSession, entry: RecordsEntry, data: bytes) -> None:
        if self._asked.get(entry) != session.node:
            return
        records = self._seal.open(entry, data)
        if records is None:
            self._again(entry)
            return
        del self._asked[entry]
        self.found[entry.job].append(records)

    def _again(self, entry: RecordsEntry) -> None:
        """Ask another of those that have an entry."""
        self._offered[entry].remove(self._asked.pop(entry))
        for node in self._offered[entry]:
            session = self._nodes.session(node)
            if session is not None:
                self._wanted[node].append(entry)
                self._ask(session)
                return

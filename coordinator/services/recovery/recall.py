"""Asks the nodes of a restored coordinator for what they keep, before anything else is said to them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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

MAX_NAMED = 1 << 18  # Entries that all nodes together name; of more, those who name the most are not asked.
ANSWER_S = 5.0  # Whoever has not answered by then is asked nothing else, and nobody waits for it.
BYTES_S = 512 << 10  # That a node is asked for within a second: its connection may say more than that,
AHEAD = 4  # and this many seconds' worth of it at once.


class NobodysLeases(Leases):
    """While nodes are asked nobody is told that it holds nothing: who holds what is what they are asked for."""

    def renew(self, node: str, held: Iterable[HeldLease]) -> tuple[str, ...]:
        """Nothing is gone."""
        return ()


@dataclass
class _Keeper:
    """A node that is connected.

    Attributes:
        named: entries that it says it keeps, without those that it returned as something else. None: it has not said yet.
        asked: what it is to return. ``since``: when it was asked for that, or for names.
        paid: until when what it has returned was worth its time.
    """

    since: float
    named: set[RecordsEntry] | None = None
    asked: RecordsEntry | None = None
    paid: float = 0.0


class Recall:
    """Speaks with nodes in place of ``drivers.node_protocol``: one entry at a time with each, the newest of each job first.

    Whoever keeps an entry may be asked for it, so that nobody who goes, is silent or returns something else keeps it from coming.

    Attributes:
        found: the records that came back, by job.
    """

    def __init__(self, context: Context, nodes: Nodes, seal: RecordsSeal, known: Mapping[str, tuple[int, int]]) -> None:
        """Take ``known`` as where each job stands in the backup (epoch, rounds); only what is newer is asked for."""
        self._context, self._nodes, self._seal, self._known = context, nodes, seal, known
        self._keepers: dict[str, _Keeper] = {}
        self._named = 0
        self._asked: dict[RecordsEntry, float] = {}  # When somebody was asked for it last, who has not answered yet.
        self._had: set[RecordsEntry] = set()
        self.found: dict[str, list[JobRecords]] = defaultdict(list)

    @property
    def waits(self) -> bool:
        """Whether somebody is about to return something."""
        now = self._context.clock.now()
        for keeper in self._keepers.values():
            busy = keeper.asked is not None or keeper.named is None
            if now - keeper.since < ANSWER_S if busy else self._lacks(keeper):
                return True
        return False

    def look(self) -> None:
        """Ask those who have nothing to answer."""
        for node in self._keepers:
            if (session := self._nodes.session(node)) is not None:
                self._ask(session)

    async def begin(self, session: NodeSession, _hello: Hello) -> None:
        """Ask what a node keeps."""
        session.begun.set()
        if (before := self._keepers.get(session.node)) is not None:
            self._forget_question(before)
        self._keepers[session.node] = _Keeper(self._context.clock.now())
        session.send(ListRecords())

    async def receive(self, session: NodeSession, message: NodeMessage, *_more: Report) -> None:
        """Take one message; whatever a node reports of its work it says again later, since nothing is acknowledged."""
        if self._nodes.session(session.node) is not session:
            return
        match message:
            case Heartbeat():
                session.send(Beat(self._context.config.heartbeat_seconds))
            case RecordsKept(entries=entries):
                self._name(self._keepers[session.node], entries)
            case RecordsReturned(entry=entry, data=data):
                self._take(self._keepers[session.node], entry, data)
            case _:
                pass
        self._ask(session)

    def left(self, session: NodeSession) -> None:
        """A connection is over: what it was to return others may have. One that another has taken over from was over before."""
        keeper = self._keepers.get(session.node)
        if keeper is not None and self._nodes.session(session.node) is session:
            del self._keepers[session.node]
            self._forget_question(keeper)
        self._nodes.leave(session)

    def _forget_question(self, keeper: _Keeper) -> None:
        if keeper.asked is not None:
            self._asked.pop(keeper.asked, None)

    def _name(self, keeper: _Keeper, entries: Sequence[RecordsEntry]) -> None:
        keeper.named = {entry for entry in entries if entry.stands > self._known.get(entry.job, (-1, 0))}
        self._named += len(keeper.named)
        while self._named > MAX_NAMED:  # At the most: who has left, or has returned some of it, is still counted.
            self._named = sum(len(one.named or ()) for one in self._keepers.values())
            if self._named > MAX_NAMED:
                max(self._keepers.values(), key=lambda one: len(one.named or ())).named = set()

    def _ask(self, session: NodeSession) -> None:
        """The next entry, if a node has nothing to answer, and others would not bring it as well."""
        keeper, now = self._keepers[session.node], self._context.clock.now()
        if keeper.asked is not None or keeper.paid > now + AHEAD or not (lacking := self._lacks(keeper)):
            return
        if free := [entry for entry in lacking if now - self._asked.get(entry, -ANSWER_S) >= ANSWER_S]:
            newest = max(free, key=lambda entry: (entry.job not in self.found, entry.stands, entry.job))
            keeper.asked = newest
            keeper.since = self._asked[newest] = now
            session.send(ReturnRecords(newest))

    def _lacks(self, keeper: _Keeper) -> set[RecordsEntry]:
        return (keeper.named or set()) - self._had

    def _take(self, keeper: _Keeper, entry: RecordsEntry, data: bytes) -> None:
        if keeper.asked != entry or keeper.named is None:
            return
        keeper.asked = None
        self._asked.pop(entry, None)
        keeper.paid = max(keeper.paid, self._context.clock.now()) + len(data) / BYTES_S
        if entry in self._had:
            return
        records = self._seal.open(entry, data)
        if records is None:
            keeper.named.discard(entry)
            return
        self._had.add(entry)
        self.found[entry.job].append(records)

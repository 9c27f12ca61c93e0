"""Weights of a stage from all who have them: each replica begins with another part, and has the rest from the others.

Every node of a stage knows from the plan with which units each begins (``weight_layout.beginners``). It fetches its own from the
coordinator, and takes what its peers have meanwhile, by chance, so that they have different ones to hand on. So the coordinator
sends about one copy, however many replicas begin at a time.

Nobody waits for who has nothing, is silent, slow or gone: the coordinator is asked for what no peer has, or will have soon. What
a peer began and did not end goes on from the coordinator. A peer that gave wrong bytes is not asked again, and what it gave is
fetched anew. It costs one unit, since nothing is done before its digests are right.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from desktop.agent.base.exception_groups import main_error
from desktop.agent.base.log import LOG
from desktop.agent.coordinator.artifacts import DAMAGED_TRIES
from desktop.agent.errors import ArtifactError
from desktop.agent.jobs.weight_exchange import Circle
from desktop.agent.jobs.weight_layout import TensorCheck, TensorRun, WeightLayout, beginners, pieces_of_run
from protocol.plan import Layers
from protocol.weight_sharing import WeightsAsk, units_in

AT_ONCE = 2  # Requests to the coordinator: while one answer begins the other fills the line.
AHEAD = 4  # Pieces that a peer is asked for before the first has come: a megabyte, 160 Mbit/s at a round trip of 50 ms.
START_S = 5.0  # Links are up by then, or their peers are not there.
LIVE_S = 10.0  # Since a peer's last word: it will have what it begins with.
POLL_S = 0.5  # Between two looks at what a peer has.
LOOK_S = 0.1  # Between two looks for something to do.
PATIENCE = 3  # Units in a row that a peer may begin and not end.
UNIT_S = 30.0  # For a unit: 1 Mbit/s where it has 4 MiB. The coordinator is quicker than what takes longer.
# A coordinator gives a worker that is not ready after five minutes up. What peers bring later than in this time comes from it.
SOON_S = 60.0
RATE_S = 10.0  # By what came in so many seconds.

FetchRange = Callable[[str, int, int, Callable[[bytes], None]], Awaitable[None]]


@dataclass
class _Peer:
    """A node that may have some of it.

    Attributes:
        units: that it has. heard: when it last answered. failures: in a row.
    """

    address: str
    units: frozenset[int] = frozenset()
    heard: float | None = None
    failures: int = 0


@dataclass
class _Begun:
    """A run of which a part is here: ``giver`` began it, or the coordinator."""

    check: TensorCheck
    giver: str | None = None
    done: int = 0


@dataclass
class Gathering:
    """Has everything that a layout lacks. ``run`` it once.

    Attributes:
        fetch: hands a range of an artifact of the coordinator to a taker, in threads.
        circle: whom else to ask; None: nobody.
        nodes: who has this stage, this node among them where it has a seat of it; in the same order everywhere.
        from_peers, from_coordinator: bytes that were of use.
    """

    layout: WeightLayout
    layers: Layers
    fetch: FetchRange
    circle: Circle | None = None
    nodes: tuple[str, ...] = ()
    from_peers: int = 0
    from_coordinator: int = 0
    _in_hand: set[TensorRun] = field(default_factory=set)
    _begun: dict[TensorRun, _Begun] = field(default_factory=dict)
    _came: deque[tuple[float, int]] = field(default_factory=deque)
    _waiting_since: float | None = None

    def __post_init__(self) -> None:
        """See what is missing."""
        self._missing = dict.fromkeys(self.layout.runs())
        circle = self.circle
        linked = set() if circle is None else circle.linked() - circle.liars - {circle.address}
        self._peers = [_Peer(node) for node in self.nodes if node in linked]
        self._beginner = beginners(self.layout.units, self.nodes) if circle is not None and self.nodes else {}
        self._began = 0.0

    async def run(self) -> None:
        """Return when all of it is here.

        Raises:
            ArtifactError: the coordinator does not have it, or keeps sending other bytes than the index names.
            OSError, SealedFileError: the disk does not take it.
        """
        self._began = self._now()
        try:
            async with asyncio.TaskGroup() as group:
                peers = [group.create_task(work(p)) for p in self._peers for work in (self._look, self._from_peer)]
                own = [group.create_task(self._from_coordinator()) for _ in range(AT_ONCE)]
                await asyncio.wait(own)
                for task in peers:
                    task.cancel()
        except BaseExceptionGroup as errors:
            raise main_error(errors) from None

    def _now(self) -> float:
        return 0.0 if self.circle is None else self.circle.exchange.clock.now()

    # --- from the coordinator -------------------------------------------------------------------------------------------

    async def _from_coordinator(self) -> None:
        while self._missing:
            run = self._next_of_coordinator()
            if run is None:
                if self.circle is None:
                    return  # Its twin has the last one in hand.
                await self.circle.exchange.clock.sleep(LOOK_S)
                continue
            self._in_hand.add(run)
            try:
                await self._fetch(run)
            finally:
                self._in_hand.discard(run)

    def _next_of_coordinator(self) -> TensorRun | None:
        """What to ask the coordinator for now: what no peer has, or will have soon."""
        free = [run for run in self._missing if run not in self._in_hand]
        if not free or not self._peers:
            return free[0] if free else None
        now = self._now()
        if now - self._began < START_S and any(peer.heard is None for peer in self._peers):
            return None
        live = [peer for peer in self._peers if self._is_live(peer, now)]
        held = frozenset[int]().union(*(peer.units for peer in live))
        alone = [run for run in free if run.unit not in held]
        promising = {peer.address for peer in live}
        own = [run for run in alone if self._is_own(run.unit)]
        if own:
            return own[0]
        lost = [run for run in alone if self._beginner[run.unit] not in promising]
        if lost:  # Whoever is still here begins elsewhere with it.
            return lost[self._rank() * len(lost) // len(self.nodes)]
        if not self._is_slow(now):
            return None
        pool = alone or free
        return pool[self._chance(len(pool))]

    def _chance(self, count: int) -> int:
        """Where not all should take the same first."""
        assert self.circle is not None
        return self.circle.chance(count)

    def _is_own(self, unit: int) -> bool:
        return self.circle is not None and self._beginner[unit] == self.circle.address

    def _rank(self) -> int:
        address = "" if self.circle is None else self.circle.address
        return self.nodes.index(address) if address in self.nodes else 0

    def _is_live(self, peer: _Peer, now: float) -> bool:
        return not self._is_done_with(peer) and peer.heard is not None and now - peer.heard < LIVE_S

    def _is_slow(self, now: float) -> bool:
        """Whether peers bring the rest too late, by what has come of late."""
        if self._waiting_since is None:
            self._waiting_since = now
        while self._came and self._came[0][0] < now - RATE_S:
            self._came.popleft()
        rate = sum(size for _, size in self._came) / RATE_S
        return now - self._waiting_since > RATE_S and sum(run.size for run in self._missing) > rate * SOON_S

    async def _fetch(self, run: TensorRun) -> None:
        """Have a run from the coordinator, from where a peer has left it."""
        wrong: str | None = None
        tries = 0
        while tries < DAMAGED_TRIES:
            begun = self._begun.get(run)
            if begun is None or begun.done == 0:
                begun = self._begun[run] = self._fresh(run, None)
            before = begun.done

            def take(data: bytes, begun: _Begun = begun) -> None:
                self._put(run, begun, data)

            source = self.layout.index.files[run.span.file]
            await self.fetch(source, run.span.begin + before, run.span.end, take)
            wrong = begun.check.first_wrong()
            if wrong is None:
                self.from_coordinator += run.size - before
                self.from_peers += before
                self._have(run)
                return
            del self._begun[run]
            if begun.giver is None:
                tries += 1
                LOG.warning("tensor %s arrived damaged", wrong)
            else:
                self._blame(begun.giver, wrong)
        raise ArtifactError(f"the coordinator sent other bytes than tensor {wrong} has, {DAMAGED_TRIES} times")

    # --- from peers -----------------------------------------------------------------------------------------------------

    async def _look(self, peer: _Peer) -> None:
        """See again and again what a peer has."""
        assert self.circle is not None
        exchange = self.circle.exchange
        while not self._is_done_with(peer):
            said = await exchange.ask(peer.address, WeightsAsk(self.circle.job, self.layers))
            if said is not None:
                peer.heard = exchange.clock.now()
                peer.units = units_in(said, len(self.layout.units))
            await exchange.clock.sleep(POLL_S)

    async def _from_peer(self, peer: _Peer) -> None:
        """Take what a peer has, until it has failed too often."""
        assert self.circle is not None
        while not self._is_done_with(peer):
            run = self._next_of(peer)
            if run is None:
                await self.circle.exchange.clock.sleep(LOOK_S)
                continue
            self._in_hand.add(run)
            try:
                if not await self._take(peer, run):
                    peer.failures += 1
                    peer.units -= {run.unit}
            finally:
                self._in_hand.discard(run)

    def _next_of(self, peer: _Peer) -> TensorRun | None:
        found = [run for run in self._missing if run.unit in peer.units and run not in self._in_hand]
        return found[self._chance(len(found))] if found else None

    async def _take(self, peer: _Peer, run: TensorRun) -> bool:
        """A run from one peer; False where it did not give all of it, or gave something else."""
        assert self.circle is not None
        circle, clock = self.circle, self.circle.exchange.clock
        self._begun[run] = begun = self._fresh(run, peer.address)
        until = clock.now() + UNIT_S
        coming = pieces_of_run(run)
        asked: deque[tuple[int, asyncio.Task[bytes | None]]] = deque()
        try:
            while True:
                while len(asked) < AHEAD and (piece := next(coming, None)) is not None:
                    ask = WeightsAsk(circle.job, self.layers, run.unit, piece[0])
                    asked.append((piece[1], asyncio.create_task(circle.exchange.ask(peer.address, ask))))
                if not asked:
                    break
                size, asking = asked.popleft()
                data = await asking
                if data is None or len(data) < size or clock.now() > until:
                    return False
                peer.heard = clock.now()
                self._came.append((peer.heard, size))
                await asyncio.to_thread(self._put, run, begun, data[:size])
        finally:
            for _, asking in asked:
                asking.cancel()
            await asyncio.gather(*(asking for _, asking in asked), return_exceptions=True)
        wrong = begun.check.first_wrong()
        if wrong is not None:
            del self._begun[run]
            self._blame(peer.address, wrong)
            return False
        peer.failures = 0
        self.from_peers += run.size
        self._have(run)
        return True

    def _is_done_with(self, peer: _Peer) -> bool:
        assert self.circle is not None
        return peer.failures >= PATIENCE or peer.address in self.circle.liars

    def _blame(self, peer: str, wrong: str) -> None:
        assert self.circle is not None
        LOG.warning("%s gave other bytes than tensor %s has: it is not asked again", peer, wrong)
        self.circle.liars.add(peer)

    # --- both -----------------------------------------------------------------------------------------------------------

    def _fresh(self, run: TensorRun, giver: str | None) -> _Begun:
        return _Begun(TensorCheck(self.layout.index, run.span.names), giver)

    def _put(self, run: TensorRun, begun: _Begun, data: bytes) -> None:
        self.layout.put(run, data, begun.done)
        begun.check.update(data)
        begun.done += len(data)

    def _have(self, run: TensorRun) -> None:
        self.layout.have(run)
        del self._missing[run]
        self._begun.pop(run, None)

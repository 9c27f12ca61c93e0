"""What has arrived for the computing thread: commands, audits and payloads, within bounds.

The socket's loop puts, the one computing thread takes. While it waits for a payload it serves audits, so a stalled pipeline does
not stall them (``whole_steps``: where they wait for the step). A wait ends with ``AbandonedError`` once the round is given up.
"""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    BisectQuery,
    OpenOuter,
    OpenStep,
    ReduceRound,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    ShowLeaf,
)
from protocol.worker import RecordRecall, TensorName
from trainer.errors import AbandonedError
from trainer.worker.arriving_state import ArrivingState

Found = TypeVar("Found")
RoundKey = tuple[int, int]
"""(epoch, round)"""

Audit = OpenStep | ShowLeaf | ReplayStep | ReplayAcross | OpenOuter | ReplayOuter | BisectQuery


@dataclass(frozen=True)
class PartsHeld:
    """All that was expected of a shard is here."""

    shard: int


@dataclass(frozen=True)
class ReturnedRecord:
    """The parts that a recalled round is opened from; None: the agent's disk has lost them. Who serves it empties ``parts``.

    ``state``: what the round began with, where that has come.
    """

    recall: RecordRecall
    parts: dict[str, bytearray] | None
    state: ArrivingState | None = None


Order = BeginRound | ReduceRound | ApplyRound | AbandonRound
Work = Order | PartsHeld


Waiting = tuple[Audit | ReturnedRecord, bytes | bytearray, bytes]
"""What waits to be served: an audit with its opening, which is used up, and an anchor; or what some wait for."""


class Held(NamedTuple):
    """What is kept of a round between replicas: a whole contribution, a shard of one, or the result of a shard.

    ``replica``: who made it, or passed it on.
    """

    kind: Literal["contribution", "shard", "result"]
    replica: int
    shard: int = 0
    turn: int = 0


MAX_WAITING_BYTES = 1 << 30  # An honest neighbour is at most one step ahead: a few micro-batches of activations.
MAX_WAITING_AUDITS = 64  # One is drawn a round; the rest is room for an auditor of several jobs' worth of rounds.
MAX_ROUNDS_AHEAD = 1  # A neighbour may have begun the next round before our own BeginRound came.


class WorkerInbox:
    """Thread-safe store of everything that was received and not yet used."""

    def __init__(self, serve_audit: Callable[[Audit | ReturnedRecord, bytes | bytearray, bytes], None]) -> None:
        """``serve_audit`` is called in the computing thread, for what audits waited for, too."""
        self._serve_audit = serve_audit
        self._changed = threading.Condition()
        self._orders: deque[tuple[Order, bytearray, int]] = deque()
        self._audits: deque[Waiting] = deque()
        self._payloads: dict[TensorName, bytes] = {}
        self._held: dict[RoundKey, dict[Held, tuple[str, bytes]]] = {}
        self._expected: dict[int, Mapping[Held, str]] = {}
        self._waiting_bytes = 0
        self._current: RoundKey = (-1, -1)
        self._newest: RoundKey = (-1, -1)  # Begun or still queued: any older round is over.
        self._given_up: RoundKey = (-1, -1)
        self._closed = False
        self.whole_steps = False
        """Audits wait for the end of a step: a stage that makes room for another can do so only then."""
        self.waited = (
            0.0  # Seconds that the computing thread waited for payloads, audits that it served meanwhile included.
        )

    # --- called from the socket's loop --------------------------------------------------------------------------------

    def order(self, command: Order, payload: bytearray | None = None, split: int = 0) -> None:
        """Queue a command; a newer round, the end of this one, or its abandonment interrupts the steps in progress.

        Args:
            payload: the only copy of a state: whoever obeys empties it.
        """
        with self._changed:
            self._orders.append((command, payload or bytearray(), split))
            if isinstance(command, BeginRound):
                self._newest = max(self._newest, (command.plan.epoch, command.round))
            else:
                self._given_up = max(self._given_up, (command.epoch, command.round))
            self._changed.notify_all()

    def audit(self, command: Audit, payload: bytes | bytearray, anchor: bytes = b"") -> bool:
        """Queue an audit, with its opening and the anchor of that; False where too many wait already, or this one does."""
        with self._changed:
            if len(self._audits) >= MAX_WAITING_AUDITS or any(command == waiting for waiting, _, _ in self._audits):
                return False
            self._audits.append((command, payload, anchor))
            self._changed.notify_all()
            return True

    def returned(self, back: ReturnedRecord) -> None:
        """What audits waited for is here, and served before all others, for it takes memory."""
        with self._changed:
            self._audits.appendleft((back, b"", b""))
            self._changed.notify_all()

    def payload(self, name: TensorName, data: bytes) -> bool:
        """Keep a neighbour's payload; False where it is stale, a duplicate, too far ahead or over the limit."""
        with self._changed:
            if not self._fits(name.epoch, name.round, len(data)) or name in self._payloads:
                return False
            self._payloads[name] = data
            self._waiting_bytes += len(data)
            self._changed.notify_all()
            return True

    def contribution(self, key: RoundKey, replica: int, data: bytes) -> bool:
        """Keep a pseudo-gradient; False where it is stale, a duplicate, too far ahead or over the limit."""
        return self.keep(key, Held("contribution", replica), hashlib.sha256(data).hexdigest(), data)

    def keep(self, key: RoundKey, place: Held, digest: str, data: bytes) -> bool:
        """Keep something of a round; False as ``contribution``."""
        with self._changed:
            if not self._fits(*key, len(data)) or place in self._held.get(key, {}):
                return False
            self._held.setdefault(key, {})[place] = (digest, data)
            self._waiting_bytes += len(data)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """End every wait, now and later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- called from the computing thread -----------------------------------------------------------------------------

    @property
    def current(self) -> RoundKey:
        """The round that was begun last."""
        return self._current

    def holding(self) -> dict[int, str]:
        """Replica -> digest of the pseudo-gradients held for the current round."""
        with self._changed:
            held = self._held.get(self._current, {})
            return {place.replica: digest for place, (digest, _) in held.items() if place.kind == "contribution"}

    def held(self) -> dict[Held, tuple[str, bytes]]:
        """All that is kept of the current round, each with its digest."""
        with self._changed:
            return dict(self._held.get(self._current, {}))

    def expect(self, shard: int, wanted: Mapping[Held, str]) -> None:
        """Have ``next_order`` say once when all of this, by digest, is held of the current round."""
        with self._changed:
            self._expected[shard] = dict(wanted)

    def next_order(self) -> tuple[Work, bytearray, int] | None:
        """Wait for a command, or for what was expected, serving audits meanwhile; ``None`` when closed."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._orders or self._audits or self._closed or self._complete_shard() is not None
                )
                if self._closed:
                    return None
                if self._orders:
                    return self._orders.popleft()
                if (shard := self._complete_shard()) is not None:
                    del self._expected[shard]
                    return PartsHeld(shard), bytearray(), 0
                audit = self._audits.popleft()
            self._serve_audit(*audit)

    def begin(self, key: RoundKey) -> None:
        """Make ``key`` the current round and drop what came for older ones."""
        with self._changed:
            self._current = key
            self._expected = {}
            for name in [name for name in self._payloads if (name.epoch, name.round) < key]:
                self._waiting_bytes -= len(self._payloads.pop(name))
            for old in [old for old in self._held if old < key]:
                self._waiting_bytes -= sum(len(data) for _, data in self._held.pop(old).values())

    def between_steps(self, audits: bool = True) -> None:
        """Serve ``audits`` that wait; raises ``AbandonedError`` as ``take`` does."""
        while True:
            with self._changed:
                self._check()
                if not audits or not self._audits:
                    return
                audit = self._audits.popleft()
            self._serve_audit(*audit)

    def serve_returned(self) -> bool:
        """Wait for what audits wait for, and serve that alone; False where the worker ends first."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._returned() is not None)
            if (back := self._returned()) is None:
                return False
            self._audits.remove(back)
        self._serve_audit(*back)
        return True

    def has(self, name: TensorName) -> bool:
        """Whether ``take`` would not wait."""
        with self._changed:
            return name in self._payloads

    def take(self, name: TensorName) -> bytes:
        """Wait for a payload, serving audits meanwhile.

        Raises:
            AbandonedError: the current round was given up, or the worker ends.
        """
        self.first_of(name)
        with self._changed:
            data = self._payloads.pop(name)
            self._waiting_bytes -= len(data)
            return data

    def first_of(self, *names: TensorName) -> TensorName:
        """Wait for any of these payloads, serving audits meanwhile; the first that is there, which stays. Raises as ``take``."""
        began = time.perf_counter()
        try:
            return self._first_of(*names)
        finally:
            self.waited += time.perf_counter() - began

    def _first_of(self, *names: TensorName) -> TensorName:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: (
                        (self._audits and not self.whole_steps)
                        or self._interrupted()
                        or any(name in self._payloads for name in names)
                    )
                )
                self._check()
                for name in names:
                    if name in self._payloads:
                        return name
                audit = self._audits.popleft()
            self._serve_audit(*audit)

    def contributions(self, wanted: Mapping[int, str]) -> dict[int, bytes]:
        """Wait until every wanted pseudo-gradient (replica -> digest) of the current round is held.

        Raises:
            AbandonedError: a newer round begins first, or the worker ends.
        """
        places = {Held("contribution", replica): digest for replica, digest in wanted.items()}

        def found() -> dict[int, bytes] | None:
            held = self._held.get(self._current, {})
            return {place.replica: held[place][1] for place in places} if self._complete(places) else None

        return self._once(found)

    def results(self, wanted: Mapping[int, str]) -> dict[int, bytes]:
        """The same of the results of shards, whoever sent them."""

        def found() -> dict[int, bytes] | None:
            held = self._held.get(self._current, {})
            here = {
                place.shard: data
                for place, (digest, data) in held.items()
                if place.kind == "result" and wanted.get(place.shard) == digest
            }
            return here if len(here) == len(wanted) else None

        return self._once(found)

    def _once(self, find: Callable[[], Found | None]) -> Found:
        """What ``find`` gives, inside the lock, once that is anything; raises as ``contributions``."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: find() is not None or self._audits or self._closed or bool(self._orders))
                if (there := find()) is not None:
                    return there
                if self._closed or self._newest > self._current:
                    raise AbandonedError(f"round {self._current} ended without all of its contributions")
                while self._orders and not self._audits:
                    self._orders.popleft()  # A repeated command of this very round: its effect is on the way.
                if not self._audits:
                    continue
                audit = self._audits.popleft()
            self._serve_audit(*audit)

    # --- inside the lock ----------------------------------------------------------------------------------------------

    def _complete(self, wanted: Mapping[Held, str]) -> bool:
        held = self._held.get(self._current, {})
        return all(place in held and held[place][0] == digest for place, digest in wanted.items())

    def _complete_shard(self) -> int | None:
        return next((shard for shard, wanted in self._expected.items() if self._complete(wanted)), None)

    def _returned(self) -> Waiting | None:
        return next((waiting for waiting in self._audits if isinstance(waiting[0], ReturnedRecord)), None)

    def _fits(self, epoch: int, round_index: int, size: int) -> bool:
        if (epoch, round_index) < self._current or self._waiting_bytes + size > MAX_WAITING_BYTES:
            return False
        return epoch > self._current[0] or round_index <= self._current[1] + MAX_ROUNDS_AHEAD

    def _interrupted(self) -> bool:
        return self._closed or self._given_up >= self._current or self._newest > self._current

    def _check(self) -> None:
        if self._interrupted():
            raise AbandonedError(f"round {self._current[1]} of epoch {self._current[0]} was given up")

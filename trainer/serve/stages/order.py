"""Payloads of neighbours: taken on any thread, bounded, and given in order to the one that computes."""

import threading
from collections.abc import Iterator

from protocol.worker import TensorName

AHEAD = 128  # Passes that may come before their turn; no honest neighbour has as many under way.


class PayloadRoom:
    """How many bytes wait for the thread that computes."""

    def __init__(self, most: int) -> None:
        """``most``: bytes beyond which nothing more is taken."""
        self._most, self._held = most, 0
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there is room for so many."""
        with self._lock:
            fits = self._held + size <= self._most
            self._held += size * fits
            return fits

    def give(self, size: int) -> None:
        """So many are done with."""
        with self._lock:
            self._held -= size


class PayloadOrder:
    """Puts payloads in order. Those of a coming epoch wait for it: a neighbour may have heard of it first."""

    def __init__(self, room: PayloadRoom) -> None:
        """``room``: whose bytes those are that wait here."""
        self._room = room
        self._epoch: int | None = None
        self._next = 0
        self._waiting: dict[tuple[int, int], bytes] = {}

    def join(self, epoch: int) -> None:
        """Go over to an epoch; what is of others before it is dropped."""
        self._epoch, self._next = epoch, 0
        for name in [one for one in self._waiting if one[0] < epoch]:
            self._room.give(len(self._waiting.pop(name)))

    def put(self, name: TensorName, payload: bytes) -> bool:
        """Take a payload; False where it is of an epoch or a place that nobody waits for, or there already."""
        key = (name.epoch, name.step)
        first = self._next if name.epoch == self._epoch else 0
        old = self._epoch is not None and name.epoch < self._epoch
        if old or not first <= name.step < first + AHEAD or key in self._waiting:
            self._room.give(len(payload))
            return False
        self._waiting[key] = payload
        return True

    def ready(self) -> Iterator[tuple[int, bytes]]:
        """The payloads of this epoch whose turn it is, with their numbers."""
        while self._epoch is not None and (key := (self._epoch, self._next)) in self._waiting:
            payload = self._waiting.pop(key)
            self._room.give(len(payload))
            self._next += 1
            yield key[1], payload

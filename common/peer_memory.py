"""The memory that messages from peers may take in this process, handed out in the order of asking."""

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A place in the queue for memory."""

    owner: Hashable
    size: int
    granted: Callable[["Ticket"], None]


class MemoryBudget:
    """Reservations that never exceed ``total`` bytes together and ``per_owner`` bytes for one peer."""

    def __init__(self, total: int, per_owner: int) -> None:
        """Take the two limits in bytes."""
        self._free = total
        self._per_owner = min(per_owner, total)
        self._held: dict[Hashable, int] = {}
        self._waiting: deque[Ticket] = deque()

    @property
    def held(self) -> int:
        """Bytes reserved now."""
        return sum(self._held.values())

    def fits(self, size: int) -> bool:
        """Whether a reservation of ``size`` can ever be granted."""
        return size <= self._per_owner

    def reserve(self, owner: Hashable, size: int, granted: Callable[[Ticket], None]) -> Ticket:
        """Call ``granted`` with the ticket once ``size`` bytes are reserved for ``owner``: now, or when others release."""
        ticket = Ticket(owner, size, granted)
        self._waiting.append(ticket)
        self._serve()
        return ticket

    def give_up(self, *tickets: Ticket) -> None:
        """Leave the queue, or give back what was granted; of several tickets none is granted on the way."""
        leaving = set(tickets)
        waiting = {ticket for ticket in self._waiting if ticket in leaving}
        self._waiting = deque(ticket for ticket in self._waiting if ticket not in waiting)
        for ticket in leaving - waiting:
            left = self._held.pop(ticket.owner, 0) - ticket.size
            if left:
                self._held[ticket.owner] = left
            self._free += ticket.size
        self._serve()

    def _serve(self) -> None:
        """Grant in order; one whose own share is full lets others pass, one that the process lacks room for does not."""
        passed: deque[Ticket] = deque()
        granted: list[Ticket] = []
        while self._waiting:
            entry = self._waiting.popleft()
            held = self._held.get(entry.owner, 0)
            if held + entry.size > self._per_owner:
                passed.append(entry)
                continue
            if entry.size > self._free:
                self._waiting.appendleft(entry)
                break
            self._held[entry.owner] = held + entry.size
            self._free -= entry.size
            granted.append(entry)
        self._waiting.extendleft(reversed(passed))
        for entry in granted:
            entry.granted(entry)

"""The disk's free space, as far as it is not promised: what is on its way has its place before its first byte is taken.

Some is left in any case: running jobs need it for their states and the database for its rows, whoever else wants to store.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.errors import UnavailableError

# For the database and what is made of running jobs' files; nobody's bytes are taken beyond it.
MIN_FREE_BYTES = 1 << 30
JOBS_BYTES = 4 << 30  # Beside that: for states and openings of running jobs, which submitters' uploads leave alone.
SHARE = 2  # Whoever's bytes are counted together has at most one part in so many of the room promised at a time.


class Room:
    """Of one disk. Counted in bytes that are promised; what has arrived already is no longer free by itself."""

    def __init__(self, folder: Path, free: Callable[[], int] | None = None) -> None:
        """``free`` says how many bytes the disk of ``folder`` has left; None: the disk itself is asked."""
        self._free = free or (lambda: shutil.disk_usage(folder).free)
        self._promised: Counter[str] = Counter()
        self._sum = 0
        self._others: list[Callable[[], int]] = []

    def also(self, promised: Callable[[], int]) -> None:
        """Count what somebody else has promised: it says how many bytes are still to come."""
        self._others.append(promised)

    def left(self, keep: int = MIN_FREE_BYTES) -> int:
        """Bytes that can still be promised, where ``keep`` are to be left."""
        return max(0, self._free() - keep - self._sum - sum(other() for other in self._others))

    @contextmanager
    def take(self, size: int, *whose: str, keep: int = MIN_FREE_BYTES) -> Iterator[None]:
        """Promise ``size`` bytes until the body ends.

        Args:
            whose: names under which bytes are counted together, such as an owner and an address.
        Raises:
            UnavailableError: there is not enough room, or one of the names has its share of it.
        """
        left = self.left(keep)
        if size > left:
            raise UnavailableError(
                f"{size:,} bytes: the coordinator's disk has room for {left:,} now; try again later, or ask its operator"
            )
        room = left + self._sum
        for name in whose:
            if (self._promised[name] + size) * SHARE > room and self._promised[name]:
                raise UnavailableError(
                    f"{self._promised[name]:,} bytes of {name} are on their way: wait for them to arrive"
                )
        self._sum += size
        self._promised.update(dict.fromkeys(whose, size))
        try:
            yield
        finally:
            self._sum -= size
            self._promised -= Counter(dict.fromkeys(whose, size))

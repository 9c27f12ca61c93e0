"""How many steps fit into a round of fixed time."""

from collections.abc import Callable


class TimeBudget:
    """Counts from its making. ``seconds`` None: there is no limit."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]) -> None:
        """Begin to count."""
        self._seconds = seconds
        self._clock = clock
        self._began = clock()

    def has_time(self, done: int) -> bool:
        """Whether one more step, as long as the mean of the ``done`` steps so far, still ends in time; the first always may."""
        if self._seconds is None or done == 0:
            return True
        taken = self._clock() - self._began
        return taken + taken / done <= self._seconds

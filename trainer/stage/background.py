"""A second thread beside the computing one, for what need not hold it up: torch lets go of the interpreter while it works."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class BackgroundWork:
    """One thread that does what it is given in order; it begins with the first thing, and ends with its owner."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        """Do ``work`` after everything that was given before."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "aside")
        return self._executor.submit(work, *arguments, **named)

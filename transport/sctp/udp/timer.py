"""A timer that rings within some 50 microseconds of its time, where the system has one; event loops count whole milliseconds.

Source: timerfd_create(2), of Linux. Elsewhere there is none, and nothing depends on it but how short a queue may be kept.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable

_MONOTONIC, _NONBLOCK, _CLOSE_ON_EXEC = 1, 0o4000, 0o2000000  # Linux' own numbers.
_LEAST_NS = 1000  # 0 would stop the timer.


class _Times(ctypes.Structure):
    """``struct itimerspec``: the period, which is none, and the time until it rings."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("period_s", "period_ns", "s", "ns"))


class FineTimer:
    """One timer of an event loop.

    Attributes:
        waiting: it is yet to ring.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        """Nothing waits yet.

        Raises:
            OSError: no file for it is left.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.timerfd_create(_MONOTONIC, _NONBLOCK | _CLOSE_ON_EXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "no timer file could be made")
        self._loop, self._ring = loop, ring
        self._times = _Times()
        self.waiting = False
        loop.add_reader(self._file, self._rung)

    def start(self, seconds: float) -> bool:
        """Ring once, in so many seconds, whatever was asked for before; whether it will."""
        whole = int(seconds)
        self._times.s, self._times.ns = whole, max(_LEAST_NS, int((seconds - whole) * 1e9))
        self.waiting = self._libc.timerfd_settime(self._file, 0, ctypes.byref(self._times), None) == 0
        return self.waiting

    def close(self) -> None:
        """Ring no more."""
        self.waiting = False
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _rung(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # It was started again meanwhile.
            return
        self.waiting = False
        self._ring()


def fine_timer(loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> FineTimer | None:
    """One that calls ``ring``; None where there is none."""
    if sys.platform != "linux":
        return None
    try:
        return FineTimer(loop, ring)
    except OSError:
        return None

"""Tells when the event loop stood still, and where: heartbeats, links and the owner's window all wait for it."""

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path

from desktop.agent.base.log import LOG

LOOK_S = 0.5
STALL_S = 2.0  # A coordinator gives a node up after a few times that.
DEPTH = 4  # Innermost callers that are named.
ROOT = Path(__file__).resolve().parents[3]
IDLE = {"selectors.py", "windows_events.py"}  # Where a loop waits for what comes.

STARVED = "for this computer gave it no time"


@contextlib.asynccontextmanager
async def told(stall: float = STALL_S, look: float = LOOK_S) -> AsyncIterator[None]:
    """Log each time that the running loop stands still for ``stall`` seconds or longer, with the calls that held it up.

    ``look``: seconds between two looks.
    """
    watch = _Watch(stall, look)
    ticking = asyncio.create_task(watch.tick(), name="stalls")
    watch.start()
    try:
        yield
    finally:
        ticking.cancel()
        watch.over.set()
        await asyncio.to_thread(watch.join)


class _Watch(threading.Thread):
    """Looks at the loop's thread from another one: what holds the loop up holds up everything in it."""

    def __init__(self, stall: float, look: float) -> None:
        super().__init__(name="stalls", daemon=True)
        self.over = threading.Event()
        self._stall, self._look, self._loop_thread = stall, look, threading.get_ident()
        self._ticked, self._seen = time.monotonic(), ""

    async def tick(self) -> None:
        while True:
            await asyncio.sleep(self._look)
            late = time.monotonic() - self._ticked - self._look
            self._ticked = time.monotonic()
            where, self._seen = self._seen, ""
            if late >= self._stall:
                LOG.warning("the agent stood still for %.1f s, %s", late, where or "and nobody saw where")

    def run(self) -> None:
        while not self.over.wait(self._look):
            if time.monotonic() - self._ticked - self._look >= self._stall / 2:
                found = where(self._loop_thread)
                if found != STARVED or not self._seen:  # What held it up is over by the time that the loop waits again.
                    self._seen = found


def where(thread: int) -> str:
    """What a thread does now: its innermost calls, the outer ones first."""
    frame = sys._current_frames().get(thread)
    calls = traceback.extract_stack(frame)[-DEPTH:] if frame is not None else []
    if not calls or Path(calls[-1].filename).name in IDLE:
        return STARVED
    return "in " + " > ".join(f"{_short(call.filename)}:{call.lineno} {call.name}" for call in calls)


def _short(path: str) -> str:
    file = Path(path)
    return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else f"{file.parent.name}/{file.name}"

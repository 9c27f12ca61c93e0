"""Ends the payment service at any of its waits: every suspension of its tasks is counted, and at a chosen one it dies."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from tests.sim.world import CrashError

# What is signed, and what came of it, is stored by errands.
SERVICE = (
    *(f"coordinator/services/payments/{name}.py" for name in ("outbox_lanes", "confirmations", "settlement")),
    "coordinator/services/core/errands.py",
)


class Fuse:
    """Burns through at the n-th wait; with 0 never. ``waits`` counts them."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.waits = at, 0

    def burns(self) -> bool:
        self.waits += 1
        return self.waits == self.at

    @property
    def burned(self) -> bool:
        return 0 < self.at <= self.waits


@types.coroutine
def fused(coroutine: Coroutine[Any, Any, Any], fuse: Fuse) -> Generator[Any, Any, Any]:
    """The coroutine, into which a crash is thrown at the wait at which the fuse burns through."""
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            waiting = coroutine.send(value) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        value, error = None, None
        if fuse.burns():
            error = CrashError()
            continue
        try:
            value = yield waiting
        except BaseException as thrown:  # noqa: BLE001 - whatever comes from outside belongs to the coroutine.
            error = thrown


@contextmanager
def every_task_of_the_service(fuse: Fuse) -> Iterator[list[tuple[asyncio.Task[Any], Coroutine[Any, Any, Any]]]]:
    """Put the fuse into each task that the service starts, and into no other; yields them with what they run."""
    loop = asyncio.get_running_loop()
    made: list[tuple[asyncio.Task[Any], Coroutine[Any, Any, Any]]] = []

    def make(running: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        code = getattr(coroutine, "cr_code", None)
        if code is None or not code.co_filename.endswith(SERVICE):
            return asyncio.Task(coroutine, loop=running, **options)
        task = asyncio.Task(fused(coroutine, fuse), loop=running, **options)
        made.append((task, coroutine))
        return task

    before = loop.get_task_factory()
    loop.set_task_factory(make)
    try:
        yield made
    finally:
        loop.set_task_factory(before)


async def run_until_crash(coroutine: Coroutine[Any, Any, Any], fuse: Fuse) -> bool:
    """Run a piece of the service; whether it died of the fuse."""
    with every_task_of_the_service(fuse) as tasks:
        try:
            await fused(coroutine, fuse)
        except BaseExceptionGroup as group:
            if group.subgroup(CrashError) is None:
                raise
        except CrashError:
            pass
        else:
            return False
        for task, _ in tasks:  # A process that is dead has none that go on.
            task.cancel()
        await asyncio.gather(*(task for task, _ in tasks), return_exceptions=True)
        for _, begun in tasks:
            begun.close()  # One that was ended before its first turn has never begun.
        return True

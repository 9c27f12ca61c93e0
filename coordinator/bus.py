"""Who wants to know that a job or node changed: names of what changed, never the change itself."""

import asyncio
from collections.abc import AsyncIterator

MAX_WAITING = 1_000  # Names that one slow subscriber may have waiting; beyond it the oldest is dropped.


class Bus:
    """Publishing never waits and never grows: a name that already waits is not queued again."""

    def __init__(self) -> None:
        self._subscribers: set[_Subscriber] = set()

    def publish(self, name: str) -> None:
        """Tell everybody who asked for ``name`` or for everything."""
        for subscriber in self._subscribers:
            subscriber.offer(name)

    async def changes(self, name: str | None) -> AsyncIterator[str]:
        """Yield names as they change; ``None``: all names."""
        subscriber = _Subscriber(name)
        self._subscribers.add(subscriber)
        try:
            while True:
                yield await subscriber.take()
        finally:
            self._subscribers.discard(subscriber)


class _Subscriber:
    def __init__(self, name: str | None) -> None:
        self._name = name
        self._waiting: dict[str, None] = {}
        self._news = asyncio.Event()

    def offer(self, name: str) -> None:
        if self._name is not None and name != self._name:
            return
        self._waiting[name] = None
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._news.set()

    async def take(self) -> str:
        await self._news.wait()
        name = next(iter(self._waiting))
        del self._waiting[name]
        if not self._waiting:
            self._news.clear()
        return name

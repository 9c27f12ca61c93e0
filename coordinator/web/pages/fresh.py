"""What many readers ask for in the same second is made once.

A page that is watched fetches itself again whenever something changes. That answer has no secret in it (the forms' token stays in
the page that is there already), so it can be packed, and given to everybody who may see it.
"""

import asyncio
import gzip
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Final

from aiohttp import hdrs, web

LIVE_HEADER: Final = "X-Cottage-Live"
# Less than a page waits between news and its fetch (live.js), so that what it gets was begun after the news.
SECONDS = 0.8
MAX_KEPT = 256  # Pages; more are watched by so few readers that it does not matter.
GZIP_LEVEL = 4  # Of 100 kB a tenth is left in 1 ms; higher levels save 3 % for twice the time.


class _Entry:
    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.until = 0.0
        self.body = b""


class Fresh:
    """Packed pages by what they depend on; the making of none began more than ``SECONDS`` ago."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._entries: dict[Hashable, _Entry] = {}

    async def answer(self, key: Hashable, make: Callable[[], Awaitable[str]]) -> web.Response:
        """The page of ``key``, made by ``make`` unless somebody has just had it made."""
        if key not in self._entries and len(self._entries) >= MAX_KEPT:
            del self._entries[next(iter(self._entries))]
        entry = self._entries.setdefault(key, _Entry())
        async with entry.lock:
            if entry.until <= (begun := self._now()):
                entry.body = pack(await make())
                entry.until = begun + SECONDS
        return packed(entry.body)


def pack(html: str) -> bytes:
    """A page for the line."""
    return gzip.compress(html.encode(), GZIP_LEVEL)


def packed(body: bytes) -> web.Response:
    """An answer with a packed page."""
    headers = {hdrs.CONTENT_ENCODING: "gzip", hdrs.CACHE_CONTROL: "no-store"}
    return web.Response(body=body, content_type="text/html", charset="utf-8", headers=headers)


def is_live(request: web.Request) -> bool:
    """Whether a page that is there already asks for what is new in it."""
    return LIVE_HEADER in request.headers and "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")

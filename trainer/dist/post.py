"""How ranks find each other: addresses and signed envelopes through the script's own Store.

Keys (below the prefix that torch gives each group)::

    address/{rank}        the node address of a rank
    letters/{rank}        how many letters were ever written to a rank
    letter/{rank}/{n}     the n-th: the sender's rank (2 bytes) and its envelope

The Store can drop a letter and, unless ``COTTAGE_PEERS`` pins the keys, say who a rank is; it cannot read or change the link.
"""

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import Store

from trainer.errors import GroupError

STORE_TIMEOUT_S = 20.0  # Of one call: a Store answers at once or is gone, and closing waits for the last call.
LOOK_S = 0.1  # Between two looks while somebody is missing; a link takes half a second anyway.
MAX_UNREAD = 1024  # Letters at once: 64 peers, each with a few; a Store that says more is not believed.
MAX_LOOKS = 50  # A sender counts its letter before it writes it, and may die between the two.

_T = TypeVar("_T")


class Post:
    """This rank's letter box. All calls of the Store are made in one thread, on a connection of their own."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        """Take the group's Store, this rank and the number of ranks."""
        self._store: Store = store.clone()  # type: ignore[attr-defined]  # not in torch's stubs
        self._store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))
        self._rank, self._size = rank, size
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cottage-store")
        self._seen = 0
        self._unread: dict[int, int] = {}

    async def _call(self, function: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, functools.partial(function, *arguments))

    async def meet(self, address: str) -> list[str]:
        """Publish this rank's address and return those of all ranks, once all are there."""
        await self._call(self._store.set, f"address/{self._rank}", address)
        while await self.missing():  # noqa: ASYNC110  # A Store tells nobody: one has to look.
            await asyncio.sleep(LOOK_S)
        texts = [await self._call(self._store.get, f"address/{rank}") for rank in range(self._size)]
        return [text.decode(errors="replace") for text in texts]

    async def missing(self) -> list[int]:
        """The ranks that have not published their address."""
        keys = [f"address/{rank}" for rank in range(self._size)]
        if await self._call(self._store.check, keys):  # One question, once all are there.
            return []
        return [rank for rank, key in enumerate(keys) if not await self._call(self._store.check, [key])]

    async def write(self, rank: int, envelope: bytes) -> None:
        """Put an envelope into a rank's box.

        Raises:
            ConnectionError: the Store is gone.
        """
        letter = self._rank.to_bytes(2, "big") + envelope
        try:
            number = await self._call(self._store.add, f"letters/{rank}", 1)
            await self._call(self._store.set, f"letter/{rank}/{number}", letter)
        except RuntimeError as error:
            raise ConnectionError(f"the Store does not take a letter: {error}") from error

    async def read(self) -> list[tuple[int, bytes]]:
        """New letters: who they say they are from, and the envelope.

        Raises:
            GroupError: the Store's count cannot be.
        """
        count = await self._call(self._store.add, f"letters/{self._rank}", 0)
        if not self._seen <= count <= self._seen + MAX_UNREAD:
            raise GroupError(f"the Store says {count} letters after {self._seen}: is another job using its keys?")
        self._unread.update(dict.fromkeys(range(self._seen + 1, count + 1), 0))
        self._seen = count
        letters = []
        for number in list(self._unread):
            key = f"letter/{self._rank}/{number}"
            if await self._call(self._store.check, [key]):
                letter = await self._call(self._store.get, key)
                letters.append((int.from_bytes(letter[:2], "big"), letter[2:]))
                del self._unread[number]
            elif self._unread[number] >= MAX_LOOKS:
                del self._unread[number]
            else:
                self._unread[number] += 1
        return letters

    def close(self) -> None:
        """Let the thread end; calls that wait are dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

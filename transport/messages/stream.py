"""A message that is handed on while it arrives."""

import asyncio
from collections import deque
from collections.abc import Callable

from common.errors import StreamBrokenError
from common.peer_memory import Ticket
from transport.messages.lanes import Lane


class IncomingStream:
    """What the stream handler gets as soon as the peer announces a stream and there is memory for its window.

    Iterate over it for the chunks, in order and without a gap, whatever happens to links meanwhile. The sender may be ahead by
    ``limits.stream_window`` bytes and no more; asking for the next chunk gives back the room of the one before. Returning from
    the handler before the end takes the message and spares the rest; raising fails it.

    Attributes:
        peer: the sender's address.
        lane, header: as sent.
        total: length of all chunks together, in bytes.
    """

    def __init__(
        self, peer: str, lane: Lane, ident: int, header: bytes, total: int, on_room: Callable[["IncomingStream"], None]
    ) -> None:
        """Take what BEGIN said, and whom to tell that chunks have been used up."""
        self.peer = peer
        self.lane = lane
        self.id = ident
        self.header = header
        self.total = total
        self.ticket: Ticket | None = None
        self._on_room = on_room
        self._chunks: deque[memoryview] = deque()
        self._held = 0
        self._received = 0
        self._consumed = 0
        self._arrived = asyncio.Event()
        self._broken: str | None = None

    @property
    def consumed(self) -> int:
        """Bytes that the handler has used up."""
        return self._consumed

    def __aiter__(self) -> "IncomingStream":
        """Iterate over the chunks that have not been taken yet."""
        return self

    async def __anext__(self) -> memoryview:
        """Return the next chunk: read-only, and valid for as long as it is held.

        Raises:
            StreamBrokenError: the rest will not come.
        """
        if self._held:
            self._consumed, self._held = self._consumed + self._held, 0
            self._on_room(self)
        while not self._chunks:
            if self._broken is not None:
                raise StreamBrokenError(
                    f"{self.peer} sent {self._received} of {self.total} bytes of a stream: {self._broken}"
                )
            if self._received == self.total:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        chunk = self._chunks.popleft()
        self._held = chunk.nbytes
        return chunk

    def push(self, chunk: memoryview) -> None:
        """The next bytes have arrived."""
        self._chunks.append(chunk)
        self._received += chunk.nbytes
        self._arrived.set()

    def break_off(self, why: str) -> None:
        """Nothing more will come; what the handler has not taken is freed."""
        if self._received < self.total:
            self._broken = why
            self._chunks.clear()
            self._arrived.set()

    def empty(self) -> None:
        """The handler is done: free what it has left."""
        self._chunks.clear()

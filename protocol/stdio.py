"""Frames over a process's standard input and output."""

import asyncio
import os


async def open_stdio(limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """What comes in and goes out, once; whatever is printed from then on goes to standard error.

    Args:
        limit: bytes of a line that is read as one.

    The two must be different pipes: asyncio takes what arrives at the end that it writes to for the other's leaving.
    """
    loop = asyncio.get_running_loop()
    taken, given = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    os.dup2(2, 1)
    reader = asyncio.StreamReader(limit)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), taken)
    unread = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, protocol = await loop.connect_write_pipe(lambda: unread, given)
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)

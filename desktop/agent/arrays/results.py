"""What an element left, as the one archive that is the same wherever it is made (``protocol.job.results``)."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from desktop.agent.arrays.porter_link import CarryError, LeftFiles, PorterLink
from desktop.agent.base.payloads import PIECE, Payload, SmallPayload
from desktop.agent.jobs.spool import Spool
from protocol.job.elements import INLINE_BYTES
from protocol.job.results import END, header, in_order, padding


@dataclass(frozen=True)
class ResultArchive:
    """``sha256``: of the archive. ``files``: how many are in it."""

    payload: Payload
    sha256: str
    files: int


async def collect(porter: PorterLink, left: LeftFiles, spool: Spool) -> ResultArchive:
    """Take what an element left; what is not short goes to the disk sealed, while it comes.

    Raises:
        CarryError: a name that no result may have, or a file that changed. OSError: the disk has no room.
    """
    sizes = left.sizes
    order = in_order(sizes)
    try:
        heads = {path: header(path, sizes[path]) for path in order}
    except ValueError as error:
        raise CarryError(str(error)) from error
    size = sum(len(heads[path]) + sizes[path] + len(padding(sizes[path])) for path in order) + len(END)
    if size <= INLINE_BYTES:
        data = b"".join([piece async for piece in _pieces(porter, heads, left)])
        return ResultArchive(SmallPayload(data), hashlib.sha256(data).hexdigest(), len(order))
    coming, waiting = await asyncio.to_thread(spool.begin, size), bytearray()
    try:
        async for piece in _pieces(porter, heads, left):
            waiting += piece
            whole = len(waiting) // PIECE * PIECE  # A spool takes whole segments but at the end.
            if whole:
                await asyncio.to_thread(coming.write, bytes(waiting[:whole]))
                del waiting[:whole]
        await asyncio.to_thread(coming.write, bytes(waiting))
        kept = coming.finish()
        return ResultArchive(kept, kept.manifest.artifact, len(order))
    except BaseException:
        coming.abandon()
        raise


async def _pieces(porter: PorterLink, heads: Mapping[str, bytes], left: LeftFiles) -> AsyncIterator[bytes]:
    for path, head in heads.items():
        yield head
        if left.contents is not None:
            yield left.contents[path]
        else:
            async for piece in porter.get(path, left.sizes[path]):
                yield piece
        yield padding(left.sizes[path])
    yield END

"""Results as they come back: small ones within a report, larger ones stored before it.

Nobody is believed without the bytes, and nothing is taken that is no archive of a result: whoever fetches it later, or looks at
it, finds plain files.
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.lease import Lease
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.deliveries import Deliveries
from coordinator.services.core.context import Context
from protocol.job.elements import INLINE_BYTES, ElementEnd, ElementsMoved
from protocol.job.results import contents
from protocol.node import Report

LOG = logging.getLogger(__name__)
_NOT_HERE = "its node named a result whose bytes it has not stored"
_NONE = "what its node stored is no archive of a result"


class ElementResults:
    """Keeps them."""

    def __init__(self, context: Context, artifacts: ArtifactStore, deliveries: Deliveries) -> None:
        self._context, self._artifacts, self._deliveries = context, artifacts, deliveries

    async def kept(self, lease: Lease, report: Report) -> Report:
        """The report, with every result that it names kept; one that is not here has failed for want of it."""
        body = report.body
        if not isinstance(body, ElementsMoved) or not any(end.result for end in body.ended):
            return report
        ended = tuple([await self._kept(lease, end) for end in body.ended])
        return msgspec.structs.replace(report, body=msgspec.structs.replace(body, ended=ended))

    async def _kept(self, lease: Lease, end: ElementEnd) -> ElementEnd:
        if end.result is None:
            return end
        if (data := end.data) is not None:
            if hashlib.sha256(data).hexdigest() != end.result:
                return _without(end, _NOT_HERE)
            if _files(end, lambda begin, stop: data[begin:stop], len(data)) is None:
                return _without(end, _NONE)
            if not await self._artifacts.has(end.result):
                await self._artifacts.put(_once(data), end.result, INLINE_BYTES)
            return msgspec.structs.replace(end, data=None)
        async with self._context.store.transaction() as tx:
            stored = await self._deliveries.stored(tx, lease.id, end.result)
        if not stored or not await self._artifacts.has(end.result):
            return _without(end, _NOT_HERE)
        async with self._artifacts.files(end.result) as (path,):
            size = path.stat().st_size
            files = await asyncio.to_thread(_files_in, end, path, size)
        return _without(end, _NONE) if files is None else msgspec.structs.replace(end, size=size, files=files)


def _without(end: ElementEnd, why: str) -> ElementEnd:
    return ElementEnd(end.run, "inputs", seconds=end.seconds, tail=(untrusted(why),))


def _files(end: ElementEnd, read: Callable[[int, int], bytes], size: int) -> int | None:
    """How many files a result has; None: it is none."""
    try:
        return len(contents(read, size))
    except (ValueError, OSError) as error:
        LOG.warning("run %d: the result %s is refused: %s", end.run, end.result, untrusted(str(error)))
        return None


def _files_in(end: ElementEnd, path: Path, size: int) -> int | None:
    with path.open("rb") as file:

        def read(begin: int, stop: int) -> bytes:
            file.seek(begin)
            return file.read(stop - begin)

        return _files(end, read, size)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data

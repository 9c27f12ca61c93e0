"""Results as they come back: small ones within a report, larger ones stored before it. Nobody is believed without the bytes."""

import hashlib
from collections.abc import AsyncIterator

import msgspec

from common.untrusted_text import untrusted
from coordinator.domain.lease import Lease
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.deliveries import Deliveries
from coordinator.services.core.context import Context
from protocol.job.elements import INLINE_BYTES, ElementEnd, ElementsMoved
from protocol.node import Report

_NOT_HERE = untrusted("its node named a result whose bytes it has not stored")


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
        if end.data is not None:
            if hashlib.sha256(end.data).hexdigest() != end.result:
                return _without(end)
            if not await self._artifacts.has(end.result):
                await self._artifacts.put(_once(end.data), end.result, INLINE_BYTES)
            return msgspec.structs.replace(end, data=None)
        async with self._context.store.transaction() as tx:
            stored = await self._deliveries.stored(tx, lease.id, end.result)
        if not stored or not await self._artifacts.has(end.result):
            return _without(end)
        return msgspec.structs.replace(end, size=await self._artifacts.size(end.result))


def _without(end: ElementEnd) -> ElementEnd:
    return ElementEnd(end.run, "inputs", seconds=end.seconds, tail=(_NOT_HERE,))


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data

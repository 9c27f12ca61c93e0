"""Who has stored which artifact, under which lease: what a node says of an artifact is believed of those alone.

Otherwise a digest that somebody knows would be as good as its bytes: named as a state or an opening, it would be handed out.
"""

import msgspec

from common.clock import Clock
from common.untrusted_text import Untrusted
from coordinator.store.ports import Store, Transaction, col
from coordinator.store.records import DeliveryRecord
from protocol.audit import AuditReport, BisectAnswer, InputsAnswer, NoAnswer, StepOpened
from protocol.federated.sums import VectorStored
from protocol.ids import Digest
from protocol.task import RoundApplied, SumSaid, TaskReport

_NOT_HERE = Untrusted("what it names was not stored under this lease")


class Deliveries:
    """Over any store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def keep(self, lease: str, job: str, node: str, artifact: Digest, kind: str, size: int) -> None:
        """Note that an artifact was stored; a second time changes nothing."""
        record = DeliveryRecord(lease, artifact, job, node, kind, size, self._clock.time())
        async with self._store.transaction() as tx:
            if not await tx.find(
                DeliveryRecord, col(DeliveryRecord.lease).equals(lease), col(DeliveryRecord.artifact).equals(artifact)
            ):
                await tx.insert(record)

    async def stored(self, tx: Transaction, lease: str, artifact: Digest) -> bool:
        """Whether the artifact was stored under the lease."""
        return bool(
            await tx.find(
                DeliveryRecord,
                col(DeliveryRecord.lease).equals(lease),
                col(DeliveryRecord.artifact).equals(artifact),
                limit=1,
            )
        )

    async def believed(self, tx: Transaction, lease: str, report: TaskReport) -> TaskReport:
        """The report without artifacts that were not stored under the lease."""
        match report:
            case RoundApplied(checkpoint=str() as named) if not await self.stored(tx, lease, named):
                return msgspec.structs.replace(report, checkpoint=None)
            case StepOpened(opening=str() as named) if not await self.stored(tx, lease, named):
                return msgspec.structs.replace(report, opening=None, reason=_NOT_HERE)
            case AuditReport(anchor=str() as named) if not await self.stored(tx, lease, named):
                return msgspec.structs.replace(report, anchor=None)
            case BisectAnswer(answer=InputsAnswer(artifact=named)) if not await self.stored(tx, lease, named):
                return msgspec.structs.replace(report, answer=NoAnswer(_NOT_HERE))
            case SumSaid(body=VectorStored(artifact=str() as named) as said) if not await self.stored(tx, lease, named):
                return msgspec.structs.replace(report, body=msgspec.structs.replace(said, artifact=None))
        return report

"""A job's newest records as one sealed entry, which its nodes keep for a coordinator that may lose its own.

Only the coordinator's key makes and opens an entry: a node can lose one, but neither read nor change it. Each has the last
``WINDOW`` rounds whole, so that one in ``RECORDS_EVERY`` of the older ones is enough to know every round.
"""

import logging
import os
import zlib
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.run import Run
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import CommitRecord, OutboxRecord, RoundRecord, RunRecord
from protocol.node import MAX_RECORDS, RECORDS_EVERY, RecordsEntry

WINDOW = 2 * RECORDS_EVERY
MAX_ROWS = 200  # Of the outbox, the newest: 8 rounds have some 30.
MAX_PLAIN = 64 << 20  # Unpacked; an entry is the coordinator's own, and still nothing may unpack without an end.
_PURPOSE, _NONCE = b"cottage records that nodes keep", 12

LOG = logging.getLogger(__name__)


class JobRecords(msgspec.Struct, frozen=True):
    """A job between two rounds.

    Attributes:
        run: without the round in flight.
        leases: the live ones. ``audits``: of the window's rounds.
        rounds, commits: of the window, and of older rounds that wait for a look; not of the round in flight.
        outbox: the newest rows.
    """

    job: Job
    run: Run
    leases: tuple[Lease, ...]
    rounds: tuple[RoundRecord, ...]
    commits: tuple[CommitRecord, ...]
    audits: tuple[Audit, ...]
    outbox: tuple[OutboxRecord, ...]

    @property
    def waits_from(self) -> int:
        """The oldest round that is not concluded: the next entry that stays has to say what became of it."""
        waiting = (record.number for record in self.rounds if record.state == "complete" and not record.concluded)
        return min(waiting, default=self.run.done)

    @property
    def entry(self) -> RecordsEntry:
        """What it is known by."""
        return RecordsEntry(self.job.id, self.run.epoch, self.run.done)


async def read(tx: Transaction, job: str, window: int, since: int | None = None) -> JobRecords | None:
    """A job as it is stored; None where it has no run yet. ``since``: the oldest round that is wanted, too."""
    jobs, runs = await tx.find(Job, col(Job.id).equals(job)), await tx.find(RunRecord, col(RunRecord.job).equals(job))
    if not jobs or not runs:
        return None
    waiting: tuple[Condition, ...] = (
        col(RoundRecord.job).equals(job),
        col(RoundRecord.state).equals("complete"),
        col(RoundRecord.concluded).equals(False),
    )
    oldest = min((record.number for record in await tx.find(RoundRecord, *waiting)), default=runs[0].run.done)
    first = min(runs[0].run.done - window, oldest if since is None else min(oldest, since)) - 1
    rounds = await tx.find(RoundRecord, col(RoundRecord.job).equals(job), col(RoundRecord.number) > first)
    return JobRecords(
        jobs[0],
        msgspec.structs.replace(runs[0].run, round=None),
        tuple(await tx.find(Lease, col(Lease.job).equals(job), col(Lease.state).in_(("starting", "ready")))),
        tuple(record for record in rounds if record.state in ("complete", "void")),
        tuple(await tx.find(CommitRecord, col(CommitRecord.job).equals(job), col(CommitRecord.round) > first)),
        tuple(await tx.find(Audit, col(Audit.job).equals(job), col(Audit.round) > first)),
        tuple(await tx.find(OutboxRecord, col(OutboxRecord.job).equals(job), newest=True, limit=MAX_ROWS)),
    )


class RecordsSeal:
    """Makes and opens entries. ``seed``: of the coordinator's key, 32 bytes."""

    def __init__(self, seed: bytes) -> None:
        self._cipher = AESGCM(HKDF(SHA256(), 32, None, _PURPOSE).derive(seed))

    def seal(self, records: JobRecords) -> bytes:
        """Nonce and ciphertext, bound to the job."""
        nonce = os.urandom(_NONCE)
        # JSON, as the store has it: a tokenizer's settings have integers that MessagePack has no room for.
        plain = zlib.compress(msgspec.json.encode(records))
        return nonce + self._cipher.encrypt(nonce, plain, records.job.id.encode())

    def open(self, entry: RecordsEntry, data: bytes) -> JobRecords | None:
        """What was sealed; None where this coordinator has not made it, or cannot read it any more."""
        try:
            packed = self._cipher.decrypt(data[:_NONCE], data[_NONCE:], entry.job.encode())
            found = msgspec.json.decode(zlib.decompressobj().decompress(packed, MAX_PLAIN), type=JobRecords)
        except (InvalidTag, ValueError, zlib.error, msgspec.MsgspecError) as error:
            LOG.warning("records of job %s after %d rounds cannot be used: %s", entry.job, entry.rounds, error)
            return None
        return found if found.entry == entry else None


async def sealed(tx: Transaction, seal: RecordsSeal, job: str, since: int | None) -> tuple[JobRecords, bytes] | None:
    """An entry that nodes take: of fewer rounds where the job has very many seats; None where there is none."""
    for window in (WINDOW, WINDOW // 2, WINDOW // 4, 1):
        records = await read(tx, job, window, since)
        if records is None:
            return None
        data = seal.seal(records)
        if len(data) <= MAX_RECORDS:
            return records, data
    LOG.warning("the records of job %s are too long for its nodes to keep: %d bytes", job, len(data))
    return None


def newest_first(entries: Sequence[JobRecords]) -> list[JobRecords]:
    """By how far their job was."""
    return sorted(entries, key=lambda one: one.entry.stands, reverse=True)

"""A job's newest records as one sealed entry, which its nodes keep for a coordinator that may lose its own.

Only the coordinator's key makes and opens an entry: a node can lose one, but neither read nor change it. Each has the last
``WINDOW`` rounds whole, so that one in ``RECORDS_EVERY`` of the older ones is enough to know every round. Of older rounds it has
those of which no entry that stays has said how they are now, as many as there is room for: the next entries have the others.
"""

import logging
import os
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job
from coordinator.domain.lease import Lease
from coordinator.domain.rounds.run import Run
from coordinator.services.network.nodes import NodeSession
from coordinator.store.ports import Column, Condition, Transaction, col
from coordinator.store.records import CommitRecord, OutboxRecord, RoundRecord, RunRecord
from protocol.node import MAX_RECORDS, RECORDS_EVERY, RecordsEntry

WINDOW = 2 * RECORDS_EVERY
# Rounds of the window and older ones, as many as fit: what an entry is made of where less has no room.
SIZES = (*((WINDOW, older) for older in (64, 32, 16, 8, 0)), *((window, 0) for window in (WINDOW // 2, WINDOW // 4, 1)))
MAX_ROWS = 200  # Of the outbox, the newest: 8 rounds have some 30.
MAX_PLAIN = 64 << 20  # Unpacked; an entry is the coordinator's own, and still nothing may unpack without an end.
_PURPOSE, _NONCE = b"cottage records that nodes keep", 12

LOG = logging.getLogger(__name__)

Key = tuple[int, int]
"""A round, by its epoch and number."""
Stamp = tuple[tuple[int, int], ...]
"""How often the records of a round have been written: another one where anything became of it."""


class JobRecords(msgspec.Struct, frozen=True):
    """A job between two rounds.

    Attributes:
        run: without the round in flight.
        leases: the live ones. ``audits``: of the window's rounds.
        rounds, commits: of the window, and of older rounds of which there is news; not of the round in flight.
        outbox: the newest rows.
        earlier: other rounds whose shares may wait for a look: earlier entries have them.
    """

    job: Job
    run: Run
    leases: tuple[Lease, ...]
    rounds: tuple[RoundRecord, ...]
    commits: tuple[CommitRecord, ...]
    audits: tuple[Audit, ...]
    outbox: tuple[OutboxRecord, ...]
    earlier: tuple[Key, ...] = ()

    @property
    def may_wait(self) -> set[Key]:
        """Rounds whose shares may wait for a look as far as this entry knows."""
        return {(commit.epoch, commit.round) for commit in self.commits} | set(self.earlier)

    @property
    def entry(self) -> RecordsEntry:
        """What it is known by."""
        return RecordsEntry(self.job.id, self.run.epoch, self.run.done)


@dataclass
class ToldRounds:
    """What the entries of a job that stay with its keepers have told of its rounds.

    Attributes:
        keepers: the connections over which all were given.
        told: by all but the last entry; ``last``: by that one, which may still be replaced.
        since: the oldest round of which there may be news. size: the place in ``SIZES`` of what had room.
    """

    keepers: frozenset[NodeSession] = frozenset()
    told: dict[Key, Stamp] = field(default_factory=dict)
    last: tuple[RecordsEntry, Mapping[Key, Stamp]] | None = None
    since: int | None = None
    size: int = 0

    def give_to(self, keepers: Iterable[NodeSession]) -> None:
        """These get the next entry. All is news to whoever has come, or come back: with a connection entries may be lost."""
        here = frozenset(keepers)
        if not here <= self.keepers:
            self.told, self.last, self.since = {}, None, None
        self.keepers = here

    def begin(self, entry: RecordsEntry) -> None:
        """Another entry is made: the last one stays as it is, unless that is the same one."""
        if self.last is not None and self.last[0] != entry:
            self.told |= self.last[1]
            self.last = None

    def keep(self, records: JobRecords, stamps: Mapping[Key, Stamp]) -> None:
        """An entry was given to its keepers; of what has been concluded nothing more is remembered."""
        has = {(record.epoch, record.number) for record in records.rounds}
        if records.entry.rounds % RECORDS_EVERY == 0:
            self.last = records.entry, {key: stamp for key, stamp in stamps.items() if key in has}
            self.since = min((number for _, number in records.may_wait), default=records.run.done)
        self.told = {key: stamp for key, stamp in self.told.items() if key in stamps}


async def _stamps(tx: Transaction, job: str, after: int) -> dict[Key, Stamp]:
    """How every round that is over stands, with what belongs to it."""
    found: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    over = (col(RoundRecord.state).in_(("complete", "void")),)
    parts: tuple[tuple[type[Any], Column[int], tuple[Condition, ...]], ...] = (
        (RoundRecord, col(RoundRecord.number), over),
        (CommitRecord, col(CommitRecord.round), ()),
        (Audit, col(Audit.round), ()),
    )
    for kind, number, where in parts:
        by = (col(kind.epoch), number)
        sums = await tx.sums(kind, col(kind.version), by, col(kind.job).equals(job), number > after, *where)
        for (epoch, place), counted in sums.items():
            key = int(epoch or 0), int(place or 0)
            if kind is RoundRecord or key in found:
                found[key].append(counted)
    return {key: tuple(stands) for key, stands in found.items()}


async def _may_wait(tx: Transaction, job: str) -> set[Key]:
    """Rounds that have shares which wait for a look."""
    by = (col(CommitRecord.epoch), col(CommitRecord.round))
    of_job, pending = col(CommitRecord.job).equals(job), col(CommitRecord.state).equals("pending")
    found = await tx.sums(CommitRecord, col(CommitRecord.amount), by, of_job, pending)
    return {(int(epoch or 0), int(number or 0)) for epoch, number in found}


async def _read(tx: Transaction, job: Job, run: Run, wanted: set[Key], earlier: Iterable[Key]) -> JobRecords:
    """A job as it is stored, with these rounds."""
    name, numbers = job.id, sorted({number for _, number in wanted})
    rounds = await tx.find(RoundRecord, col(RoundRecord.job).equals(name), col(RoundRecord.number).in_(numbers))
    commits = await tx.find(CommitRecord, col(CommitRecord.job).equals(name), col(CommitRecord.round).in_(numbers))
    audits = await tx.find(Audit, col(Audit.job).equals(name), col(Audit.round).in_(numbers))
    return JobRecords(
        job,
        msgspec.structs.replace(run, round=None),
        tuple(await tx.find(Lease, col(Lease.job).equals(name), col(Lease.state).in_(("starting", "ready")))),
        tuple([record for record in rounds if (record.epoch, record.number) in wanted]),
        tuple([commit for commit in commits if (commit.epoch, commit.round) in wanted]),
        tuple([audit for audit in audits if (audit.epoch, audit.round) in wanted]),
        tuple(await tx.find(OutboxRecord, col(OutboxRecord.job).equals(name), newest=True, limit=MAX_ROWS)),
        tuple(sorted({*earlier} - wanted)),
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


async def sealed(tx: Transaction, seal: RecordsSeal, job: str, told: ToldRounds) -> tuple[JobRecords, bytes] | None:
    """An entry that nodes take, and that ``told`` knows of; None where the job has no run yet, or very many seats."""
    jobs, runs = await tx.find(Job, col(Job.id).equals(job)), await tx.find(RunRecord, col(RunRecord.job).equals(job))
    if not jobs or not runs:
        return None
    run = runs[0].run
    told.begin(RecordsEntry(job, run.epoch, run.done))
    waits = await _may_wait(tx, job)
    oldest = min((number for _, number in waits), default=run.done)
    since = oldest if told.since is None else min(oldest, told.since)
    stamps = await _stamps(tx, job, min(run.done - WINDOW, since) - 1)
    news = [key for key in sorted(stamps, key=_age) if stamps[key] != told.told.get(key)]
    told.size, tried = max(told.size - 1, 0), 0
    for place, (window, more) in enumerate(SIZES[told.size :], told.size):
        wanted = {key for key in stamps if key[1] >= run.done - window}
        old = [key for key in news if key not in wanted]
        if (window, True) == next(((w, len(old) <= m) for w, m in SIZES[place + 1 :]), None):
            continue  # The next is the same.
        records = await _read(tx, jobs[0], run, wanted | set(old[:more]), waits | set(old[more:]))
        data = seal.seal(records)
        if len(data) <= MAX_RECORDS:
            told.size = place if tried else told.size
            told.keep(records, stamps)
            return records, data
        tried += 1
    LOG.warning("the records of job %s are too long for its nodes to keep: %d bytes", job, len(data))
    return None


def _age(key: Key) -> tuple[int, int]:
    epoch, number = key
    return number, epoch


def newest_first(entries: Sequence[JobRecords]) -> list[JobRecords]:
    """By how far their job was."""
    return sorted(entries, key=lambda one: one.entry.stands, reverse=True)

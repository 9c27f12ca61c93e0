"""Buckets of submitters' own: a job's verified checkpoints and its finished model are sent there, as objects.

    PREFIX/JOB/model.zip                                  the finished model
    PREFIX/JOB/round-000016/stage-0.safetensors           a stage of the checkpoint after 16 rounds

A loop sends what is due and tries again with growing pauses. An object is under its name once it is whole. The server is a
stranger's: it is reached at public addresses only, and through no proxy (``services.core.egress``).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Protocol

import msgspec

from common.clock import Clock
from common.untrusted_text import untrusted
from coordinator.domain.job import LIVE, Job, JobState
from coordinator.errors import (
    ConflictError,
    CottageError,
    FilesAwayError,
    InvalidError,
    NotFoundError,
    StoreAwayError,
    StoreError,
    UnavailableError,
)
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.artifacts.bucket.address import parse_bucket
from coordinator.services.artifacts.bucket.client import BucketClient, opened, part_bytes
from coordinator.services.artifacts.checkpoints import Checkpoints
from coordinator.services.core.context import Context
from coordinator.services.core.egress import ForbiddenAddressError, outside_sockets
from coordinator.services.payments.escrows import check_delivery
from coordinator.store.ports import Condition, Transaction, col
from coordinator.store.records import OutputRecord
from protocol.rest import api
from transport.relay.peer_policy import Network

ATTEMPTS: Final = 8
FIRST_PAUSE, MAX_PAUSE = 10.0, 6 * 3600.0  # Between attempts, four times as long each time: two days in all.
LOOK_S: Final = 5.0
NEXT_LOOK_S: Final = 60.0  # At a job that has nothing to send yet.
MAX_AT_ONCE: Final = 4  # Each takes a part of the coordinator's line.
MAX_LOOKED_AT: Final = 256
# For all that is due of one job; a line that takes longer is cut, and goes on with the next object.
SEND_S: Final = 6 * 3600.0
TRIES: Final = 3
MAX_SENT: Final = 4_000  # Objects of one job.
MAX_ANSWER: Final = 500


class _ReplacedError(Exception):
    """The submitter has named another bucket, or none, meanwhile."""


class OpenOutput(Protocol):
    """Opens a bucket that a submitter has named."""

    def __call__(self, record: OutputRecord) -> AbstractAsyncContextManager[BucketClient]:
        """Raises as what is done with it does."""


class OutsideBuckets:
    """Opens them at public addresses, with the submitter's key and nothing of this machine's. ``allowed``: other networks."""

    def __init__(self, clock: Clock, allowed: Iterable[Network]) -> None:
        self._clock = clock
        self._sockets = outside_sockets(allowed)

    @asynccontextmanager
    async def __call__(self, record: OutputRecord) -> AsyncIterator[BucketClient]:
        """As ``OpenOutput``."""
        server = record.endpoint or f"https://s3.{record.region}.amazonaws.com"
        address = parse_bucket(record.url)
        async with opened(
            address,
            self._clock,
            TRIES,
            self._sockets,
            endpoint_url=server,
            region_name=record.region,
            aws_access_key_id=record.key,
            aws_secret_access_key=record.secret,
        ) as bucket:
            yield bucket


class OutputBuckets:
    """Keeps what is named, and sends."""

    def __init__(self, context: Context, artifacts: ArtifactStore, checkpoints: Checkpoints, open_: OpenOutput) -> None:
        self._context = context
        self._artifacts = artifacts
        self._checkpoints = checkpoints
        self._open = open_
        self._busy: set[str] = set()  # Accounts.

    async def get(self, job: str) -> api.OutputView:
        """What is named for a job.

        Raises:
            NotFoundError: nothing is.
        """
        async with self._context.everywhere.transaction() as tx:
            return _view(await _found(tx, job))

    async def put(self, job: str, account_id: str, wanted: api.NewOutput) -> api.OutputView:
        """Name a bucket for a job; it begins anew with what has not been sent to the same one.

        Raises:
            InvalidError: it cannot be one. ConflictError: the job has ended without a model.
        """
        try:
            parse_bucket(wanted.url)
        except ValueError as error:
            raise InvalidError(str(error), "url") from error
        now = self._context.clock.time()
        async with self._context.store.transaction() as tx:
            stored = await tx.get(Job, job)
            if stored.state not in LIVE and stored.model is None:
                raise ConflictError(f"job {job} is {stored.state} and has no model that could be sent anywhere", "job")
            before = await tx.find(OutputRecord, col(OutputRecord.job).equals(job))
            made = OutputRecord(
                job,
                account_id,
                wanted.url,
                wanted.endpoint,
                wanted.region,
                wanted.key,
                wanted.secret,
                wanted.checkpoints,
                now,
                now,
            )
            if not before:
                return _view(await tx.insert(made))
            same = (before[0].url, before[0].endpoint) == (made.url, made.endpoint)
            sent = before[0].sent if same else ()
            return _view(await tx.update(msgspec.structs.replace(made, sent=sent, version=before[0].version)))

    async def remove(self, job: str) -> None:
        """Send nothing more, and forget the key. NotFoundError: nothing was named."""
        self._context.check_own(job)
        async with self._context.store.transaction() as tx:
            await tx.delete(await _found(tx, job))

    async def run(self) -> None:
        """Send for ever; a slow server holds up nobody else."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._begin(group)
                await self._context.clock.sleep(LOOK_S)

    async def send(self) -> int:
        """Try what is due, once, to its end; how many jobs that was."""
        async with asyncio.TaskGroup() as group:
            return await self._begin(group)

    async def _begin(self, group: asyncio.TaskGroup) -> int:
        """Begin with what is due: one job of an account at a time, and so many in all."""
        where: tuple[Condition, ...] = (
            col(OutputRecord.state).equals("waiting"),
            col(OutputRecord.due) < self._context.clock.time() + 1e-6,
        )
        begun = 0
        async with self._context.store.transaction() as tx:
            due = await tx.find(OutputRecord, *where, limit=MAX_LOOKED_AT)
        for record in due:
            if record.account_id not in self._busy and len(self._busy) < MAX_AT_ONCE:
                self._busy.add(record.account_id)
                group.create_task(self._send_held(record), name="output bucket")
                begun += 1
        return begun

    async def _send_held(self, record: OutputRecord) -> None:
        try:
            await self._send(record)
        finally:
            self._busy.discard(record.account_id)

    async def _send(self, record: OutputRecord) -> None:
        """All that a job has by now; each object that has arrived is noted at once."""
        try:
            job, wanted = await self._wanted(record)
        except ConflictError:  # Its work is not paid, and may not be: nothing is handed out meanwhile.
            with suppress(_ReplacedError):
                await self._note(record, due=self._context.clock.time() + NEXT_LOOK_S)
            return
        missing = [(name, digest) for name, digest in wanted if name not in record.sent]
        try:
            if missing:
                async with asyncio.timeout(SEND_S), self._open(record) as bucket:
                    for name, digest in missing:
                        await self._send_one(bucket, f"{record.job}/{name}", digest)
                        record = await self._note(record, sent=(*record.sent, name)[-MAX_SENT:], attempts=0, answer="")
            over = {"state": "sent", "secret": ""} if job.state not in LIVE else {}
            await self._note(record, due=self._context.clock.time() + NEXT_LOOK_S, **over)
        except _ReplacedError:
            return
        except StoreAwayError as error:
            if not isinstance(error, FilesAwayError):
                raise
            await self._refused(record, error)
        except (CottageError, TimeoutError) as error:
            await self._refused(record, error)

    async def _wanted(self, record: OutputRecord) -> tuple[Job, list[tuple[str, str]]]:
        """What belongs into the bucket by now: names and artifacts."""
        async with self._context.store.transaction() as tx:
            job = await tx.get(Job, record.job)
            await check_delivery(tx, job, self._context.clock.time())
        found: list[tuple[str, str]] = []
        if record.checkpoints:
            for point in reversed(await self._checkpoints.list(record.job)):
                if point.verified:
                    round_ = f"round-{point.round:06}"
                    found += [(f"{round_}/stage-{part.stage}.safetensors", part.sha256) for part in point.parts]
        if job.state is JobState.SETTLED and job.model is not None:
            found.append(("model.zip", job.model))
        return job, found

    async def _send_one(self, bucket: BucketClient, name: str, digest: str) -> None:
        with _own_store():
            size = await self._artifacts.size(digest)
        length, buffer, count = part_bytes(size), bytearray(), 0
        if size <= length:
            await bucket.put(name, b"".join([piece async for piece in self._pieces(digest, size)]))
            return
        upload = await bucket.begin(name)
        try:
            async for piece in self._pieces(digest, size):
                buffer += piece
                while len(buffer) >= length:
                    count += 1
                    await upload.send(count, bytes(buffer[:length]))
                    del buffer[:length]
            if buffer:
                count += 1
                await upload.send(count, bytes(buffer))
            await upload.complete(count)
        except BaseException:
            with suppress(FilesAwayError):
                await asyncio.shield(bucket.abort(upload.upload))
            raise

    async def _pieces(self, digest: str, size: int) -> AsyncIterator[bytes]:
        with _own_store():
            async for piece in self._artifacts.read(digest, 0, size):
                yield piece

    async def _refused(self, record: OutputRecord, error: Exception) -> None:
        forbidden = _forbidden(error)
        said = forbidden or f"not all has arrived within {SEND_S / 3600:g} hours"
        if isinstance(error, CottageError) and not forbidden:
            said = error.cause if isinstance(error, FilesAwayError) else error.detail
        own = isinstance(error, UnavailableError) and not isinstance(error, FilesAwayError)
        attempts = record.attempts + (not own)
        last = bool(forbidden) or isinstance(error, StoreError | NotFoundError) or attempts >= ATTEMPTS
        due = self._context.clock.time() + min(FIRST_PAUSE * 4 ** max(0, attempts - 1), MAX_PAUSE)
        ended = {"state": "failed", "secret": ""} if last else {}
        with suppress(_ReplacedError):
            await self._note(record, attempts=attempts, answer=said[:MAX_ANSWER], due=due, **ended)

    async def _note(self, record: OutputRecord, **changes: Any) -> OutputRecord:
        """Keep how far it is; _ReplacedError where another bucket, or none, was named meanwhile."""
        if "answer" in changes:
            changes["answer"] = untrusted(str(changes["answer"]))
        async with self._context.store.transaction() as tx:
            found = await tx.find(OutputRecord, col(OutputRecord.job).equals(record.job))
            if not found or found[0].version != record.version:
                raise _ReplacedError
            return await tx.update(msgspec.structs.replace(record, **changes))


@contextmanager
def _own_store() -> Iterator[None]:
    """The coordinator's own store: its faults are not the submitter's, who is not told where it is."""
    try:
        yield
    except FilesAwayError as error:
        raise UnavailableError(error.detail) from error


def _forbidden(error: BaseException | None) -> str:
    """What was said of an address that nobody may name, where that is the fault."""
    while error is not None:
        if isinstance(error, ForbiddenAddressError):
            return str(error)
        error = error.__cause__ or error.__context__
    return ""


async def _found(tx: Transaction, job: str) -> OutputRecord:
    found = await tx.find(OutputRecord, col(OutputRecord.job).equals(job))
    if not found:
        raise NotFoundError(f"no bucket is named for job {job}: name one with `cottage output`", "job")
    return found[0]


def _view(record: OutputRecord) -> api.OutputView:
    return api.OutputView(
        url=record.url,
        endpoint=record.endpoint,
        region=record.region,
        checkpoints=record.checkpoints,
        state=record.state,
        sent=record.sent,
        attempts=record.attempts,
        answer=record.answer,
        due=record.due,
    )

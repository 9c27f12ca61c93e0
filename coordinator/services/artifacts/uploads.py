"""Uploads that survive a cut line and a coordinator that was restarted in between.

    POST   names the length, the purpose and the format            -> an id, offset 0
    PATCH  brings bytes from the offset on, as many as the line lets through; the rest with another PATCH
    HEAD   says how far it is, GET says it in JSON
    DELETE gives it up
    after the last byte a look at the file's form (``datasets``); what passes becomes an artifact, what does not is deleted

Two files on the disk are an upload's whole state, so nothing else must survive: the bytes (their number is the offset) and
a small document. Whoever sends bytes at the right offset is the writer; a writer whose line died unnoticed is pushed aside.
"""

import asyncio
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from common.clock import Clock, SystemClock
from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.errors import (
    ChecksumError,
    ConflictError,
    CottageError,
    FullError,
    InvalidError,
    NotFoundError,
    TooLargeError,
    TooManyError,
    UnavailableError,
)
from coordinator.services.arrays import input_bundles
from coordinator.services.arrays.published_images import check_image
from coordinator.services.artifacts.artifacts import ArtifactStore, file_digest, no_room
from coordinator.services.artifacts.datasets import NAMELESS_WEIGHTS, check_form, check_tokenizer, check_weights
from coordinator.services.artifacts.disk_space import JOBS_BYTES, MIN_FREE_BYTES, Room
from protocol.rest.api import NewUpload, Upload

MAX_OPEN = 256  # Unfinished uploads at a time, so that nobody can fill the disk with empty promises.
MAX_OPEN_OF_ACCOUNT = 32  # A model in shards and its dataset; one tenant cannot keep the others out.
MAX_OPEN_BYTES = 400 << 30  # Twice the largest single upload.
IDLE_S = 48 * 3600.0  # An upload that nobody continues for two days is given up,
EMPTY_S, STALE_S = 600.0, 6 * 3600.0  # and where others need its place, after so long: without any byte, and with some.
RETRY_S = 600.0
MAX_ENDED_OF_ACCOUNT = 64  # Whose ends are remembered for who missed the answer; beyond it the oldest are forgotten.
MAX_ENDED = 4_096
MAX_STATE_BYTES = 16 << 10


class FileRegistry(Protocol):
    """Remembers whose an artifact is, and how much an account may have."""

    async def keep(self, account_id: str, artifact: str, new: NewUpload) -> None:
        """An account has uploaded an artifact."""

    async def check_room(self, account_id: str, more: int, promised: int, files: int = 1) -> None:
        """FullError unless an account may have ``more`` bytes; ``promised`` are on their way to all accounts."""


class _State(msgspec.Struct):
    """What stands in the document. ``problem``: why the check refused it (detail, field), kept for who missed the answer."""

    new: NewUpload
    touched: float
    artifact: str | None = None
    problem: tuple[str, str] | None = None
    account_id: str = LOCAL_ACCOUNT


@dataclass(frozen=True)
class Checksum:
    """What the bytes of one PATCH must hash to. ``algorithm``: a name of ``hashlib``."""

    algorithm: str
    digest: bytes


class _Slot:
    """One upload in this process: its lock, and who may write to it now."""

    def __init__(self) -> None:
        self.lock: Final = asyncio.Lock()
        self.writer = 0


class UploadService:
    """Receives files piece by piece and turns those that pass their check into artifacts."""

    def __init__(
        self,
        root: Path,
        artifacts: ArtifactStore,
        clock: Clock | None = None,
        max_open: int = MAX_OPEN,
        max_open_bytes: int = MAX_OPEN_BYTES,
        kept: FileRegistry | None = None,
        room: Room | None = None,
    ) -> None:
        """Continue with what lies in ``root``. ``kept`` None: files are nobody's. ``room``: of the disk; None: it has none."""
        self._root = root
        self._artifacts = artifacts
        self._clock = clock or SystemClock()
        self._max_open = max_open
        self._max_open_bytes = max_open_bytes
        self._kept = kept
        self._room = room or Room(root)
        self._slots: dict[str, _Slot] = {}
        root.mkdir(parents=True, exist_ok=True)
        self._states = {path.stem: _decoded(path) for path in root.glob("*.json")}
        self._room.also(self._to_come)

    async def check_owner(self, upload: str, account_id: str) -> None:
        """NotFoundError unless the upload is there and the account's."""
        if self._load(upload).account_id != account_id:
            raise _unknown(upload)

    async def create(self, new: NewUpload, account_id: str = LOCAL_ACCOUNT) -> Upload:
        """Begin an upload of an account.

        Raises:
            FullError: it does not fit beside the other unfinished ones, or on the disk, or into what the account may have.
            TooManyError: too many of the account are unfinished.
        """
        self._make_room(new, account_id)
        if self._kept is not None:
            own = sum(state.new.length for _, state in self._unfinished() if state.account_id == account_id)
            promised = sum(state.new.length for _, state in self._unfinished())
            await self._kept.check_room(account_id, own + new.length, promised + new.length)
            self._make_room(new, account_id)  # Others may have begun meanwhile.
        upload = secrets.token_hex(16)
        self._data(upload).touch()
        self._save(upload, _State(new, self._clock.time(), account_id=account_id))
        return self._view(upload, self._load(upload))

    async def get(self, upload: str) -> Upload:
        """How far an upload is.

        Raises:
            NotFoundError: there is none of this id; it may have been given up.
            InvalidError: it was complete and its check refused it.
        """
        return self._view(upload, self._load(upload))

    async def append(
        self, upload: str, offset: int, chunks: AsyncIterator[bytes], checksum: Checksum | None = None
    ) -> Upload:
        """Write bytes from ``offset`` on; the last byte starts the check.

        Args:
            checksum: without it, what came before a cut stays; with it, bytes stay only where all came and are the right ones.
        Raises:
            ChecksumError: they are not.
            ConflictError: ``offset`` is not where the upload stands, or somebody else has gone on with it meanwhile.
            TooLargeError: more bytes than the upload's length; none of the surplus is kept.
            InvalidError: the check refused the file; the bytes are deleted.
        """
        state = self._load(upload)
        if state.artifact is not None:
            return self._view(upload, state)
        slot = self._slots.setdefault(upload, _Slot())
        held = self._held(upload)
        if offset != held:
            raise ConflictError(f"the upload holds {held:,} bytes, not {offset:,}: go on from {held}", "offset")
        slot.writer += 1
        mine = slot.writer
        hasher = hashlib.new(checksum.algorithm, usedforsecurity=False) if checksum is not None else None
        sound = checksum is None
        try:
            async for chunk in chunks:
                async with slot.lock:
                    self._write_one(slot, mine, upload, state.new.length, chunk)
                if hasher is not None:
                    hasher.update(chunk)
            sound = hasher is None or hasher.digest() == (checksum and checksum.digest)
            if not sound:
                raise ChecksumError(f"the bytes from {offset:,} on arrived damaged: send them again", "Upload-Checksum")
        finally:
            if slot.writer == mine:
                if not sound:
                    with self._data(upload).open("rb+") as file:
                        file.truncate(offset)
                await self._touch(upload)
        if self._held(upload) < state.new.length:
            return await self.get(upload)
        async with slot.lock:
            return await self._complete(upload)

    async def take(self, new: NewUpload, chunks: AsyncIterator[bytes], account_id: str = LOCAL_ACCOUNT) -> Upload:
        """A whole file at once, of any length up to ``new.length``: a plain form, which cannot resume.

        Raises: as ``create`` and ``append``.
        """
        begun = await self.create(new, account_id)
        path = self._data(begun.id)
        try:
            await self.append(begun.id, 0, chunks)
            length = path.stat().st_size if path.exists() else new.length
            if length == 0:
                raise InvalidError("the file is empty: choose one with something in it", new.purpose)
            if length < new.length:
                shorter = msgspec.structs.replace(new, length=length)
                self._save(begun.id, _State(shorter, self._clock.time(), account_id=account_id))
                return await self._complete(begun.id)
            return await self.get(begun.id)
        except BaseException:  # A line that is cut, too: nobody knows the upload's id, so nobody goes on with it.
            self._forget(begun.id)
            raise

    async def terminate(self, upload: str) -> None:
        """Give an upload up: its bytes go. What became an artifact already stays one.

        Raises:
            NotFoundError: there is none of this id.
        """
        self._load(upload)
        if (slot := self._slots.get(upload)) is not None:
            slot.writer += 1  # Whoever is writing is told so.
        self._forget(upload)

    def _write_one(self, slot: _Slot, mine: int, upload: str, length: int, chunk: bytes) -> None:
        """One chunk, in the event loop: a local disk's cache takes a megabyte in less time than a thread takes to start."""
        if slot.writer != mine:
            raise ConflictError("another connection has gone on with this upload: ask for its offset again", "offset")
        with self._data(upload).open("ab") as file:
            if file.tell() + len(chunk) > length:
                raise TooLargeError(f"more than the {length:,} bytes that this upload was begun with", "length")
            try:
                file.write(chunk)
            except OSError as error:
                raise no_room(error) from error

    async def _complete(self, upload: str) -> Upload:
        """Check a file that is whole. Safe to repeat: after a crash the next PATCH comes here again."""
        state = msgspec.structs.replace(self._load(upload))  # What comes of it counts once it is stored.
        if state.artifact is None and state.problem is None:
            path = self._data(upload)
            try:
                if state.new.purpose == input_bundles.PURPOSE:
                    state.artifact = await self._take_apart(path, state)
                else:
                    await asyncio.to_thread(_check, path, state.new)
                    state.artifact = await self._artifacts.put_file(path, link=True, expect=state.new.sha256)
            except UnavailableError:
                raise  # The disk is full: the bytes stay for another try.
            except CottageError as error:
                state.problem = (error.detail, error.field)
                self._save(upload, state)
                path.unlink()
                raise
            if self._kept is not None and state.new.purpose != input_bundles.PURPOSE:
                await self._kept.keep(state.account_id, state.artifact, state.new)
            self._save(upload, state)
            path.unlink()  # Only now: a crash before this line finds the bytes here and checks them again.
        self._slots.pop(upload, None)
        return self._view(upload, state)

    async def _take_apart(self, path: Path, state: _State) -> str:
        """Many small inputs in one archive: each becomes an artifact, and a file of the account."""
        digest = await asyncio.to_thread(file_digest, path)
        if state.new.sha256 not in (None, digest):
            raise InvalidError(
                f"the file arrived with SHA-256 {digest}, not {state.new.sha256}: send it again", "sha256"
            )
        found = await asyncio.to_thread(input_bundles.looked_through, path)
        if self._kept is not None:
            await self._kept.check_room(state.account_id, 0, 0, len(found))
        await input_bundles.take_apart(path, found, self._artifacts)
        for one in found:
            if self._kept is not None:
                await self._kept.keep(state.account_id, one.path, NewUpload(one.size, state.new.name, "input"))
        return digest

    def _make_room(self, new: NewUpload, account_id: str) -> None:
        """See that there is a place for one more; who has not gone on for long makes place for others.

        Raises: as ``create``.
        """
        self._forget_ended()
        open_ = dict(self._unfinished())
        own = sum(state.account_id == account_id != LOCAL_ACCOUNT for state in open_.values())
        if own >= MAX_OPEN_OF_ACCOUNT:
            raise TooManyError(f"{own} uploads of yours are unfinished: finish or give up one", RETRY_S)
        idle = self._idle(open_, account_id)
        while len(open_) >= self._max_open:
            if (upload := next(idle, None)) is None:
                raise FullError(f"{len(open_)} uploads are unfinished: finish one, or try again later", RETRY_S)
            del open_[upload]
        while new.length > (room := self._left(open_)):
            if (upload := next(idle, None)) is None:
                problem = f"{new.length:,} bytes: there is room for {max(0, room):,} now; try later or send less"
                raise FullError(problem, RETRY_S, "length")
            del open_[upload]

    def _left(self, open_: Collection[str]) -> int:
        """Bytes that a new upload may have beside these."""
        promised = sum(self._states[upload].new.length for upload in open_)
        return min(self._max_open_bytes - promised, self._room.left(MIN_FREE_BYTES + JOBS_BYTES))

    def _unfinished(self) -> Iterator[tuple[str, _State]]:
        for upload, state in self._states.items():
            if state.artifact is None and state.problem is None:
                yield upload, state

    def _to_come(self) -> int:
        return sum(max(0, state.new.length - self._held(upload)) for upload, state in self._unfinished())

    def _idle(self, open_: Mapping[str, _State], account_id: str) -> Iterator[str]:
        """Give up what others have begun and not gone on with, one by one: first what has no bytes, the oldest first."""
        now = self._clock.time()
        waiting = [
            (self._held(upload) > 0, state.touched, upload)
            for upload, state in open_.items()
            if state.account_id != account_id and now - state.touched > EMPTY_S
        ]
        for begun, touched, upload in sorted(waiting):
            if not begun or now - touched > STALE_S:
                self._forget(upload)
                yield upload

    def _forget_ended(self) -> None:
        """Give up what is too old, and forget the oldest of too many that have ended."""
        now, ended, own = self._clock.time(), 0, Counter[str]()
        for upload, state in sorted(self._states.items(), key=lambda item: item[1].touched, reverse=True):
            over = state.artifact is not None or state.problem is not None
            ended += over
            own[state.account_id] += over
            many = over and (ended > MAX_ENDED or own[state.account_id] > MAX_ENDED_OF_ACCOUNT)
            if many or now - state.touched > IDLE_S:
                self._forget(upload)

    async def _touch(self, upload: str) -> None:
        """Note when the last bytes came, with the bytes themselves safe on the disk first."""
        with suppress(NotFoundError):
            state = self._load(upload)
            if self._data(upload).exists():
                await asyncio.to_thread(_sync, self._data(upload))
            state.touched = self._clock.time()
            self._save(upload, state)

    def _held(self, upload: str) -> int:
        path = self._data(upload)
        return path.stat().st_size if path.exists() else 0

    def _view(self, upload: str, state: _State) -> Upload:
        if state.problem is not None:
            raise InvalidError(*state.problem)
        whole = state.artifact is not None
        offset = state.new.length if whole else self._held(upload)
        return Upload(upload, state.new.length, offset, state.artifact, None if whole else state.touched + IDLE_S)

    def _load(self, upload: str) -> _State:
        try:
            return self._states[_named(upload)]
        except KeyError:
            raise _unknown(upload) from None

    def _save(self, upload: str, state: _State) -> None:
        """Replace the document in one step: a crash leaves the old one or the new one."""
        fresh = self._document(upload).with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(state))
        _sync(fresh)
        os.replace(fresh, self._document(upload))
        self._states[upload] = state

    def _forget(self, upload: str) -> None:
        self._slots.pop(upload, None)
        self._states.pop(upload, None)
        self._data(upload).unlink(missing_ok=True)
        self._document(upload).unlink(missing_ok=True)

    def _data(self, upload: str) -> Path:
        return self._root / f"{_named(upload)}.part"

    def _document(self, upload: str) -> Path:
        return self._root / f"{_named(upload)}.json"


def _named(upload: str) -> str:
    """The id, if it can be one: it becomes a file name."""
    if len(upload) != 32 or not set(upload) <= set("0123456789abcdef"):
        raise _unknown(upload)
    return upload


def _decoded(path: Path) -> _State:
    return msgspec.json.decode(path.read_bytes()[:MAX_STATE_BYTES], type=_State)


def _unknown(upload: str) -> NotFoundError:
    return NotFoundError(f"no upload {upload[:40]!r} is here: begin a new one", "upload")


def _check(path: Path, new: NewUpload) -> None:
    match new.purpose:
        case "dataset":
            check_form(path, new.format, new.name)
        case "weights":
            check_weights(path, new.name or NAMELESS_WEIGHTS)
        case "tokenizer":
            check_tokenizer(path)
        case "image":
            check_image(path)
        case "input" | "inputs":
            pass  # Of an array job: a container reads it, and nobody here.


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())

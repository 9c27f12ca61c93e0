"""Records of the rounds that a lease may still have to open, on the disk: what is left when the agent, or the machine, dies.

::

    records/LEASE-FENCE/lease.sealed              what the lease is, as it was assigned
                        EPOCH-ROUND.steps.sealed  what the steps of a round can be opened from
                        EPOCH-ROUND.outer.sealed  the same for its outer step

The state that a round began with is on the ``Shelf``, where it lies for peers anyway; it stays there as long as a record
needs it. Files are written beside and then renamed, and each is sealed by segments, so one that was torn, changed or is another's
is none. They must outlive the agent: their keys follow from the node's own key, as the shelf's do (decision 32).
"""

import contextlib
import hashlib
import hmac
import os
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from common.encrypted_files import SealedFile, SealedWriter
from common.errors import SealedFileError
from desktop.agent.base.log import LOG
from desktop.agent.jobs.state_store import Shelf, sync_file
from protocol.audit import KEPT_ROUNDS, MAX_AUDIT_BYTES
from protocol.codec import MessageError, decode, encode
from protocol.ids import Count, Digest, RoundIndex
from protocol.node import Assign
from protocol.worker import RecordPart, RestoredPart

KEPT_S = 86_400.0  # No coordinator waits for longer; a job's data should not lie here for ever.
SYNC_S = 30.0  # The system writes by itself what is older; more often than that a disk would be worn for short rounds.
_LEASE, _SEALED, _PART = "lease.sealed", ".sealed", ".part"
_PURPOSE = b"cottage/records/1\0"
_LENGTH = struct.Struct("<I")
_MAX_LEASE = 4 << 20


class RoundStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a round began with, by the names under which the shelf has it. None: the job's initial state; moments of zero."""

    state: Digest | None = None
    moments: Digest | None = None


class RoundStarts:
    """What the newest rounds of a lease began with."""

    def __init__(self) -> None:
        self._starts: dict[int, RoundStart] = {0: RoundStart()}

    def set(self, round_index: int, start: RoundStart | None) -> None:
        """A round begins with this; None: it is not known what with."""
        self._starts.pop(round_index, None)
        if start is not None:
            self._starts[round_index] = start
        while len(self._starts) > KEPT_ROUNDS + 2:
            del self._starts[next(iter(self._starts))]

    def of(self, round_index: int) -> RoundStart | None:
        """What a round began with, where that is known."""
        return self._starts.get(round_index)


class _KeptLease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    coordinator: str
    assign: Assign


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stands in front of a record."""

    epoch: Count
    round: RoundIndex
    kind: Literal["steps", "outer"]
    start: RoundStart


@dataclass(frozen=True)
class FoundLease:
    """A lease whose agent, or worker, died, with whole records of these rounds, counted from 0. ``why``: how, where known."""

    assign: Assign
    rounds: tuple[int, ...]
    why: str = ""


class CrashRecords:
    """The folder of all of them. Every method may block."""

    def __init__(
        self, folder: Path, secret: bytes, shelf: Shelf, coordinator: str, limit: int, time: Callable[[], float]
    ) -> None:
        """Keep at most ``limit`` bytes in ``folder``, readable with the node's ``secret`` only.

        Args:
            coordinator: whose leases these are. time: Unix seconds.
        """
        self._folder = folder
        self._secret = secret
        self._shelf = shelf
        self._coordinator = coordinator
        self._time = time
        self._synced = 0.0
        self.limit = limit
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    # --- after a start ------------------------------------------------------------------------------------------------------

    def found(self) -> list[FoundLease]:
        """Leases that an earlier process has left with something to show; all else in the folder is deleted."""
        leases: list[FoundLease] = []
        for folder in sorted(self._folder.iterdir()):
            lease = self._found(folder)
            if lease is not None:
                leases.append(lease)
            elif folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
            else:
                folder.unlink(missing_ok=True)
        return leases

    def found_of(self, assign: Assign, why: str) -> FoundLease | None:
        """The same of one lease whose worker has died."""
        lease = self._found(self._folder / _name(assign)) if self.has(assign) else None
        return None if lease is None else replace(lease, why=why)

    def _found(self, folder: Path) -> FoundLease | None:
        data = self._read(folder / _LEASE)
        try:
            kept = decode(data, _KeptLease, _MAX_LEASE) if data is not None else None
        except MessageError:
            return None  # Of a version that spells it otherwise.
        if kept is None or folder.name != _name(kept.assign):
            return None
        newest = max(file.stat().st_mtime for file in folder.iterdir())
        if kept.coordinator != self._coordinator or self._time() - newest > KEPT_S:
            return None
        whole: dict[int, _Head] = {}
        for file in sorted(folder.iterdir()):
            head = None if file.name == _LEASE else self._whole(file)
            if head is not None and head.kind == "steps":
                whole[head.round] = head
            elif head is None and file.name != _LEASE:
                file.unlink(missing_ok=True)
        if not whole:
            return None
        self._pin(folder)
        return FoundLease(kept.assign, tuple(sorted(whole)))

    def _whole(self, file: Path) -> _Head | None:
        """The head of a record that can be used; None where it, or what its round began with, is not here whole."""
        record = self._record(file)
        if record is None:
            return None
        start = record[0].start
        named = [digest for digest in (start.state, start.moments) if digest is not None]
        return record[0] if all(self._shelf.whole(digest) is not None for digest in named) else None

    def parts(self, assign: Assign) -> list[tuple[RestoredPart, Callable[[], bytes]]]:
        """What another worker is to be given, round by round: what it began with first. Each is read when it is asked for."""
        parts: dict[RestoredPart, Callable[[], bytes]] = {}
        for file in sorted((self._folder / _name(assign)).glob(f"*-*.*{_SEALED}")):
            head = self._head(file)
            if head is None:
                continue
            start: dict[Literal["state", "moments"], str | None] = {
                "state": head.start.state,
                "moments": head.start.moments,
            }
            for kind, digest in start.items():
                if digest is not None:
                    parts[RestoredPart(head.epoch, head.round, kind)] = partial(self._state, digest)
            parts[RestoredPart(head.epoch, head.round, head.kind)] = partial(self._data, file)
        return list(parts.items())

    def _state(self, digest: str) -> bytes:
        return self._shelf.whole(digest) or b""

    def _data(self, file: Path) -> bytes:
        record = self._record(file)
        return b"" if record is None else record[1]

    # --- while a lease is held ----------------------------------------------------------------------------------------------

    def keep(self, assign: Assign, part: RecordPart, start: RoundStart, data: bytes) -> None:
        """Write a record, and delete those that nobody asks for any more. Where there is no room, there is none of this round."""
        folder = self._folder / _name(assign)
        name = f"{part.epoch}-{part.round}.{part.kind}"
        now = self._time()
        due = now - self._synced >= SYNC_S
        if not (folder / _LEASE).exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            self._write(folder / _LEASE, due, encode(_KeptLease(self._coordinator, assign)))
        self._make_room(folder, part.kind)
        size = len(data)
        if self._bytes(folder) + size > MAX_AUDIT_BYTES or self._bytes(self._folder) + size > self.limit:
            LOG.warning("round %d is not kept on the disk: %s bytes are too many", part.round + 1, f"{size:,}")
            return
        head = encode(_Head(part.epoch, part.round, part.kind, start))
        self._write(folder / (name + _SEALED), due, _LENGTH.pack(len(head)) + head, data)
        self._pin(folder)
        if due:
            self._synced = now
            self._shelf.sync(self._shelf.pinned[folder.name])

    def forget(self, assign: Assign) -> None:
        """A lease is over: nothing of it will be opened any more."""
        name = _name(assign)
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self._shelf.pinned.pop(name, None)

    def has(self, assign: Assign) -> bool:
        """Whether something of a lease is here."""
        return (self._folder / _name(assign)).exists()

    def _make_room(self, folder: Path, kind: str) -> None:
        """For one more of a kind, beside the newest others that a worker would keep."""
        kept = sorted(folder.glob(f"*.{kind}{_SEALED}"), key=_key)
        for old in kept[: len(kept) - KEPT_ROUNDS + 1]:
            old.unlink(missing_ok=True)

    def _pin(self, folder: Path) -> None:
        """Have the shelf keep what is needed."""
        pinned: set[str] = set()
        for file in folder.glob(f"*-*.*{_SEALED}"):
            head = self._head(file)
            if head is not None:
                pinned |= {digest for digest in (head.start.state, head.start.moments) if digest is not None}
        self._shelf.pinned[folder.name] = frozenset(pinned)

    @staticmethod
    def _bytes(folder: Path) -> int:
        return sum(file.stat().st_size for file in folder.rglob(f"*{_SEALED}"))

    # --- files --------------------------------------------------------------------------------------------------------------

    def _write(self, path: Path, sync: bool, *pieces: bytes) -> None:
        """Whole or not there at all, wherever the process dies; with ``sync`` wherever the power fails."""
        writer = SealedWriter(path.with_suffix(_PART), self._key(path))
        try:
            for piece in pieces:
                writer.write(piece)
            writer.finish()
        except OSError:
            writer.abandon()
            raise
        if sync:
            sync_file(writer.path)
        writer.path.replace(path)
        if sync and os.name == "posix":
            sync_file(path.parent)

    def _record(self, path: Path) -> tuple[_Head, bytes] | None:
        data = self._read(path)
        return None if data is None else _split(data)

    def _head(self, path: Path) -> _Head | None:
        """Of a record, without the rest of it."""
        with contextlib.suppress(OSError, SealedFileError), SealedFile(path, self._key(path)) as file:
            (length,) = _LENGTH.unpack(file.read(0, _LENGTH.size))
            split = _split(file.read(0, _LENGTH.size + length))
            return None if split is None else split[0]
        return None

    def _read(self, path: Path) -> bytes | None:
        """What was sealed; None where it is not that any more."""
        try:
            with SealedFile(path, self._key(path)) as file:
                return file.read()
        except (OSError, SealedFileError):
            return None

    def _key(self, path: Path) -> bytes:
        return hmac.digest(self._secret, _PURPOSE + f"{path.parent.name}/{path.name}".encode(), hashlib.sha256)


def _name(assign: Assign) -> str:
    return f"{assign.lease}-{assign.fence}"


def _key(path: Path) -> tuple[int, int]:
    epoch, number = path.name.split(".")[0].split("-")
    return int(epoch), int(number)


def _split(data: bytes) -> tuple[_Head, bytes] | None:
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    rest = _LENGTH.size + length
    try:
        return decode(data[_LENGTH.size : rest], _Head), data[rest:]
    except MessageError:
        return None

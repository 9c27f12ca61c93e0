"""Records of the rounds that a lease may still have to open, on the disk: what is left when the agent, or the machine, dies.

::

    records/LEASE-FENCE/lease.sealed              what the lease is, as it was assigned
                        EPOCH-ROUND.steps.sealed  what the steps of a round can be opened from
                        EPOCH-ROUND.outer.sealed  the same for its outer step

The state that a round began with is on the ``StateStore``, where it lies for peers anyway; it stays there as long as a record
needs it. Files are written beside and then renamed, and each is sealed by segments, so one that was torn, changed or is another's
is none. They must outlive the agent: their keys follow from the node's own key, as the store's do (decision 32).
"""

import contextlib
import hashlib
import hmac
import os
import shutil
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal

import msgspec

from common.encrypted_files import SealedFile, SealedWriter
from common.errors import SealedFileError
from desktop.agent.base.log import LOG
from desktop.agent.base.payloads import FilePayload, Payload, as_payload, read_pieces
from desktop.agent.jobs.state_store import StateStore, sync_file
from protocol.audit import KEPT_ROUNDS, MAX_KEPT_RECORD
from protocol.codec import MessageError, decode, encode
from protocol.ids import Count, Digest, RoundIndex
from protocol.node import Assign
from protocol.worker import RecordPart, RecordRecall, RestoredPart

KEPT_S = 86_400.0  # No coordinator waits for longer; a job's data should not lie here for ever.
SYNC_S = 30.0  # The system writes by itself what is older; more often than that a disk would be worn for short rounds.
_LEASE, _SEALED, _PART = "lease.sealed", ".sealed", ".part"
_PURPOSE = b"cottage/records/1\0"
_LENGTH = struct.Struct("<I")
_MAX_LEASE = 4 << 20
Kind = Literal["state", "moments", "steps", "outer"]


class RoundStart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a round began with, by the names under which the store has it. None: the job's initial state; moments of zero."""

    state: Digest | None = None
    moments: Digest | None = None

    def names(self) -> list[Digest]:
        """What of both is on the store."""
        return [digest for digest in (self.state, self.moments) if digest is not None]


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
    kind: Literal["state", "steps", "outer"]
    start: RoundStart


@dataclass(frozen=True)
class FoundLease:
    """A lease whose agent, or worker, died, with whole records of these rounds, counted from 0. ``why``: how, where known."""

    assign: Assign
    rounds: tuple[int, ...]
    why: str = ""


@dataclass(frozen=True)
class RecalledPart:
    """Something that a worker wants back; it gives fewer bytes where it is not what it was."""

    kind: Kind
    payload: Payload


class CrashRecords:
    """The folder of all of them. Every method may block."""

    def __init__(
        self, folder: Path, secret: bytes, store: StateStore, coordinator: str, limit: int, time: Callable[[], float]
    ) -> None:
        """Keep at most ``limit`` bytes in ``folder``, readable with the node's ``secret`` only.

        Args:
            coordinator: whose leases these are. time: Unix seconds.
        """
        self._folder = folder
        self._secret = secret
        self._store = store
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
        record = self._placed(file)
        if record is None or not _is_whole(record[1]):
            return None
        names = record[0].start.names()
        return record[0] if all(self._store.whole(digest) is not None for digest in names) else None

    def parts(self, assign: Assign) -> list[tuple[RestoredPart, Payload]]:
        """What another worker is to be given, round by round: what it began with first. Each is read when it is handed over."""
        parts: dict[RestoredPart, Payload] = {}
        for file in sorted((self._folder / _name(assign)).glob(f"*-*.*{_SEALED}")):
            found = self._placed(file)
            if found is None:
                continue
            head, record = found
            start: dict[Literal["state", "moments"], str | None] = {
                "state": head.start.state,
                "moments": head.start.moments,
            }
            for kind, digest in start.items():
                if (payload := self._is_stored(digest)) is not None:
                    parts[RestoredPart(head.epoch, head.round, kind)] = payload
            parts[RestoredPart(head.epoch, head.round, head.kind)] = record
        return list(parts.items())

    def recalled(self, assign: Assign, recall: RecordRecall) -> list[RecalledPart]:
        """What a worker has let go and wants back, the record last; nothing where that is not here any more."""
        kinds = ("steps", "outer") if recall.kind == "state" else (recall.kind,)
        folder = self._folder / _name(assign)
        for file in (folder / f"{recall.epoch}-{recall.round}.{kind}{_SEALED}" for kind in kinds):
            found = self._placed(file)
            if found is not None:
                head, record = found
                parts: dict[Kind, Payload | None] = {"state": self._is_stored(head.start.state)}
                if recall.kind == "steps":
                    parts["moments"] = self._is_stored(head.start.moments)
                if recall.kind != "state":
                    parts[recall.kind] = record
                return [RecalledPart(kind, payload) for kind, payload in parts.items() if payload is not None]
        return []

    def _is_stored(self, digest: str | None) -> Payload | None:
        return None if digest is None else self._store.payload(digest)

    def _span(self, path: Path, begin: int, span: slice) -> bytes:
        """Bytes of what follows behind a record's head; none where it is not there any more."""
        with contextlib.suppress(OSError, SealedFileError), SealedFile(path, self._key(path)) as file:
            return file.read(begin + span.start, begin + span.stop)
        return b""

    # --- while a lease is held ----------------------------------------------------------------------------------------------

    def keep(self, assign: Assign, part: RecordPart, start: RoundStart, data: bytes | Payload) -> bool:
        """Write a record, and delete those that nobody asks for any more. Where there is no room, there is none of this round.

        Returns:
            whether another worker, or the same one later, can open the round from what is here now.
        """
        folder = self._folder / _name(assign)
        name = f"{part.epoch}-{part.round}.{part.kind}"
        now = self._time()
        due = now - self._synced >= SYNC_S
        if not (folder / _LEASE).exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            self._write(folder / _LEASE, due, [encode(_KeptLease(self._coordinator, assign))])
        self._make_room(folder, part.kind)
        record = as_payload(data)
        size = record.size
        if size > MAX_KEPT_RECORD or self._bytes(self._folder) + size > self.limit:
            LOG.warning("round %d is not kept on the disk: %s bytes are too many", part.round + 1, f"{size:,}")
            return False
        head = encode(_Head(part.epoch, part.round, part.kind, start))
        self._write(folder / (name + _SEALED), due, chain([_LENGTH.pack(len(head)) + head], read_pieces(record)))
        self._pin(folder)
        if due:
            self._synced = now
            self._store.sync(self._store.pinned[folder.name])
        return all(self._store.manifest(digest) is not None for digest in start.names())

    def forget(self, assign: Assign) -> None:
        """A lease is over: nothing of it will be opened any more."""
        name = _name(assign)
        shutil.rmtree(self._folder / name, ignore_errors=True)
        self._store.pinned.pop(name, None)

    def has(self, assign: Assign) -> bool:
        """Whether something of a lease is here."""
        return (self._folder / _name(assign)).exists()

    def _make_room(self, folder: Path, kind: str) -> None:
        """For one more of a kind, beside the newest others that a worker would keep."""
        kept = sorted(folder.glob(f"*.{kind}{_SEALED}"), key=_key)
        for old in kept[: len(kept) - KEPT_ROUNDS + 1]:
            old.unlink(missing_ok=True)

    def _pin(self, folder: Path) -> None:
        """Have the store keep what is needed."""
        pinned: set[str] = set()
        for file in folder.glob(f"*-*.*{_SEALED}"):
            head = self._head(file)
            if head is not None:
                pinned |= set(head.start.names())
        self._store.pinned[folder.name] = frozenset(pinned)

    @staticmethod
    def _bytes(folder: Path) -> int:
        return sum(file.stat().st_size for file in folder.rglob(f"*{_SEALED}"))

    # --- files --------------------------------------------------------------------------------------------------------------

    def _write(self, path: Path, sync: bool, pieces: Iterable[bytes]) -> None:
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

    def _head(self, path: Path) -> _Head | None:
        """Of a record, without the rest of it."""
        found = self._placed(path)
        return None if found is None else found[0]

    def _placed(self, path: Path) -> tuple[_Head, Payload] | None:
        """The head of a record, and what follows behind it."""
        with contextlib.suppress(OSError, SealedFileError, MessageError), SealedFile(path, self._key(path)) as file:
            begin = _LENGTH.size
            if file.size >= begin:
                begin += _LENGTH.unpack(file.read(0, begin))[0]
                head: _Head = decode(file.read(_LENGTH.size, begin), _Head)
                return head, FilePayload(file.size - begin, partial(self._span, path, begin))
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


def _is_whole(payload: Payload) -> bool:
    """Whether all of it can be read."""
    try:
        return sum(map(len, read_pieces(payload))) == payload.size
    except OSError:
        return False

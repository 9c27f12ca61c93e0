"""States of stages that this node keeps on its disk for the others of the job: the newest few of each seat.

They must outlive the agent, since after a power cut nobody else may have them; so the keys that they are encrypted with follow
from the node's own key, which lies on the same disk. Whoever reads that can read them, too.
"""

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path

from common.encrypted_files import SealedFile
from common.errors import SealedFileError
from desktop.agent.base.payloads import FilePayload, Payload, as_payload, read_pieces
from desktop.agent.jobs.spool import Spool, Spooled
from protocol.codec import MessageError, encode
from protocol.state import Manifest, digest_of, read_manifest

KEPT = 2  # Of each seat: the anchor of the round in flight, and the one before, to which a round that fails goes back.
SHELF_BYTES = 16 << 30  # All of them together; what was kept first goes first.

_STATE, _MANIFEST = ".sealed", ".manifest"


class StateStore:
    """Files named by seat, manifest's digest and salt. What an earlier process kept is still there.

    Attributes:
        pinned: what is needed beside the newest, by whoever needs it (``crash_records``).
        spool: where states come from: what lies there is kept by moving it.
        limit: bytes of all of them together.
    """

    def __init__(self, folder: Path, secret: bytes, limit: int = SHELF_BYTES) -> None:
        """Keep at most ``limit`` bytes in ``folder``, readable with the node's ``secret`` only."""
        self._folder = folder
        self.limit = limit
        self.pinned: dict[str, frozenset[str]] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in folder.iterdir():
            if file.suffix not in (_STATE, _MANIFEST):
                file.unlink()  # Half of one, or one that an earlier version did not encrypt.
        self.spool = Spool(folder, secret, SHELF_BYTES)
        self._keeping = threading.Lock()

    def lend(self, room: int) -> None:
        """The owner lends so many bytes of the disk."""
        self.limit, self.spool.room = max(SHELF_BYTES, room), room

    def keep(self, owner: str, state: bytes | Payload) -> str:
        """Keep a state beside the newest others of ``owner``; returns the digest that names it.

        Args:
            owner: a seat; part of the file's name, so hexadecimal digits, letters and ``-`` only.
        Raises:
            OSError: the disk has no room for it.
        """
        with self._keeping:
            spooled = state if isinstance(state, Spooled) and state.is_loose else self.spool.copy(as_payload(state))
            manifest = encode(spooled.manifest)
            digest = digest_of(manifest)
            path = self._find(digest, owner)
            if path is None:
                path = self._folder / f"{owner}.{digest}.{spooled.salt}{_STATE}"
                path.with_suffix(_MANIFEST).write_bytes(manifest)
                spooled.move(path)  # Whole or not there at all, wherever the power fails.
            os.utime(path)
            self._make_room(owner)
        return digest

    def manifest(self, digest: str) -> Manifest | None:
        """The manifest of a state that is kept here whole."""
        path = self._find(digest)
        if path is None:
            return None
        try:
            return read_manifest(path.with_suffix(_MANIFEST).read_bytes(), digest)
        except (OSError, MessageError):
            return None  # A damaged store has not got it; the coordinator or another peer has.

    def read(self, digest: str, span: slice) -> bytes:
        """Bytes of a state that is kept here; fewer, or none, where the file is not what it was."""
        path = self._find(digest)
        if path is None:
            return b""
        try:
            with SealedFile(path, self.spool.key(path)) as file:
                return file.read(span.start, span.stop)
        except (OSError, SealedFileError):
            return b""

    def payload(self, digest: str) -> Payload | None:
        """A state that is kept here, to be read piece by piece."""
        manifest = self.manifest(digest)
        return None if manifest is None else FilePayload(manifest.size, partial(self.read, digest))

    def whole(self, digest: str) -> Payload | None:
        """The same once all of it was read, and is as it was kept; None where it is not here, or not what it was."""
        manifest, payload = self.manifest(digest), self.payload(digest)
        if manifest is None or payload is None:
            return None
        hasher = hashlib.sha256()
        try:
            for piece in read_pieces(payload):
                hasher.update(piece)
        except OSError:
            return None
        return payload if hasher.hexdigest() == manifest.artifact else None

    def sync(self, digests: Iterable[str]) -> None:
        """Have these on the disk itself, so that they are there after a power cut."""
        for path in filter(None, map(self._find, digests)):
            for file in (path, path.with_suffix(_MANIFEST)):
                with contextlib.suppress(OSError):
                    sync_file(file)

    def _find(self, digest: str, owner: str = "*") -> Path | None:
        """Where a state lies; an earlier version had the digest for a salt."""
        found = (self._folder.glob(f"{owner}.{digest}{end}") for end in (f".*{_STATE}", _STATE))
        return next(chain.from_iterable(found), None)

    def _make_room(self, owner: str) -> None:
        """Forget the older ones of this seat, then the oldest of all."""
        newest = sorted(self._folder.glob(f"*{_STATE}"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        own = [path for path in newest if path.name.startswith(f"{owner}.")]
        pinned = {digest for digests in self.pinned.values() for digest in digests}
        total = 0
        for path in newest:
            total += path.stat().st_size
            if path.name.split(".")[1] in pinned:
                continue
            if path in own[KEPT:] or (total > self.limit and path != own[0]):
                total -= path.stat().st_size
                for file in (path, path.with_suffix(_MANIFEST)):
                    # Gone already, or being read just now, where the system forbids it.
                    with contextlib.suppress(OSError):
                        file.unlink()


def sync_file(path: Path) -> None:
    """Return once a file, or a folder, is on the disk itself; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

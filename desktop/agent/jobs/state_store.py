"""States of stages that this node keeps on its disk for the others of the job: the newest few of each seat.

They must outlive the agent, since after a power cut nobody else may have them; so the keys that they are encrypted with follow
from the node's own key, which lies on the same disk. Whoever reads that can read them, too.
"""

import contextlib
import hashlib
import hmac
import os
from collections.abc import Iterable
from pathlib import Path

from common.encrypted_files import SealedFile, seal
from common.errors import SealedFileError
from protocol.codec import MessageError, encode
from protocol.state import Manifest, digest_of, manifest_of, read_manifest

KEPT = 2  # Of each seat: the anchor of the round in flight, and the one before, to which a round that fails goes back.
SHELF_BYTES = 16 << 30  # All of them together; what was kept first goes first.

_STATE, _MANIFEST = ".sealed", ".manifest"
_PURPOSE = b"cottage/shelf/1\0"


class Shelf:
    """Files named by their manifests' digests. What an earlier process kept is still there.

    Attributes:
        pinned: what is needed beside the newest, by whoever needs it (``crash_records``).
    """

    def __init__(self, folder: Path, secret: bytes, limit: int = SHELF_BYTES) -> None:
        """Keep at most ``limit`` bytes in ``folder``, readable with the node's ``secret`` only."""
        self._folder = folder
        self._secret = secret
        self._limit = limit
        self.pinned: dict[str, frozenset[str]] = {}
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in folder.iterdir():
            if file.suffix not in (_STATE, _MANIFEST):
                file.unlink()  # Half of one, or one that an earlier version did not encrypt.

    def keep(self, owner: str, data: bytes) -> str:
        """Keep a state beside the newest others of ``owner``; returns the digest that names it.

        Args:
            owner: a seat; part of the file's name, so hexadecimal digits, letters and ``-`` only.
        """
        manifest = encode(manifest_of(data))
        digest = digest_of(manifest)
        path = self._folder / f"{owner}.{digest}{_STATE}"
        if not path.exists():
            path.with_suffix(_MANIFEST).write_bytes(manifest)
            part = path.with_suffix(".part")
            seal(part, self._key(digest), data)
            part.replace(path)  # Whole or not there at all, wherever the power fails.
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
            return None  # A damaged shelf has not got it; the coordinator or another peer has.

    def read(self, digest: str, span: slice) -> bytes:
        """Bytes of a state that is kept here; fewer, or none, where the file is not what it was."""
        path = self._find(digest)
        if path is None:
            return b""
        try:
            with SealedFile(path, self._key(digest)) as file:
                return file.read(span.start, span.stop)
        except (OSError, SealedFileError):
            return b""

    def whole(self, digest: str) -> bytes | None:
        """A whole state, as it was kept; None where it is not here, or not what it was."""
        manifest = self.manifest(digest)
        if manifest is None:
            return None
        data = self.read(digest, slice(0, manifest.size))
        return data if hashlib.sha256(data).hexdigest() == manifest.artifact else None

    def sync(self, digests: Iterable[str]) -> None:
        """Have these on the disk itself, so that they are there after a power cut."""
        for path in filter(None, map(self._find, digests)):
            for file in (path, path.with_suffix(_MANIFEST)):
                with contextlib.suppress(OSError):
                    sync_file(file)

    def _key(self, digest: str) -> bytes:
        return hmac.digest(self._secret, _PURPOSE + digest.encode(), hashlib.sha256)

    def _find(self, digest: str) -> Path | None:
        return next(iter(self._folder.glob(f"*.{digest}{_STATE}")), None)

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
            if path in own[KEPT:] or (total > self._limit and path != own[0]):
                total -= path.stat().st_size
                for file in (path, path.with_suffix(_MANIFEST)):
                    with contextlib.suppress(FileNotFoundError):
                        file.unlink()


def sync_file(path: Path) -> None:
    """Return once a file, or a folder, is on the disk itself; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

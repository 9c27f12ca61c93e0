"""Payloads on their way through the agent that are too large for its memory: sealed files, hashed while they come in.

::

    SALT.part           while it comes, and as long as it has no other place
    NAME.SALT.part      the same for another seat that waits for it

The key of a file follows from the node's key and a salt in its name, so what is kept can be moved to where it stays
(``desktop.agent.jobs.state_store``). Whatever an earlier process has left of these is deleted.
"""

import hashlib
import hmac
import os
import secrets
import shutil
import threading
import weakref
from pathlib import Path

from common.encrypted_files import SealedFile, SealedPieces
from common.system_words import reason
from desktop.agent.base.payloads import Payload, read_pieces
from protocol.state import Manifest, ManifestMaker

PART = ".part"
SPARE_BYTES = 256 << 20  # Of the disk, which stay free: a system whose disk is full to the last byte fails elsewhere.
_PURPOSE = b"cottage/shelf/1\0"


class Spooled:
    """A payload on the disk that belongs to whoever holds it: the file is deleted when that lets go, unless it was moved."""

    def __init__(self, path: Path, key: bytes, manifest: Manifest) -> None:
        """Take a finished file."""
        self.manifest = manifest
        self._path = path
        self._key = key
        self._lock = threading.Lock()
        self._delete = weakref.finalize(self, path.unlink, missing_ok=True)

    @property
    def size(self) -> int:
        """Bytes that were sealed."""
        return self.manifest.size

    @property
    def salt(self) -> str:
        """What the key follows from."""
        return self._path.name.split(".")[-2]

    @property
    def is_loose(self) -> bool:
        """Whether it was neither moved nor deleted."""
        return self._delete.alive

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Some of them; raises as ``Payload.read``."""
        with self._lock, SealedFile(self._path, self._key) as file:  # Not open meanwhile: Windows moves no open file.
            return file.read(begin, end)

    def move(self, path: Path) -> None:
        """Have the file at ``path``, where it stays; raises OSError."""
        with self._lock:
            self._path.replace(path)
            self._path = path
            self._delete.detach()

    def linked(self, path: Path) -> "Spooled | None":
        """The same file under another name with the same salt, too; None where the disk cannot."""
        with self._lock:
            try:
                os.link(self._path, path)
            except OSError:
                return None
        return Spooled(path, self._key, self.manifest)

    def end(self) -> None:
        """Delete the file, unless it was moved."""
        self._delete()


class Spooling:
    """A payload that is coming. What is not finished is deleted when it is let go."""

    def __init__(self, path: Path, key: bytes, size: int) -> None:
        """Begin a file of ``size`` bytes; raises OSError."""
        self._key = key
        self._writer = SealedPieces(path, key, size)
        self._maker = ManifestMaker(size)
        self._filled = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes, whole segments but at the end; raises OSError where the disk does not."""
        self.put(data, self._filled)
        self._maker.update(data)
        self._filled += len(data)

    def put(self, data: bytes, begin: int) -> None:
        """The same of bytes from anywhere, whose manifest is known; raises as ``write``."""
        try:
            self._writer.write(data, begin)
        except OSError as error:
            raise OSError(f"{self._writer.size:,} bytes are to be kept on the disk: {reason(error)}") from error

    def finish(self, manifest: Manifest | None = None) -> Spooled:
        """All of it is here; ``manifest``: where it was known."""
        self._writer.finish()
        return Spooled(self._writer.path, self._key, manifest or self._maker.manifest())

    def abandon(self) -> None:
        """Delete what has come."""
        self._writer.abandon()


class Spool:
    """The folder of them.

    Attributes:
        room: bytes of the disk that the owner lends: nothing longer is taken.
    """

    def __init__(self, folder: Path, secret: bytes, room: int) -> None:
        """Keep files in ``folder``, readable with the node's ``secret`` only."""
        self._folder = folder
        self._secret = secret
        self.room = room

    def begin(self, size: int) -> Spooling:
        """A payload of ``size`` bytes comes.

        Raises:
            OSError: the disk, or what its owner lends of it, has no room for it.
        """
        if size > self.room:
            raise OSError(f"{size:,} bytes are to be kept on the disk, of which jobs may have {self.room:,}")
        free = shutil.disk_usage(self._folder).free
        if size + SPARE_BYTES > free:
            raise OSError(f"{size:,} bytes are to be kept on the disk, which has {free:,} left")
        path = self._folder / f"{secrets.token_hex(16)}{PART}"
        return Spooling(path, self.key(path), size)

    def share(self, spooled: Spooled) -> Spooled:
        """The same payload for somebody else, who may move or delete it alone: a link where the disk can, else a copy.

        Raises:
            OSError: it is not there any more, or the disk has no room for a copy.
        """
        return spooled.linked(self._folder / f"{secrets.token_hex(16)}.{spooled.salt}{PART}") or self.copy(spooled)

    def copy(self, payload: Payload) -> Spooled:
        """A payload as a file of its own; raises OSError."""
        coming = self.begin(payload.size)
        try:
            for piece in read_pieces(payload):
                coming.write(piece)
            return coming.finish()
        except BaseException:
            coming.abandon()
            raise

    def key(self, path: Path) -> bytes:
        """What a file is read with: it follows from the last part of its name but the suffix."""
        return hmac.digest(self._secret, _PURPOSE + path.name.split(".")[-2].encode(), hashlib.sha256)


def digest_of(payload: Payload) -> str:
    """The SHA-256 of a payload, in a thread where it is not known; raises OSError where it cannot be read."""
    if isinstance(payload, Spooled):
        return payload.manifest.artifact
    hasher = hashlib.sha256()
    for piece in read_pieces(payload):
        hasher.update(piece)
    return hasher.hexdigest()

"""Files that nobody reads without their key: AES-256-GCM by segments, so that any part can be read, and found changed, alone.

::

    file    = segment segment ... last          at least one; only the last may be shorter, or empty
    segment = nonce (12) | ciphertext (1 to 16,384) | tag (16)

The tag covers the segment's number and whether it is the last, so segments cannot change places, nor can a file be cut between
two of them. Nonces are drawn by chance: a segment may be written again, after a download that arrived damaged.

Source: STREAM (Hoang, Reyhanitabar, Rogaway and Vizár, CRYPTO 2015), with nonces by chance.
"""

import os
import struct
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from common.errors import SealedFileError

KEY_BYTES = 32
# A window of tokens takes one or two: 2 microseconds each; beyond this a sequential reader gains little.
SEGMENT = 16 << 10
OVERHEAD = 28
WHOLE = SEGMENT + OVERHEAD
RUN = 64  # Segments that are read at a time.
_NONCE = 12
_NUMBER = struct.Struct("<Q?")


def fresh_key() -> bytes:
    """A key for one file, or for a few that belong together."""
    return os.urandom(KEY_BYTES)


class SealedFile:
    """Reads a finished file. Any thread may read; close it, or let it go."""

    def __init__(self, path: Path, key: bytes) -> None:
        """Open a file.

        Raises:
            OSError: it cannot be opened. SealedFileError: it is cut, changed, or of another key.
        """
        self.path = path
        self._cipher = AESGCM(key)
        self._file = path.open("rb", buffering=0)
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, self._file.close)
        whole = os.fstat(self._file.fileno()).st_size
        self._segments = -(-whole // WHOLE)
        self.size = whole - self._segments * OVERHEAD
        try:  # Otherwise a file that was cut between two segments would only seem shorter.
            last = max(self._segments - 1, 0)
            next(self._texts(range(last, last + 1)))
        except SealedFileError:
            self.close()
            raise

    def __enter__(self) -> "SealedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Without the folder."""
        return self.path.name

    def close(self) -> None:
        """Let go of the file."""
        self._close()

    def read(self, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes ``begin <= i < end`` of what was sealed; to its end by default.

        Raises:
            SealedFileError: a segment of them was changed. OSError: the disk cannot give them.
        """
        end = self.size if end is None else min(end, self.size)
        return b"".join(self._parts(begin, end))

    def read_into(self, target: bytearray, begin: int) -> None:
        """Fill ``target`` with what was sealed from byte ``begin`` on, which takes a megabyte of memory beside it.

        Raises:
            ValueError: there is less. SealedFileError, OSError: as ``read``.
        """
        if begin + len(target) > self.size:
            raise ValueError(f"{self.name} has {self.size:,} bytes: {len(target):,} from {begin:,} on are too many")
        at = 0
        for part in self._parts(begin, begin + len(target)):
            target[at : at + len(part)] = part
            at += len(part)

    def _parts(self, begin: int, end: int) -> Iterator[bytes]:
        if begin >= end:
            return
        last = (end - 1) // SEGMENT
        for run in range(begin // SEGMENT, last + 1, RUN):
            numbers = range(run, min(run + RUN, last + 1))
            for number, text in zip(numbers, self._texts(numbers), strict=True):
                skipped = max(begin - number * SEGMENT, 0)
                wanted = end - number * SEGMENT
                yield text[skipped:wanted] if skipped or wanted < SEGMENT else text

    def _texts(self, numbers: range) -> Iterator[bytes]:
        """What these segments, which lie side by side, hold."""
        with self._lock:
            self._file.seek(numbers[0] * WHOLE)
            data = memoryview(_whole_read(self._file, len(numbers) * WHOLE))
        for at, number in enumerate(numbers):
            segment = data[at * WHOLE : (at + 1) * WHOLE]
            yield _opened(self._cipher, segment, number, number == self._segments - 1, self.name)


class SealedWriter:
    """Writes a file from its beginning to its end. What was written last may be taken back until it is finished."""

    def __init__(self, path: Path, key: bytes) -> None:
        """Begin an empty file; raises OSError where it cannot be."""
        self.path = path
        self._cipher = AESGCM(key)
        self._file = path.open("w+b", buffering=0)
        self._close = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._segments = 0
        # What no segment holds yet: a full one stays here until it is known not to be the last.
        self._tail = bytearray()

    @property
    def size(self) -> int:
        """Bytes that were written."""
        return self._segments * SEGMENT + len(self._tail)

    def write(self, data: bytes, at: int | None = None) -> None:
        """Append ``data``.

        Args:
            at: where its first byte belongs, by default at the end. What is there already is not written again, so a writer
                that nobody waits for any more, and the one that follows it, do no harm to each other.
        Raises:
            ValueError: it would leave a hole. OSError: the disk does not take it.
        """
        with self._lock:
            known = 0 if at is None else self.size - at
            if known < 0:
                raise ValueError(f"{self.path.name} has {self.size:,} bytes: nothing can be written at {at:,}")
            self._tail += memoryview(data)[known:]
            self._put_full()

    def rewind(self, size: int) -> None:
        """Take back what was written behind the first ``size`` bytes.

        Raises:
            ValueError: there are fewer. SealedFileError: somebody has changed them.
        """
        with self._lock:
            if not 0 <= size <= self.size:
                raise ValueError(f"{self.path.name} has {self.size:,} bytes, not {size:,}")
            kept = min(size // SEGMENT, self._segments)
            left = size - kept * SEGMENT
            if kept < self._segments:
                self._file.seek(kept * WHOLE)
                data = _whole_read(self._file, WHOLE) if left else b""
                self._tail = bytearray(_opened(self._cipher, data, kept, False, self.path.name) if left else b"")
                self._segments = kept
                self._file.truncate(kept * WHOLE)
            del self._tail[left:]

    def finish(self) -> None:
        """Write what is left; nothing can be written after that."""
        with self._lock:
            self._put_full()
            self._put(self._tail, is_last=True)
            self._close()

    def abandon(self) -> None:
        """Let go of a file that will not be finished, and delete it."""
        with self._lock:
            self._close()
            self.path.unlink(missing_ok=True)

    def _put_full(self) -> None:
        done = 0
        try:
            while len(self._tail) - done > SEGMENT:
                self._put(self._tail[done : done + SEGMENT], is_last=False)
                done += SEGMENT
        finally:
            del self._tail[:done]  # A disk that is full may have room later: what it did not take waits here.

    def _put(self, data: bytearray, *, is_last: bool) -> None:
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._cipher.encrypt(nonce, bytes(data), _NUMBER.pack(self._segments, is_last))
        self._file.seek(self._segments * WHOLE)
        if self._file.write(sealed) != len(sealed):
            raise OSError(f"the disk took only a part of {self.path.name}: it is full")
        self._segments += 1


def seal(path: Path, key: bytes, data: bytes) -> None:
    """Write ``data`` as one file; raises OSError where the disk does not take it."""
    writer = SealedWriter(path, key)
    try:
        writer.write(data)
        writer.finish()
    except OSError:
        writer.abandon()
        raise


def _opened(cipher: AESGCM, data: bytes | memoryview, number: int, is_last: bool, name: str) -> bytes:
    try:
        if len(data) < OVERHEAD:
            raise InvalidTag
        return cipher.decrypt(data[:_NONCE], data[_NONCE:], _NUMBER.pack(number, is_last))
    except InvalidTag:
        raise SealedFileError(f"{name} was changed on the disk, was cut, or belongs to another key") from None


def _whole_read(file: IO[bytes], size: int) -> bytes:
    """What an unbuffered file has from here on, at most ``size`` bytes; one read may bring fewer."""
    data = file.read(size)
    while len(data) < size and (more := file.read(size - len(data))):
        data += more
    return data

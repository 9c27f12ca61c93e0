"""Files that nobody reads without their key: AES-256-GCM by segments, so that any part can be read, and found changed, alone.

::

    file    = segment segment ... last          at least one; only the last may be shorter, or empty
    segment = nonce (12) | ciphertext (1 to 16,384) | tag (16)

The tag covers the segment's number and whether it is the last, so segments cannot change places, nor can a file be cut between
two of them. Nonces are drawn by chance: a segment may be written again, after a download that arrived damaged.

Source: STREAM (Hoang, Reyhanitabar, Rogaway and Vizár, CRYPTO 2015), with nonces by chance.
"""

import errno
import os
import struct
import threading
import weakref
from collections import OrderedDict
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
LOOSE = 64  # Segments of a mosaic that wait in memory until they are full: a megabyte.
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
        self._file.seek(self._segments * WHOLE)
        _write(self._file, _sealed(self._cipher, data, self._segments, is_last), self.path.name)
        self._segments += 1


class SealedPieces:
    """Writes a file whose size is known, its pieces in any order. What is not finished is deleted when it is let go."""

    def __init__(self, path: Path, key: bytes, size: int) -> None:
        """Begin a file of ``size`` bytes; raises OSError where it cannot be."""
        self.path = path
        self.size = size
        self._cipher = AESGCM(key)
        self._last = max(size - 1, 0) // SEGMENT
        self._file = path.open("wb", buffering=0)
        self._lock = threading.Lock()
        self._discard = weakref.finalize(self, _discard, self._file, path)
        if not size:
            self.write(b"", 0)

    def write(self, data: bytes | memoryview, begin: int) -> None:
        """Put a piece in its place.

        Raises:
            ValueError: it is not made of whole segments of this file. OSError: the disk does not take it.
        """
        end = begin + len(data)
        if begin % SEGMENT or end > self.size or (end % SEGMENT and end != self.size):
            raise ValueError(f"{self.path.name} has {self.size:,} bytes: {begin:,} to {end:,} are no segments of it")
        view, first = memoryview(data), begin // SEGMENT
        texts = [view[at : at + SEGMENT] for at in range(0, max(len(view), 1), SEGMENT)]
        numbers = range(first, first + len(texts))
        sealed = b"".join(
            _sealed(self._cipher, text, number, number == self._last)
            for number, text in zip(numbers, texts, strict=True)
        )
        with self._lock:
            self._file.seek(first * WHOLE)
            _write(self._file, sealed, self.path.name)

    def finish(self) -> None:
        """All pieces are there; the file stays."""
        with self._lock:
            self._discard.detach()
            self._file.close()

    def abandon(self) -> None:
        """Delete what is there."""
        with self._lock:  # A thread that nobody waits for any more may be writing.
            self._discard()


class SealedMosaic:
    """Writes a file whose size is known, any bytes in any order and as often as need be. What is there can be read meanwhile.

    Segments that are not full wait in memory. Beyond ``LOOSE`` of them the oldest go to the disk and are read again for what
    they lack. Any thread may write and read.
    """

    def __init__(self, path: Path, key: bytes, size: int) -> None:
        """Begin a file of ``size`` bytes; raises OSError where it cannot be."""
        self.path = path
        self.size = size
        self._cipher = AESGCM(key)
        self._last = max(size - 1, 0) // SEGMENT
        self._file = path.open("w+b", buffering=0)
        self._close = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self._on_disk = bytearray(self._last + 1)
        self._loose: OrderedDict[int, bytearray] = OrderedDict()

    def write(self, data: bytes | memoryview, begin: int) -> None:
        """Put bytes in their place.

        Raises:
            ValueError: they lie outside the file, or it is finished. SealedFileError: somebody has changed what is there.
            OSError: the disk does not take them.
        """
        end = begin + len(data)
        if begin < 0 or end > self.size:
            raise ValueError(f"{self.path.name} has {self.size:,} bytes, not {begin:,} to {end:,}")
        view = memoryview(data)
        with self._lock:
            at = begin
            while at < end:
                number, inside = divmod(at, SEGMENT)
                part = view[at - begin :][: SEGMENT - inside]
                if len(part) == self._length(number):
                    self._loose.pop(number, None)
                    self._put(number, part)
                else:
                    self._segment(number)[inside : inside + len(part)] = part
                at += len(part)
            while len(self._loose) > LOOSE:
                oldest = next(iter(self._loose))
                self._put(oldest, self._loose[oldest])
                del self._loose[oldest]

    def read(self, begin: int, end: int) -> bytes:
        """Bytes ``begin <= i < end``, which were written before; what was not is zero. Raises as ``write``."""
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"{self.path.name} has {self.size:,} bytes, not {begin:,} to {end:,}")
        found = bytearray()
        with self._lock:
            for number in range(begin // SEGMENT, -(-end // SEGMENT)):
                text = self._loose[number] if number in self._loose else self._from_disk(number)
                found += text[max(begin - number * SEGMENT, 0) : end - number * SEGMENT]
        return bytes(found)

    def finish(self) -> None:
        """All is there; nothing can be written or read after that. Raises OSError where the disk does not take the rest."""
        with self._lock:
            for number in range(self._last + 1):
                if number in self._loose or not self._on_disk[number]:
                    self._put(number, self._loose[number] if number in self._loose else self._from_disk(number))
            self._loose.clear()
            self._close()

    def abandon(self) -> None:
        """Let go of a file that will not be finished, and delete it."""
        with self._lock:
            self._close()
            self.path.unlink(missing_ok=True)

    def _length(self, number: int) -> int:
        return min(SEGMENT, self.size - number * SEGMENT)

    def _segment(self, number: int) -> bytearray:
        """A segment that is to be changed."""
        if number not in self._loose:
            self._loose[number] = bytearray(self._from_disk(number))
        return self._loose[number]

    def _from_disk(self, number: int) -> bytes:
        if not self._on_disk[number]:
            return bytes(self._length(number))
        self._file.seek(number * WHOLE)
        data = _whole_read(self._file, self._length(number) + OVERHEAD)
        return _opened(self._cipher, data, number, number == self._last, self.path.name)

    def _put(self, number: int, text: bytes | bytearray | memoryview) -> None:
        self._file.seek(number * WHOLE)
        _write(self._file, _sealed(self._cipher, text, number, number == self._last), self.path.name)
        self._on_disk[number] = 1


def seal(path: Path, key: bytes, data: bytes) -> None:
    """Write ``data`` as one file; raises OSError where the disk does not take it."""
    writer = SealedWriter(path, key)
    try:
        writer.write(data)
        writer.finish()
    except OSError:
        writer.abandon()
        raise


def _discard(file: IO[bytes], path: Path) -> None:
    file.close()
    path.unlink(missing_ok=True)


def _sealed(cipher: AESGCM, text: bytes | bytearray | memoryview, number: int, is_last: bool) -> bytes:
    nonce = os.urandom(_NONCE)
    return nonce + cipher.encrypt(nonce, text, _NUMBER.pack(number, is_last))


def _write(file: IO[bytes], sealed: bytes, name: str) -> None:
    if file.write(sealed) != len(sealed):
        raise OSError(errno.ENOSPC, f"the disk took only a part of {name}: it is full")


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

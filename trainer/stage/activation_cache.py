"""What crossed a boundary at a sample's last visit, kept on both sides, so that only the difference need cross again.

An entry is the eight-bit form of a window's hidden states; both sides make it from the same bytes, so equal digests mean
equal entries. The receiving side says with which digests it could begin (an *offer*, once a step), the sending side sends
differences for those windows whose own entry has the same digest and everything in full for the others. So whatever one
side lost, by a restart, a full store or a broken disk, costs bytes and never a wrong value, and no message is needed to
find out.

Entries are kept in memory, then in a file without a name, encrypted with a key that is only in memory. When both are full a
new window is not kept: data that is read in turn, epoch after epoch, would only push out what is needed next.

Source: AQ-SGD, arXiv 2206.01299, algorithm 1; entries of 8 bits cost nothing there (section 4.2) nor here.
"""

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

DIGEST_BYTES = 16
NONCE_BYTES = 12
NOTHING = bytes(DIGEST_BYTES)
"""Stands for no entry in an offer."""

MAX_MEMORY_BYTES = 1 << 30  # Each side of each boundary: 10,000 windows of 128 tokens and width 768.
MAX_FILE_BYTES = 8 << 30  # What a provider's disk may hold for it beside datasets and checkpoints.


@dataclass
class Caches:
    """Both boundaries of a stage: ``behind`` it, where activations come in, and ``ahead``, where they go out."""

    behind: "ActivationCache"
    ahead: "ActivationCache"

    @staticmethod
    def empty() -> "Caches":
        """With nothing in them."""
        return Caches(ActivationCache(), ActivationCache())


class ActivationCache:
    """Entries of one boundary, by window; all of one size. One thread at a time."""

    def __init__(self, memory: int = MAX_MEMORY_BYTES, file: int = MAX_FILE_BYTES, folder: Path | None = None) -> None:
        """Keep at most ``memory`` and ``file`` bytes of entries.

        Args:
            folder: where the file without a name lies; None: where the system keeps temporary files. A folder that cannot
                be written to means no file.
        """
        self._memory_left = memory
        self._file_left = file
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._entry_bytes = 0
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._digests: dict[bytes, bytes] = {}
        self._entries: dict[bytes, bytes] = {}
        self._places: dict[bytes, int] = {}
        self._offered: dict[bytes, bytes] = {}

    def offer(self, windows: Sequence[bytes]) -> bytes:
        """The digests of these windows' entries one after the other, ``NOTHING`` where there is none.

        What was offered is held in memory until the next offer, so that it can be kept.
        """
        self._offered = {}
        for window in windows:
            wanted = self._digests.get(window)
            entry = None if wanted is None else self._read(window)
            if entry is not None and digest(entry) == wanted:
                self._offered[window] = entry
        return b"".join(self._digests[window] if window in self._offered else NOTHING for window in windows)

    def recall(self, windows: Sequence[bytes], wanted: Sequence[bytes]) -> list[bytes | None]:
        """The entries with the wanted digests; None where there is no such entry, or ``NOTHING`` is wanted."""
        found: list[bytes | None] = []
        for window, name in zip(windows, wanted, strict=True):
            same = name != NOTHING and self._digests.get(window) == name
            entry = self._offered.get(window) or self._read(window) if same else None
            found.append(entry if entry is not None and digest(entry) == name else None)
        return found

    def remember(self, window: bytes, entry: bytes) -> None:
        """Keep a window's newest entry, as far as there is room."""
        self._offered.pop(window, None)
        if window in self._entries or self._memory_left >= len(entry):
            if window not in self._entries:
                self._memory_left -= len(entry)
            self._entries[window] = entry
        elif not self._write(window, entry):
            self._digests.pop(window, None)
            return
        self._digests[window] = digest(entry)

    def __len__(self) -> int:
        return len(self._digests)

    def _read(self, window: bytes) -> bytes | None:
        if window in self._entries:
            return self._entries[window]
        assert self._file is not None
        place, size = self._places[window], self._entry_bytes
        with contextlib.suppress(OSError, InvalidTag):
            sealed = os.pread(self._file.fileno(), size, place)
            return self._cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], window)
        return None

    def _write(self, window: bytes, entry: bytes) -> bool:
        place = self._places.get(window)
        if place is None and self._file_left < len(entry):
            return False
        nonce = os.urandom(NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, entry, window)
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 (lives as long as the cache)
                self._entry_bytes = len(sealed)
            if place is None:
                place = len(self._places) * self._entry_bytes
            written = os.pwrite(self._file.fileno(), sealed, place)
        except OSError:
            self._file_left = 0  # No such folder, read-only or full: what is there stays, nothing is added.
            return False
        if window not in self._places:
            self._places[window] = place
            self._file_left -= len(entry)
        return written == len(sealed)


def digest(entry: bytes) -> bytes:
    """What both sides compare."""
    return hashlib.sha256(entry).digest()[:DIGEST_BYTES]

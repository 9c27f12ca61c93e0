"""What of the cache on the disk this process can read: the keys of its files, and where tensors of weights lie in them.

A stage's weights stay in the cache when their lease ends, under the owner's limit. Each tensor is found by its SHA-256, so a job
beside the same model fetches only what is not here yet, whichever of its layers it is given.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from common.encrypted_files import SealedFile
from common.errors import SealedFileError
from desktop.agent.base.payloads import PIECE
from protocol.models.weights import IndexedTensor


@dataclass(frozen=True)
class KeptTensor:
    """Where a tensor lies: bytes ``begin`` to ``begin + size`` of a file."""

    path: Path
    key: bytes
    begin: int
    size: int


class CacheContents:
    """It outlives connections to coordinators, not the process.

    Attributes:
        keys: of files, by name.
    """

    def __init__(self) -> None:
        """Know of nothing."""
        self.keys: dict[str, bytes] = {}
        self._places: dict[str, KeptTensor] = {}
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, name: str) -> asyncio.Lock:
        """What one at a time may hold who fetches the same."""
        lock = self._turns.get(name)
        if lock is None:
            self._turns[name] = lock = asyncio.Lock()
        return lock

    def note(self, path: Path, tensors: Iterable[IndexedTensor], begin: int) -> None:
        """A file has these tensors one after the other from byte ``begin`` on. Those of files that are gone are forgotten."""
        self._places = {digest: place for digest, place in self._places.items() if place.path.exists()}
        for tensor in tensors:
            size = tensor.end - tensor.begin
            self._places[tensor.sha256] = KeptTensor(path, self.keys[path.name], begin, size)
            begin += size

    def find(self, tensor: IndexedTensor) -> KeptTensor | None:
        """Where a tensor is, if it is here."""
        place = self._places.get(tensor.sha256)
        if place is None or place.size != tensor.end - tensor.begin or not place.path.exists():
            return None
        return place

    def copy(self, tensor: IndexedTensor, place: KeptTensor, take: Callable[[bytes], None]) -> bool:
        """Hand a tensor to ``take``, piece by piece; False, perhaps at its end only, where it is not what it was."""
        hasher, end = hashlib.sha256(), place.begin + place.size
        try:
            file = SealedFile(place.path, place.key)
        except (OSError, SealedFileError):
            return self._lost(tensor)
        with file:
            for begin in range(place.begin, end, PIECE):
                try:
                    piece = file.read(begin, min(begin + PIECE, end))
                except (OSError, SealedFileError):
                    return self._lost(tensor)
                hasher.update(piece)
                take(piece)
        return hasher.hexdigest() == tensor.sha256 or self._lost(tensor)

    def _lost(self, tensor: IndexedTensor) -> bool:
        self._places.pop(tensor.sha256, None)
        return False

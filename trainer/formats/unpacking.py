"""What is packed as a stream of what is in it: one part after another, with padding between, and no byte left out in silence.

Zeros after a part are padding, as gzip and xz have it, and further parts may come behind them. Whatever else stands there may be
data that somebody wants: it is told with the byte where it begins, and nothing is trained on.
"""

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from common.zstd import Zstd, ZstdDataError
from protocol.datasets.file_formats import XZ_MEMORY, Packing, packing_of
from trainer.errors import DataError
from trainer.formats.rows import shown

PACKED_BLOCK = 1 << 16
_MAGIC_BYTES = 16  # By so many a further part is known.
DAMAGES: Final = (OSError, EOFError, zlib.error, lzma.LZMAError, ZstdDataError)


class TrailingDataError(Exception):
    """What follows packed data is none of them.

    Attributes:
        end: bytes of the file up to where they end.
        stands: the first of what follows.
    """

    def __init__(self, end: int, stands: bytes) -> None:
        super().__init__(f"packed data end at byte {end}")
        self.end, self.stands = end, stands


class _Unpacker(Protocol):
    """``bz2.BZ2Decompressor`` and ``lzma.LZMADecompressor``."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """One member of a gzip file, unpacked as ``bz2`` and ``lzma`` of the standard library unpack theirs."""

    def __init__(self) -> None:
        self._one = zlib.decompressobj(31)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._one.eof

    @property
    def needs_input(self) -> bool:
        return not self._full and not self._one.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._one.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        made = self._one.decompress(self._one.unconsumed_tail + data, max_length)
        self._full = len(made) == max_length  # More may wait within, though all of the input was taken.
        return made


_MAKERS: Final[dict[str, Callable[[], _Unpacker]]] = {
    "gzip": _Gzip,
    "zstd": Zstd,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=XZ_MEMORY),
}


class Unpacked(io.RawIOBase):
    """What is in a packed file, one part after another, as ``cat a.xz b.xz`` makes them."""

    def __init__(self, file: io.FileIO, packing: Packing) -> None:
        """Begin at the beginning of ``file``."""
        self._file, self._packing = file, packing
        self._one = _MAKERS[packing]()

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Unpack some of what is left; 0 at its end.

        Raises:
            TrailingDataError: something else follows. Those of ``DAMAGES``: the data are damaged, or cut.
        """
        while True:
            if self._one.eof:
                rest = self._further()
                if not rest:
                    return 0
                self._one = _MAKERS[self._packing]()
            else:
                rest = self._file.read(PACKED_BLOCK) if self._one.needs_input else b""
                if self._one.needs_input and not rest:
                    raise EOFError
            if data := self._one.decompress(rest, len(buffer)):
                buffer[: len(data)] = data
                return len(data)

    def _further(self) -> bytes:
        """The beginning of the next part, without the padding before it; nothing where there is none."""
        rest = self._one.unused_data
        end = self._file.tell() - len(rest)
        while len(rest := rest.lstrip(b"\0")) < _MAGIC_BYTES and (more := self._file.read(PACKED_BLOCK)):
            rest += more
        if rest and packing_of(rest) != self._packing:
            raise TrailingDataError(end, rest)
        return rest


class Bounded(io.RawIOBase):
    """Counts what is unpacked, and says in words what a damaged file is."""

    def __init__(self, inner: Unpacked, name: str, packing: Packing, most: int) -> None:
        """Read ``inner``, of which ``most`` bytes are taken; ``name``: what people call the file."""
        self._inner, self._name, self._packing, self._most = inner, name, packing, most
        self._count = 0
        self._fault: Exception | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, however little each part holds; 0 at the end.

        Raises:
            DataError: damaged, cut, followed by something else, or more than it may unpack to.
        """
        filled = 0
        view = memoryview(buffer)
        while self._fault is None and filled < len(view):
            try:
                made = self._inner.readinto(view[filled:])
            except (*DAMAGES, TrailingDataError) as error:
                self._fault = error  # What was whole before it goes first.
                break
            if not made:
                break
            filled += made
        self._count += filled
        if self._count > self._most:
            detail = f"{self._name} unpacks to more than {self._most:,} bytes, as text does not: upload it unpacked, or in parts"
            raise DataError("too-large", detail)
        if self._fault is not None and not filled:
            raise self._told(self._fault) from self._fault
        return filled

    def _told(self, error: Exception) -> DataError:
        if isinstance(error, TrailingDataError):
            stands = shown(error.stands[:32].decode("utf-8", "replace"))
            return DataError(
                "bad-archive",
                f"the {self._packing} data of {self._name} end at byte {error.end:,}, and {stands} follows, which is none: "
                f"cut the file there (head -c {error.end}), or pack it again",
            )
        if "memory" in str(error).lower():
            detail = f"{self._name} takes too much memory to unpack: pack it with a smaller window"
            return DataError("too-large", detail)
        after = f"after {self._count:,} bytes of what is in it"
        return DataError(
            "bad-archive", f"the {self._packing} data of {self._name} are damaged or cut {after}: pack it again"
        )

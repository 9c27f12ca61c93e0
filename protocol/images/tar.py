"""A tar stream of strangers, member by member: bounded in memory, whatever its headers say. Pure but for reading.

Headers are parsed by the standard library (``TarInfo.frombuf``). The walk is our own, since ``tarfile`` reads a member's
further headers into memory at any length that they claim. Source: POSIX.1-2017, pax; GNU tar's manual, "Basic Tar Format".
"""

import hashlib
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from protocol.images.errors import ImageFormatError

BLOCK: Final = 512
PIECE: Final = 1 << 20
MAX_NAME: Final = 4096  # Bytes, as the kernel's PATH_MAX.
MAX_HEADERS: Final = 64 << 10  # Of one member: names and attributes take some hundreds.
LONG_NAMES: Final = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
MORE_HEADERS: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class TarSource(Protocol):
    """Bytes in order."""

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes, empty at the end."""


@dataclass
class TarMember:
    """One member, as all of its headers say. ``kind``: as ``tarfile`` names types; ``attributes``: extended ones, by name."""

    name: str
    kind: bytes
    size: int
    link: str
    attributes: frozenset[str]
    sparse: bool = False


class Window:
    """The next ``size`` bytes of a source, hashed while they are read."""

    def __init__(self, source: TarSource, size: int) -> None:
        self._source, self._left = source, size
        self._hash = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        """At most ``size`` bytes, empty at the end; raises ImageFormatError where the source ends before."""
        if self._left <= 0 or size <= 0:
            return b""
        data = self._source.read(min(size, self._left))
        if not data:
            raise ImageFormatError(f"the archive is cut off: {self._left:,} bytes are missing")
        self._left -= len(data)
        self._hash.update(data)
        return data

    def drain(self, take: Callable[[bytes], object] = len) -> str:
        """Read the rest, handing it to ``take``; the SHA-256 of all."""
        while piece := self.read(PIECE):
            take(piece)
        return self._hash.hexdigest()


class TarWalk:
    """Members of a tar stream: ``following`` one after the other, and ``content`` of the present one if it is wanted."""

    def __init__(self, source: TarSource) -> None:
        self._source = source
        self._rest = self._padding = 0

    def following(self) -> TarMember | None:
        """The next member; None at the end.

        Raises:
            ImageFormatError: it is no tar, cut off, or a header is longer than any that is honest.
        """
        self._skip()
        found: dict[str, str] = {}
        taken = 0
        while True:
            block = self._exactly(BLOCK, end=True)
            if not block or block.count(0) == BLOCK:
                return None
            info = _header(block)
            if info.type not in (*LONG_NAMES, *MORE_HEADERS):
                break
            taken += info.size
            if not 0 <= info.size <= taken <= MAX_HEADERS:
                raise ImageFormatError(
                    f"a header of its tar has {info.size:,} bytes: at most {MAX_HEADERS:,} are taken"
                )
            data = self._exactly(info.size)
            self._exactly(-info.size % BLOCK)
            found |= _further(info.type, data)
        member = _member(info, found)
        self._rest = member.size if member.kind in tarfile.REGULAR_TYPES else 0
        self._padding = -self._rest % BLOCK
        return member

    def content(self) -> Window:
        """What the present member holds; read all of it before the next member."""
        window, self._rest = Window(self._source, self._rest), 0
        return window

    def _skip(self) -> None:
        Window(self._source, self._rest + self._padding).drain()
        self._rest = self._padding = 0

    def _exactly(self, size: int, end: bool = False) -> bytes:
        data = b""
        while len(data) < size:
            piece = self._source.read(size - len(data))
            if not piece:
                if end and not data:
                    return b""
                raise ImageFormatError("the archive is cut off in the middle of a header")
            data += piece
        return data


def _header(block: bytes) -> tarfile.TarInfo:
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError) as error:
        raise ImageFormatError(f"it is no tar archive: {error}") from error
    if info.size < 0:
        raise ImageFormatError(f"a member of its tar has {info.size} bytes")
    return info


def _further(kind: bytes, data: bytes) -> dict[str, str]:
    """What a header before a member says of it."""
    text = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
    if kind == tarfile.GNUTYPE_LONGNAME:
        return {"path": text}
    if kind == tarfile.GNUTYPE_LONGLINK:
        return {"linkpath": text}
    if kind == tarfile.XGLTYPE:  # Of all members that follow; git writes a comment.
        if said := [name for name in _records(data) if name != "comment"]:
            raise ImageFormatError(
                f"its tar says {said[0][:80]!r} of all members at once: pack it anew with docker save"
            )
        return {}
    return _records(data)


def _records(data: bytes) -> dict[str, str]:
    """The records of a pax header: ``LENGTH NAME=VALUE\\n`` each."""
    found: dict[str, str] = {}
    while data.rstrip(b"\0"):
        length, _, rest = data.partition(b" ")
        if not (length.isdigit() and len(length) < 10 and len(length) + 1 < int(length) <= len(data)):
            raise ImageFormatError("a header of its tar is malformed")
        record = rest[: int(length) - len(length) - 1]
        name, _, value = record.removesuffix(b"\n").partition(b"=")
        found[name.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        data = data[int(length) :]
    return found


def _member(info: tarfile.TarInfo, further: dict[str, str]) -> TarMember:
    size = further.get("size", str(info.size))
    if not (size.isascii() and size.isdigit() and len(size) < 19):
        raise ImageFormatError(f"a member of its tar has {size[:40]!r} bytes")
    name, link = further.get("path", info.name), further.get("linkpath", info.linkname)
    if max(len(name), len(link)) > MAX_NAME:
        raise ImageFormatError(f"a name in its tar has more than {MAX_NAME:,} characters")
    prefix = "SCHILY.xattr."
    attributes = frozenset(key.removeprefix(prefix) for key in further if key.startswith(prefix))
    attributes |= {key for key in further if key.startswith(("LIBARCHIVE.xattr.", "SUN.", "RHT."))}
    sparse = info.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse") for key in further)
    return TarMember(name, info.type, int(size), link, attributes, sparse)

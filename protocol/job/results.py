"""The result of an element: all files below ``/out`` in one archive that is the same, byte for byte, wherever it is made.

A POSIX tar archive: plain files only, sorted by their paths (as UTF-8 bytes), each with mode 0644, owner 0 and time 0. Folders
are not in it, so empty ones are lost. Its end is two blocks of zeros without further padding. Two nodes whose commands wrote the
same files have the same archive, so its SHA-256 says whether they agree.
"""

import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from protocol.job.array import RelativePath
from protocol.job.elements import MAX_RESULT_FILES

_BLOCK = tarfile.BLOCKSIZE
_MODE = 0o644
_MAX_PAX = 4096  # A path has 240 letters at most, of four bytes each.
END = bytes(2 * _BLOCK)
"""How every archive ends; an archive of nothing is only that."""


def is_path(path: str) -> bool:
    """Whether a file of a result may have this path."""
    try:
        msgspec.convert(path, RelativePath)
    except msgspec.ValidationError:
        return False
    return True


def is_plain(member: tarfile.TarInfo) -> bool:
    """Whether an archive that a stranger wrote may have this in it. One with holes would be larger than the archive."""
    return member.isreg() and not member.issparse() and is_path(member.name)


def header(path: str, size: int) -> bytes:
    """What stands before a file's bytes.

    Raises:
        ValueError: such a path cannot be in a result.
    """
    if not is_path(path):
        raise ValueError(
            f"{path!r} cannot be the path of a file in a result: no part of it may begin with a dot, be longer than 120 "
            "characters, or hold a colon, a backslash or control characters, and it has 8 parts at most"
        )
    return entry(path, size)


def entry(path: str, size: int) -> bytes:
    """A header whose path was looked at before."""
    found = tarfile.TarInfo(path)
    found.size, found.mode = size, _MODE
    return found.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def padding(size: int) -> bytes:
    """What stands behind a file's bytes."""
    return bytes(-size % _BLOCK)


def in_order(paths: Iterable[str]) -> list[str]:
    """Paths as they follow each other in an archive."""
    return sorted(paths, key=lambda path: path.encode())


class ArchivedFile(msgspec.Struct, frozen=True):
    """A file of an archive, and where in it its bytes begin."""

    path: str
    begin: int
    size: int


def contents(read: Callable[[int, int], bytes], size: int, most: int = MAX_RESULT_FILES) -> list[ArchivedFile]:
    """The files of an archive, once it was found to be one that ``packed`` would have made.

    Args:
        read: bytes ``begin <= i < end`` of it. size: how many it has. most: files.
    Raises:
        ValueError: it is no such archive; what it says of itself is in the text, so a stranger wrote that.
    """
    found: list[ArchivedFile] = []
    folders: set[str] = set()
    at, before = 0, b""
    while (block := read(at, at + _BLOCK)).strip(b"\0"):
        path, length, head = _said(block, lambda begin, end: read(at + begin, at + end))  # noqa: B023 - read at once
        if read(at, at + len(head)) != head or (name := path.encode()) <= before:
            raise ValueError(f"what stands at byte {at:,} is no entry of a result")
        begin, end = at + len(head), at + len(head) + length
        at, before = end + len(padding(length)), name
        if len(found) >= most or at > size - len(END) or read(end, at).strip(b"\0"):
            raise ValueError(f"it ends before its file number {len(found) + 1:,}, or has more than {most:,}")
        folders.update(parent.as_posix() for parent in PurePosixPath(path).parents)
        found.append(ArchivedFile(path, begin, length))
    if size - at != len(END) or read(at, size) != END:  # Behind an early end may stand gigabytes: they are not read.
        raise ValueError("its end is not that of a result")
    if both := next((one.path for one in found if one.path in folders), None):
        raise ValueError(f"{both!r} is a file and a folder in it")
    return found


def _said(block: bytes, read: Callable[[int, int], bytes]) -> tuple[str, int, bytes]:
    """Path and size that an entry names, and what would stand there if it were one of a result."""
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if info.type == tarfile.XHDTYPE:
            if info.size > _MAX_PAX:
                raise ValueError(f"an entry has {info.size:,} bytes of words about itself")
            told = read(_BLOCK, _BLOCK + info.size)
            begin = _BLOCK + info.size + len(padding(info.size))
            info = tarfile.TarInfo.frombuf(read(begin, begin + _BLOCK), "utf-8", "strict")
            if path := re.search(rb"(?:^|\n)\d+ path=([^\n]*)\n", told):
                info.name = path[1].decode()
            if length := re.search(rb"(?:^|\n)\d+ size=(\d{1,19})\n", told):
                info.size = int(length[1])
    except tarfile.HeaderError as error:
        raise ValueError(f"it is damaged: {error}") from error
    return info.name, info.size, header(info.name, info.size)


def packed(files: Mapping[str, bytes]) -> bytes:
    """The archive of small files that are in memory."""
    parts = [header(path, len(files[path])) + files[path] + padding(len(files[path])) for path in in_order(files)]
    return b"".join(parts) + END


def bundled(files: Mapping[str, Path]) -> Iterator[bytes]:
    """The archive of whole files under other names, piece by piece. Who calls has seen that they are small.

    Raises:
        OSError: one cannot be read.
    """
    for name in in_order(files):
        data = files[name].read_bytes()
        yield header(name, len(data)) + data + padding(len(data))
    yield END


def packed_folder(folder: Path, files: Iterable[str], chunk: int = 1 << 20) -> Iterator[bytes]:
    """The archive of files below a folder, piece by piece. Who calls has seen that they are plain files.

    Raises:
        ValueError: a file's size changes meanwhile, or its path cannot be in a result.
    """
    for path in in_order(files):
        with (folder / path).open("rb") as file:
            size = (folder / path).stat().st_size
            yield header(path, size)
            left = size
            while left and (piece := file.read(min(chunk, left))):
                left -= len(piece)
                yield piece
            if left or file.read(1):
                raise ValueError(f"{path} changed while it was read")
            yield padding(size)
    yield END

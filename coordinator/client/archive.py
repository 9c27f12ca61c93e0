"""Unpacking a downloaded model: only plain files, only inside the folder, never more than was announced, all or nothing."""

import os
import shutil
import stat
import struct
import tempfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from coordinator.client.errors import ArchiveError

MAX_FILES = 10_000
MAX_RATIO = 200  # Weights hardly compress; a file that grows more than this while unpacking is a bomb.
MAX_NAME_BYTES = 255  # Of one part of a path: what file systems take.
MAX_PATH_BYTES = 1024
CHUNK_BYTES = 1 << 20
_DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, ValueError, OverflowError)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack ``archive`` into ``folder``, which is made if need be. Of an archive that is refused nothing stays.

    Raises:
        ArchiveError: not a zip archive, too many files, a name that leads elsewhere, a link, or a bomb.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name[:40]}.", dir=folder.parent) as made:
        whole = Path(made)
        try:
            with zipfile.ZipFile(archive) as source:
                entries = _checked(source.infolist(), archive.stat().st_size)
                for entry in entries:
                    if entry.header_offset < 0:
                        raise zipfile.BadZipFile("a file would begin before the archive")
                    _write(source, entry, whole.joinpath(*_path(entry).parts))
        except _DAMAGED as error:
            raise ArchiveError(f"the model archive is damaged ({error}): download it again") from error
        for entry in entries:  # Only now that every byte is there and has its checksum.
            target = folder.joinpath(*_path(entry).parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(whole.joinpath(*_path(entry).parts), target)
    folder.mkdir(exist_ok=True)


def _checked(entries: list[zipfile.ZipInfo], packed: int) -> list[zipfile.ZipInfo]:
    """The files among ``entries`` of an archive of ``packed`` bytes, once all of them are harmless."""
    if len(entries) > MAX_FILES:
        raise ArchiveError(f"the archive has {len(entries):,} files: at most {MAX_FILES:,} are unpacked")
    for entry in entries:
        _check(entry)
    files = [entry for entry in entries if not entry.is_dir()]
    size = sum(entry.file_size for entry in files)
    if size > MAX_RATIO * max(packed, 1024):  # Entries may share their bytes, so each by itself can look harmless.
        raise ArchiveError(f"the archive would grow from {packed:,} to {size:,} bytes")
    names = {str(_path(entry)).casefold() for entry in files}
    folders = {str(above).casefold() for entry in entries for above in _path(entry).parents}
    if len(names) < len(files) or names & folders:
        raise ArchiveError("the archive holds two files of one name, or a file and a folder of one name")
    return files


def _path(entry: zipfile.ZipInfo) -> PurePosixPath:
    return PurePosixPath(entry.filename)


def _check(entry: zipfile.ZipInfo) -> None:
    path, shown = _path(entry), entry.filename[:80]
    unsafe = path.is_absolute() or ".." in path.parts or not path.parts or any(c in entry.filename for c in "\\:")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if unsafe or not entry.filename.isprintable() or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveError(f"the archive holds {shown!r}, which is not a plain file inside its folder")
    longest = max(len(part.encode(errors="replace")) for part in path.parts)
    if longest > MAX_NAME_BYTES or len(entry.filename.encode(errors="replace")) > MAX_PATH_BYTES:
        raise ArchiveError(f"the archive holds {shown!r}..., a name too long for a file")
    if entry.flag_bits & 0x1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ArchiveError(f"{shown!r} is encrypted, or packed in a way that models never are")
    if entry.file_size > MAX_RATIO * max(entry.compress_size, 1024):
        raise ArchiveError(f"{shown!r} would grow from {entry.compress_size:,} to {entry.file_size:,} bytes")


def _write(source: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    """Inflate one file; its reader gives at most the bytes that were announced, and compares their checksum."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open(entry) as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, CHUNK_BYTES)
        if write.tell() != entry.file_size:
            raise zipfile.BadZipFile(f"{entry.filename[:80]!r} ends early")

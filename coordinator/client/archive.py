"""Unpacking a downloaded model: only plain files, only inside the folder, never more than was announced."""

import shutil
import stat
import zipfile
from pathlib import Path, PurePosixPath

from coordinator.client.errors import ArchiveError

MAX_FILES = 10_000
MAX_RATIO = 200  # Weights hardly compress; a file that grows more than this while unpacking is a bomb.
CHUNK_BYTES = 1 << 20


def unpack(archive: Path, folder: Path) -> None:
    """Unpack ``archive`` into ``folder``, which is made if need be.

    Raises:
        ArchiveError: not a zip archive, too many files, a name that leads elsewhere, a link, or a bomb.
    """
    try:
        with zipfile.ZipFile(archive) as source:
            entries = source.infolist()
            if len(entries) > MAX_FILES:
                raise ArchiveError(f"the archive has {len(entries):,} files: at most {MAX_FILES:,} are unpacked")
            for entry in entries:
                _check(entry)
            folder.mkdir(parents=True, exist_ok=True)
            for entry in entries:
                if not entry.is_dir():
                    _write(source, entry, folder.joinpath(*PurePosixPath(entry.filename).parts))
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise ArchiveError(f"the model archive is damaged ({error}): download it again") from error


def _check(entry: zipfile.ZipInfo) -> None:
    path = PurePosixPath(entry.filename)
    unsafe = path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in entry.filename
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if unsafe or "\0" in entry.filename or kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise ArchiveError(f"the archive holds {entry.filename[:80]!r}, which is not a plain file inside its folder")
    if entry.file_size > MAX_RATIO * max(entry.compress_size, 1024):
        raise ArchiveError(
            f"{entry.filename[:80]!r} would grow from {entry.compress_size:,} to {entry.file_size:,} bytes"
        )


def _write(source: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open(entry) as read, target.open("wb") as write:
        shutil.copyfileobj(read, write, CHUNK_BYTES)

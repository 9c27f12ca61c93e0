"""A model's folder as one file: the same files make the same archive."""

import zipfile
from pathlib import Path


def pack(folder: Path, archive: Path) -> None:
    """The same files make the same archive: no times, a fixed order, stored as they are (weights do not compress)."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            entry = zipfile.ZipInfo(str(path.relative_to(folder)), (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            with path.open("rb") as source, packed.open(entry, "w", force_zip64=True) as target:
                while block := source.read(1 << 20):
                    target.write(block)


def unpack(archive: Path, folder: Path) -> None:
    """Our own archive: plain names, stored as they are."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)

"""A model's folder as one file, which is the same for the same files; and the files that its stages begin with."""

import json
import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from coordinator.services.artifacts.weight_index import index_archive
from protocol.ids import Digest
from protocol.models.model import resolve_finished
from protocol.models.weights import WEIGHT_INDEX
from protocol.serving import SMALL_ARCHIVE, SMALL_FILES

_LOCAL = struct.Struct("<26xHH")
"""Of a file's own header in an archive: the lengths of its name and of what stands behind that."""


def pack(folder: Path, archive: Path) -> None:
    """The same files make the same archive: no times, a fixed order, stored as they are (weights do not compress)."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            with (
                path.open("rb") as source,
                packed.open(_entry(str(path.relative_to(folder))), "w", force_zip64=True) as target,
            ):
                while block := source.read(1 << 20):
                    target.write(block)


def unpack(archive: Path, folder: Path) -> None:
    """Our own archive: plain names, stored as they are."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)


def make_stage_files(archive: Digest, path: Path, folder: Path) -> tuple[Path, ...]:
    """What a node of a stage fetches in place of a whole model: its small files, and the index of its weights.

    The index names places within the archive, so its weights are nowhere twice. All of them are read once.

    Args:
        archive: digest of one that ``pack`` made.
        path: its place.
        folder: where they are put.
    Returns:
        An archive of small files, and a ``WeightIndex`` in JSON.
    Raises:
        ModelConfigError: the model cannot be trained, nor be cut. InvalidError: as ``index_archive``.
    """
    small, index = folder / SMALL_ARCHIVE, folder / WEIGHT_INDEX
    with zipfile.ZipFile(path) as packed, path.open("rb") as file:
        config = resolve_finished(json.loads(packed.read("config.json")))
        entries = [(Path(entry.filename), entry) for entry in packed.infolist()]
        weights = [
            (_data_of(file, entry), entry.file_size)
            for name, entry in entries
            if name.suffix == ".safetensors" and name.parent == Path()
        ]
        with zipfile.ZipFile(small, "w", zipfile.ZIP_STORED) as target:
            for name, entry in entries:
                if name.suffix in SMALL_FILES:
                    target.writestr(_entry(entry.filename), packed.read(entry))
    index.write_bytes(index_archive(archive, path, weights, config))
    return small, index


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.external_attr = 0o644 << 16
    return entry


def _data_of(file: BinaryIO, entry: zipfile.ZipInfo) -> int:
    """Where a file's own bytes begin in the archive."""
    file.seek(entry.header_offset)
    name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
    return entry.header_offset + _LOCAL.size + int(name) + int(extra)

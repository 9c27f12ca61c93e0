"""A model's folder as one file, which may be encrypted, read where it lies: small files go to a folder, tensors to memory.

Nothing of its weights is on a disk unencrypted, and one tensor at a time is in memory twice.
"""

import io
import re
import struct
import threading
import weakref
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from common.encrypted_files import SealedFile
from common.errors import SealedFileError
from protocol.serving import SMALL_FILES
from trainer.errors import DataError
from trainer.files.inputs import InputFile
from trainer.files.tensors import Source, TensorFile, tensors_of

MAX_FILES = 1000  # The largest public models have 191 files of weights.
MAX_NAME = 200
MAX_SMALL = 96 << 20  # Bytes of all small files, which lie in memory in a container; the longest tokenizers have 40 MB.
WEIGHTS = ".safetensors"
NEEDED = ("config.json", "tokenizer_config.json")
_NAME = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_. -]*/)*[A-Za-z0-9_][A-Za-z0-9_. -]*")
_LOCAL = struct.Struct("<4s22xHH")
_BEGINS = b"PK\x03\x04"


class _Plain:
    """A ``Source`` that is not encrypted."""

    def __init__(self, path: Path) -> None:
        self.size = path.stat().st_size
        self._file = path.open("rb", buffering=0)
        self._close = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()

    def read(self, begin: int, end: int) -> bytes:
        data = bytearray(max(min(end, self.size) - begin, 0))
        self.read_into(data, begin)
        return bytes(data)

    def read_into(self, target: bytearray, begin: int) -> None:
        view = memoryview(target)
        with self._lock:
            self._file.seek(begin)
            while view:
                count = self._file.readinto(view)
                if not count:
                    raise OSError("the file is shorter than it was")
                view = view[count:]


class _Part:
    """A ``Source`` within another."""

    def __init__(self, whole: Source, begin: int, size: int) -> None:
        self._whole, self._begin, self.size = whole, begin, size

    def read(self, begin: int, end: int) -> bytes:
        return self._whole.read(self._begin + begin, self._begin + min(end, self.size))

    def read_into(self, target: bytearray, begin: int) -> None:
        if begin + len(target) > self.size:
            raise ValueError(f"{len(target):,} bytes from {begin:,} on are more than the {self.size:,} that are there")
        self._whole.read_into(target, self._begin + begin)


class _Stream(io.RawIOBase):
    """A ``Source`` as a file, for those who read headers."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source, self._at = source, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._source.read(self._at, self._at + len(buffer))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class LazyTensor:
    """A tensor that is read when somebody asks for ``[...]``, as the format's own reader has it."""

    def __init__(self, file: TensorFile, name: str) -> None:
        """One of a file."""
        self._file, self._name = file, name

    def __getitem__(self, _: object) -> Tensor:
        """All of it."""
        return self._file.get_tensor(self._name)


def stage_tensors(file: InputFile) -> Mapping[str, LazyTensor]:
    """All tensors of a safetensors file by name, none of them read yet.

    Raises:
        DataError: it is broken, or was changed.
    """
    try:
        return _lazily(_opened(file), file.name)
    except (OSError, SealedFileError) as error:
        raise DataError("changed-file", f"{file.name} cannot be read: {error}") from error


def _opened(file: InputFile) -> Source:
    return file if isinstance(file, SealedFile) else _Plain(file)


def _lazily(source: Source, name: str) -> dict[str, LazyTensor]:
    try:
        file = tensors_of(source)
    except (SafetensorError, SealedFileError, OSError) as error:
        raise DataError("bad-archive", f"{name} cannot be read: {error}") from error
    return {key: LazyTensor(file, key) for key in file.keys()}  # noqa: SIM118 - it is no mapping


class ModelArchive:
    """One archive, whose names and sizes were looked at."""

    def __init__(self, file: InputFile, needed: Sequence[str] = NEEDED) -> None:
        """Read what is in it.

        Args:
            needed: files that must be there.
        Raises:
            DataError: it is no archive of a model, or reaches out of its folder.
        """
        try:
            self._source = _opened(file)
            with zipfile.ZipFile(io.BufferedReader(_Stream(self._source), 1 << 16)) as packed:
                entries = packed.infolist()
        except (OSError, SealedFileError) as error:
            raise DataError("changed-file", f"{file.name} cannot be read: {error}") from error
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
            raise DataError("bad-archive", f"{file.name} is no archive: {error}") from error
        _check(entries)
        self._entries = {entry.filename: entry for entry in entries}
        if missing := [name for name in needed if name not in self._entries]:
            raise DataError("bad-archive", f"the model's archive has no {missing[0]}")

    def unpack_small(self, folder: Path) -> None:
        """Put the small files where the tokenizer and the config are looked for.

        Raises:
            DataError: they are too large, or were changed. OSError: the folder has no room.
        """
        small = [one for one in self._entries.values() if Path(one.filename).suffix in SMALL_FILES]
        if (size := sum(one.file_size for one in small)) > MAX_SMALL:
            raise DataError("bad-archive", f"the model's small files have {size:,} bytes: {MAX_SMALL:,} at most")
        for entry in small:
            path = folder / entry.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(self._part(entry).read(0, entry.file_size))

    def small(self, name: str) -> bytes:
        """The content of a small file; empty where there is none of this name.

        Raises:
            DataError: it is too large, or was changed.
        """
        entry = self._entries.get(name)
        if entry is None:
            return b""
        if entry.file_size > MAX_SMALL:
            raise DataError("bad-archive", f"{name} has {entry.file_size:,} bytes: {MAX_SMALL:,} at most")
        return self._part(entry).read(0, entry.file_size)

    def tensors(self) -> Mapping[str, LazyTensor]:
        """All tensors by name, none of them read yet.

        Raises:
            DataError: there are none, two have a name, or a file of them is broken.
        """
        found: dict[str, LazyTensor] = {}
        for entry in self._entries.values():
            if "/" in entry.filename or Path(entry.filename).suffix != WEIGHTS:
                continue
            for name, tensor in _lazily(self._part(entry), entry.filename).items():
                if name in found:
                    raise DataError("bad-archive", f"two files of the model have the tensor {name[:MAX_NAME]}")
                found[name] = tensor
        if not found:
            raise DataError("bad-archive", "the model's archive has no weights")
        return found

    def _part(self, entry: zipfile.ZipInfo) -> _Part:
        """Where a file's bytes are: behind its own header, whose names may be of other lengths than the directory's."""
        at = entry.header_offset
        try:
            head = self._source.read(at, at + _LOCAL.size)
        except (SealedFileError, OSError) as error:
            raise DataError("changed-file", f"{entry.filename} cannot be read: {error}") from error
        mark, name, extra = _LOCAL.unpack(head) if len(head) == _LOCAL.size else (b"", 0, 0)
        begin = at + _LOCAL.size + name + extra
        if mark != _BEGINS or begin + entry.file_size > self._source.size:
            raise DataError("bad-archive", f"{entry.filename} does not lie within the archive")
        return _Part(self._source, begin, entry.file_size)


def _check(entries: list[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_FILES:
        raise DataError("bad-archive", f"the model's archive has {len(entries):,} files: {MAX_FILES:,} at most")
    seen: set[str] = set()
    for entry in entries:
        name = entry.filename
        if len(name) > MAX_NAME or not _NAME.fullmatch(name):
            raise DataError("bad-archive", f"{name[:MAX_NAME]!r} cannot be the name of a model's file")
        if name.lower() in seen:
            raise DataError("bad-archive", f"the model's archive has {name} twice")
        seen.add(name.lower())
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or entry.flag_bits & 1:
            raise DataError(
                "bad-archive", f"{name} is packed or encrypted, where a model's files are stored as they are"
            )

"""A dataset's file as a stream of bytes: unpacked, in UTF-8, in bounded memory, and never more than a text unpacks to."""

import codecs
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from common.regular_file import irregular
from protocol.datasets.encodings import encoding_of
from protocol.datasets.file_formats import HEAD_BYTES, ContentError, FileContent, recognise, settle
from protocol.job.job import DatasetFormat, DatasetSpec
from trainer.errors import DataError
from trainer.formats.rows import CUT, HALF, NO_CHARACTER
from trainer.formats.unpacking import Bounded, Unpacked

MAX_DATASET_BYTES = 200 << 30  # As much as an upload may have, and as much as it may unpack to.
MAX_RATIO = 300  # Text packs to a fifth or a tenth; logs that repeat themselves to a hundredth.
FREE_BYTES = 1 << 30  # A small file may unpack to so much whatever its ratio.
MAX_SPOOLED = 50 << 30  # What must be read out of order is unpacked onto the disk.
BLOCK = 1 << 20
_UNREADABLE = "cottage.unreadable"


@dataclass(frozen=True)
class Dataset:
    """A dataset, as somebody has asked for it.

    Attributes:
        name: what people call the file; an artifact's own name is a digest, which says nothing to anybody.
    """

    path: Path
    spec: DatasetSpec
    name: str

    @classmethod
    def of(cls, path: Path, form: DatasetFormat = "auto", name: str = "", **wanted: Any) -> "Dataset":
        """A file on this machine; ``wanted``: further fields of ``DatasetSpec``."""
        return cls(path, DatasetSpec("0" * 64, form, **wanted), name or path.name)

    @property
    def size(self) -> int:
        """Bytes of the file, packed as it is.

        Raises:
            DataError: missing, no regular file, empty, or more than ``MAX_DATASET_BYTES``.
        """
        try:
            size, what = self.path.stat().st_size, irregular(self.path)
        except OSError as error:
            raise DataError("missing-file", f"{self.name} cannot be read: {error.strerror}") from error
        if what:
            raise DataError("missing-file", f"{self.name} {what}")
        if size == 0:
            raise DataError("empty-dataset", f"{self.name} is empty: upload a file with text in it")
        if size > MAX_DATASET_BYTES:
            raise DataError("too-large", f"{self.name} has {size:,} bytes: at most {MAX_DATASET_BYTES:,} are taken")
        return size

    def look(self) -> FileContent:
        """What the file is, by its beginning; raises as ``size``."""
        size = self.size
        with self.path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        return recognise(head, size <= HEAD_BYTES, self.name, self.spec.text_field, self.spec.encoding)

    def format(self, content: FileContent) -> DatasetFormat:
        """What it is read as.

        Raises:
            DataError: it is no dataset, not what was said, or it could be several things.
        """
        try:
            return settle(content, self.name, self.spec.format)
        except ContentError as error:
            binary = content.problem or (content.encoding == "" and self.spec.format != "auto")
            code = "binary-dataset" if binary else "wrong-format"
            raise DataError(code, str(error)) from error

    def encoding(self, content: FileContent) -> str:
        """How its characters are written: as somebody has said, or as it looks; where that is unknown, UTF-8."""
        said = self.spec.encoding
        return ("utf-8" if content.encoding in ("", "?") else content.encoding) if said == "auto" else said


class SourceStream(io.BufferedReader):
    """What is in a file, from its beginning."""

    def __init__(self, raw: Any, file: io.FileIO) -> None:
        super().__init__(raw, BLOCK)
        self._counted = file
        self._told = 0

    def since(self) -> int:
        """Bytes of the file that were read since this was asked before, or since the beginning."""
        before, self._told = self._told, self._counted.tell()
        return self._told - before


@contextmanager
def opened(dataset: Dataset, content: FileContent, *, characters: bool = True) -> Iterator[SourceStream]:
    """The bytes of a dataset, unpacked.

    Args:
        characters: in UTF-8 and without a mark; False: as they are.
    Raises:
        DataError: while it is read: damaged, cut, or more than it may unpack to.
    """
    with dataset.path.open("rb", buffering=0) as file:
        most = min(MAX_DATASET_BYTES, max(FREE_BYTES, MAX_RATIO * dataset.size))
        packing = content.packing
        raw = Bounded(Unpacked(file, packing), dataset.name, packing, most) if packing else file
        if not characters:
            yield SourceStream(raw, file)
            return
        encoding = dataset.encoding(content)
        stream = SourceStream(raw, file)
        marked, length = encoding_of(stream.peek(4)[:4], guess=False)
        if length and marked == encoding:
            stream.read(length)
        yield stream if encoding == "utf-8" else SourceStream(_InUtf8(stream, encoding), file)


@contextmanager
def spooled(dataset: Dataset, content: FileContent) -> Iterator[BinaryIO]:
    """The bytes of a dataset, unpacked, to be read in any order.

    Raises:
        DataError: damaged, cut, or too large for the disk.
    """
    if not content.packing:
        with dataset.path.open("rb") as file:
            yield file
        return
    with opened(dataset, content, characters=False) as stream, tempfile.TemporaryFile() as whole:
        try:
            while block := stream.read(BLOCK):
                if whole.tell() + len(block) > MAX_SPOOLED:
                    raise DataError(
                        "too-large", f"{dataset.name} unpacks to more than {MAX_SPOOLED:,} bytes: upload it unpacked"
                    )
                whole.write(block)
        except OSError as error:
            free = shutil.disk_usage(tempfile.gettempdir()).free
            detail = f"there is no room to unpack {dataset.name} ({free:,} bytes are free): upload it unpacked"
            raise DataError("too-large", detail) from error
        whole.seek(0)
        yield cast(BinaryIO, whole)


class _InUtf8(io.RawIOBase):
    """Characters of another encoding as UTF-8; bytes that are none become no UTF-8 either, so that the row says so."""

    def __init__(self, inner: io.BufferedReader, encoding: str) -> None:
        self._inner = inner
        self._decoder = codecs.getincrementaldecoder(encoding)(_UNREADABLE)
        self._waiting = memoryview(b"")
        self._ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting and not self._ended:
            block = self._inner.read(BLOCK)
            self._ended = not block
            text = self._decoder.decode(block, self._ended)
            self._waiting = memoryview(text.encode("utf-8", "surrogatepass"))
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count


def _unreadable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    if error.reason in ("truncated data", "unexpected end of data", "incomplete multibyte sequence"):
        return CUT, error.end
    return HALF if error.encoding.startswith("utf-16") or "surrogate" in error.reason else NO_CHARACTER, error.end


codecs.register_error(_UNREADABLE, _unreadable)

"""From what builders write (``docker save``, an OCI archive) to the one form that is signed, sent and run.

The layers are unpacked, hashed and looked through here already, so that a fault is found before gigabytes have crossed the line.
Sources: Docker Image Specification 1.2; OCI Image Format Specification 1.1, "Image Layout" and "Image Index".
"""

import bz2
import gzip
import hashlib
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, cast

import msgspec

from common.zstd import WINDOW
from protocol.codec import encode_json
from protocol.identity import NodeKey
from protocol.images.archive import (
    MANIFEST_NAME,
    STATEMENT_NAME,
    distinct,
    end,
    header,
    manifest_of,
    padding,
    write_small,
)
from protocol.images.configuration import MAX_CONFIGURATION, ImageConfiguration, reduced
from protocol.images.errors import ImageFormatError
from protocol.images.layers import MAX_LAYER, look_through
from protocol.images.statement import PublishedImage, sign
from protocol.images.tar import Window

MAX_INDEX: Final = 4 << 20
MAX_INDEXES: Final = 4  # An index may name indexes; builders nest two.
OCI_INDEX: Final = "index.json"
_OPEN: Final[tuple[tuple[bytes, Callable[[IO[bytes]], Any]], ...]] = (
    (b"\x1f\x8b", lambda file: gzip.GzipFile(fileobj=file)),
    (b"BZh", bz2.BZ2File),
    (b"\xfd7zXZ\x00", lzma.LZMAFile),
)

Progress = Callable[[int], None]
"""Called with the bytes of layers that are done."""


@dataclass(frozen=True)
class BuiltImage:
    """What a builder's archive holds. ``blobs``: its layers as they lie there, the lowest first; ``sizes``: unpacked, by digest;
    ``left_out``: in words, what no task will have of it."""

    archive: Path
    configuration: ImageConfiguration
    blobs: tuple[str, ...]
    sizes: dict[str, int]
    left_out: tuple[str, ...]

    @property
    def document(self) -> bytes:
        """The configuration as it is signed."""
        return encode_json(self.configuration)

    @property
    def unpacked(self) -> int:
        """Bytes of all layers."""
        return sum(self.sizes.values())


def survey(archive: Path, architecture: str, progress: Progress = lambda _done: None) -> BuiltImage:
    """Look an archive through from end to end.

    Args:
        architecture: which of several images is meant, where the archive has an index of them.
    Raises:
        ImageFormatError: it is no archive of one image, or what must not be in one is in it.
        OSError: it cannot be read.
    """
    with _opened(archive) as tar:
        configuration_name, blobs = _parts(tar, architecture)
        configuration, left_out = reduced(_read(tar, configuration_name, MAX_CONFIGURATION))
        ids = [one.removeprefix("sha256:") for one in configuration.rootfs.diff_ids]
        if len(ids) != len(blobs):
            raise ImageFormatError(f"its configuration names {len(ids)} layers, and there are {len(blobs)}")
        sizes: dict[str, int] = {}
        members = done = 0
        for layer, blob in zip(ids, blobs, strict=True):
            if layer in sizes:
                continue
            with _layer(tar, blob) as file:
                counted = _Counted(file)
                members = look_through(counted, members)
            if counted.digest() != layer:
                raise ImageFormatError(f"the layer {blob} is another one than its configuration names: save it anew")
            sizes[layer] = counted.size
            done += counted.size
            progress(done)
    return BuiltImage(archive, configuration, tuple(blobs), sizes, tuple(left_out))


def stated(image: BuiltImage, name: str, key: NodeKey) -> PublishedImage:
    """What its publisher says of it; raises ImageFormatError where ``name`` can be none."""
    try:
        return msgspec.convert(
            {
                "name": name,
                "image": hashlib.sha256(image.document).hexdigest(),
                "architecture": image.configuration.architecture,
                "unpacked": image.unpacked,
                "publisher": key.address,
            },
            PublishedImage,
        )
    except msgspec.ValidationError as error:
        raise ImageFormatError(
            f"{name[:120]!r} cannot be an image's name ({error}): give one such as sweep:1 with --name"
        ) from error


def write(image: BuiltImage, statement: PublishedImage, key: NodeKey, target: Path) -> None:
    """Write the archive that is sent: always the same bytes for the same image, name and key.

    Raises:
        ImageFormatError: the source has changed since it was looked through.
        OSError: there is no room.
    """
    configuration = image.configuration
    ids = [one.removeprefix("sha256:") for one in configuration.rootfs.diff_ids]
    blob_of = dict(zip(ids, image.blobs, strict=True))
    with target.open("wb") as output, _opened(image.archive) as tar:
        write_small(output, STATEMENT_NAME, sign(statement, key))
        write_small(output, MANIFEST_NAME, manifest_of(statement.image, configuration))
        write_small(output, f"{statement.image}.json", image.document)
        for layer in distinct(configuration):
            size = image.sizes[layer]
            output.write(header(f"{layer}.tar", size))
            with _layer(tar, blob_of[layer]) as file:
                if Window(file, size).drain(output.write) != layer:
                    raise ImageFormatError(f"{image.archive.name} has changed while it was read: try again")
            output.write(padding(size))
        output.write(end())


class _Counted:
    """Counts and hashes what is read, and stops at the largest layer."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0
        self._hash = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        self.size += len(data)
        self._hash.update(data)
        if self.size > MAX_LAYER:
            raise ImageFormatError(f"a layer has more than {MAX_LAYER:,} bytes: split the step that makes it")
        return data

    def digest(self) -> str:
        return self._hash.hexdigest()


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # The disk's; gzip and bzip2 have none where data are damaged.
            raise
        raise ImageFormatError(f"{archive.name} is no archive of docker save, nor an OCI archive: {error}") from error


def _parts(tar: tarfile.TarFile, architecture: str) -> tuple[str, list[str]]:
    """Names in the archive of its image's configuration and layers."""
    names = {name.removeprefix("./") for name in tar.getnames()}
    try:
        if MANIFEST_NAME in names:
            images = msgspec.json.decode(_read(tar, MANIFEST_NAME, MAX_INDEX))
            if len(images) != 1:
                raise ImageFormatError(f"it holds {len(images)} images: save one")
            return str(images[0]["Config"]), [str(one) for one in images[0]["Layers"]]
        if OCI_INDEX in names:
            return _oci_parts(tar, architecture)
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ImageFormatError(f"it is damaged: {error!r}") from error
    raise ImageFormatError(f"it has neither {MANIFEST_NAME} nor {OCI_INDEX}: make it with docker save IMAGE -o FILE")


def _oci_parts(tar: tarfile.TarFile, architecture: str) -> tuple[str, list[str]]:
    entries = msgspec.json.decode(_read(tar, OCI_INDEX, MAX_INDEX))["manifests"]
    for _ in range(MAX_INDEXES):
        fitting = [one for one in entries if _fits(one.get("platform"), architecture)]
        if len(fitting) != 1:
            raise ImageFormatError(f"it holds {len(fitting)} images for {architecture}: save one")
        manifest = msgspec.json.decode(_read(tar, _blob(fitting[0]), MAX_INDEX))
        if "config" in manifest:
            return _blob(manifest["config"]), [_blob(one) for one in manifest["layers"]]
        entries = manifest["manifests"]
    raise ImageFormatError(f"its indexes are nested more than {MAX_INDEXES} deep")


def _fits(platform: dict[str, Any] | None, architecture: str) -> bool:
    """Whether an image of an index is meant; notes of builders beside it have a platform that is unknown."""
    return platform is None or (platform.get("os"), platform.get("architecture")) == ("linux", architecture)


def _blob(descriptor: dict[str, Any]) -> str:
    return "blobs/" + str(descriptor["digest"]).replace(":", "/", 1)


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    for spelled in (name, f"./{name}"):
        try:
            file = tar.extractfile(spelled)
        except KeyError:
            continue
        if file is not None:
            return file
    raise ImageFormatError(f"{name[:100]} is not in it, though it should be")


def _read(tar: tarfile.TarFile, name: str, limit: int) -> bytes:
    with _member(tar, name) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ImageFormatError(f"{name[:100]} has more than {limit:,} bytes")
    return data


@contextmanager
def _layer(tar: tarfile.TarFile, name: str) -> Iterator[BinaryIO]:
    """A layer as a plain tar, however it is packed."""
    with _member(tar, name) as file:
        begin = file.read(6)
        file.seek(0)
        if begin.startswith(b"\x28\xb5\x2f\xfd"):
            try:
                import zstandard
            except ImportError:
                raise ImageFormatError(
                    "a layer is packed with zstd: run pip install zstandard, or save the image with docker save"
                ) from None
            try:
                with zstandard.ZstdDecompressor(max_window_size=WINDOW).stream_reader(file) as plain:
                    yield cast(BinaryIO, plain)
            except zstandard.ZstdError as error:
                raise ImageFormatError(f"the layer {name} is damaged ({error}): save the image anew") from error
            return
        opener = next((one for magic, one in _OPEN if begin.startswith(magic)), None)
        if opener is None:
            yield cast(BinaryIO, file)
            return
        with opener(file) as plain:
            yield plain

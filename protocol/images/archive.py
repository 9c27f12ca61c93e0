"""An image in one file, always the same bytes for the same image, name and key; any ``docker load`` takes it, too.

::

    cottage.json        the publisher's statement, signed: known from the first bytes of the file
    manifest.json       for engines: configuration and layers, in order
    IMAGE.json          the configuration, as ``configuration`` bounds it
    DIFF_ID.tar         each layer once, plain; in the order of their first use

Whoever reads one believes nothing: each name follows from what came before it, each layer is hashed and looked through.
"""

import io
import tarfile
from dataclasses import dataclass
from typing import BinaryIO, Final

from protocol.codec import encode_json
from protocol.images.configuration import MAX_CONFIGURATION, ImageConfiguration, opened
from protocol.images.errors import ImageFormatError
from protocol.images.layers import MAX_LAYER, look_through
from protocol.images.statement import MAX_STATEMENT, PublishedImage, read
from protocol.images.tar import BLOCK, TarSource, TarWalk

STATEMENT_NAME: Final = "cottage.json"
MANIFEST_NAME: Final = "manifest.json"
HEAD_BYTES: Final = BLOCK + MAX_STATEMENT
"""So much of an archive's beginning has the whole statement."""
MAX_ARCHIVE: Final = 65 << 30
_MAX_MANIFEST: Final = 64 << 10
_END: Final = bytes(2 * BLOCK)


@dataclass(frozen=True)
class ImageContents:
    """An archive that was read to its end."""

    stated: PublishedImage
    configuration: ImageConfiguration


def stated_in(head: bytes) -> PublishedImage:
    """The statement that an archive begins with.

    Args:
        head: its first ``HEAD_BYTES``, or all of a shorter one.
    Raises:
        ImageFormatError: it is no archive of Cottage's, or nobody can answer for it.
    """
    return _statement(TarWalk(io.BytesIO(head)))


def examine(archive: TarSource) -> ImageContents:
    """Read a whole archive.

    Raises:
        ImageFormatError: it is not exactly one image, signed and within all bounds. The text names the fault.
    """
    walk = TarWalk(archive)
    stated = _statement(walk)
    manifest = _small(walk, MANIFEST_NAME, _MAX_MANIFEST)
    document = _small(walk, f"{stated.image}.json", MAX_CONFIGURATION, stated.image)
    configuration = opened(document)
    if configuration.architecture != stated.architecture:
        raise ImageFormatError(f"it is for {configuration.architecture}, and its statement says {stated.architecture}")
    if manifest != manifest_of(stated.image, configuration):
        raise ImageFormatError(f"its {MANIFEST_NAME} does not follow from its configuration")
    unpacked = members = 0
    for layer in distinct(configuration):
        size = _member(walk, f"{layer}.tar", MAX_LAYER)
        unpacked += size
        if unpacked > stated.unpacked:
            break
        window = walk.content()
        members = look_through(window, members)
        if (found := window.drain()) != layer:
            raise ImageFormatError(f"the layer {layer[:16]} is another one than its configuration names ({found[:16]})")
    if unpacked != stated.unpacked:
        raise ImageFormatError(f"its layers do not have the {stated.unpacked:,} bytes that its statement says")
    if (more := walk.following()) is not None:
        raise ImageFormatError(f"it holds more than its image: {more.name[:80]!r}")
    return ImageContents(stated, configuration)


def manifest_of(image: str, configuration: ImageConfiguration) -> bytes:
    """What an engine wants to be told (Docker Image Specification 1.2, "Combined Image JSON")."""
    layers = [f"{one.removeprefix('sha256:')}.tar" for one in configuration.rootfs.diff_ids]
    return encode_json([{"Config": f"{image}.json", "RepoTags": None, "Layers": layers}])


def distinct(configuration: ImageConfiguration) -> list[str]:
    """The layers of an archive, each once: SHA-256 of their tars."""
    return list(dict.fromkeys(one.removeprefix("sha256:") for one in configuration.rootfs.diff_ids))


def write_small(output: BinaryIO, name: str, data: bytes) -> None:
    """One member that is in memory."""
    output.write(header(name, len(data)) + data + padding(len(data)))


def header(name: str, size: int) -> bytes:
    """A member's header, without anything of the machine that writes it."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def padding(size: int) -> bytes:
    """What follows a member's content."""
    return bytes(-size % BLOCK)


def end() -> bytes:
    """What an archive ends with."""
    return _END


def _statement(walk: TarWalk) -> PublishedImage:
    try:
        document = _small(walk, STATEMENT_NAME, MAX_STATEMENT)
    except ImageFormatError as error:
        raise ImageFormatError(f"it is no image as `cottage image push` sends it: {error}") from error
    return read(document)


def _small(walk: TarWalk, name: str, limit: int, digest: str | None = None) -> bytes:
    _member(walk, name, limit)
    pieces: list[bytes] = []
    found = walk.content().drain(pieces.append)
    if digest is not None and found != digest:
        raise ImageFormatError(f"its {name} is another file than its statement names")
    return b"".join(pieces)


def _member(walk: TarWalk, name: str, limit: int) -> int:
    member = walk.following()
    if member is None or member.name != name or member.kind != tarfile.REGTYPE or member.attributes or member.sparse:
        raise ImageFormatError(
            f"{name} comes next in such an archive, not {member.name[:80] if member else 'its end'!r}"
        )
    if member.size > limit:
        raise ImageFormatError(f"{name} has {member.size:,} bytes: at most {limit:,} are taken")
    return member.size

"""What the release key says of the sandbox image, and whether an image may hold jobs by it. Pure.

Signed like the update manifest (``updates.manifest``): Ed25519 over canonical JSON, by the same key, in a context of its own. Who
holds the web server, the line or the archive, but not the key, can neither swap the image nor bring back an older one.
"""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from desktop.agent.errors import UnsignedImageError
from transport.errors import TransportError
from transport.identity import NodeKey, verify
from transport.wire.codec import MessageError, decode_json, encode_json

CONTEXT = "cottage/image/1"
MAX_DOCUMENT = 16 << 10  # One takes 600 bytes.
MAX_ARCHIVE = 64 << 30  # With PyTorch for CUDA an image has about 8 GB.

ImageId = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
Unix = Annotated[int, Meta(ge=0, lt=2**40)]


class Archive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file beside the statement, as ``docker save`` writes it. ``size``: bytes."""

    file: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Meta(ge=1, le=MAX_ARCHIVE)]


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One image. ``number`` grows with every statement; ``key``: who signs (base58); ``made``, ``expires``: Unix seconds.

    ``ids``: how engines name it: by the digest of its configuration, or of its manifest where containerd keeps the images.
    """

    number: Annotated[int, Meta(ge=1, lt=2**53)]
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    ids: Annotated[tuple[ImageId, ...], Meta(min_length=1, max_length=4)]
    archive: Archive
    made: Unix
    expires: Unix
    key: Annotated[str, Meta(max_length=44)]


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document on the web server. ``signature``: 64 bytes as hexadecimal digits."""

    image: Image
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}$")]


class Newest(msgspec.Struct, frozen=True):
    """The newest statement that this home has seen, and will not go behind."""

    number: int = 0
    digest: str = ""


def sign(image: Image, key: NodeKey) -> bytes:
    """The document for the web server; raises UnsignedImageError where the statement names another key."""
    if image.key != key.address:
        raise UnsignedImageError(f"the statement names the key {image.key}, and {key.address} would sign it")
    return encode_json(Signed(image, key.sign(CONTEXT, encode_json(image)).hex()))


def read(document: bytes, address: str) -> Image:
    """The statement in ``document``, if the key ``address`` (base58) has signed it.

    Raises:
        UnsignedImageError: it is cut off, malformed, or signed by nobody or somebody else.
    """
    try:
        signed: Signed = decode_json(document, Signed, MAX_DOCUMENT)
        verify(address, bytes.fromhex(signed.signature), CONTEXT, encode_json(signed.image))
    except (MessageError, TransportError) as error:
        raise UnsignedImageError(f"the statement about the sandbox image cannot be believed: {error}") from error
    if signed.image.key != address:
        raise UnsignedImageError(
            f"the statement about the sandbox image names another key than {address}, which signed it"
        )
    return signed.image


def judge(image: Image, newest: Newest, now: float) -> Newest:
    """``newest`` with this statement.

    Raises:
        UnsignedImageError: it has expired, is older than one that was seen, or another under a known number.
    """
    if now >= image.expires:
        raise UnsignedImageError(
            f"statement {image.number} about the sandbox image has expired: take the present one with `cottage node image`, "
            "and see that this computer's clock is right"
        )
    if image.number < newest.number:
        raise UnsignedImageError(
            f"statement {image.number} about the sandbox image is older than {newest.number}, which was seen before"
        )
    digest = hashlib.sha256(encode_json(image)).hexdigest()
    if image.number == newest.number and digest != newest.digest:
        raise UnsignedImageError(
            f"there are two statements about the sandbox image with the number {image.number}: neither is believed"
        )
    return Newest(image.number, digest)

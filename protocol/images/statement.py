"""What a publisher says of an image, signed: the first member of its archive, so that a reader knows it before the rest comes.

``image`` is the SHA-256 of the image's configuration, which names every layer by its own: so the signature covers all that
runs. It has no number and no end, unlike what the release key signs: an image never becomes another one, and an owner who
trusts a publisher no longer removes the key. Signing the same twice gives the same bytes (RFC 8032).
"""

from typing import Annotated, Final, Literal, cast

import msgspec
from msgspec import Meta

from protocol.identity import NodeKey
from protocol.ids import Digest, NodeAddress
from protocol.images.errors import ImageFormatError
from protocol.signatures.signed_documents import Signature, SignedKind

MAX_STATEMENT: Final = 4 << 10  # One takes 400 bytes.
MAX_UNPACKED: Final = 64 << 30  # As the sandbox image's archive: with CUDA an image has about 8 GB.

Architecture = Literal["amd64", "arm64"]
ImageName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,99}$")]
"""What its publisher calls an image, such as ``blender:4.2``. Visible ASCII: safe to show."""


class PublishedImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One image. ``image``: SHA-256 of its configuration; ``unpacked``: bytes of its layers; ``publisher``: who signs."""

    name: ImageName
    image: Digest
    architecture: Architecture
    unpacked: Annotated[int, Meta(ge=1, le=MAX_UNPACKED)]
    publisher: NodeAddress


class SignedImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document."""

    image: PublishedImage
    signature: Signature


STATEMENT: Final[SignedKind[PublishedImage]] = SignedKind(
    context="cottage/published-image/1",
    envelope=SignedImage,
    limit=MAX_STATEMENT,
    error=ImageFormatError,
    noun="statement",
    about=" about this image",
)


def sign(image: PublishedImage, key: NodeKey) -> bytes:
    """The document; raises ImageFormatError where the statement names another key."""
    if image.publisher != key.address:
        raise ImageFormatError(f"the statement names the publisher {image.publisher}, and {key.address} would sign it")
    return STATEMENT.sign(image, key)


def read(document: bytes) -> PublishedImage:
    """What is stated, if its publisher has signed it; whether that one is trusted is the reader's to say.

    Raises:
        ImageFormatError: it is cut off, malformed, or signed by nobody or somebody else.
    """
    signed = cast(SignedImage, STATEMENT.opened(document))
    return STATEMENT.believed(signed, signed.image.publisher)

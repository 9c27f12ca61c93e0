"""What the release key says of the sandbox image, and whether an image may hold jobs by it. Pure.

Signed and read like the update manifest (``protocol.signatures.signed_documents``). Who holds the web server, the line or
the archive, but not the key, can neither swap the image nor bring back an older one.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from desktop.agent.errors import UnsignedImageError
from protocol.identity import NodeKey
from protocol.signatures.signed_documents import DocumentKind, FileName, Number, Sha256, Signature, Unix, digest_of

MAX_DOCUMENT = 16 << 10  # One takes 600 bytes.
MAX_ARCHIVE = 64 << 30  # With PyTorch for CUDA an image has about 8 GB.

ImageId = Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]


class Archive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file beside the statement, as ``docker save`` writes it. ``size``: bytes."""

    file: FileName
    sha256: Sha256
    size: Annotated[int, Meta(ge=1, le=MAX_ARCHIVE)]


class SandboxImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One image. ``number`` grows with every statement; ``key``: who signs (base58); ``made``, ``expires``: Unix seconds.

    ``ids``: how engines name it: by the digest of its configuration, or of its manifest where containerd keeps the images.
    """

    number: Number
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    ids: Annotated[tuple[ImageId, ...], Meta(min_length=1, max_length=4)]
    archive: Archive
    made: Unix
    expires: Unix
    key: Annotated[str, Meta(max_length=44)]


class SignedStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The document on the web server."""

    image: SandboxImage
    signature: Signature


class Newest(msgspec.Struct, frozen=True):
    """The newest statement that this home has seen, and will not go behind."""

    number: int = 0
    digest: str = ""


STATEMENT: DocumentKind[SandboxImage] = DocumentKind(
    context="cottage/image/1",
    envelope=SignedStatement,
    limit=MAX_DOCUMENT,
    error=UnsignedImageError,
    noun="statement",
    about=" about the sandbox image",
    expired="take the present one with `cottage node image`, and see that this computer's clock is right",
    server="image",
)


def sign(image: SandboxImage, key: NodeKey) -> bytes:
    """The document for the web server; raises UnsignedImageError where the statement names another key."""
    if image.key != key.address:
        raise UnsignedImageError(f"the statement names the key {image.key}, and {key.address} would sign it")
    return STATEMENT.sign(image, key)


def read(document: bytes, address: str) -> SandboxImage:
    """The statement in ``document``, if the key ``address`` (base58) has signed it and the statement says so.

    Raises:
        UnsignedImageError: it is cut off, malformed, or signed by nobody or somebody else.
    """
    image = STATEMENT.read(document, address)
    if image.key != address:
        raise UnsignedImageError(
            f"the statement about the sandbox image names another key than {address}, which signed it"
        )
    return image


def judge(image: SandboxImage, newest: Newest, now: float) -> Newest:
    """``newest`` with this statement.

    Raises:
        UnsignedImageError: it has expired, is older than one that was seen, or another under a known number.
    """
    STATEMENT.judge(image, newest.number, newest.digest, now)
    return Newest(image.number, digest_of(image))

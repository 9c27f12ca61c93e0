"""A stage's state between agents: asked for in pieces, so that several peers give it at once and a lost one costs a piece.

::

    asks                                    has
      StateAsk(piece None)      control ->    the manifest
                                <- bulk     StateGive(piece None) + manifest
      StateAsk(piece i)         control ->    one piece
                                <- bulk     StateGive(piece i) + bytes, or found False

The digest of the manifest names the state; members of a round agree on it by majority. Each piece is held against the manifest as
it comes, so a wrong one is known with its giver.
"""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.codec import decode, encode
from protocol.ids import Digest

PREFIX = b"cottage-state/"
PIECE_BYTES = 1 << 20  # A second of a 10 Mbit/s uplink: what a peer that leaves in the middle costs.
MAX_PIECES = 2048  # Of 1 MiB: as much as a worker takes in one frame. The manifest then stays below ``MAX_MESSAGE``.

PieceIndex = Annotated[int, Meta(ge=0, lt=MAX_PIECES)]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a state consists of: ``artifact`` is the SHA-256 of all its bytes, ``pieces`` that of each ``PIECE_BYTES`` of them."""

    artifact: Digest
    size: Annotated[int, Meta(ge=1, le=MAX_PIECES * PIECE_BYTES)]
    pieces: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_PIECES)]

    @property
    def is_sound(self) -> bool:
        """Whether there are as many pieces as the size needs."""
        return len(self.pieces) == -(-self.size // PIECE_BYTES)

    def span(self, piece: int) -> slice:
        """Where a piece lies."""
        return slice(piece * PIECE_BYTES, min(self.size, (piece + 1) * PIECE_BYTES))

    def fits(self, piece: int, data: bytes | memoryview) -> bool:
        """Whether these are the bytes of a piece."""
        span = self.span(piece)
        return len(data) == span.stop - span.start and hashlib.sha256(data).hexdigest() == self.pieces[piece]


class StateAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="ask"):
    """``piece`` None: the manifest itself."""

    manifest: Digest
    piece: PieceIndex | None = None


class StateGive(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="give"):
    """The payload is what was asked for; ``found`` False: it is not here (any more)."""

    manifest: Digest
    piece: PieceIndex | None = None
    found: bool = True


StateMessage = StateAsk | StateGive


def manifest_of(data: bytes) -> Manifest:
    """The manifest of a state of at least one byte."""
    view = memoryview(data)
    pieces = [view[at : at + PIECE_BYTES] for at in range(0, len(view), PIECE_BYTES)]
    digests = tuple(hashlib.sha256(piece).hexdigest() for piece in pieces)
    return Manifest(hashlib.sha256(data).hexdigest(), len(data), digests)


def digest_of(manifest: bytes) -> str:
    """The name of a state, from its encoded manifest."""
    return hashlib.sha256(manifest).hexdigest()


def read_manifest(data: bytes | memoryview, digest: str) -> Manifest | None:
    """The manifest that ``digest`` names; None where these bytes are another, or none.

    Raises:
        MessageError: the bytes have the digest, and are no manifest.
    """
    if digest_of(bytes(data)) != digest:
        return None
    manifest: Manifest = decode(data, Manifest)
    return manifest if manifest.is_sound else None


def header(message: StateMessage) -> bytes:
    """A message as the header of a peer's message."""
    return PREFIX + encode(message)

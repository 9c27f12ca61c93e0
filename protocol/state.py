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
MAX_PIECES = 8192  # The manifest then stays below ``MAX_MESSAGE``; states beyond 8 GiB have larger pieces.
MAX_STATE = 64 << 30  # As much as a worker takes in one frame: pieces of 8 MiB, which cross a line of 2 Mbit/s in time.

PieceIndex = Annotated[int, Meta(ge=0, lt=MAX_PIECES)]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a state consists of: ``artifact`` is the SHA-256 of all its bytes, ``pieces`` that of each ``piece_bytes`` of them."""

    artifact: Digest
    size: Annotated[int, Meta(ge=1, le=MAX_STATE)]
    pieces: Annotated[tuple[Digest, ...], Meta(min_length=1, max_length=MAX_PIECES)]

    @property
    def is_sound(self) -> bool:
        """Whether there are as many pieces as the size needs."""
        return len(self.pieces) == -(-self.size // self.piece_bytes)

    @property
    def piece_bytes(self) -> int:
        """How long each piece but the last is."""
        return piece_bytes(self.size)

    def span(self, piece: int) -> slice:
        """Where a piece lies."""
        length = self.piece_bytes
        return slice(piece * length, min(self.size, (piece + 1) * length))

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


def piece_bytes(size: int) -> int:
    """Of how many bytes the pieces of a state are: as few as ``MAX_PIECES`` allow, a power of two."""
    length = PIECE_BYTES
    while size > MAX_PIECES * length:
        length *= 2
    return length


class ManifestMaker:
    """The manifest of a state of ``size`` bytes that comes a little at a time."""

    def __init__(self, size: int) -> None:
        """Nothing has come yet."""
        self._size = size
        self._length = piece_bytes(size)
        self._all, self._piece = hashlib.sha256(), hashlib.sha256()
        self._filled = 0
        self._digests: list[str] = []

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._all.update(data)
        view = memoryview(data)
        while view:
            taken = view[: self._length - self._filled]
            self._piece.update(taken)
            self._filled += len(taken)
            view = view[len(taken) :]
            if self._filled == self._length:
                self._end_piece()

    def _end_piece(self) -> None:
        self._digests.append(self._piece.hexdigest())
        self._piece, self._filled = hashlib.sha256(), 0

    def manifest(self) -> Manifest:
        """Of what has come, which is all of it."""
        if self._filled:
            self._end_piece()
        return Manifest(self._all.hexdigest(), self._size, tuple(self._digests))


def manifest_of(data: bytes) -> Manifest:
    """The manifest of a state of at least one byte."""
    maker = ManifestMaker(len(data))
    maker.update(data)
    return maker.manifest()


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

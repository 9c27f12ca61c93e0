"""What a state consists of: pieces, as many as a message can name, however large the state."""

import hashlib
import random

import msgspec
import pytest

from protocol.codec import MAX_MESSAGE, MessageError, decode, encode
from protocol.state import (
    MAX_PIECES,
    MAX_STATE,
    PIECE_BYTES,
    Manifest,
    ManifestMaker,
    digest_of,
    manifest_of,
    piece_bytes,
    read_manifest,
)
from protocol.worker import MAX_PAYLOAD

DIGEST = "ab" * 32


@pytest.mark.parametrize("size", [1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES - 1])
def test_a_manifest_is_the_same_however_its_bytes_come(size: int) -> None:
    data, chance, at = random.Random(size).randbytes(size), random.Random(1), 0
    maker = ManifestMaker(size)
    while at < size:
        step = chance.randrange(1, 700_000)
        maker.update(data[at : at + step])
        at += step
    manifest = maker.manifest()
    assert manifest == manifest_of(data)
    assert manifest.is_sound
    assert manifest.artifact == hashlib.sha256(data).hexdigest()
    assert all(manifest.fits(piece, data[manifest.span(piece)]) for piece in range(len(manifest.pieces)))


@pytest.mark.parametrize(
    ("size", "length"),
    [
        (2 << 30, 1 << 20),  # As it was when no state was longer.
        (8 << 30, 1 << 20),
        ((8 << 30) + 1, 2 << 20),
        (MAX_STATE, 8 << 20),
    ],
)
def test_large_states_have_larger_pieces_so_that_a_message_names_them_all(size: int, length: int) -> None:
    assert piece_bytes(size) == length
    pieces = -(-size // length)
    assert pieces <= MAX_PIECES
    encoded = encode(Manifest(DIGEST, size, (DIGEST,) * pieces))
    assert len(encoded) <= MAX_MESSAGE
    manifest = read_manifest(encoded, digest_of(encoded))
    assert manifest is not None
    assert manifest.span(pieces - 1).stop == size


def test_pieces_longer_than_one_mebibyte_are_made_and_held_against() -> None:
    size = MAX_PIECES * PIECE_BYTES + 5
    maker, zeros = ManifestMaker(size), bytes(64 << 20)
    for begin in range(0, 64 << 20, len(zeros)):
        maker.update(zeros[: size - begin])
    manifest = msgspec.structs.replace(maker.manifest())
    assert len(manifest.pieces) == 32
    assert manifest.fits(3, bytes(2 << 20))
    assert not manifest.fits(3, bytes(1 << 20))


def test_a_state_is_as_long_as_a_worker_takes_and_no_longer() -> None:
    assert MAX_STATE == MAX_PAYLOAD
    with pytest.raises(MessageError):
        decode(encode(Manifest(DIGEST, MAX_STATE + 1, (DIGEST,))), Manifest)

"""Masks of a secure sum: keys that two owners have in common, and streams of them."""

from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protocol.federated.sum_messages import SumTerms
from protocol.secure_sum.lanes import PART, summed
from protocol.secure_sum.messages import SecureSumError


def common_key(own: X25519PrivateKey, other: bytes, terms: SumTerms, purpose: str) -> bytes:
    """32 bytes that two owners can make, each with its own private and the other's public key.

    Raises:
        SecureSumError: the public key is one with which everybody would come to the same.
    """
    try:
        shared = own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError as error:
        raise SecureSumError(f"an owner's {purpose} key is no point to agree on a secret with") from error
    return HKDF(SHA256(), 32, salt=terms.digest, info=f"cottage secure sum {purpose}".encode()).derive(shared)


def add_masks(vector: bytearray, added: Iterable[bytes], taken: Iterable[bytes] = ()) -> None:
    """Add the streams of keys to a vector, and take those of others off, modulo 2^32, in place.

    A key makes one stream: it is of one pair, or one seed, and of one sum.

    Args:
        vector: little-endian uint32.
    """
    plus, minus = [_stream(key) for key in added], [_stream(key) for key in taken]
    view = memoryview(vector).cast("B")
    for start in range(0, len(view), PART):
        part = view[start : start + PART]
        zeros = bytes(len(part))
        part[:] = summed(part, (one.update(zeros) for one in plus), (one.update(zeros) for one in minus))


def add_vector(total: bytearray, vector: bytes) -> None:
    """Add another vector of as many bytes, in place."""
    view = memoryview(total)
    for start in range(0, len(total), PART):
        part = view[start : start + PART]
        part[:] = summed(part, [vector[start : start + PART]])


def _stream(key: bytes) -> CipherContext:
    return Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

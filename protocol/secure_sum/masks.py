"""Masks of a secure sum, and numbers that are masked: keys that two owners have in common, streams, steps of a grid."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protocol.secure_sum.messages import MODULUS, SecureSumError, SumTerms

Vector = npt.NDArray[np.uint32]
_PART = 1 << 20  # Values of a stream at a time: no second vector is made.


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


def add_mask(vector: Vector, key: bytes, sign: int) -> None:
    """Add the stream of a key to ``[n]``, or take it off with ``sign`` -1, modulo 2^32, in place.

    A key makes one stream: it is of one pair, or one seed, and of one sum.
    """
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    change = np.add if sign > 0 else np.subtract
    for start in range(0, len(vector), _PART):
        part = vector[start : start + _PART]
        change(part, np.frombuffer(stream.update(bytes(part.nbytes)), dtype="<u4"), out=part)


@dataclass(frozen=True)
class SumGrid:
    """Real values as steps of a grid, so that sums are exact: at most ``most`` steps from zero, of ``owners`` vectors.

    Attributes:
        step: length of one, in units of the values.
    """

    step: float
    owners: int

    @property
    def most(self) -> int:
        """Steps that a value may be away from zero; beyond, it is cut off. Sums of all owners' stay within half the modulus."""
        return (MODULUS // 2 - 1) // self.owners

    def steps(self, values: npt.NDArray[np.floating]) -> Vector:
        """The nearest steps to finite values ``[n]``, modulo 2^32."""
        nearest = np.clip(np.rint(np.asarray(values, dtype=np.float64) / self.step), -self.most, self.most)
        return nearest.astype(np.int64).astype(np.uint32)

    def values(self, total: Vector) -> npt.NDArray[np.float64]:
        """What a sum of steps stands for, ``[n]``."""
        return total.view(np.int32).astype(np.float64) * self.step

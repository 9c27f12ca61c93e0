"""What is signed in a secure sum, and how that is checked; the messages themselves are ``protocol.federated.sum_messages``."""

import hashlib
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from common.errors import BadAddressError, BadSignatureError
from protocol.federated.sum_messages import KeysTold, ListSigned, SumTerms
from protocol.identity import signed_bytes, verify
from protocol.ids import NodeAddress

_ANYBODY = X25519PrivateKey.generate()  # Keys that are no good are so with every other.
KEYS, LIST = "cottage secure sum keys", "cottage secure sum list"


class SecureSumError(ValueError):
    """A message that does not belong here, or a sum that cannot be had: the text says of whom, and why."""


def check_keys(keys: KeysTold, terms: SumTerms) -> None:
    """Raise ``SecureSumError`` where they are not this owner's for this sum, or nobody can agree on a secret with them."""
    if keys.owner not in terms.owners:
        raise SecureSumError(f"{keys.owner} is no owner of this sum")
    _verify(keys.owner, keys.signature, KEYS, terms.digest, keys.sealing, keys.masking)
    for purpose, key in (("sealing", keys.sealing), ("masking", keys.masking)):
        try:
            _ANYBODY.exchange(X25519PublicKey.from_public_bytes(key))
        except ValueError as error:
            raise SecureSumError(f"{keys.owner}'s {purpose} key is no point to agree on a secret with") from error


def check_signed(word: ListSigned, terms: SumTerms, summands: Iterable[NodeAddress]) -> None:
    """Raise ``SecureSumError`` where it is not of this list."""
    _verify(word.owner, word.signature, LIST, terms.digest, list_digest(summands))


def list_digest(summands: Iterable[NodeAddress]) -> bytes:
    """SHA-256 of a list of owners, whatever its order."""
    return hashlib.sha256(signed_bytes(LIST, *(owner.encode() for owner in sorted(summands)))).digest()


def _verify(owner: NodeAddress, signature: bytes, context: str, *parts: bytes) -> None:
    try:
        verify(owner, signature, context, *parts)
    except (BadAddressError, BadSignatureError) as error:
        raise SecureSumError(f"what came as {owner}'s is not signed by it: {error}") from error

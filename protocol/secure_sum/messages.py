"""What owners and the server of a secure sum say, and the terms that all of them know."""

import hashlib
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from common.errors import BadAddressError, BadSignatureError
from protocol.identity import signed_bytes, verify
from protocol.ids import NodeAddress

MAX_SUMMANDS = 256  # As many as a federated job may have owners.
MAX_LENGTH = 1 << 31
MODULUS = 1 << 32
KEYS, LIST = "cottage secure sum keys", "cottage secure sum list"

Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Share = Annotated[bytes, Meta(min_length=33, max_length=33)]
"""A number below ``shamir.PRIME``."""


class SecureSumError(ValueError):
    """A message that does not belong here, or a sum that cannot be had: the text says of whom, and why."""


class SumTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all know before: which sum it is, whose vectors, how long they are.

    ``name``: no other sum has it; keys, masks and signatures hold for it alone. ``length``: values, modulo 2^32.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    owners: Annotated[tuple[NodeAddress, ...], Meta(min_length=3, max_length=MAX_SUMMANDS)]
    length: Annotated[int, Meta(ge=1, le=MAX_LENGTH)]

    def __post_init__(self) -> None:
        """Refuse an owner that is named twice."""
        if len({*self.owners}) < len(self.owners):
            raise ValueError("an owner is named twice in a secure sum: each vector counts once")

    @property
    def least(self) -> int:
        """Vectors without which there is no sum, and signatures of one list: more than two thirds of all owners.

        Two lists that so many have signed share more than a third of all owners. So while fewer than a third are in league with
        the server, no two lists are both signed, and nobody shows shares for two.
        """
        return 2 * len(self.owners) // 3 + 1

    @property
    def shares(self) -> int:
        """Shares that put a secret together, of those that each other owner has one of; fewer tell nothing.

        Where as few are left as may be, so many others are left of each.
        """
        return self.least - 1

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()


class KeysTold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="keys"):
    """``sealing``: for shares on their way. ``masking``: for masks. ``signature``: by the node key, over terms and both."""

    owner: NodeAddress
    sealing: Key
    masking: Key
    signature: Signature

    def check(self, terms: SumTerms) -> None:
        """Raise ``SecureSumError`` where they are not this owner's for this sum."""
        if self.owner not in terms.owners:
            raise SecureSumError(f"{self.owner} is no owner of this sum")
        _verify(self.owner, self.signature, KEYS, terms.digest, self.sealing, self.masking)


class SharesTold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="shares"):
    """``boxes``: for each other owner, sealed so that it alone can open it."""

    owner: NodeAddress
    boxes: Annotated[dict[NodeAddress, Annotated[bytes, Meta(max_length=256)]], Meta(max_length=MAX_SUMMANDS)]


class MaskedValues(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="masked"):
    """``values``: little-endian uint32, as many as the terms say."""

    owner: NodeAddress
    values: bytes


class ListSigned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="signed"):
    """That an owner has seen one list of summands, and shows its shares for no other."""

    owner: NodeAddress
    signature: Signature

    def check(self, terms: SumTerms, summands: Iterable[NodeAddress]) -> None:
        """Raise ``SecureSumError`` where it is not of this list."""
        _verify(self.owner, self.signature, LIST, terms.digest, list_digest(summands))


class SharesShown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="shown"):
    """``seeds``: of each summand's seed, ``masking``: of the mask key of each that shared and is no summand."""

    owner: NodeAddress
    seeds: Annotated[dict[NodeAddress, Share], Meta(max_length=MAX_SUMMANDS)]
    masking: Annotated[dict[NodeAddress, Share], Meta(max_length=MAX_SUMMANDS)]


def list_digest(summands: Iterable[NodeAddress]) -> bytes:
    """SHA-256 of a list of owners, whatever its order."""
    return hashlib.sha256(signed_bytes(LIST, *(owner.encode() for owner in sorted(summands)))).digest()


def _verify(owner: NodeAddress, signature: bytes, context: str, *parts: bytes) -> None:
    try:
        verify(owner, signature, context, *parts)
    except (BadAddressError, BadSignatureError) as error:
        raise SecureSumError(f"what came as {owner}'s is not signed by it: {error}") from error

"""What owners and the coordinator of a secure sum say, and the terms that all of them know: plain messages, without a secret."""

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.ids import NodeAddress

MAX_SUMMANDS = 256  # As many as a federated job may have owners.
MAX_LENGTH = 1 << 31
MODULUS = 1 << 32
VALUE_BYTES = 4

Key = Annotated[bytes, Meta(min_length=32, max_length=32)]
Signature = Annotated[bytes, Meta(min_length=64, max_length=64)]
Share = Annotated[bytes, Meta(min_length=33, max_length=33)]
"""A number below ``shamir.PRIME``."""


class SumTerms(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What all know before: which sum it is, whose vectors, how long they are.

    ``name``: no other sum has it; keys, masks and signatures hold for it alone. ``length``: values, modulo 2^32. ``fewest``:
    vectors that its owners want to be summed at least, where that is more than it takes.
    """

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    owners: Annotated[tuple[NodeAddress, ...], Meta(min_length=3, max_length=MAX_SUMMANDS)]
    length: Annotated[int, Meta(ge=1, le=MAX_LENGTH)]
    fewest: Annotated[int, Meta(ge=0, le=MAX_SUMMANDS)] = 0

    def __post_init__(self) -> None:
        """Refuse an owner that is named twice, and more vectors than there are owners."""
        if self.fewest > len(self.owners):
            raise ValueError(
                f"a secure sum of {self.fewest} vectors at least, of {len(self.owners)} owners: there is none"
            )
        if len({*self.owners}) < len(self.owners):
            raise ValueError("an owner is named twice in a secure sum: each vector counts once")

    @property
    def least(self) -> int:
        """Vectors without which there is no sum, and signatures of one list: more than two thirds of all owners.

        Two lists that so many have signed share more than a third of all owners. So while fewer than a third are in league with
        the server, no two lists are both signed, and nobody shows shares for two.
        """
        return max(2 * len(self.owners) // 3 + 1, self.fewest)

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


class SharesShown(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="shown"):
    """``seeds``: of each summand's seed, ``masking``: of the mask key of each that shared and is no summand."""

    owner: NodeAddress
    seeds: Annotated[dict[NodeAddress, Share], Meta(max_length=MAX_SUMMANDS)]
    masking: Annotated[dict[NodeAddress, Share], Meta(max_length=MAX_SUMMANDS)]

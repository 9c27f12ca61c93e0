"""An owner's part in a secure sum: five answers, each once, in order."""

import os
from collections.abc import Iterable, Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from protocol.federated.sum_messages import (
    VALUE_BYTES,
    KeysTold,
    ListSigned,
    MaskedValues,
    SharesShown,
    SharesTold,
    SumTerms,
)
from protocol.identity import NodeKey
from protocol.ids import NodeAddress
from protocol.secure_sum.masks import add_masks, common_key
from protocol.secure_sum.messages import KEYS, LIST, SecureSumError, check_keys, check_signed, list_digest
from protocol.secure_sum.shamir import SHARE_BYTES, split

_PHASES = ("told keys", "told shares", "sent its values", "signed the list", "shown shares")


class SumOwner:
    """One owner in one sum. Whatever the server says, its vector leaves masked, once, and of nobody both secrets are shown."""

    def __init__(self, terms: SumTerms, key: NodeKey) -> None:
        """``key``: the node's. Raises ``SecureSumError`` where it has no part in the sum."""
        if key.address not in terms.owners:
            raise SecureSumError(f"{key.address} is no owner of this sum")
        self._terms, self._key, self._name = terms, key, key.address
        self._done = 0
        self._sealing, self._masking = X25519PrivateKey.generate(), X25519PrivateKey.generate()
        self._seed = os.urandom(32)
        self._keys: dict[NodeAddress, KeysTold] = {}
        self._boxes: dict[NodeAddress, bytes] = {}
        self._summands: frozenset[NodeAddress] = frozenset()
        self._channels: dict[NodeAddress, ChaCha20Poly1305] = {}

    def keys(self) -> KeysTold:
        """The first word."""
        self._enter(0)
        sealing, masking = (key.public_key().public_bytes_raw() for key in (self._sealing, self._masking))
        return KeysTold(self._name, sealing, masking, self._key.sign(KEYS, self._terms.digest, sealing, masking))

    def share(self, told: Iterable[KeysTold]) -> SharesTold:
        """Shares of both secrets for everybody who is here.

        Raises:
            SecureSumError: too few are here; keys are forged, said twice, or not those that this owner told.
        """
        self._enter(1)
        for keys in told:
            check_keys(keys, self._terms)
            if keys.owner in self._keys:
                raise SecureSumError(f"two pairs of keys came for {keys.owner}")
            self._keys[keys.owner] = keys
        own = self._keys.pop(self._name, None)
        if own is None or own.masking != self._masking.public_key().public_bytes_raw():
            raise SecureSumError("this owner's own keys are not among those of all")
        self._enough(1 + len(self._keys), "are here")
        if len({bytes(keys.masking) for keys in self._keys.values()} | {own.masking}) <= len(self._keys):
            raise SecureSumError("two owners have one mask key")
        places = {owner: self._place(owner) for owner in self._keys}
        seeds = split(self._seed, [*places.values()], self._terms.shares)
        masking = split(self._masking.private_bytes_raw(), [*places.values()], self._terms.shares)
        return SharesTold(
            self._name,
            {owner: self._seal(owner, seeds[place] + masking[place]) for owner, place in places.items()},
        )

    def mask(self, boxes: Mapping[NodeAddress, bytes], values: bytes) -> MaskedValues:
        """The vector, ``length`` little-endian uint32, under its masks.

        Args:
            boxes: by who sealed them, for this owner.
        Raises:
            SecureSumError: too few have shared, or one who had told no keys; the vector has another length.
        """
        self._enter(2)
        if not boxes.keys() <= self._keys.keys():
            raise SecureSumError(f"shares came of {sorted(boxes.keys() - self._keys.keys())[0]}, which told no keys")
        self._enough(1 + len(boxes), "have shared their secrets")
        if len(values) != VALUE_BYTES * self._terms.length:
            raise SecureSumError(
                f"a vector of {len(values):,} bytes where {VALUE_BYTES * self._terms.length:,} are due"
            )
        self._boxes = dict(boxes)
        masked = bytearray(values)
        keys = {one: common_key(self._masking, self._keys[one].masking, self._terms, "masking") for one in boxes}
        after = [key for owner, key in keys.items() if self._name < owner]
        add_masks(masked, [self._seed, *after], [key for owner, key in keys.items() if owner < self._name])
        return MaskedValues(self._name, bytes(masked))

    def sign(self, summands: Iterable[NodeAddress]) -> ListSigned:
        """A word for a list of those whose vectors came.

        Raises:
            SecureSumError: it is too short, lacks this owner, or has one who has not shared.
        """
        self._enter(3)
        self._summands = frozenset(summands)
        if self._name not in self._summands:
            raise SecureSumError("this owner's vector is not in the list, so nothing of it need be shown")
        if strange := self._summands - self._boxes.keys() - {self._name}:
            raise SecureSumError(f"{min(strange)} is in the list and had not shared its secrets")
        self._enough(len(self._summands), "have sent their vectors")
        return ListSigned(self._name, self._key.sign(LIST, self._terms.digest, list_digest(self._summands)))

    def show(self, signed: Iterable[ListSigned]) -> SharesShown:
        """Shares of the seeds of those in the list, and of the mask keys of those who have gone.

        Raises:
            SecureSumError: too few have signed this list, or a signature is forged.
        """
        self._enter(4)
        signers = set()
        for word in signed:
            if word.owner not in self._summands:
                raise SecureSumError(f"{word.owner} signed the list and is not in it")
            check_signed(word, self._terms, self._summands)
            signers.add(word.owner)
        self._enough(len(signers), "have signed the list")
        seeds, masking = {}, {}
        for owner, box in self._boxes.items():
            shares = self._open(owner, box)
            if shares is None:
                continue  # Its shares are missing; others' may be enough.
            if owner in self._summands:
                seeds[owner] = shares[:SHARE_BYTES]
            else:
                masking[owner] = shares[SHARE_BYTES:]
        return SharesShown(self._name, seeds, masking)

    def _enter(self, phase: int) -> None:
        """Begin a phase, the only time; after an error there is no way on."""
        if self._done != phase:
            raise SecureSumError(
                f"this owner has {_PHASES[self._done - 1] if self._done else 'said nothing yet'}: each answer is given once, "
                "in order"
            )
        self._done = phase + 1

    def _enough(self, count: int, what: str) -> None:
        if count < self._terms.least:
            raise SecureSumError(
                f"{count} of {len(self._terms.owners)} owners {what}: a sum is shown of {self._terms.least} and more"
            )

    def _place(self, owner: NodeAddress) -> int:
        return self._terms.owners.index(owner) + 1

    def _channel(self, other: NodeAddress) -> ChaCha20Poly1305:
        """What both seal with for each other."""
        if other not in self._channels:
            key = common_key(self._sealing, self._keys[other].sealing, self._terms, "sealing")
            self._channels[other] = ChaCha20Poly1305(key)
        return self._channels[other]

    def _seal(self, to: NodeAddress, shares: bytes) -> bytes:
        nonce = os.urandom(12)  # The key is the same in both directions.
        return nonce + self._channel(to).encrypt(nonce, shares, f"{self._name} {to}".encode())

    def _open(self, sender: NodeAddress, box: bytes) -> bytes | None:
        try:
            shares = self._channel(sender).decrypt(box[:12], box[12:], f"{sender} {self._name}".encode())
        except (InvalidTag, ValueError):
            return None
        return shares if len(shares) == 2 * SHARE_BYTES else None

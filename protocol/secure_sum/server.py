"""The server of a secure sum: passes on what owners say, and puts the sum together. It sees nothing else of their vectors."""

from collections.abc import Iterable, Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from protocol.federated.sum_messages import (
    VALUE_BYTES,
    KeysTold,
    ListSigned,
    MaskedValues,
    SharesShown,
    SharesTold,
    SumTerms,
)
from protocol.ids import NodeAddress
from protocol.secure_sum.masks import add_masks, add_vector, common_key
from protocol.secure_sum.messages import SecureSumError, check_keys, check_signed
from protocol.secure_sum.shamir import join


class SumServer:
    """One sum. Each phase takes what has come in time; whoever is missing in it has gone for good."""

    def __init__(self, terms: SumTerms) -> None:
        """Of a sum to be made."""
        self._terms = terms
        self._keys: dict[NodeAddress, KeysTold] = {}
        self._shared: dict[NodeAddress, SharesTold] = {}
        self._summands: tuple[NodeAddress, ...] = ()
        self._total = bytearray(VALUE_BYTES * terms.length)
        self._signed: dict[NodeAddress, ListSigned] = {}

    def keys(self, told: Iterable[KeysTold]) -> tuple[KeysTold, ...]:
        """What all owners are told; keys that others would refuse are left out. Raises ``SecureSumError``: too few are here."""
        masking: set[bytes] = set()
        for keys in told:
            try:
                check_keys(keys, self._terms)
            except SecureSumError:
                continue
            if keys.owner not in self._keys and keys.masking not in masking:
                self._keys[keys.owner] = keys
                masking.add(keys.masking)
        self._enough(self._keys, "have told their keys")
        return tuple(self._keys.values())

    def boxes(self, told: Iterable[SharesTold]) -> dict[NodeAddress, dict[NodeAddress, bytes]]:
        """By owner, what it gets, by who sealed it. Raises ``SecureSumError``: too few have shared."""
        others = self._keys.keys()
        self._shared = {said.owner: said for said in told if said.boxes.keys() == others - {said.owner}}
        self._enough(self._shared, "have shared their secrets")
        return {
            owner: {sender: said.boxes[owner] for sender, said in self._shared.items() if sender != owner}
            for owner in self._shared
        }

    def summands(self, sent: Iterable[MaskedValues]) -> tuple[NodeAddress, ...]:
        """Whose vectors came, each of which is added at once and kept nowhere. Raises ``SecureSumError``: too few."""
        came: dict[NodeAddress, None] = {}
        for said in sent:
            if said.owner in self._shared and said.owner not in came and len(said.values) == len(self._total):
                add_vector(self._total, said.values)
                came[said.owner] = None
        self._enough(came, "have sent their vectors")
        self._summands = tuple(sorted(came))
        return self._summands

    def signatures(self, signed: Iterable[ListSigned]) -> tuple[ListSigned, ...]:
        """Those of the list, for all who signed it. Raises ``SecureSumError``: too few."""
        for word in signed:
            try:
                check_signed(word, self._terms, self._summands)
            except SecureSumError:
                continue
            if word.owner in self._summands:
                self._signed[word.owner] = word
        self._enough(self._signed, "have signed the list")
        return tuple(self._signed.values())

    def total(self, shown: Iterable[SharesShown]) -> bytes:
        """The sum of all summands' vectors, ``length`` little-endian uint32, exactly.

        Raises:
            SecureSumError: too few shares were shown, or false ones.
        """
        by_owner = {said.owner: said for said in shown if said.owner in self._signed}
        total = bytearray(self._total)
        added: list[bytes] = []
        taken = [self._joined(owner, {by: said.seeds for by, said in by_owner.items()}) for owner in self._summands]
        for owner in sorted(self._shared.keys() - {*self._summands}):
            private = X25519PrivateKey.from_private_bytes(
                self._joined(owner, {by: said.masking for by, said in by_owner.items()})
            )
            if private.public_key().public_bytes_raw() != self._keys[owner].masking:
                raise SecureSumError(f"the shares of {owner}'s mask key put another one together: one of them is false")
            for summand in self._summands:
                key = common_key(private, self._keys[summand].masking, self._terms, "masking")
                (taken if summand < owner else added).append(key)
        add_masks(total, added, taken)
        return bytes(total)

    def _joined(self, owner: NodeAddress, shown: Mapping[NodeAddress, Mapping[NodeAddress, bytes]]) -> bytes:
        places = {by: self._terms.owners.index(by) + 1 for by in shown}
        found = {places[by]: shares[owner] for by, shares in shown.items() if owner in shares}
        if len(found) < self._terms.shares:
            raise SecureSumError(
                f"{len(found)} shares of what {owner} has hidden were shown, and {self._terms.shares} put it together"
            )
        try:
            return join(dict(sorted(found.items())[: self._terms.shares]))
        except ValueError as error:
            raise SecureSumError(f"the shares of what {owner} has hidden put nothing together: {error}") from error

    def _enough(self, who: Mapping[NodeAddress, object], what: str) -> None:
        if len(who) < self._terms.least:
            raise SecureSumError(
                f"{len(who)} of {len(self._terms.owners)} owners {what}: there is a sum of {self._terms.least} and more"
            )

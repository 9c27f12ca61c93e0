"""What a coordinator promises on the ledger: a Merkle root over what each payee shall have received of a job in total.

The list is published, so that everybody can make its own proof and have it paid by ``escrow_claim``, also when the
coordinator is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ledger import merkle
from ledger.addresses import parse_address
from ledger.money import Amount, amount
from ledger.program.interface import MarketAddresses
from protocol.merkle import MerkleProof, MerkleTree


@dataclass(frozen=True)
class PromisedEarnings:
    """What a coordinator promises its payees: the root and the sum for the ledger, a proof for each payee."""

    root: bytes
    total: Amount
    cumulative: Mapping[str, Amount]
    proofs: Mapping[str, MerkleProof]


def earnings_of(market: MarketAddresses, cumulative: Mapping[str, Amount]) -> PromisedEarnings:
    """The tree over what each payee shall have received in total; payees in the order of the mapping.

    Raises:
        AddressError, AmountError: a payee is no address, or an amount none.
    """
    wallets = [bytes(market.wallet(parse_address(payee))) for payee in cumulative]
    tree = MerkleTree(
        [merkle.earning(wallet, amount(total)) for wallet, total in zip(wallets, cumulative.values(), strict=True)]
    )
    proofs = {payee: tree.proof(place) for place, payee in enumerate(cumulative)}
    return PromisedEarnings(tree.root, Amount(sum(cumulative.values())), dict(cumulative), proofs)

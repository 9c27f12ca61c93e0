"""How many accounts one job can pay, and who may still join it.

An escrow is opened with room for ``ROOM`` payees, and the coordinator makes more where more have earned. A node whose account
would be one too many must get no seat: its work could never be paid.
"""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet

from coordinator.domain.lease import Lease
from coordinator.domain.placement import Candidate
from ledger.client import DEFAULT_PAYEES

ROOM = DEFAULT_PAYEES  # Wallets open escrows with as much room unless told otherwise; ones with less are refused.
MAX_PAYEES = 4_096  # Of 65,535 that an escrow can hold: each payment reads its table, by now 160 KB.


def payees_of(leases: Iterable[Lease], worked: Collection[str]) -> frozenset[str]:
    """Accounts that have earned in a job or still may: of seats that are held, and of seats that have worked.

    A seat that was left before is none: one node could name another account each time until nobody else fits.

    Args:
        worked: leases that have a share which is not void, or committed to the round in flight.
    """
    return frozenset(lease.payout for lease in leases if lease.seat and (lease.state != "ended" or lease.id in worked))


def payable(candidates: Sequence[Candidate], payees: AbstractSet[str]) -> list[Candidate]:
    """Those whose accounts the escrow can pay beside ``payees``: the accounts of the quickest nodes first."""
    new = dict.fromkeys(c.owner for c in sorted(candidates, key=lambda c: (-c.flops, c.node)) if c.owner not in payees)
    admitted = payees | set(list(new)[: max(0, MAX_PAYEES - len(payees))])
    return [candidate for candidate in candidates if candidate.owner in admitted]


def affordable(candidates: Sequence[Candidate], rate: int) -> list[Candidate]:
    """Those who work for a job's price of 10^15 operations; 0 is the price of a job from before there were floors."""
    return [candidate for candidate in candidates if rate == 0 or candidate.floor <= rate]

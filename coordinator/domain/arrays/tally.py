"""What an array job has come to: counts, what is owed since the last period, how each node has done.

It is a part of the run, so it is stored in one transaction with the elements that it counts.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

import msgspec

from coordinator.domain.arrays.pace import OwnerPace, at_most, usual_pace
from coordinator.domain.audits.rate import FLOOR, TRUST
from coordinator.domain.audits.sampling import WHOLE
from protocol.ids import NodeAddress

PERIOD_S = 60.0  # Between two times that verified elements become shares.
FALSE_STARTS = 10  # Elements that fail before any is done; then it is the command.
GRACE_S = 60.0  # Beyond an element's limit, until its node has said so.
QUIET_S = 1800.0  # That a node may fetch inputs before it begins anything.
# Verdicts of a node that were not what others came to, and owners of those others; then it is out, if that is one in so many of
# its verdicts: one in twenty is about a decoy.
OUTVOTED, OUTVOTERS, OUTVOTED_PART = 3, 3, 50
REFUSED = 5  # Results of a node that a checker refused, beyond those that it took; then it is let go.
GIVEN_BACK = 32  # Runs that a node gives back without a result, beyond those that it was paid for; then it is let go.
CONTRADICTED = 5  # Failures of a node where others succeeded, after which it is let go.


class OwedWork(msgspec.Struct, frozen=True):
    """Verified work of a lease that is in no period yet.

    Attributes:
        chain: SHA-256 of the one before and the run number with its result, in turn: what the share's root says.
    """

    node: NodeAddress
    payout: NodeAddress
    replica: int
    operations: int = 0
    elements: int = 0
    chain: str = hashlib.sha256(b"").hexdigest()

    def plus(self, operations: int, run: int, result: str | None) -> "OwedWork":
        """With one more element."""
        chain = hashlib.sha256(bytes.fromhex(self.chain) + f"{run}:{result or 'failed'}".encode()).hexdigest()
        return msgspec.structs.replace(
            self, operations=self.operations + operations, elements=self.elements + 1, chain=chain
        )


class NodeTrack(msgspec.Struct, frozen=True):
    """How a node has done in a job.

    Attributes:
        right: elements that it ran and was paid for. checked: of those, how many another owner ran, too.
        wrong: results that were not what holds. contradicted: failures where others succeeded.
        looked: verdicts about others' results that hold. refused: results that a checker refused, where another's was taken.
        given_back: runs of which it said nothing, for its owner or because it could not.
        outvoted: verdicts of it that were not what others came to. outvoters: owners of those others, as far as they are needed.
    """

    right: int = 0
    checked: int = 0
    wrong: int = 0
    contradicted: int = 0
    looked: int = 0
    refused: int = 0
    given_back: int = 0
    outvoted: int = 0
    outvoters: tuple[NodeAddress, ...] = ()

    def outvoted_by(self, owners: Iterable[NodeAddress]) -> "NodeTrack":
        """With one more verdict that these owners contradicted."""
        known = tuple(dict.fromkeys((*self.outvoters, *owners)))[:OUTVOTERS]
        return msgspec.structs.replace(self, outvoted=self.outvoted + 1, outvoters=known)

    @property
    def gives_back(self) -> bool:
        """Whether it gives back more than it does."""
        return self.given_back >= GIVEN_BACK + self.right + self.looked

    @property
    def looks_away(self) -> bool:
        """Whether it says verdicts without looking. Two who do that outvote an honest one, but are always the same two."""
        many = self.outvoted >= max(OUTVOTED, self.looked // OUTVOTED_PART)
        return many and len(self.outvoters) >= OUTVOTERS


class ArrayTally(msgspec.Struct, frozen=True):
    """Counts of an array job.

    Attributes:
        next_run: the number of the next run. settled: how often an element was done, or has failed.
        paid: runs that are paid, or owed. operations: of all of them.
        slots: elements that a lease runs at a time. owed: by lease. nodes: by node. paces: by owner. looks: the same of looks.
    """

    next_run: int = 1
    done: int = 0
    failed: int = 0
    settled: int = 0
    paid: int = 0
    operations: int = 0
    slots: dict[str, int] = {}
    owed: dict[str, OwedWork] = {}
    nodes: dict[NodeAddress, NodeTrack] = {}
    paces: dict[NodeAddress, OwnerPace] = {}
    looks: dict[NodeAddress, OwnerPace] = {}

    def ran(
        self,
        owner: NodeAddress,
        said: int,
        others: Sequence[tuple[NodeAddress, int]] | None = None,
        look: bool = False,
    ) -> "ArrayTally":
        """With one more run that holds; of an element that several ran, all of them are noted before any is paid.

        Args:
            said: operations, by its own clock. others: owners of the other runs of the same that hold, and what they say of it;
                None: an array in which nobody else is asked to run the same.
            look: it was a look at a result.
        """
        known = (self.looks if look else self.paces).get(owner, OwnerPace())
        return self._with_pace(owner, known.ran(said) if others is None else known.ran_beside(said, others), look)

    def due(self, owner: NodeAddress, several: bool, look: bool = False) -> tuple["ArrayTally", int]:
        """What an owner is to be paid now for all that it ran, and the tally with that.

        It is at most what the owner says. Where nobody else runs its elements, it could idle and be paid: so it is at most
        what so many elements take at the pace that is usual here (``usual_pace``), too. Where ``several`` run each, they bound
        each other (``OwnerPace.worth``). What one run lacks, later ones make good.
        """
        paces = self.looks if look else self.paces
        pace = paces[owner]
        if several:
            due = max(0, pace.worth(usual_pace(paces.values())) - pace.compared_paid)
            pace = msgspec.structs.replace(pace, paid=pace.paid + due, compared_paid=pace.compared_paid + due)
            return self._with_pace(owner, pace, look), due
        most = pace.said
        if len(paces) > 1:
            most = min(most, at_most(usual_pace(paces.values()), pace.runs))
        due = max(0, most - pace.paid)
        return self._with_pace(owner, msgspec.structs.replace(pace, paid=pace.paid + due), look), due

    def _with_pace(self, owner: NodeAddress, pace: OwnerPace, look: bool) -> "ArrayTally":
        if look:
            return msgspec.structs.replace(self, looks={**self.looks, owner: pace})
        return msgspec.structs.replace(self, paces={**self.paces, owner: pace})

    def track(self, node: str) -> NodeTrack:
        """How a node has done."""
        return self.nodes.get(node, NodeTrack())

    def tracked(self, node: str, **more: int) -> "ArrayTally":
        """With so much more of a node."""
        known = self.track(node)
        added = {name: getattr(known, name) + count for name, count in more.items()}
        return msgspec.structs.replace(self, nodes={**self.nodes, node: msgspec.structs.replace(known, **added)})


def numbered(owed: Mapping[str, OwedWork]) -> list[tuple[int, tuple[str, OwedWork]]]:
    """Each lease with the number of its share: that of its seat, or another one where a later lease has that seat now."""
    found: dict[int, tuple[str, OwedWork]] = {}
    for lease, one in sorted(owed.items()):
        number = next(number for number in count(one.replica) if number not in found)
        found[number] = (lease, one)
    return sorted(found.items())


def check_rate(right: int) -> int:
    """Probability, in millionths, that an element of a node is run by a second owner, too.

    As a training round is looked at (``coordinator.domain.audits.rate.look``), with elements for credit: nearly all of a new
    node's first ones, half at 21, one in twenty for ever.
    """
    return max(FLOOR, -(-WHOLE * TRUST // (TRUST + right)))


def expected_checks(elements: int, nodes: int) -> int:
    """How many of so many elements are checked by lot, where so many nodes run as many each."""
    each = elements / max(1, nodes)
    until = TRUST * (WHOLE / FLOOR - 1)  # From there on the rate is at its floor.
    falling = TRUST * math.log1p(min(each, until) / TRUST)
    return min(elements, math.ceil(max(1, nodes) * (falling + max(0.0, each - until) * FLOOR / WHOLE)))


def undetected(forged: int, right: int = 0) -> float:
    """Probability that a node which forges so many elements, after so many honest ones, is found by no check.

    It cannot tell a check from any other element. With rate p an element of it is left alone with 1 - p; and of what it is given,
    p / (1 + p) are checks of others that are as new, where a lie stands beside the truth at once. So each lie passes with
    (1 - p) / (1 + p).
    """
    chance = 1.0
    for more in range(forged):
        rate = check_rate(right + more) / WHOLE
        chance *= (1 - rate) / (1 + rate)
    return chance


def fair_share(wants: Mapping[str, int], held: Mapping[str, int], free: int) -> dict[str, int]:
    """How many nodes each array may hold, so that all have as many as they can use or the same number.

    Args:
        wants: array -> nodes that it could use, those that it has included. held: array -> nodes that it has.
        free: nodes that nobody has.
    """
    left = free + sum(held.get(job, 0) for job in wants)
    share = dict.fromkeys(wants, 0)
    open_: Collection[str] = sorted(wants)
    while left > 0 and open_:
        each = max(1, left // len(open_))
        for job in open_:
            more = min(each, wants[job] - share[job], left)
            share[job] += more
            left -= more
        open_ = [job for job in open_ if share[job] < wants[job]]
    return share

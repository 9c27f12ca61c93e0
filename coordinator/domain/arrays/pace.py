"""What an owner's runs are worth: what it says of them, bounded by what others say of the same runs, or by the usual pace."""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from protocol.ids import NodeAddress

PACE, PACE_SLACK = 1.25, 3.0
"""What an owner may have taken for an element on average, in times of what is usual: so many, and so much more by the root of
how many it ran. Elements differ, and those of few differ more."""
WEIGHED = 10  # Elements of an owner from which on its average counts as much as any other's.
PARTNERS = 16  # Of an owner that are each remembered: the first ones that it has. Those after them are taken together.
RESTED = 2.0  # Times what all later partners say together, up to which its own words about those runs may count.
ALONE, REST = "alone", "rest"


class SharedRuns(msgspec.Struct, frozen=True, array_like=True):
    """Operations of the same runs in an owner's words and in those of a partner of it; how many runs that were."""

    own: int = 0
    theirs: int = 0
    runs: int = 0

    def plus(self, own: int, theirs: int) -> "SharedRuns":
        """With one more."""
        return SharedRuns(self.own + own, self.theirs + theirs, self.runs + 1)

    @property
    def ratio(self) -> float:
        """The partner's words to the owner's, 1 at most."""
        return min(1.0, self.theirs / self.own) if self.own else 1.0


class OwnerPace(msgspec.Struct, frozen=True):
    """What an owner's runs took, as its nodes say, in operations; and what of it is paid, or owed.

    Attributes:
        compared: of ``said``, in runs that several are asked to do. compared_paid: what is paid for those.
        beside: those runs by partner, that is by the owner of another run of the same. A run of three counts beside each of two.
    """

    runs: int = 0
    said: int = 0
    paid: int = 0
    compared: int = 0
    compared_paid: int = 0
    beside: dict[str, SharedRuns] = {}

    def ran(self, said: int) -> "OwnerPace":
        """With one more run."""
        return msgspec.structs.replace(self, runs=self.runs + 1, said=self.said + said)

    def ran_beside(self, said: int, others: Sequence[tuple[NodeAddress, int]]) -> "OwnerPace":
        """With one more run that these did, too, and what they say of it; nobody: its word stands alone."""
        beside = dict(self.beside)
        for other, theirs in others or [(ALONE, 0)]:
            full = other != ALONE and other not in beside and len(beside.keys() - {ALONE, REST}) >= PARTNERS
            partner = REST if full else other
            beside[partner] = beside.get(partner, SharedRuns()).plus(said, theirs)
        return msgspec.structs.replace(self.ran(said), compared=self.compared + said, beside=beside)

    def worth(self, usual: float) -> int:
        """What its compared runs are worth. ``usual``: operations of a run here, on average.

        Its words are cut as those of most of its partners cut them. Where fewer say less than that, they may be those who lie, or
        it has guessed who they are: there the usual pace bounds it, and where nobody ran the same.
        """
        middle = middle_ratio(self.beside)
        total, counts = sum(one.own for one in self.beside.values()), 0.0
        for partner, one in self.beside.items():
            cut = one.own * middle
            if partner == REST:
                cut = min(cut, RESTED * one.theirs)  # Of those together some may say too little.
            elif partner == ALONE or one.ratio < middle:
                cut = min(cut, max(one.theirs, at_most(usual, one.runs)))
            counts += cut
        return min(self.compared, int(self.compared * (counts / total))) if total else 0


def middle_ratio(beside: Mapping[str, SharedRuns]) -> float:
    """The lower middle of partners' words to an owner's own, by runs in common. Itself it has one partner's say.

    Later partners have no votes one by one. Once they did most of the runs, those who came first cannot decide against them.
    """
    voters = [one for partner, one in beside.items() if partner not in (ALONE, REST)]
    said, runs = [(one.ratio, float(one.runs)) for one in voters], sum(one.runs for one in voters)
    middle = lower_middle([*said, (1.0, runs / len(voters) if voters else 1.0)])
    rest = beside.get(REST, SharedRuns())
    return min(max(middle, rest.ratio), RESTED * rest.ratio) if rest.runs > runs else middle


def usual_pace(paces: Iterable[OwnerPace]) -> float:
    """Operations of an element on average: the lower middle of all owners' averages.

    One that ran few elements has as much less of a say, since its average is an accident: else an owner that ran a single short
    one and went would leave those who do the work unpaid.
    """
    return lower_middle([(one.said / one.runs, float(min(one.runs, WEIGHED))) for one in paces])


def at_most(usual: float, runs: int) -> int:
    """Operations that so many runs of an owner may have taken whose words nobody bounds."""
    return int(usual * (PACE * runs + PACE_SLACK * math.sqrt(runs)))


def lower_middle(weighed: Sequence[tuple[float, float]]) -> float:
    """Of values with their weights; 0 if there are none."""
    half, before = sum(weight for _, weight in weighed) / 2, 0.0
    for value, weight in sorted(weighed):
        before += weight
        if before >= half:
            return value
    return 0.0

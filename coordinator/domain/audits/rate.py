"""How often a node's commitments are drawn, and how often the operator's own auditors look: docs/explanation/trust.md.

A *look* is an audit by a machine that nobody else controls. What a node's verified work for one account was worth since its last
fault is its *credit* with that account. A round that pays the node's pipeline ``pot`` is looked at with probability

    h  =  T * pot / (T * pot + credit)            T = 21

that is all of a new node's rounds, and half of them at a credit of 21 such rounds. Whoever does a part of its work and forges the
rest is then paid, on average, at most 1 + 1 / (T - 1) times what it has done, whatever it does when, and whatever others say of
it: no round adds more than 1.05 times its honest part to what it was paid and what its standing is ``worth`` to a cheat. The
pipeline's pot and not the node's own share, since one that sends nothing of worth may spare all others of it their work, too.

Beside it, where nodes have stakes: with probability ``p`` one step of a commitment is re-run, three times in four any of them
(``sampling.LAST``). Whoever forges a fraction ``f`` of the steps gains ``f * share`` and is found with at least ``3/4 p f``; then
it loses what is verified and not paid yet, and what a slash takes of its stake. Forging does not pay, whatever ``f``, once

    p  >=  4/3 * share / (unpaid + slashable)

so the rate is ``MARGIN`` times share / (unpaid + slashable), and never below what somebody with faults is held to.
"""

from fractions import Fraction

import msgspec

from coordinator.domain.audits.sampling import WHOLE

FLOOR = 50_000  # 5 %: also the oldest node is looked at once in 20 rounds, for ever.
TRUST = 21  # Forged work that is paid for stays below 1 / (TRUST - 1) of honest work: 5 %.
# Of a stake that one slash can take, in ten-thousandths: as accounts are opened (``ledger.program``).
SLASH_BPS = 5_000
AFAR = 4  # Audits by other environment classes that count as much as one by the own: they see only what is far off.
MARGIN = 2  # Half as much again as needed: audits can be void where no auditor fits.


class NodeStanding(msgspec.Struct, frozen=True):
    """What is known of a node before a round of it is drawn. Amounts in millionths of the token.

    Attributes:
        credit: what its work for the job's account that was verified since its last fault was worth, and what of it still has to
            be: that is void with an earlier fault, so it is never too much.
        share: what the round pays it.
        faults: audits that failed by its doing, ever, and those that found it too far off.
        pot: what the round pays all of its pipeline, where that is more.
    """

    credit: int = 0
    share: int = 1
    faults: int = 0
    pot: int = 0

    @property
    def rounds(self) -> int:
        """The credit in rounds like this one."""
        return self.credit // max(1, self.share)

    @property
    def proven(self) -> bool:
        """Whether others' work of this size may be audited by it, and its own needs no look to be paid."""
        return self.rounds >= TRUST


class Exposure(msgspec.Struct, frozen=True):
    """What a node would win and lose by forging a round; amounts in millionths of the token.

    Attributes:
        share: what the round pays it.
        unpaid: verified and not paid yet, or still to be verified, beside this round.
        slashable: what one slash can take of its stake.
    """

    share: int
    unpaid: int
    slashable: int


def rate(standing: NodeStanding, exposure: Exposure | None, floor: int = FLOOR) -> int:
    """Probability that a step of the node's next commitment is drawn, in millionths.

    Args:
        exposure: None where the network asks for no stake: then only conduct counts, and identities cost nothing.
        floor: of the most trusted node.
    """
    conduct = min(WHOLE, floor << min(standing.faults, 10))
    return min(WHOLE, max(conduct, look(standing), 0 if exposure is None else at_stake(exposure)))


def look(standing: NodeStanding) -> int:
    """Probability that one of the operator's auditors looks at the node's round, in millionths; the greater whole one."""
    bet = TRUST * max(1, standing.share, standing.pot)
    return -(-WHOLE * bet // (bet + standing.credit))


def looked_at(due: int, drawn: int) -> int:
    """Probability that a look follows once a step of the round was drawn, in millionths; the greater whole one.

    Args:
        due: probability that the round is looked at (``look``). ``drawn``: that a step of it is drawn.
    """
    return min(WHOLE, -(-WHOLE * due // max(1, drawn)))


def surety(share: int) -> int:
    """Credit that it takes to be paid ``share`` for work beside a lie, and that is gone then: what it was worth to a cheat."""
    return (TRUST - 1) * share


def worth(standing: NodeStanding) -> Fraction:
    """What a cheat can still have of its standing, on average: paid for rounds that it forges until a look finds one."""
    return Fraction(standing.credit, TRUST - 1)


def at_stake(exposure: Exposure) -> int:
    """The rate from which on forging does not pay, times ``MARGIN``, in millionths; everything where nothing would be lost."""
    loss = exposure.unpaid + exposure.slashable
    if loss <= 0:
        return WHOLE if exposure.share > 0 else 0
    return min(WHOLE, -(-MARGIN * exposure.share * WHOLE // loss))

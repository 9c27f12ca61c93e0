"""How often a node's commitments are drawn. docs/TRUST.md derives the formula.

With probability ``p`` one step of a commitment is re-run, three times in four any of them (``draw.LAST``). Whoever forges a
fraction ``f`` of the steps gains ``f * share`` and is found with probability ``3/4 p f`` at least; then it loses what is verified
and not paid yet, and the part of its stake that a slash takes. Forging does not pay, whatever ``f``, once

    p  >=  4/3 * share / (unpaid + slashable)

so the rate is ``MARGIN`` times share / (unpaid + slashable), and never below what a newcomer is held to, or somebody with faults.
"""

import msgspec

from coordinator.domain.draw import LAST, WHOLE

FLOOR = 50_000  # 5 %: also the oldest node is looked at once in 20 rounds, for ever.
NEWCOMER = 500_000  # One round in two, for a node of which nothing is known.
HALF = 8  # Audits passed in a row after which a newcomer's part has halved; it is at the floor after 72.
SLASH_BPS = (
    5_000  # Of a stake that one slash can take, in ten-thousandths: as accounts are opened (``ledger.program``).
)
PROBATION = (
    2  # Audits passed in a row after a fault until which everything is looked at: who evades once does not get far.
)
AFAR = 4  # Audits by other environment classes that count as much as one by the own: they see only what is far off.
MARGIN = 2  # Half as much again as needed: audits can be void where no auditor fits.


class Standing(msgspec.Struct, frozen=True):
    """What is known of a node.

    Attributes:
        passed: audits in a row that found nothing, across all jobs.
        faults: audits that failed by its doing, ever, and those that other environment classes found too far off.
        afar: audits by other classes since the last fault that found nothing.
    """

    passed: int = 0
    faults: int = 0
    afar: int = 0

    @property
    def counted(self) -> int:
        """Audits passed in a row, as far as they count: with those of other classes alone a newcomer's part halves, no more."""
        return self.passed + min(self.afar // AFAR, HALF)


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


def rate(standing: Standing, exposure: Exposure | None, floor: int = FLOOR) -> int:
    """Probability that a step of the node's next commitment is drawn, in millionths.

    Args:
        exposure: None where the network asks for no stake: then only conduct counts, and identities cost nothing.
        floor: of the most trusted node.
    """
    if standing.faults and standing.counted < PROBATION:
        return WHOLE
    conduct = min(WHOLE, floor << min(standing.faults, 10))
    newcomer = NEWCOMER * HALF // (HALF + standing.counted)
    return min(WHOLE, max(conduct, newcomer, 0 if exposure is None else at_stake(exposure)))


def at_stake(exposure: Exposure) -> int:
    """The rate from which on forging does not pay, times ``MARGIN``, in millionths; everything where nothing would be lost."""
    loss = exposure.unpaid + exposure.slashable
    if loss <= 0:
        return WHOLE if exposure.share > 0 else 0
    return min(WHOLE, -(-MARGIN * exposure.share * WHOLE // loss))


def expected_gain(exposure: Exposure, forged: int, steps: int, probability: int) -> int:
    """What forging ``forged`` of ``steps`` steps brings on average, times ``LAST * steps * steps * WHOLE``: its sign is exact.

    Args:
        probability: that one step of the round is drawn, in millionths.
    """
    found = (
        (LAST - 1) * probability * forged
    )  # Of LAST * steps * WHOLE: that the drawn step is one of the forged, at least.
    gain = exposure.share * forged * (LAST * steps * WHOLE - found)
    return gain - found * (exposure.unpaid + exposure.slashable) * steps


def rounds_until_caught(probability: int, forged: int, steps: int) -> float:
    """Rounds that somebody survives on average who forges so many steps of each, the last one not among them.

    Geometric: 1 / (p * 3/4 * forged / steps). A forged contribution is found with the last step: ``1 / (p * chance_of_last)``.
    """
    chance = probability * forged * (LAST - 1)
    return LAST * WHOLE * steps / chance if chance else float("inf")


def chance_of_last(steps: int) -> float:
    """That a drawn step is the round's last one."""
    return 1 / LAST + (1 - 1 / LAST) / steps

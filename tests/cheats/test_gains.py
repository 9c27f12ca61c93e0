"""Nobody earns by cheating where the operator looks: each plot as nodes that do it. ``benchmarks.trust.cheats`` runs many."""

import asyncio
from statistics import mean

import pytest

from tests.cheats.gains import PLOTS, Gain, Plot, gain

QUICK = frozenset(
    {
        "alone with an invented class",
        "leaves when it is drawn",
        "earns its standing in jobs of its own",
        "its submitter cancels the job once it is trained",
    }
)
"""One of each kind: a class of its own, away when it is asked, a standing that is bought, a job that ends early."""
LONG_TOO = frozenset(
    {
        "a cartel of three owners with an invented class",
        "has its line cut when it is drawn",
        "crashes when it is drawn",
        "is paid to another wallet each time",
    }
)
"""Their like, in ``make test-long``."""
WORLDS = 3


def gains(plot: Plot, worlds: int) -> list[Gain]:
    found = [asyncio.run(gain(plot, seed)) for seed in range(worlds)]
    assert not any(world.honest_slashed or world.honest_banned for world in found)
    assert sum(world.tries for world in found) > 0, "it was tried"
    return found


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "plot",
    [
        *(plot for plot in PLOTS if plot.name in QUICK),
        *(pytest.param(plot, marks=pytest.mark.long) for plot in PLOTS if plot.name in LONG_TOO),
    ],
    ids=lambda plot: plot.name.replace(" ", "-"),
)
def test_who_does_no_work_for_an_account_is_paid_nothing_by_it(plot: Plot) -> None:
    assert plot.formula == 0
    (world,) = gains(plot, 1)
    assert world.paid == 0
    assert world.honest_paid + world.honest_useless == world.honest_worked, "who works beside it is paid"
    spoilt = min(world.forged, 0.03 * world.honest_worked)
    assert world.honest_useless <= spoilt, "and loses a spoilt round at the most"


@pytest.mark.long
def test_a_round_that_is_done_again_is_not_paid_for_what_was_kept_of_it() -> None:
    """Three of four nodes leave before each state that would be stored: half of an honest node's pay, before it was mended."""
    (plot,) = [plot for plot in PLOTS if plot.name.startswith("three leave before")]
    (world,) = gains(plot, 1)
    assert world.again >= 3
    assert world.unearned <= 0


@pytest.mark.long
@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.name.replace(" ", "-"))
def test_forged_work_pays_no_more_than_the_formula_says(plot: Plot) -> None:
    """Three worlds say little of a mean, and enough of a hole: each of these brought half of an honest node's pay or more."""
    found = gains(plot, WORLDS)
    if plot.formula == 0:
        assert mean(world.unearned for world in found) <= 0.02 * mean(world.place for world in found)
    else:
        assert mean(world.part for world in found) < plot.formula + 0.1

"""The draw repeats, cannot be steered, and takes everybody at its own rate; the rate makes forging a loss."""

from collections import Counter
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain.audits import rate as rates
from coordinator.domain.audits import sampling as draws
from coordinator.domain.audits.rate import FLOOR, Exposure, NodeStanding
from coordinator.domain.audits.sampling import LAST, WHOLE, Drawable
from tests.coordinator.fakes import digest

BLOCK = "4sGjMW1sUnHzSxGspuhpqLDx6wiyjNtZAMdL4VZHirAn"

commitments = st.lists(st.tuples(st.integers(0, 20), st.integers(0, WHOLE)), min_size=1, max_size=8).map(
    lambda members: [
        Drawable(i % 2, i // 2, digest("root", i), leaves, rate) for i, (leaves, rate) in enumerate(members)
    ]
)
seeds = st.binary(min_size=32, max_size=32)
amounts = st.integers(0, 10**12)
exposures = st.builds(Exposure, share=st.integers(1, 10**9), unpaid=amounts, slashable=amounts)
standings = st.builds(NodeStanding, credit=amounts, share=st.integers(1, 10**9), faults=st.integers(0, 30))


def expected_gain(exposure: Exposure, forged: int, steps: int, probability: int) -> int:
    """What forging ``forged`` of ``steps`` steps brings on average, times ``LAST * steps * steps * WHOLE``: its sign is exact.

    Args:
        probability: that one step of the round is drawn, in millionths.
    """
    # Of LAST * steps * WHOLE: that the drawn step is one of the forged, at least.
    found = (LAST - 1) * probability * forged
    gain = exposure.share * forged * (LAST * steps * WHOLE - found)
    return gain - found * (exposure.unpaid + exposure.slashable) * steps


def rounds_until_caught(probability: int, forged: int, steps: int) -> float:
    """Rounds that somebody survives on average who forges so many steps of each, the last one not among them.

    Geometric: 1 / (p * 3/4 * forged / steps). A forged contribution is found with the last step.
    """
    chance = probability * forged * (LAST - 1)
    return LAST * WHOLE * steps / chance if chance else float("inf")


@given(seeds, commitments, st.integers(0, 6), st.integers(0, WHOLE))
def test_the_draw_repeats_whatever_the_order_and_stays_within_the_commitments(
    seed: bytes, committed: list[Drawable], least: int, twice: int
) -> None:
    drawn = draws.draw(seed, committed, least, twice)
    assert drawn == draws.draw(seed, list(reversed(committed)), least, twice)
    leaves = {(c.stage, c.replica): c.leaves for c in committed}
    assert all(0 <= d.step < leaves[d.stage, d.replica] for d in drawn)
    places = {(d.stage, d.replica, d.step) for d in drawn}
    assert min(least, sum(leaves.values())) <= len(places) == len(drawn)


def test_every_committed_step_is_drawn_about_as_often_where_no_rate_says_otherwise() -> None:
    committed = [Drawable(0, 0, digest(1), 10), Drawable(0, 1, digest(2), 30)]
    drawn = Counter(draws.draw(i.to_bytes(32, "big"), committed, 1)[0] for i in range(8000))
    assert len(drawn) == 40
    assert min(drawn.values()) > 130
    assert max(drawn.values()) < 280


def test_each_member_is_drawn_as_often_as_its_rate_says_and_in_every_step() -> None:
    committed = [Drawable(0, i, digest(i), 4, rate) for i, rate in enumerate((0, 100_000, 500_000, WHOLE))]
    drawn = [d for i in range(8000) for d in draws.draw(i.to_bytes(32, "big"), committed, 0)]
    often = Counter(d.replica for d in drawn)
    assert often[0] == 0
    assert 650 < often[1] < 950
    assert 3750 < often[2] < 4250
    assert often[3] == 8000
    steps = Counter(d.step for d in drawn if d.replica == 3)
    assert min(steps.values()) > 1350
    assert 3300 < steps[3] < 3700, (
        "the last step is drawn in a quarter of all cases, and as often as others in the rest"
    )


def test_a_drawn_step_goes_to_two_auditors_as_often_as_was_asked() -> None:
    committed = [Drawable(0, 0, digest(1), 1000, WHOLE)]
    twice = sum(d.twice for i in range(8000) for d in draws.draw(i.to_bytes(32, "big"), committed, 0, 100_000))
    assert 650 < twice < 950
    assert not any(d.twice for i in range(100) for d in draws.draw(i.to_bytes(32, "big"), committed, 0, 0))


@pytest.mark.parametrize("changed", ["root", "leaves", "block", "round", "epoch", "job"])
def test_whatever_was_committed_to_and_the_block_change_the_draw(changed: str) -> None:
    what = {"job": "a" * 32, "epoch": 1, "number": 2, "block": BLOCK}
    member = Drawable(0, 0, digest(1), 1000, WHOLE)
    others = [Drawable(0, 1, digest(2), 1000, WHOLE), Drawable(1, 0, digest(3), 1000, WHOLE)]
    before = draws.draw(draws.seed_of(commitments=[member, *others], **what), [member, *others], 3)  # type: ignore[arg-type]
    match changed:
        case "root":
            member = msgspec.structs.replace(member, root=digest(9))
        case "leaves":
            member = msgspec.structs.replace(member, leaves=999)
        case "block":
            what["block"] = BLOCK[::-1]
        case "round":
            what["number"] = 3
        case "epoch":
            what["epoch"] = 2
        case _:
            what["job"] = "b" * 32
    after = draws.draw(draws.seed_of(commitments=[member, *others], **what), [member, *others], 3)  # type: ignore[arg-type]
    assert before != after


@given(seed=seeds)
def test_nobody_is_drawn_twice_before_everybody_was_drawn_once(seed: bytes) -> None:
    committed = [Drawable(i % 2, i // 2, f"{i:064x}", 5) for i in range(4)]
    assert {(d.stage, d.replica) for d in draws.draw(seed, committed, 4)} == {(c.stage, c.replica) for c in committed}
    assert len(set(draws.draw(seed, committed, 20))) == 20


@given(seed=seeds)
def test_members_of_a_stage_that_differ_about_the_outer_step_all_have_it_looked_at(seed: bytes) -> None:
    same = [Drawable(s, p, digest(s, p), 5, 0, digest("outer", s)) for p in range(3) for s in range(2)]
    assert draws.draw(seed, same, 0) == ()
    odd = [msgspec.structs.replace(c, outer=digest("false")) if (c.stage, c.replica) == (1, 2) else c for c in same]
    assert {(d.stage, d.replica, d.step) for d in draws.draw(seed, odd, 0)} == {(1, 0, 5), (1, 1, 5), (1, 2, 5)}
    silent = [msgspec.structs.replace(c, outer=None) if c.replica == 0 else c for c in odd]
    assert {(d.stage, d.replica) for d in draws.draw(seed, silent, 0)} == {(1, 1), (1, 2)}


def test_outer_steps_are_drawn_half_as_often_as_the_rate_says_and_steps_as_before() -> None:
    committed = [Drawable(0, 0, digest(1), 5, 400_000, digest("outer"))]
    without = [msgspec.structs.replace(committed[0], outer=None)]
    runs = [digest(run).encode() for run in range(4_000)]
    drawn = [draws.draw(seed, committed, 0) for seed in runs]
    assert sum(any(d.step == 5 for d in found) for found in drawn) / len(runs) == pytest.approx(0.2, abs=0.03)
    assert [tuple(d for d in found if d.step < 5) for found in drawn] == [draws.draw(s, without, 0) for s in runs]


def test_a_draw_that_was_published_is_the_same_in_every_version() -> None:
    """Whoever checks an old job recomputes its draw: a change of the function needs another domain string."""
    committed = [Drawable(s, p, digest(s, p), 20, 300_000) for p in range(3) for s in range(2)]
    seed = draws.seed_of("a" * 32, 1, 7, committed, BLOCK)
    assert seed.hex()[:16] == "fbee451b5f21fb47"
    assert [(d.stage, d.replica, d.step, d.twice) for d in draws.draw(seed, committed, 2, 400_000)] == [
        (0, 0, 13, False),
        (1, 1, 12, False),
    ]


@given(standings, st.one_of(st.none(), exposures), st.integers(1, WHOLE))
def test_nobody_is_ever_below_the_floor_or_above_certainty(
    standing: NodeStanding, exposure: Exposure | None, floor: int
) -> None:
    assert floor <= rates.rate(standing, exposure, floor) <= WHOLE


@given(standings, exposures)
def test_the_rate_never_falls_with_faults_or_with_what_is_to_be_won_nor_rises_with_credit_or_stake(
    standing: NodeStanding, exposure: Exposure
) -> None:
    here = rates.rate(standing, exposure)
    worse = msgspec.structs.replace(standing, faults=standing.faults + 1)
    better = msgspec.structs.replace(standing, credit=standing.credit + 1)
    assert rates.rate(worse, exposure) >= here >= rates.rate(better, exposure)
    richer = msgspec.structs.replace(exposure, share=exposure.share * 2)
    safer = msgspec.structs.replace(exposure, slashable=exposure.slashable + 1)
    assert rates.rate(standing, richer) >= here >= rates.rate(standing, safer)


def test_new_nodes_are_drawn_in_every_round_and_old_ones_once_in_twenty() -> None:
    seen = [rates.rate(NodeStanding(rounds * 100, 100), None) for rounds in (0, 21, 63, 399, 10**6)]
    assert seen == [WHOLE, WHOLE // 2, WHOLE // 4, FLOOR, FLOOR]
    assert rates.rate(NodeStanding(10**9, 100, faults=1), None) == 2 * FLOOR


def test_credit_counts_in_rounds_of_the_size_that_is_at_stake() -> None:
    """Many small rounds are no reason to look less at a large one."""
    small, large = NodeStanding(credit=400_000, share=1_000), NodeStanding(credit=400_000, share=400_000)
    assert (small.rounds, large.rounds) == (400, 1)
    assert rates.look(small) == -(-WHOLE * 21 // 421)
    assert rates.look(large) == -(-WHOLE * 21 // 22)
    assert not large.proven
    assert NodeStanding(credit=21, share=1).proven
    assert not NodeStanding(credit=20, share=1).proven


@given(standings, st.integers(0, WHOLE))
def test_what_was_drawn_is_looked_at_so_often_that_every_round_is_with_the_probability_that_is_due(
    standing: NodeStanding, more: int
) -> None:
    due = rates.look(standing)
    drawn = min(WHOLE, rates.rate(standing, None) + more)
    assert drawn * rates.looked_at(due, drawn) >= due * WHOLE
    assert rates.looked_at(due, due) == WHOLE


@settings(max_examples=500)
@given(standings, st.integers(1, 64).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_no_round_brings_a_cheat_more_than_a_twentieth_beyond_what_it_works(
    standing: NodeStanding, forged: tuple[int, int]
) -> None:
    """Pay and the worth of the standing after a round, on average, whatever part is forged: exact fractions.

    A look takes any step of a round with equal chance, and the last one in one round of four beside it, so it finds a forged part
    ``f`` with probability ``f`` or more. Then the share is not paid and the standing is gone; else both grow by the share.
    """
    part, found = Fraction(*forged), Fraction(rates.look(standing), WHOLE) * Fraction(*forged)
    after = msgspec.structs.replace(standing, credit=standing.credit + standing.share)
    brings = (1 - found) * (standing.share + rates.worth(after))
    most = Fraction(rates.TRUST, rates.TRUST - 1)
    assert brings <= rates.worth(standing) + most * (1 - part) * standing.share


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1_000), st.sampled_from([0, 1, 2, 4])), max_size=10), st.integers(0, 4))
def test_no_plan_pays_a_cheat_more_than_a_twentieth_beyond_its_work(plan: list[tuple[int, int]], again: int) -> None:
    """Every way that chance can take through a plan of shares and forged quarters, weighed; found, it goes on as planned."""
    paid, worked = Fraction(0), Fraction(0)
    ways: dict[int, Fraction] = {0: Fraction(1)}
    for share, quarters in plan * (1 + again):
        after: dict[int, Fraction] = {}
        for credit, chance in ways.items():
            found = Fraction(rates.look(NodeStanding(credit, share)) * quarters, 4 * WHOLE)
            paid += chance * (1 - found) * share
            worked += chance * (1 - Fraction(quarters, 4)) * share
            after[credit + share] = after.get(credit + share, Fraction(0)) + chance * (1 - found)
            after[0] = after.get(0, Fraction(0)) + chance * found
        ways = after
    assert paid <= worked * Fraction(rates.TRUST, rates.TRUST - 1)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 1_000), st.sampled_from([0, 1, 2, 4])), max_size=4),
    st.integers(0, 1),
    st.integers(0, 200_000),
)
def test_no_plan_pays_a_whole_pipeline_more_though_one_spares_the_others_their_work(
    friends: int, plan: list[tuple[int, int]], again: int, before: int
) -> None:
    """One forges quarters of a round and its friends need no work for them; found, theirs is paid as far as they answer for it.

    Against pay, work and what their standings are worth: all friends do the same, so that one of them stands for each.
    """
    ways: dict[tuple[int, int], Fraction] = {(before, before): Fraction(1)}
    paid, worked = Fraction(0), Fraction(0)
    for share, quarters in plan * (1 + again):
        after: dict[tuple[int, int], Fraction] = {}
        for (liar, friend), chance in ways.items():
            look = rates.look(NodeStanding(liar, share, pot=share * (1 + friends)))
            found = chance * Fraction(look * quarters, 4 * WHOLE)
            answers = friend >= rates.surety(share)
            left = friend - rates.surety(share) + share if answers else friend
            for state, way in (((liar + share, friend + share), chance - found), ((0, left), found)):
                after[state] = after.get(state, Fraction(0)) + way
            paid += (chance - found) * share * (1 + friends) + found * answers * share * friends
            worked += chance * (1 - Fraction(quarters, 4)) * share * (1 + friends)
        ways = after
    had = Fraction(before * (1 + friends), rates.TRUST - 1)
    assert paid <= worked * Fraction(rates.TRUST, rates.TRUST - 1) + had


def test_who_forges_everything_after_honest_rounds_is_paid_for_a_twentieth_of_them() -> None:
    """The sum over all rounds of the chance that none of them was looked at, up to the millionth that rates are rounded to."""
    for honest in (0, 1, 5, 21, 100):
        paid, unseen = 0.0, 1.0
        for number in range(20_000):
            unseen *= 1 - rates.look(NodeStanding(honest + number, 1)) / WHOLE
            paid += unseen
        assert paid == pytest.approx(honest / (rates.TRUST - 1), rel=0.02, abs=1e-9)
        assert paid <= honest / (rates.TRUST - 1)


@settings(max_examples=500)
@given(standings, exposures, st.integers(1, 4096).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n))))
def test_forging_any_part_of_a_round_never_pays(
    standing: NodeStanding, exposure: Exposure, forged: tuple[int, int]
) -> None:
    """At the rate that is drawn with, the expected gain of forging f of n steps is never positive, whatever f."""
    probability = rates.rate(standing, exposure)
    if exposure.share * rates.MARGIN > exposure.unpaid + exposure.slashable:
        assert probability == WHOLE
        return  # Nothing could make this a loss by itself; it is certain to be looked at.
    assert expected_gain(exposure, *forged, probability) <= 0


def test_three_quarters_of_the_rate_would_still_be_a_loss_for_whoever_forges_everything_and_not_a_tenth() -> None:
    exposure = Exposure(share=10_000, unpaid=30_000, slashable=370_000)
    needed = rates.at_stake(exposure)
    assert needed == 50_000
    assert expected_gain(exposure, 20, 20, needed * 3 // 4) < 0
    assert expected_gain(exposure, 20, 20, needed // 10) > 0


def test_rounds_until_caught_is_the_mean_of_what_is_drawn() -> None:
    committed = [Drawable(0, 0, digest(1), 20, 200_000)]
    lived = []
    for run in range(400):
        for number in range(10_000):
            drawn = draws.draw(digest(run, number).encode(), committed, 0)
            if any(d.step < 10 for d in drawn):  # Half of the steps are forged.
                lived.append(number + 1)
                break
    expected = rounds_until_caught(200_000, 10, 20)
    assert expected == pytest.approx(40 / 3)
    assert abs(sum(lived) / len(lived) - expected) < 2.0

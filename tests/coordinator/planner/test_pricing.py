"""Money is exact: prices, pots, shares."""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.domain import pricing
from coordinator.domain.pricing import Offer

amounts = st.integers(0, 2**62)
weights = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.integers(0, 2**60), max_size=12)


@given(amounts, weights)
def test_shares_sum_up_to_the_amount(amount: int, weights: dict[str, int]) -> None:
    shares = pricing.shares(amount, weights)
    assert sum(shares.values()) == (amount if sum(weights.values()) else 0)
    assert all(share >= 0 for share in shares.values())


@given(amounts, weights)
def test_no_share_is_further_than_one_unit_from_its_exact_part(amount: int, weights: dict[str, int]) -> None:
    total = sum(weights.values())
    for key, share in pricing.shares(amount, weights).items():
        assert abs(share * total - amount * weights[key]) < total


@given(amounts, weights)
def test_shares_do_not_depend_on_the_order_of_the_members(amount: int, weights: dict[str, int]) -> None:
    assert pricing.shares(amount, weights) == pricing.shares(amount, dict(reversed(weights.items())))


@given(amounts, st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_the_pots_of_a_job_sum_up_to_its_price(price: int, rounds: list[int]) -> None:
    total = max(1, sum(rounds))
    before, paid = 0, 0
    for tokens in rounds:
        paid += pricing.pot(price, before, before + tokens, total)
        before += tokens
    assert paid == price * before // total


def test_a_price_is_rounded_up_and_never_below_the_minimum() -> None:
    assert pricing.price(10**15, 2000, 0) == 2000
    assert pricing.price(10**15 + 1, 2000, 0) == 2001
    assert pricing.price(1, 2000, 500) == 500


def test_a_reference_costs_a_forward_pass_more() -> None:
    assert pricing.operations(100, 7) == 6 * 700
    assert pricing.operations(100, 7, 2) == 8 * 700


def test_members_share_by_the_operations_of_their_stage() -> None:
    weights = pricing.round_weights([100, 300], {"a": (0, 20), "b": (1, 20)})
    assert pricing.shares(1000, weights) == {"a": 250, "b": 750}


@given(st.integers(1, 2**50), st.lists(st.integers(1, 8), min_size=1, max_size=30), st.integers(1, 10**6))
def test_a_whole_training_pays_between_the_least_and_the_price(
    price: int, contributors: list[int], tokens: int
) -> None:
    replicas = 8
    total, done, paid = replicas * tokens * len(contributors), 0, 0
    for count in contributors:
        after = done + count * tokens
        paid += pricing.pot(price, done, after, total)
        done = after
    assert pricing.least(price, replicas) <= paid <= price
    assert paid == price or min(contributors) < replicas


def test_one_replica_leaves_nothing_to_vary() -> None:
    assert pricing.least(1_885_691, 1) == 1_885_691


# What the network asks

offers = st.lists(st.builds(Offer, st.integers(0, 10**15), st.integers(0, pricing.MAX_FLOOR)), max_size=20)
queues = st.integers(0, 10**24)
rates = st.integers(1, 10**9)
calm = settings(deadline=None)  # Other tests may have the processor.


@calm
@given(offers, st.integers(0, 10**16))
def test_at_the_clearing_price_enough_are_willing_and_below_it_too_few(found: list[Offer], needed: int) -> None:
    price = pricing.clearing(found, needed)
    willing = sum(offer.speed for offer in found if offer.floor <= price)
    assert willing >= min(needed, sum(offer.speed for offer in found))
    if price:
        assert sum(offer.speed for offer in found if offer.floor < price) < needed


@calm
@given(offers, queues, rates)
def test_a_price_is_never_below_the_least_nor_above_four_times_what_anybody_asks(
    found: list[Offer], queued: int, least: int
) -> None:
    price = pricing.rate(found, queued, least)
    assert least <= price <= pricing.MAX_DEMAND * max([least, *(offer.floor for offer in found)])


@calm
@given(offers, queues, queues, rates)
def test_a_longer_queue_never_makes_it_cheaper(found: list[Offer], one: int, other: int, least: int) -> None:
    assert pricing.rate(found, min(one, other), least) <= pricing.rate(found, max(one, other), least)


@calm
@given(offers, st.integers(0, 19), st.integers(0, pricing.MAX_FLOOR), queues, rates)
def test_who_asks_more_never_makes_it_cheaper(
    found: list[Offer], which: int, more: int, queued: int, least: int
) -> None:
    dearer = [Offer(o.speed, o.floor + more if n == which else o.floor) for n, o in enumerate(found)]
    assert pricing.rate(found, queued, least) <= pricing.rate(dearer, queued, least)


@calm
@given(offers, rates, st.integers(1, 10**12))
def test_one_machine_with_a_high_floor_cannot_raise_the_price_of_many(
    found: list[Offer], least: int, floor: int
) -> None:
    many = [*found, *found, *found, Offer(1, 0)]
    loner = Offer(min((offer.speed for offer in many), default=1), floor)
    ceiling = max([least, *(offer.floor for offer in many)])
    assert pricing.rate([*many, loner], 0, least) <= ceiling


@calm
@given(rates, rates, st.integers(0, 60))
def test_a_price_moves_towards_its_target_by_an_eighth_a_step_and_never_past_it(
    previous: int, target: int, steps: int
) -> None:
    now = previous
    for _ in range(steps):
        after = pricing.stepped(now, target, 1)
        assert abs(after - now) <= max(1, now // 8)
        assert abs(target - after) <= abs(target - now)
        assert (target - after) * (target - now) >= 0
        now = after
    assert now == pricing.stepped(previous, target, steps)


def test_a_network_at_rest_asks_what_its_operator_asks() -> None:
    assert pricing.rate([], 0, 2000) == 2000
    assert pricing.rate([Offer(10**12, 0)] * 3, 3600 * 3 * 10**12, 2000) == 2000
    assert pricing.rate([Offer(10**12, 0), Offer(10**12, 5000), Offer(10**12, 9000)], 0, 2000) == 5000
    assert pricing.rate([Offer(10**12, 0)], 11 * 3600 * 10**12, 2000) == 4000, "ten hours beyond the calm one"


@calm
@given(
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 8)), min_size=1, max_size=20),
    st.integers(0, 2**32),
)
def test_the_submitters_cap_is_never_exceeded_and_dust_is_carried(
    price: int, slack: int, rounds: list[tuple[int, int]], seed: int
) -> None:
    chance, budget = Random(seed), price + slack
    total = max(1, sum(tokens * members for tokens, members in rounds))
    done, paid, earned = 0, 0, Counter[str]()
    for tokens, members in rounds:
        pot = pricing.pot(price, done, done + tokens * members, total)
        shares = pricing.shares(pot, {f"node-{n}": chance.randint(1, 10**6) for n in range(members)})
        assert sum(shares.values()) == pot, "what rounding leaves over goes to somebody"
        done, paid = done + tokens * members, paid + pot
        earned.update(shares)
        assert sum(earned.values()) == paid == price * done // total, "what a round leaves over goes into a later one"
        assert paid <= price <= budget
    assert paid == price or done < total


def test_a_payout_waits_until_its_fee_is_a_twentieth_of_it() -> None:
    fee, sol = 5000, 150_000_000  # 0.00075 tokens.
    assert not pricing.worth_paying(14_999, fee, sol)
    assert pricing.worth_paying(15_000, fee, sol)
    assert pricing.worth_paying(1, fee, 0), "the embedded ledger costs nothing"
    assert not pricing.worth_paying(0, fee, 0)

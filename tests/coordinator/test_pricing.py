"""Money is exact: prices, pots, shares."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.domain import pricing

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

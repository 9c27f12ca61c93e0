"""Random lives of an escrow and a stake against a model of a few lines: the money always agrees."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from ledger.local.genesis import COOLDOWN_S, SLASH_BPS, SLASH_WINDOW_S
from ledger.program.interface import MarketError
from ledger.states import StakeState, stake_state
from tests.ledger.world import World

PAYEES = 3
DEADLINE_S = 100
units = st.integers(0, 2000)
step = st.one_of(
    st.tuples(st.just("deposit"), units),
    st.tuples(st.just("gift"), units),
    st.tuples(st.just("settle"), st.lists(st.tuples(st.integers(0, PAYEES - 1), units), min_size=1, max_size=4)),
    st.tuples(st.just("settle again"), st.none()),
    st.tuples(st.sampled_from(["refund", "early refund", "close"]), st.none()),
    st.tuples(st.just("wait"), st.integers(0, DEADLINE_S)),
)


@dataclass
class Model:
    """What an escrow should do, in plain integers."""

    deadline: float
    deposited: int = 0
    refunded: int = 0
    paid: dict[int, int] = field(default_factory=dict)
    status: str = "open"

    @property
    def balance(self) -> int:
        return self.deposited - self.refunded - sum(self.paid.values())

    def settle(self, payouts: list[tuple[int, int]]) -> MarketError | None:
        after = dict(self.paid)
        for payee, cumulative in payouts:
            after[payee] = max(after.get(payee, 0), cumulative)
        if self.status == "closed":
            return MarketError.CLOSED
        if sum(after.values()) > self.deposited - self.refunded:
            return MarketError.INSUFFICIENT
        self.paid = after
        return None

    def deposit(self, amount: int) -> MarketError | None:
        if self.status != "open":
            return MarketError.CLOSED if self.status == "closed" else MarketError.ENDED
        if amount == 0:
            return MarketError.ZERO_AMOUNT
        self.deposited += amount
        return None

    def refund(self, now: float, *, early: bool) -> MarketError | None:
        if self.status == "closed":
            return MarketError.CLOSED
        if early and now < self.deadline:
            return MarketError.TOO_EARLY
        self.refunded += self.balance
        self.status = "ended"
        return None

    def close(self) -> MarketError | None:
        if self.status == "closed":
            return MarketError.CLOSED
        if self.status == "open" or self.balance:
            return MarketError.NOT_EMPTY
        self.status = "closed"
        return None


class Crowd(World):
    """A world with payees."""

    def __init__(self) -> None:
        super().__init__()
        self.people = [self.person(f"payee {index}") for index in range(PAYEES)]


@pytest.fixture(scope="module")
def shared() -> Crowd:
    """One world for all lives: each begins with a job of its own."""
    return Crowd()


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(step, max_size=25))
def test_deposited_is_always_paid_plus_refunded_plus_balance(shared: Crowd, steps: list[tuple[str, object]]) -> None:
    job = hashlib.sha256(shared.entropy(8)).digest()
    before = [shared.tokens(who) for who in (*shared.people, shared.submitter, shared.stranger)]
    escrow = shared.open_escrow(0, job, seconds=DEADLINE_S, max_payees=PAYEES, payees=shared.people)
    model, last = Model(int(shared.clock.now) + DEADLINE_S), [(0, 0)]
    for kind, value in steps:
        if kind == "wait":
            assert isinstance(value, int)
            shared.clock.advance(value)
            continue
        if kind == "gift":
            assert isinstance(value, int)
            # The vault exists until the close; who gives into it afterwards finds no account.
            if model.status != "closed" and value:
                shared.send(shared.move_tokens(shared.stranger, shared.wallet(escrow), value))
                model.deposited += value
            continue
        if kind == "settle":
            last = value  # type: ignore[assignment]
        expected = _expect(model, kind, value, last, shared.clock.now)
        assert shared.refusal(_call(shared, escrow, job, kind, value, last)) == expected, (kind, value)
        state = shared.escrow(escrow)
        assert shared.tokens(escrow) == model.balance
        assert (state.paid, state.refunded) == (sum(model.paid.values()), model.refunded)
    after = [shared.tokens(who) for who in (*shared.people, shared.submitter, shared.stranger)]
    assert sum(after) + model.balance == sum(before)  # nothing appeared, nothing vanished


def _expect(model: Model, kind: str, value: object, last: list[tuple[int, int]], now: float) -> MarketError | None:
    match kind:
        case "deposit":
            assert isinstance(value, int)
            return model.deposit(value)
        case "settle" | "settle again":
            return model.settle(last)
        case "refund":
            return model.refund(now, early=False)
        case "early refund":
            return model.refund(now, early=True)
        case _:
            return model.close()


def _call(
    world: Crowd, escrow: Pubkey, job: bytes, kind: str, value: object, last: list[tuple[int, int]]
) -> Instruction:
    match kind:
        case "deposit":
            assert isinstance(value, int)
            return world.market.escrow_deposit(world.submitter, escrow, value)
        case "settle" | "settle again":
            return world.settle(escrow, *((world.people[index], total) for index, total in last))
        case "refund":
            return world.market.escrow_refund(world.coordinator, world.submitter, job)
        case "early refund":
            return world.market.escrow_refund(world.submitter, world.submitter, job)
        case _:
            return world.market.escrow_close(world.submitter, world.submitter, job)


moves = st.one_of(
    st.tuples(st.just("slash"), st.integers(1, 1500), st.integers(1, 9)),
    st.tuples(st.sampled_from(["deposit", "gift", "withdraw"]), st.integers(1, 1500), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, SLASH_WINDOW_S), st.just(0)),
)


@dataclass
class Staked:
    """What a stake should allow, in plain integers: the most that it was since a window began is what counts there."""

    left: int
    began: float = float("-inf")
    most: int = 0
    taken: int = 0
    reasons: set[int] = field(default_factory=set)

    def slash(self, amount: int, reason: int, now: float) -> MarketError | None:
        if reason in self.reasons:
            return None
        if now >= self.began + SLASH_WINDOW_S:
            self.began, self.most, self.taken = int(now), self.left, 0
        self.most = max(self.most, self.left + self.taken)
        if amount > self.most * SLASH_BPS // 10_000 - self.taken:
            return MarketError.SLASH_CAP
        if amount > self.left:
            return MarketError.INSUFFICIENT
        self.left, self.taken = self.left - amount, self.taken + amount
        self.reasons.add(reason)
        return None


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 3000), st.lists(moves, max_size=15))
def test_slashes_take_a_share_of_what_is_staked_whatever_is_added_or_taken_out(
    shared: Crowd, amount: int, steps: list[tuple[str, int, int]]
) -> None:
    """The window's share follows deposits; it never takes more than half of the most that ever stood there."""
    node, market = shared.person(f"node {shared.entropy(8).hex()}"), shared.market
    stake, model = shared.open_stake(amount, node), Staked(amount)
    shared.clock.advance(2 * SLASH_WINDOW_S)
    for kind, value, reason in steps:
        if kind == "wait":
            shared.clock.advance(value)
        elif kind == "slash":
            asked = market.stake_slash(shared.coordinator, node, shared.treasury, value, bytes([reason]) * 32)
            state = read_stake_state(shared, stake)
            fresh = model.reasons.isdisjoint({reason})
            expected = _judged(model, value, reason, shared.clock.now)
            assert shared.refusal(asked) == expected
            if fresh:
                assert (value <= state.slashable(int(shared.clock.now))) == (expected is None), "as Python foretells it"
        elif kind == "withdraw":
            shared.send(market.stake_request(node, min(value, model.left)))
            shared.clock.advance(COOLDOWN_S)
            if min(value, model.left):
                shared.send(market.stake_withdraw(node))
                model.left -= min(value, model.left)
        else:
            source = market.stake_deposit(shared.stranger, node, value)
            shared.send(
                source if kind == "deposit" else shared.move_tokens(shared.stranger, shared.wallet(stake), value)
            )
            model.left += value
        account = shared.stake(stake)
        assert shared.tokens(stake) == model.left
        assert account.window_slashed <= account.window_base * SLASH_BPS // 10_000, "and so never goes below zero"


def _judged(model: Staked, amount: int, reason: int, now: float) -> MarketError | None:
    """What the model says; a refused slash changes nothing, not even the window."""
    before = (model.began, model.most, model.taken)
    refused = model.slash(amount, reason, now)
    if refused is not None:
        model.began, model.most, model.taken = before
    return refused


def read_stake_state(world: Crowd, stake: Pubkey) -> StakeState:
    return stake_state(stake, world.stake(stake), world.tokens(stake))

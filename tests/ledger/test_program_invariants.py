"""Random lives of an escrow and a stake against a model of a few lines: the money always agrees."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from ledger.local.genesis import SLASH_BPS, SLASH_WINDOW_S
from ledger.program.interface import MarketError
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


slash = st.tuples(st.integers(1, 1500), st.integers(1, 5), st.integers(0, SLASH_WINDOW_S))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 3000), st.lists(slash, max_size=15))
def test_no_sequence_of_slashes_takes_more_than_the_share_of_any_window(
    shared: Crowd, amount: int, slashes: list[tuple[int, int, int]]
) -> None:
    node = shared.person(f"node {shared.entropy(8).hex()}")
    stake = shared.open_stake(amount, node)
    shared.clock.advance(2 * SLASH_WINDOW_S)
    base, taken, began, seen, left = amount, 0, float("-inf"), set[int](), amount
    for asked, reason, wait in slashes:
        call = shared.market.stake_slash(shared.coordinator, node, shared.treasury, asked, bytes([reason]) * 32)
        refusal = shared.refusal(call)
        if reason in seen:
            assert refusal is None
        else:
            if shared.clock.now >= began + SLASH_WINDOW_S:
                base, taken = left, 0
            allowed = base * SLASH_BPS // 10_000 - taken
            assert refusal == (None if asked <= allowed else MarketError.SLASH_CAP)
            if refusal is None:
                if taken == 0 and shared.clock.now >= began + SLASH_WINDOW_S:
                    began = int(shared.clock.now)
                taken, left = taken + asked, left - asked
                seen.add(reason)
        assert shared.tokens(stake) == left
        shared.clock.advance(wait)

"""What a coordinator has promised: claimed by anybody for the payee, covered by the escrow, and never paid twice."""

from __future__ import annotations

import struct

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from ledger import merkle
from ledger.program.codes import Consent, MarketError
from ledger.program.layout import read_events
from protocol.merkle import MerkleTree, merkle_root
from tests.ledger.world import JOB, TOKENS, World, swap, unsigned, with_data

pytestmark = pytest.mark.clusters

GRACE_S = 7 * 86_400  # CLAIM_GRACE of market.h


@pytest.fixture
def escrow(world: World) -> Pubkey:
    """An open escrow of 1,000 units, of which at most 900 are paid, to the node and the stranger."""
    return world.open_escrow(1000, cap=900)


def _leaves(world: World, earned: dict[Pubkey, int]) -> list[bytes]:
    return [merkle.earning(bytes(world.wallet(payee)), total) for payee, total in earned.items()]


def _commit(world: World, escrow: Pubkey, earned: dict[Pubkey, int], period: int = 1) -> Instruction:
    root = merkle_root(_leaves(world, earned))
    return world.market.escrow_commit(world.coordinator, escrow, root, sum(earned.values()), period)


def _claim(world: World, escrow: Pubkey, earned: dict[Pubkey, int], payee: Pubkey, *, slot: int = 0) -> Instruction:
    proof = MerkleTree(_leaves(world, earned)).proof(list(earned).index(payee))
    return world.market.escrow_claim(payee, escrow, payee, earned[payee], slot, proof)


def _earned(world: World, node: int = 300, stranger: int = 200) -> dict[Pubkey, int]:
    return {world.node: node, world.stranger: stranger, world.new_key("somebody else"): 50}


def test_a_payee_claims_what_was_promised_and_nothing_twice(world: World, escrow: Pubkey) -> None:
    earned = _earned(world)
    world.send(_commit(world, escrow, earned))
    for _ in range(3):
        world.send(_claim(world, escrow, earned, world.node))
    assert world.tokens(world.node) == TOKENS + 300
    assert world.escrow(escrow).paid == 300


def test_a_claim_for_a_payee_without_an_account_is_refused_and_stays_claimable(world: World, escrow: Pubkey) -> None:
    payee = world.new_key("nobody opened an account for this one")
    earned = {payee: 40, world.node: 10}
    world.send(world.admit(escrow, payee), _commit(world, escrow, earned))
    claim = swap(_claim(world, escrow, earned, payee), 0, world.stranger)
    assert world.refusal(claim) == MarketError.WRONG_DESTINATION
    world.send(world.create_wallet(payee), claim)
    assert world.tokens(payee) == 40


def test_pushes_and_claims_pay_the_same_cumulative_amount_once(world: World, escrow: Pubkey) -> None:
    earned = _earned(world)
    world.send(_commit(world, escrow, earned))
    world.send(world.settle(escrow, (world.node, 120)))
    world.send(_claim(world, escrow, earned, world.node))
    world.send(world.settle(escrow, (world.node, 300)))
    assert world.tokens(world.node) == TOKENS + 300
    later = _earned(world, node=350)
    world.send(_commit(world, escrow, later, 2), _claim(world, escrow, later, world.node))
    assert world.tokens(world.node) == TOKENS + 350


def test_anybody_may_claim_for_a_payee_and_the_payee_is_paid(world: World, escrow: Pubkey) -> None:
    earned = _earned(world)
    world.send(_commit(world, escrow, earned))
    world.send(swap(_claim(world, escrow, earned, world.node), 0, world.submitter))
    assert world.tokens(world.node) == TOKENS + 300


def test_who_is_not_in_the_table_claims_nothing_even_when_promised(world: World, escrow: Pubkey) -> None:
    earned = _earned(world)
    somebody = list(earned)[2]
    world.send(_commit(world, escrow, earned), world.create_wallet(somebody))
    assert world.refusal(_claim(world, escrow, earned, somebody)) == MarketError.NOT_A_PAYEE
    world.send(world.admit(escrow, somebody), _claim(world, escrow, earned, somebody, slot=2))
    assert world.tokens(somebody) == 50


@pytest.mark.parametrize(
    "lie", ["a larger amount", "another wallet", "another place", "an older root", "no promise yet"]
)
def test_a_false_claim_is_refused(world: World, escrow: Pubkey, lie: str) -> None:
    earned = _earned(world)
    honest = _claim(world, escrow, earned, world.node)
    if lie != "no promise yet":
        world.send(_commit(world, escrow, earned))
    call = honest
    if lie == "a larger amount":
        call = with_data(honest, honest.data[:3] + struct.pack("<Q", 301) + honest.data[11:])
    elif lie == "another wallet":
        call = swap(honest, 5, world.wallet(world.stranger))
    elif lie == "another place":
        call = with_data(honest, honest.data[:11] + struct.pack("<I", 1) + honest.data[15:])
    elif lie == "an older root":
        world.send(_commit(world, escrow, _earned(world, node=400), 2))
    assert world.refusal(call) == MarketError.BAD_PROOF
    assert world.tokens(world.node) == TOKENS


@pytest.mark.parametrize("who", ["submitter", "node", "stranger"])
def test_nobody_but_the_coordinator_promises(world: World, escrow: Pubkey, who: str) -> None:
    promise = _commit(world, escrow, _earned(world))
    assert world.refusal(swap(promise, 0, getattr(world, who))) == MarketError.WRONG_AUTHORITY
    assert world.refusal(unsigned(promise)) == "MissingRequiredSignature"


@pytest.mark.parametrize(
    ("total", "period", "error"),
    [(550, 0, MarketError.STALE), (901, 1, MarketError.PAY_CAP), (2**64 - 1, 1, MarketError.PAY_CAP), (900, 1, None)],
)
def test_no_more_is_promised_than_may_be_paid(
    world: World, escrow: Pubkey, total: int, period: int, error: MarketError | None
) -> None:
    promise = world.market.escrow_commit(world.coordinator, escrow, b"\1" * 32, total, period)
    assert world.refusal(promise) == error


def test_a_promise_needs_the_money_and_never_shrinks(world: World) -> None:
    escrow = world.open_escrow(1000)

    def promise(total: int, period: int) -> Instruction:
        return world.market.escrow_commit(world.coordinator, escrow, b"\1" * 32, total, period)

    assert world.refusal(promise(1001, 1)) == MarketError.INSUFFICIENT
    world.send(world.settle(escrow, (world.node, 400)))
    world.send(promise(1000, 7))
    assert world.refusal(promise(999, 8)) == MarketError.BAD_TERMS
    assert world.refusal(promise(1000, 7)) == MarketError.STALE


def test_a_refund_leaves_what_was_promised_until_the_grace_has_passed(world: World, escrow: Pubkey) -> None:
    earned = _earned(world)
    world.send(_commit(world, escrow, earned), world.settle(escrow, (world.node, 100)))
    refund = world.market.escrow_refund(world.coordinator, world.submitter, JOB)
    world.send(refund)
    state = world.escrow(escrow)
    assert (state.refunded, world.tokens(escrow)) == (450, 450)  # 550 promised, 100 of it paid
    close = world.market.escrow_close(world.submitter, world.submitter, JOB)
    assert world.refusal(close) == MarketError.NOT_EMPTY
    assert world.refusal(_commit(world, escrow, earned, 2)) == MarketError.ENDED
    world.send(_claim(world, escrow, earned, world.node))
    assert world.tokens(world.node) == TOKENS + 300
    world.clock.advance(3600 + GRACE_S - 2)
    world.send(refund)
    assert world.tokens(escrow) == 250
    world.clock.advance(3)
    assert world.refusal(world.market.escrow_refund(world.stranger, world.submitter, JOB)) is None
    world.send(close)
    assert world.tokens(world.submitter) == TOKENS - 300


@pytest.mark.parametrize("consent", [Consent(0), Consent.ADMIT])
def test_a_coordinator_without_consent_ends_nothing_alone(world: World, consent: Consent) -> None:
    world.open_escrow(1000, consent=consent)
    market = world.market
    alone = market.escrow_refund(world.coordinator, world.submitter, JOB)
    assert world.refusal(alone) == MarketError.TOO_EARLY
    for wrong in (world.coordinator, world.node):
        paired = market.escrow_refund(world.coordinator, world.submitter, JOB, cosigner=wrong)
        assert world.refusal(paired) == MarketError.TOO_EARLY
    both = market.escrow_refund(world.coordinator, world.submitter, JOB, cosigner=world.submitter)
    assert world.refusal(unsigned(both, 6)) == MarketError.TOO_EARLY
    assert world.refusal(both) is None
    assert world.tokens(world.submitter) == TOKENS


@pytest.mark.parametrize("operation", ["commit", "claim"])
@pytest.mark.parametrize(
    ("place", "what", "error"),
    [
        (1, "stake", MarketError.NOT_OURS),
        (1, "nothing", MarketError.NOT_OURS),
        (1, "another escrow", MarketError.WRONG_VAULT),
        (2, "second vault", MarketError.WRONG_VAULT),
        (3, "another mint", MarketError.WRONG_MINT),
        (4, "stranger", MarketError.WRONG_PROGRAM),
    ],
)
def test_a_false_account_in_any_common_place_is_refused(
    world: World, escrow: Pubkey, operation: str, place: int, what: str, error: MarketError
) -> None:
    earned = _earned(world)
    world.send(_commit(world, escrow, earned))
    call = _commit(world, escrow, earned, 2) if operation == "commit" else _claim(world, escrow, earned, world.node)
    accounts = {
        "stake": lambda: world.open_stake(5),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "another escrow": lambda: world.open_escrow(5, b"\7" * 32),
        "second vault": lambda: world.second_vault(escrow, "second vault"),
        "another mint": lambda: world.new_mint(),
        "stranger": lambda: world.stranger,
    }
    assert world.refusal(swap(call, place, accounts[what]())) == error


@pytest.mark.parametrize("operation", ["commit", "claim"])
@pytest.mark.parametrize("change", ["one byte more", "one byte less", "accounts missing"])
def test_malformed_calls_pay_nothing(world: World, escrow: Pubkey, operation: str, change: str) -> None:
    earned = _earned(world)
    world.send(_commit(world, escrow, earned))
    call = _commit(world, escrow, earned, 2) if operation == "commit" else _claim(world, escrow, earned, world.node)
    if change == "accounts missing":
        broken = Instruction(call.program_id, call.data, list(call.accounts)[:4])
    else:
        broken = with_data(call, call.data + b"\0" if change == "one byte more" else call.data[:-1])
    assert world.refusal(broken) in {"InvalidInstructionData", "InvalidArgument"}
    assert world.tokens(world.node) == TOKENS


def test_promises_and_claims_are_told(world: World, escrow: Pubkey) -> None:
    earned = _earned(world)
    root = merkle_root(_leaves(world, earned))
    logs = world.logs(world.send(_commit(world, escrow, earned), _claim(world, escrow, earned, world.node)))
    promised, paid = read_events(logs, world.market.program)
    assert (promised.kind, promised.payload) == ("CMIT", root + struct.pack("<QQ", 550, 1))
    assert (paid.kind, paid.payload) == ("PAID", bytes(world.wallet(world.node)) + struct.pack("<QQ", 300, 300))

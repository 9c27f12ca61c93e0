"""A coordinator takes an escrow on: only as it asked for it, and what it lends for the table comes back to it."""

from __future__ import annotations

from typing import Any

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import TransferParams, transfer

from ledger.program.codes import Consent, MarketError
from ledger.program.layout import PAYEE_SIZE, read_events
from protocol.merkle import merkle_root
from tests.ledger.world import JOB, START, World, swap, unsigned, with_data

pytestmark = pytest.mark.clusters

DEADLINE = int(START) + 12 * 3600
ASKED: dict[str, Any] = {"deadline": DEADLINE, "cap": 900, "amount": 1000, "max_payees": 8}


def _opened(world: World, **odd: Any) -> Pubkey:
    """An escrow just as it is asked for, but for what is odd."""
    opened = {"deadline": DEADLINE, "cap": 900, "amount": 1000, "max_payees": 8, "payees": (), **odd}
    deadline, amount = opened.pop("deadline"), opened.pop("amount")
    return world.open_escrow(amount, seconds=deadline - int(world.clock.now), **opened)


def _accept(world: World, escrow: Pubkey, **asked: Any) -> Instruction:
    return world.market.escrow_accept(world.coordinator, escrow, **{**ASKED, **asked})


def test_an_escrow_that_is_as_asked_for_is_accepted_and_told(world: World) -> None:
    escrow = _opened(world)
    (event,) = read_events(world.logs(world.send(_accept(world, escrow))), world.market.program)
    state = world.escrow(escrow)
    assert (event.kind, event.account, event.payload) == ("ACPT", escrow, _accept(world, escrow).data[1:])
    assert (state.accepted, state.consent) == (True, Consent.ADMIT | Consent.END)


@pytest.mark.parametrize(
    "better", [{"deadline": DEADLINE + 1}, {"cap": 901}, {"cap": 2**64 - 1}, {"amount": 1001}, {"max_payees": 9}]
)
def test_more_than_was_asked_for_is_accepted_too(world: World, better: dict[str, Any]) -> None:
    escrow = _opened(world, **better)
    assert world.refusal(_accept(world, escrow)) is None


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ({"deadline": DEADLINE - 1}, MarketError.BAD_TERMS),
        ({"deadline": DEADLINE - 21_599}, MarketError.BAD_TERMS),
        ({"cap": 899}, MarketError.BAD_TERMS),
        ({"amount": 999}, MarketError.INSUFFICIENT),
        ({"amount": 0}, MarketError.INSUFFICIENT),
        ({"max_payees": 7}, MarketError.BAD_TERMS),
        ({"consent": Consent(0)}, MarketError.BAD_TERMS),
        ({"consent": Consent.ADMIT}, MarketError.BAD_TERMS),
        ({"consent": Consent.END}, MarketError.BAD_TERMS),
        ({"count": 1, "peaks": [bytes(32)]}, MarketError.USED),
    ],
)
def test_an_escrow_with_any_odd_term_is_not_accepted(world: World, odd: dict[str, Any], error: MarketError) -> None:
    escrow = _opened(world, **odd)
    assert world.refusal(_accept(world, escrow)) == error
    assert not world.escrow(escrow).accepted


def test_a_consent_that_was_not_asked_for_is_odd_too(world: World) -> None:
    escrow = _opened(world)
    assert world.refusal(_accept(world, escrow, consent=Consent.END)) == MarketError.BAD_TERMS


@pytest.mark.parametrize("what", ["a listed payee", "a payee with an entry", "a payment", "a promise", "a refund"])
def test_an_escrow_that_was_used_before_is_not_accepted(world: World, what: str) -> None:
    escrow, market = _opened(world), world.market
    calls = {
        "a listed payee": [world.admit(escrow, world.node, enrol=False)],
        "a payee with an entry": [world.admit(escrow, world.node)],
        "a payment": [world.admit(escrow, world.node), world.settle(escrow, (world.node, 1))],
        "a promise": [market.escrow_commit(world.coordinator, escrow, merkle_root([b"leaf"]), 1, 1)],
        "a refund": [market.escrow_refund(world.coordinator, world.submitter, JOB)],
    }
    world.send(*calls[what])
    expected = MarketError.ENDED if what == "a refund" else MarketError.USED
    assert world.refusal(_accept(world, escrow)) == expected


def test_an_escrow_whose_deadline_has_passed_is_not_accepted(world: World) -> None:
    escrow = _opened(world)
    world.clock.advance(DEADLINE - world.clock.now)
    assert world.refusal(_accept(world, escrow)) == MarketError.DEADLINE_PASSED


def test_what_was_sent_straight_to_the_vault_counts(world: World) -> None:
    escrow = _opened(world, amount=990)
    world.send(world.move_tokens(world.stranger, world.wallet(escrow), 10))
    assert world.refusal(_accept(world, escrow)) is None


def test_accepting_again_compares_and_changes_nothing(world: World) -> None:
    escrow = _opened(world)
    world.send(_accept(world, escrow))
    admitted = world.market.escrow_admit(world.coordinator, escrow, [world.node], enrol=True)
    world.send(admitted, world.settle(escrow, (world.node, 7)))
    before = world.escrow(escrow)
    assert world.refusal(_accept(world, escrow)) is None
    assert world.refusal(_accept(world, escrow, cap=901)) == MarketError.BAD_TERMS
    assert world.escrow(escrow) == before


@pytest.mark.parametrize("who", ["submitter", "node", "stranger"])
def test_nobody_but_the_coordinator_that_it_names_accepts(world: World, who: str) -> None:
    escrow = _opened(world)
    call = _accept(world, escrow)
    assert world.refusal(swap(call, 0, getattr(world, who))) == MarketError.WRONG_AUTHORITY
    assert world.refusal(unsigned(call)) == "MissingRequiredSignature"


@pytest.mark.parametrize(
    ("place", "what", "error"),
    [
        (1, "stake", MarketError.NOT_OURS),
        (1, "nothing", MarketError.NOT_OURS),
        (1, "a copy", MarketError.NOT_OURS),
        (2, "second vault", MarketError.WRONG_VAULT),
        (3, "another mint", MarketError.WRONG_MINT),
        (4, "system", MarketError.WRONG_PROGRAM),
    ],
)
def test_a_false_account_is_refused(world: World, place: int, what: str, error: MarketError) -> None:
    escrow = _opened(world)
    original = world.chain.account(escrow)
    assert original is not None
    accounts = {
        "stake": lambda: world.open_stake(5),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "a copy": lambda: world.forge("forged", original.data, SYSTEM_PROGRAM),
        "second vault": lambda: world.second_vault(escrow, "second vault"),
        "another mint": lambda: world.new_mint(),
        "system": lambda: SYSTEM_PROGRAM,
    }
    assert world.refusal(swap(_accept(world, escrow), place, accounts[what]())) == error


@pytest.mark.parametrize("change", ["one byte more", "one byte less", "accounts missing"])
def test_malformed_calls_accept_nothing(world: World, change: str) -> None:
    escrow = _opened(world)
    call = _accept(world, escrow)
    if change == "accounts missing":
        broken = Instruction(call.program_id, call.data, list(call.accounts)[:4])
    else:
        broken = with_data(call, call.data + b"\0" if change == "one byte more" else call.data[:-1])
    assert world.refusal(broken) in {"InvalidInstructionData", "InvalidArgument"}
    assert not world.escrow(escrow).accepted


# Junk in the table


def test_once_accepted_the_room_is_the_coordinators_to_fill(world: World) -> None:
    escrow = _opened(world)
    world.send(_accept(world, escrow))
    for enrol in (True, False):
        junk = world.admit(escrow, world.new_key("junk"), enrol=enrol)
        assert world.refusal(junk) == MarketError.WRONG_AUTHORITY
    world.send(world.market.escrow_admit(world.coordinator, escrow, [world.node], enrol=True))
    assert list(world.escrow(escrow).payees) == [world.wallet(world.node)]


def test_a_submitter_that_keeps_the_list_to_itself_goes_on_keeping_it(world: World) -> None:
    escrow = _opened(world, consent=Consent.END)
    world.send(_accept(world, escrow, consent=Consent.END))
    assert world.refusal(world.admit(escrow, world.node)) is None
    theirs = world.market.escrow_admit(world.coordinator, escrow, [world.stranger], enrol=True)
    assert world.refusal(theirs) == MarketError.WRONG_AUTHORITY


# Rent goes back to who paid it


def _lamports(world: World, who: Pubkey) -> int:
    found = world.chain.account(who)
    return 0 if found is None else found.lamports


def _ended(world: World) -> None:
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))


@pytest.mark.parametrize("closer", ["submitter", "coordinator"])
def test_the_rent_of_entries_goes_back_to_the_coordinator_that_lent_it(world: World, closer: str) -> None:
    escrow = world.open_escrow(1000, max_payees=2)  # The submitter has filled both with its own payees.
    market, before = world.market, _lamports(world, world.coordinator)
    world.send(
        market.escrow_grow(world.coordinator, escrow, 20),
        market.escrow_admit(world.coordinator, escrow, [world.new_key("earned it")], enrol=True),
    )
    lent = before - _lamports(world, world.coordinator)
    assert lent == 20 * (world.chain.rent_minimum(PAYEE_SIZE) - world.chain.rent_minimum(0))
    assert world.escrow(escrow).lent == 20
    _ended(world)
    kept = _lamports(world, escrow), _lamports(world, world.submitter)
    world.send(market.escrow_close(getattr(world, closer), world.submitter, JOB, world.coordinator))
    assert _lamports(world, world.coordinator) == before
    back = kept[0] - _lamports(world, escrow) - lent + world.chain.rent_minimum(165)
    assert _lamports(world, world.submitter) == kept[1] + back


@pytest.mark.parametrize("thief", ["submitter", "stranger", None])
def test_a_loan_goes_to_nobody_else(world: World, thief: str | None) -> None:
    escrow = world.open_escrow(1000, max_payees=2)
    world.send(world.market.escrow_grow(world.coordinator, escrow, 3))
    _ended(world)
    who = None if thief is None else getattr(world, thief)
    close = world.market.escrow_close(world.submitter, world.submitter, JOB, who)
    assert world.refusal(close) == MarketError.WRONG_DESTINATION


def test_what_others_paid_for_the_table_is_the_submitters(world: World) -> None:
    escrow = world.open_escrow(1000, max_payees=2)
    slot = world.chain.rent_minimum(PAYEE_SIZE) - world.chain.rent_minimum(0)
    world.send(
        world.market.escrow_grow(world.stranger, escrow, 3), world.market.escrow_grow(world.submitter, escrow, 2)
    )
    # Somebody paid for three entries ahead, and half of another one; of the five that follow the coordinator pays the rest.
    gift = 3 * slot + slot // 2
    world.send(transfer(TransferParams(from_pubkey=world.node, to_pubkey=escrow, lamports=gift)))
    before = _lamports(world, world.coordinator)
    world.send(world.market.escrow_grow(world.coordinator, escrow, 5))
    assert before - _lamports(world, world.coordinator) == 5 * slot - gift
    assert world.escrow(escrow).lent == 1, "whole entries count"
    _ended(world)
    world.send(world.market.escrow_close(world.coordinator, world.submitter, JOB, world.coordinator))
    assert before - _lamports(world, world.coordinator) == 5 * slot - gift - slot

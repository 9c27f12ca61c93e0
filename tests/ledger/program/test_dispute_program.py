"""Disputes, through the real loader: a bond, a verdict in time, and nobody who earns from judging."""

from __future__ import annotations

import pytest
from solders.account import Account
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import TransferParams, transfer
from spl.token.instructions import get_associated_token_address

from ledger.local.genesis import BOND, COOLDOWN_S, VERDICT_S
from ledger.program.codes import MarketError
from ledger.program.layout import DISPUTE_SIZE, REASONS, STAKE_SIZE, Ruling, read_dispute, read_events
from tests.ledger.world import TOKENS, World, swap, unsigned, with_data

pytestmark = pytest.mark.clusters

AUDIT, EVIDENCE = b"\5" * 32, b"\6" * 32


def _open(world: World, bond: int = BOND, challenger: Pubkey | None = None) -> list[Instruction]:
    who = challenger or world.stranger
    vault = world.market.dispute(who, AUDIT)
    moved = [world.move_tokens(who, world.wallet(vault), bond)] if bond else []
    return [world.create_wallet(vault), *moved, world.market.dispute_open(who, world.node, AUDIT)]


@pytest.fixture
def dispute(world: World) -> Pubkey:
    """The stranger disputes an audit of the node, whose stake is 1,000 units."""
    world.open_stake(1000)
    world.send(*_open(world))
    return world.market.dispute(world.stranger, AUDIT)


def _verdict(world: World, *, upheld: bool) -> Instruction:
    return world.market.dispute_verdict(world.coordinator, world.stranger, world.node, AUDIT, EVIDENCE, upheld=upheld)


def _expire(world: World) -> Instruction:
    return world.market.dispute_expire(world.submitter, world.stranger, world.node, AUDIT)


def _close(world: World, winner: Pubkey | None = None) -> Instruction:
    return world.market.dispute_close(world.submitter, world.stranger, AUDIT, winner)


def test_an_open_dispute_says_who_accuses_whom_before_whom(world: World, dispute: Pubkey) -> None:
    state = world.dispute(dispute)
    assert (state.ruling, state.bond, state.audit, state.evidence) == (Ruling.OPEN, BOND, AUDIT, bytes(32))
    assert (state.challenger, state.node, state.coordinator) == (world.stranger, world.node, world.coordinator)
    assert state.deadline == int(world.clock.now) + VERDICT_S
    assert world.tokens(dispute) == BOND


def test_upheld_the_challenger_has_its_bond_and_its_part_of_the_slash(world: World, dispute: Pubkey) -> None:
    slash = world.market.stake_slash(
        world.coordinator, world.node, world.treasury, 401, AUDIT, challenger=world.stranger
    )
    world.send(_verdict(world, upheld=True), slash)
    assert world.tokens(world.stranger) == TOKENS + 200  # half of 401, rounded down
    assert world.units(world.treasury) == 201
    assert world.tokens(world.coordinator) == TOKENS
    assert world.dispute(dispute).ruling == Ruling.UPHELD
    assert world.dispute(dispute).evidence == EVIDENCE


def test_rejected_the_bond_goes_to_the_accused(world: World, dispute: Pubkey) -> None:
    before = world.tokens(world.node)
    world.send(_verdict(world, upheld=False))
    assert world.tokens(world.node) == before + BOND
    assert world.tokens(world.stranger) == TOKENS - BOND
    assert world.dispute(dispute).ruling == Ruling.REJECTED


def test_silence_of_the_judge_returns_the_bond_by_anyones_call(world: World, dispute: Pubkey) -> None:
    assert world.refusal(_expire(world)) == MarketError.TOO_EARLY
    world.clock.advance(VERDICT_S)
    assert world.refusal(_verdict(world, upheld=False)) == MarketError.DEADLINE_PASSED
    world.send(_expire(world))
    assert world.tokens(world.stranger) == TOKENS
    assert world.dispute(dispute).ruling == Ruling.EXPIRED


@pytest.mark.parametrize("end", ["upheld", "rejected", "expired"])
def test_a_stake_stays_with_its_judge_until_every_dispute_over_it_is_decided(world: World, end: str) -> None:
    """Also one that was about to leave: a request whose cool-down is nearly over helps nobody to escape a verdict."""
    world.open_stake(1000)
    market = world.market
    world.send(market.stake_request(world.node, 1000))
    world.clock.advance(COOLDOWN_S - 1)
    world.send(*_open(world))
    world.clock.advance(1)
    withdraw, move = market.stake_withdraw(world.node), market.stake_move(world.node, world.submitter)
    assert world.stake(market.stake(world.node)).disputes == 1
    world.send(move)  # Asked for; done after a cool-down, for which there is no need to wait until others are silent.
    assert world.refusal(withdraw) == world.refusal(move) == MarketError.DISPUTED
    if end == "expired":
        world.clock.advance(VERDICT_S)
        world.send(_expire(world))
    else:
        world.send(_verdict(world, upheld=end == "upheld"))
    assert world.stake(market.stake(world.node)).disputes == 0
    assert world.refusal(withdraw) is None


def test_a_stake_that_was_slashed_to_nothing_closes_only_after_the_verdict(world: World) -> None:
    terms = world.market.configure(
        world.genesis.root.pubkey(), world.treasury, slash_bps=10_000, cooldown=60, window=1, bond=BOND
    )
    world.send(terms)
    world.open_stake(10)
    world.send(*_open(world))
    world.send(world.market.stake_slash(world.coordinator, world.node, world.treasury, 10, EVIDENCE))
    world.clock.advance(60)
    close = world.market.stake_close(world.node)
    assert world.refusal(close) == MarketError.DISPUTED
    world.send(_verdict(world, upheld=True))
    assert world.refusal(close) is None


# Nonsense keeps a stake no longer than a verdict may take


def _accuse(world: World, number: int) -> list[Instruction]:
    """One more accusation over something that never was."""
    audit = bytes([100 + number]) * 32
    vault = world.market.dispute(world.stranger, audit)
    return [
        world.create_wallet(vault),
        world.move_tokens(world.stranger, world.wallet(vault), BOND),
        world.market.dispute_open(world.stranger, world.node, audit),
    ]


def test_a_stake_that_is_disputed_again_and_again_is_free_after_one_verdicts_time(world: World) -> None:
    stake = world.open_stake(1000)
    market, waits = world.market, VERDICT_S - 60
    world.send(*_accuse(world, 0))
    world.send(market.stake_request(world.node, 1000), market.stake_move(world.node, world.submitter))
    asked, withdraw, move = (
        world.clock.now,
        market.stake_withdraw(world.node),
        market.stake_move(world.node, world.submitter),
    )
    number = 1
    while world.clock.now + waits < asked + COOLDOWN_S + VERDICT_S:
        world.clock.advance(waits)
        world.send(*_accuse(world, number))  # Always one that waits, though nobody could ever decide it.
        assert world.refusal(withdraw) == world.refusal(move) == MarketError.DISPUTED
        number += 1
    world.clock.advance(asked + COOLDOWN_S + VERDICT_S - 1 - world.clock.now)
    world.send(*_accuse(world, number))
    assert world.refusal(withdraw) == world.refusal(move) == MarketError.DISPUTED
    world.clock.advance(1)
    world.send(withdraw, move)
    assert world.stake(stake).disputes > 0
    assert (world.tokens(world.node), world.stake(stake).coordinator) == (TOKENS, world.submitter)


def test_whoever_accuses_before_the_cool_down_ends_keeps_the_stake_for_all_of_its_verdicts_time(world: World) -> None:
    """A small request that is due already does not open the door for the rest: each cool-down has its own end."""
    world.open_stake(1000)
    market = world.market
    world.send(market.stake_request(world.node, 1))
    world.clock.advance(COOLDOWN_S + VERDICT_S)
    world.send(*_open(world))
    assert world.refusal(market.stake_withdraw(world.node)) is None, "what was due long before is not kept"
    world.send(market.stake_request(world.node, 999))
    world.clock.advance(COOLDOWN_S - 1)
    world.send(*_accuse(world, 1))
    world.clock.advance(VERDICT_S)
    assert world.refusal(market.stake_withdraw(world.node)) == MarketError.DISPUTED
    audit = bytes([101]) * 32
    verdict = market.dispute_verdict(world.coordinator, world.stranger, world.node, audit, EVIDENCE, upheld=True)
    assert world.refusal(verdict) == MarketError.DEADLINE_PASSED


def test_the_hold_is_that_of_the_terms_and_ends_with_the_last_dispute(world: World) -> None:
    stake = world.open_stake(1000)
    world.send(*_accuse(world, 0))
    terms = {"slash_bps": 5000, "cooldown": COOLDOWN_S, "window": 60, "bond": BOND}
    root = world.genesis.root.pubkey()
    world.send(world.market.configure(root, world.treasury, **terms, verdict_time=3 * VERDICT_S))
    world.send(*_accuse(world, 1))
    assert world.stake(stake).hold == 3 * VERDICT_S
    world.send(world.market.configure(root, world.treasury, **terms, verdict_time=60))
    world.send(*_accuse(world, 2))
    assert world.stake(stake).hold == 3 * VERDICT_S, "one that was opened under longer terms still waits"
    for number in range(3):
        audit = bytes([100 + number]) * 32
        verdict = world.market.dispute_verdict(
            world.coordinator, world.stranger, world.node, audit, EVIDENCE, upheld=True
        )
        world.send(verdict)
    assert (world.stake(stake).disputes, world.stake(stake).hold) == (0, 0)


def test_disputes_from_before_there_was_a_bound_keep_a_stake_until_they_are_over(world: World) -> None:
    stake = world.open_stake(1000)
    world.send(*_open(world), world.market.stake_request(world.node, 1000))
    found = world.chain.account(stake)
    assert found is not None
    at = STAKE_SIZE - REASONS * 32 - 12
    assert found.data[at : at + 4] == VERDICT_S.to_bytes(4, "little")
    world.put(stake, Account(found.lamports, found.data[:at] + bytes(4) + found.data[at + 4 :], found.owner))
    world.clock.advance(COOLDOWN_S + VERDICT_S)
    assert world.refusal(world.market.stake_withdraw(world.node)) == MarketError.DISPUTED
    world.send(_expire(world))
    assert world.refusal(world.market.stake_withdraw(world.node)) is None


def test_a_stake_with_nothing_in_it_is_not_disputed(world: World) -> None:
    stake = world.open_stake(1000)
    world.send(world.market.stake_request(world.node, 1000))
    world.clock.advance(COOLDOWN_S)
    world.send(world.market.stake_withdraw(world.node))
    assert world.refusal(*_open(world)) == MarketError.INSUFFICIENT
    world.send(world.move_tokens(world.submitter, world.wallet(stake), 1))  # Also counts where nobody has counted it.
    assert world.refusal(*_open(world)) is None


# A bond whose winner has no account


@pytest.mark.parametrize("end", ["upheld", "rejected", "expired"])
def test_a_bond_waits_for_a_winner_without_an_account_and_nobody_pays_for_one(world: World, end: str) -> None:
    world.open_stake(1000)
    world.send(*_open(world))
    winner, loser = (world.node, world.stranger) if end == "rejected" else (world.stranger, world.node)
    world.send(*world.close_wallet(winner))
    if end == "expired":
        world.clock.advance(VERDICT_S)
        world.send(_expire(world))
    else:
        world.send(_verdict(world, upheld=end == "upheld"))
    dispute = world.market.dispute(world.stranger, AUDIT)
    assert world.dispute(dispute).ruling == Ruling[end.upper()]
    assert (world.tokens(dispute), world.stake(world.market.stake(world.node)).disputes) == (BOND, 0)
    for thief in (loser, world.coordinator, world.submitter):
        assert world.refusal(_close(world, thief)) == MarketError.WRONG_DESTINATION
    assert world.refusal(_close(world, winner)) == MarketError.WRONG_DESTINATION
    world.send(world.create_wallet(winner), _close(world, winner))
    assert world.tokens(winner) == BOND
    assert world.chain.account(dispute) is None


@pytest.mark.parametrize("operation", ["verdict", "expire"])
def test_a_verdict_releases_the_accuseds_stake_and_no_other(world: World, dispute: Pubkey, operation: str) -> None:
    other = world.open_stake(1000, world.submitter)
    call = _verdict(world, upheld=True)
    if operation == "expire":
        world.clock.advance(VERDICT_S)
        call = _expire(world)
    for wrong in (other, world.market.terms(), world.wallet(world.node), dispute):
        assert world.refusal(swap(call, 6, wrong)) == MarketError.NOT_OURS
    assert world.refusal(call) is None


@pytest.mark.parametrize("first", ["upheld", "rejected", "expired"])
def test_a_decided_dispute_is_decided_once(world: World, dispute: Pubkey, first: str) -> None:
    if first == "expired":
        world.clock.advance(VERDICT_S)
        world.send(_expire(world))
    else:
        world.send(_verdict(world, upheld=first == "upheld"))
    world.send(world.move_tokens(world.submitter, world.wallet(dispute), 5))
    for again in (_verdict(world, upheld=True), _verdict(world, upheld=False), _expire(world)):
        assert world.refusal(again) == MarketError.DECIDED


def test_a_close_returns_the_rent_and_leaves_nothing(world: World, dispute: Pubkey) -> None:
    assert world.refusal(_close(world)) == MarketError.NOT_EMPTY
    world.send(_verdict(world, upheld=True))
    world.send(world.move_tokens(world.submitter, world.wallet(dispute), 5))
    before = world.chain.account(world.stranger)
    world.send(_close(world))
    after = world.chain.account(world.stranger)
    assert before is not None
    assert after is not None
    assert after.lamports - before.lamports == sum(map(world.chain.rent_minimum, (165, DISPUTE_SIZE)))
    assert world.chain.account(dispute) is None
    assert world.chain.account(world.wallet(dispute)) is None
    assert world.tokens(world.stranger) == TOKENS + 5
    world.send(*_open(world))  # The address is free again.


def test_lamports_sent_ahead_do_not_block_a_dispute(world: World) -> None:
    world.open_stake(1000)
    address = world.market.dispute(world.stranger, AUDIT)
    world.send(transfer(TransferParams(from_pubkey=world.submitter, to_pubkey=address, lamports=5_000_000)))
    assert world.refusal(*_open(world)) is None


@pytest.mark.parametrize("bond", [0, 1, BOND - 1])
def test_a_bond_below_the_terms_opens_nothing(world: World, bond: int) -> None:
    world.open_stake(1000)
    assert world.refusal(*_open(world, bond)) == MarketError.BOND


@pytest.mark.parametrize("who", ["node", "coordinator"])
def test_neither_the_accused_nor_the_judge_accuses(world: World, who: str) -> None:
    world.open_stake(1000)
    assert world.refusal(*_open(world, challenger=getattr(world, who))) == MarketError.SELF


def test_a_dispute_opens_once(world: World, dispute: Pubkey) -> None:
    assert world.refusal(*_open(world)) == MarketError.ALREADY_OPEN


def test_nobody_opens_a_dispute_in_anothers_name(world: World) -> None:
    world.open_stake(1000)
    *first, opening = _open(world)
    assert world.refusal(*first[:1], unsigned(opening)) == "MissingRequiredSignature"
    assert world.refusal(*first, swap(opening, 0, world.submitter)) == MarketError.WRONG_ADDRESS


@pytest.mark.parametrize(
    ("place", "what", "error"),
    [
        (1, "elsewhere", MarketError.WRONG_ADDRESS),
        (2, "stranger's wallet", MarketError.WRONG_VAULT),
        (3, "another mint", MarketError.WRONG_MINT),
        (4, "token program", MarketError.WRONG_PROGRAM),
        (5, "stake", MarketError.NOT_OURS),
        (5, "nothing", MarketError.NOT_OURS),
        (6, "terms", MarketError.NOT_OURS),
        (6, "nothing", MarketError.NOT_OURS),
        (6, "a copy", MarketError.NOT_OURS),
        (7, "stranger's wallet", MarketError.WRONG_VAULT),
        (7, "nothing", MarketError.WRONG_VAULT),
    ],
)
def test_a_dispute_with_a_false_account_is_not_opened(world: World, place: int, what: str, error: MarketError) -> None:
    stake = world.open_stake(1000)
    original = world.chain.account(stake)
    assert original is not None
    *first, opening = _open(world)
    accounts = {
        "elsewhere": lambda: world.new_key("elsewhere"),
        "stranger's wallet": lambda: world.wallet(world.stranger),
        "another mint": lambda: world.new_mint(),
        "token program": lambda: opening_token(opening),
        "stake": lambda: stake,
        "terms": lambda: world.market.terms(),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "a copy": lambda: world.forge("forged", original.data, SYSTEM_PROGRAM),
    }
    assert world.refusal(*first, swap(opening, place, accounts[what]())) == error


def opening_token(opening: Instruction) -> Pubkey:
    """Any executable account that is not the system program."""
    return opening.program_id


@pytest.mark.parametrize("who", ["node", "stranger", "submitter"])
def test_nobody_but_the_nodes_coordinator_judges(world: World, dispute: Pubkey, who: str) -> None:
    for upheld in (True, False):
        call = _verdict(world, upheld=upheld)
        assert world.refusal(swap(call, 0, getattr(world, who))) == MarketError.WRONG_AUTHORITY
        assert world.refusal(unsigned(call)) == "MissingRequiredSignature"


@pytest.mark.parametrize("upheld", [True, False])
@pytest.mark.parametrize("target", ["coordinator", "submitter", "the other side", "vault"])
def test_the_bond_reaches_nobody_but_who_won(world: World, dispute: Pubkey, upheld: bool, target: str) -> None:
    loser = world.node if upheld else world.stranger
    places = {
        "the other side": world.wallet(loser),
        "vault": world.wallet(dispute),
        "coordinator": world.wallet(world.coordinator),
        "submitter": world.wallet(world.submitter),
    }
    assert world.refusal(swap(_verdict(world, upheld=upheld), 5, places[target])) == MarketError.WRONG_DESTINATION


@pytest.mark.parametrize("thief", ["coordinator", "node", "submitter"])
def test_an_expired_bond_and_the_rent_return_to_nobody_but_the_challenger(
    world: World, dispute: Pubkey, thief: str
) -> None:
    who: Pubkey = getattr(world, thief)
    world.clock.advance(VERDICT_S)
    assert world.refusal(swap(_expire(world), 5, world.wallet(who))) == MarketError.WRONG_DESTINATION
    world.send(_expire(world), world.move_tokens(world.submitter, world.wallet(dispute), 5))
    assert world.refusal(swap(_close(world), 5, who)) == MarketError.WRONG_DESTINATION
    assert world.refusal(swap(_close(world), 6, world.wallet(who))) == MarketError.WRONG_DESTINATION


@pytest.mark.parametrize("operation", ["verdict", "expire", "close"])
@pytest.mark.parametrize(
    ("place", "what", "error"),
    [
        (1, "stake", MarketError.NOT_OURS),
        (1, "nothing", MarketError.NOT_OURS),
        (1, "a copy", MarketError.NOT_OURS),
        (1, "a stump", MarketError.NOT_OURS),
        (2, "second vault", MarketError.WRONG_VAULT),
        (3, "another mint", MarketError.WRONG_MINT),
        (4, "system", MarketError.WRONG_PROGRAM),
    ],
)
def test_a_false_account_in_any_common_place_is_refused(
    world: World, dispute: Pubkey, operation: str, place: int, what: str, error: MarketError
) -> None:
    original = world.chain.account(dispute)
    assert original is not None
    call = {"verdict": _verdict(world, upheld=True), "expire": _expire(world), "close": _close(world)}[operation]
    accounts = {
        "stake": lambda: world.market.stake(world.node),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "a copy": lambda: world.forge("forged", original.data, SYSTEM_PROGRAM),
        "a stump": lambda: world.forge("forged", original.data[:-1], world.market.program),
        "second vault": lambda: world.second_vault(dispute, "second vault"),
        "another mint": lambda: world.new_mint(),
        "system": lambda: SYSTEM_PROGRAM,
    }
    assert world.refusal(swap(call, place, accounts[what]())) == error


@pytest.mark.parametrize("operation", ["open", "verdict", "expire", "close"])
@pytest.mark.parametrize("change", ["one byte more", "one byte less", "accounts missing"])
def test_malformed_calls_decide_nothing(world: World, dispute: Pubkey, operation: str, change: str) -> None:
    call = {
        "open": _open(world)[-1],
        "verdict": _verdict(world, upheld=True),
        "expire": _expire(world),
        "close": _close(world),
    }[operation]
    if change == "accounts missing":
        broken = Instruction(call.program_id, call.data, list(call.accounts)[:5])
    else:
        broken = with_data(call, call.data + b"\0" if change == "one byte more" else call.data[:-1])
    assert world.refusal(broken) in {"InvalidInstructionData", "InvalidArgument"}
    assert world.tokens(dispute) == BOND


@pytest.mark.parametrize("data", [b"\2" + EVIDENCE, b"\1" + bytes(32)])
def test_a_verdict_without_evidence_or_of_no_kind_is_refused(world: World, dispute: Pubkey, data: bytes) -> None:
    call = _verdict(world, upheld=True)
    assert world.refusal(with_data(call, call.data[:1] + data)) == "InvalidInstructionData"


def test_a_dispute_in_a_worthless_token_is_refused(world: World) -> None:
    world.open_stake(1000)
    mint, address = world.new_mint(), world.market.dispute(world.stranger, AUDIT)
    opening = world.market.dispute_open(world.stranger, world.node, AUDIT)
    forged = swap(swap(opening, 3, mint), 2, get_associated_token_address(address, mint))
    assert world.refusal(world.create_wallet(address, mint), forged) == MarketError.WRONG_MINT


def test_a_verdict_is_told_with_its_evidence(world: World, dispute: Pubkey) -> None:
    (event,) = read_events(world.logs(world.send(_verdict(world, upheld=False))), world.market.program)
    told = read_dispute(event.payload)
    assert (event.kind, event.account) == ("VERD", dispute)
    assert (told.ruling, told.evidence, told.audit, told.node) == (Ruling.REJECTED, EVIDENCE, AUDIT, world.node)

"""The stake half of the market program: deposits, capped slashes, cool-down, and each way around them."""

from __future__ import annotations

import pytest
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from spl.token.instructions import get_associated_token_address

from ledger.local.genesis import COOLDOWN_S, SLASH_WINDOW_S
from ledger.program.interface import EVERYTHING, LOADER, MarketAddresses, MarketError
from ledger.program.layout import ESCROW_SIZE, PAYEE_SIZE, STAKE_SIZE, read_events
from tests.ledger.world import TOKENS, World, swap, unsigned, with_data

pytestmark = pytest.mark.clusters

REASON, OTHER_REASON = b"\1" * 32, b"\2" * 32


@pytest.fixture
def stake(world: World) -> Pubkey:
    """A stake of 1,000 units; half of it may be slashed in an hour."""
    return world.open_stake(1000)


def _slash(world: World, amount: int, reason: bytes = REASON) -> Instruction:
    return world.market.stake_slash(world.coordinator, world.node, world.treasury, amount, reason)


def _totals(world: World, stake: Pubkey) -> tuple[int, int, int, int]:
    state = world.stake(stake)
    return state.deposited, state.slashed, state.withdrawn, world.tokens(stake)


def test_a_slash_moves_stake_to_the_treasury(world: World, stake: Pubkey) -> None:
    world.send(_slash(world, 200))
    assert _totals(world, stake) == (1000, 200, 0, 800)
    assert world.units(world.treasury) == 200


def test_a_reason_is_slashed_once_however_often_it_is_sent(world: World, stake: Pubkey) -> None:
    for amount in (200, 200, 1):
        world.send(_slash(world, amount))
    assert _totals(world, stake) == (1000, 200, 0, 800)
    world.send(_slash(world, 50, OTHER_REASON))
    assert _totals(world, stake) == (1000, 250, 0, 750)


def test_sixteen_reasons_are_remembered(world: World, stake: Pubkey) -> None:
    reasons = [bytes([number]) * 32 for number in range(1, 17)]
    for reason in [*reasons, *reasons]:
        world.send(_slash(world, 1, reason))
    assert _totals(world, stake) == (1000, 16, 0, 984)


def test_no_more_than_the_capped_share_goes_in_one_window(world: World, stake: Pubkey) -> None:
    assert world.refusal(_slash(world, 501)) == MarketError.SLASH_CAP
    world.send(_slash(world, 400))
    assert world.refusal(_slash(world, 101, OTHER_REASON)) == MarketError.SLASH_CAP
    world.send(_slash(world, 100, OTHER_REASON))
    assert world.refusal(_slash(world, 1, b"\3" * 32)) == MarketError.SLASH_CAP
    world.clock.advance(SLASH_WINDOW_S)
    assert world.refusal(_slash(world, 251, b"\3" * 32)) == MarketError.SLASH_CAP
    world.send(_slash(world, 250, b"\3" * 32))
    assert _totals(world, stake) == (1000, 750, 0, 250)


def test_a_deposit_raises_the_cap_of_a_window_that_began(world: World, stake: Pubkey) -> None:
    """Else a slash of a small stake would cover a large one for the rest of its window."""
    world.send(_slash(world, 500), world.market.stake_deposit(world.node, world.node, 10_000))
    assert world.refusal(_slash(world, 5001, OTHER_REASON)) == MarketError.SLASH_CAP
    world.send(_slash(world, 5000, OTHER_REASON))
    assert world.refusal(_slash(world, 1, b"\3" * 32)) == MarketError.SLASH_CAP
    state = world.stake(stake)
    assert (state.window_base, state.window_slashed) == (11_000, 5500)


def test_tokens_sent_straight_to_the_vault_raise_the_cap_alike(world: World, stake: Pubkey) -> None:
    world.send(_slash(world, 500), world.move_tokens(world.node, world.wallet(stake), 10_000))
    assert world.refusal(_slash(world, 5001, OTHER_REASON)) == MarketError.SLASH_CAP
    assert world.refusal(_slash(world, 5000, OTHER_REASON)) is None


def test_a_withdrawal_does_not_lower_what_a_window_allows(world: World) -> None:
    world.send(_configure(world, slash_bps=5000, cooldown=0, window=3600))
    stake = world.open_stake(1000)
    market = world.market
    world.send(_slash(world, 100), market.stake_request(world.node, 700), market.stake_withdraw(world.node))
    assert world.refusal(_slash(world, 201, OTHER_REASON)) == MarketError.INSUFFICIENT
    world.send(_slash(world, 200, OTHER_REASON))
    world.send(market.stake_deposit(world.node, world.node, 1000))
    assert world.refusal(_slash(world, 351, b"\3" * 32)) == MarketError.SLASH_CAP, "half of 1,300, of which 300 went"
    world.send(_slash(world, 350, b"\3" * 32))
    assert _totals(world, stake) == (2000, 650, 700, 650)


def test_a_stake_is_emptied_and_closed_in_one_transaction_whatever_others_add(world: World, stake: Pubkey) -> None:
    market = world.market
    world.send(market.stake_request(world.node, EVERYTHING))
    world.clock.advance(COOLDOWN_S)
    world.send(market.stake_deposit(world.stranger, world.node, 1))
    world.send(market.stake_withdraw(world.node), market.stake_close(world.node))
    assert world.tokens(world.node) == TOKENS + 1
    assert world.chain.account(stake) is None


@pytest.mark.parametrize("who", ["node", "submitter", "stranger"])
def test_nobody_but_the_named_coordinator_slashes(world: World, stake: Pubkey, who: str) -> None:
    thief: Pubkey = getattr(world, who)
    asked = world.market.stake_slash(thief, world.node, world.treasury, 1, REASON)
    assert world.refusal(asked) == MarketError.WRONG_AUTHORITY


def test_a_slash_without_the_coordinators_signature_is_refused(world: World, stake: Pubkey) -> None:
    assert world.refusal(unsigned(_slash(world, 1))) == "MissingRequiredSignature"


@pytest.mark.parametrize("target", ["coordinator", "node", "stranger", "vault"])
def test_slashed_stake_reaches_nothing_but_the_treasury(world: World, stake: Pubkey, target: str) -> None:
    destination = world.wallet(stake) if target == "vault" else world.wallet(getattr(world, target))
    assert world.refusal(swap(_slash(world, 1), 5, destination)) == MarketError.WRONG_DESTINATION


def test_a_slash_of_nothing_or_for_no_reason_is_refused(world: World, stake: Pubkey) -> None:
    assert world.refusal(_slash(world, 0)) == MarketError.ZERO_AMOUNT
    assert world.refusal(_slash(world, 1, bytes(32))) == "InvalidInstructionData"


def test_a_slash_during_the_cool_down_still_counts(world: World, stake: Pubkey) -> None:
    world.send(world.market.stake_request(world.node, 1000))
    world.send(_slash(world, 400))
    world.clock.advance(COOLDOWN_S)
    world.send(world.market.stake_withdraw(world.node))
    assert _totals(world, stake) == (1000, 400, 600, 0)
    assert world.tokens(world.node) == TOKENS - 400


def test_stake_comes_back_only_after_the_cool_down(world: World, stake: Pubkey) -> None:
    withdraw = world.market.stake_withdraw(world.node)
    assert world.refusal(withdraw) == MarketError.NO_REQUEST
    world.send(world.market.stake_request(world.node, 300))
    assert world.refusal(withdraw) == MarketError.TOO_EARLY
    world.clock.advance(COOLDOWN_S - 1)
    assert world.refusal(withdraw) == MarketError.TOO_EARLY
    world.clock.advance(1)
    world.send(withdraw)
    assert _totals(world, stake) == (1000, 0, 300, 700)
    assert world.refusal(withdraw) == MarketError.NO_REQUEST


def test_a_new_request_starts_the_cool_down_anew(world: World, stake: Pubkey) -> None:
    world.send(world.market.stake_request(world.node, 1))
    world.clock.advance(COOLDOWN_S)
    world.send(world.market.stake_request(world.node, 1000))
    assert world.refusal(world.market.stake_withdraw(world.node)) == MarketError.TOO_EARLY


def test_a_request_can_be_taken_back(world: World, stake: Pubkey) -> None:
    world.send(world.market.stake_request(world.node, 1000))
    world.send(world.market.stake_request(world.node, 0))
    world.clock.advance(COOLDOWN_S)
    assert world.refusal(world.market.stake_withdraw(world.node)) == MarketError.NO_REQUEST


def test_a_request_beyond_the_stake_is_refused(world: World, stake: Pubkey) -> None:
    assert world.refusal(world.market.stake_request(world.node, 1001)) == MarketError.INSUFFICIENT


def test_nothing_is_withdrawn_once_everything_was_slashed(world: World) -> None:
    stake = world.open_stake(2)
    world.send(world.market.stake_request(world.node, 2))
    world.send(_slash(world, 1))
    world.clock.advance(COOLDOWN_S)
    world.send(world.market.stake_withdraw(world.node))
    assert _totals(world, stake) == (2, 1, 1, 0)


@pytest.mark.parametrize("who", ["coordinator", "stranger"])
@pytest.mark.parametrize("operation", ["request", "withdraw"])
def test_nobody_but_the_node_takes_stake_back(world: World, stake: Pubkey, who: str, operation: str) -> None:
    world.send(world.market.stake_request(world.node, 1000))
    world.clock.advance(COOLDOWN_S)
    market = world.market
    call = market.stake_request(world.node, 5) if operation == "request" else market.stake_withdraw(world.node)
    assert world.refusal(swap(call, 0, getattr(world, who))) == MarketError.WRONG_AUTHORITY
    assert world.refusal(unsigned(call)) == "MissingRequiredSignature"


@pytest.mark.parametrize("target", ["coordinator", "stranger", "vault"])
def test_stake_comes_back_to_nobody_but_the_node(world: World, stake: Pubkey, target: str) -> None:
    world.send(world.market.stake_request(world.node, 1000))
    world.clock.advance(COOLDOWN_S)
    destination = world.wallet(stake) if target == "vault" else world.wallet(getattr(world, target))
    asked = swap(world.market.stake_withdraw(world.node), 5, destination)
    assert world.refusal(asked) == MarketError.WRONG_DESTINATION


def test_what_was_withdrawn_cannot_be_slashed_any_more(world: World) -> None:
    """The cap of a window is measured at its beginning, but never reaches beyond what is there."""
    world.send(_configure(world, slash_bps=5000, cooldown=0, window=3600))
    stake = world.open_stake(1000)
    world.send(_slash(world, 1), world.market.stake_request(world.node, 900), world.market.stake_withdraw(world.node))
    assert world.refusal(_slash(world, 400, OTHER_REASON)) == MarketError.INSUFFICIENT
    assert _totals(world, stake) == (1000, 1, 900, 99)


def test_a_request_for_stake_that_was_slashed_whole_pays_nothing(world: World) -> None:
    world.send(_configure(world, slash_bps=10_000, cooldown=0))
    world.open_stake(1000)
    world.send(world.market.stake_request(world.node, 1000), _slash(world, 1000))
    assert world.refusal(world.market.stake_withdraw(world.node)) == MarketError.INSUFFICIENT


def _operation(world: World, name: str) -> Instruction:
    market = world.market
    return {
        "deposit": market.stake_deposit(world.node, world.node, 1),
        "slash": _slash(world, 1),
        "request": market.stake_request(world.node, 1),
        "withdraw": market.stake_withdraw(world.node),
        "move": market.stake_move(world.node, world.stranger),
        "close": market.stake_close(world.node),
    }[name]


@pytest.mark.parametrize("operation", ["deposit", "slash", "request", "withdraw", "move", "close"])
@pytest.mark.parametrize(
    ("place", "what", "error"),
    [
        (1, "escrow", MarketError.NOT_OURS),
        (1, "nothing", MarketError.NOT_OURS),
        (1, "wallet", MarketError.NOT_OURS),
        (1, "another stake", MarketError.WRONG_VAULT),
        (2, "second vault", MarketError.WRONG_VAULT),
        (2, "treasury", MarketError.WRONG_VAULT),
        (3, "another mint", MarketError.WRONG_MINT),
        (4, "system", MarketError.WRONG_PROGRAM),
    ],
)
def test_a_false_account_in_any_common_place_is_refused(
    world: World, stake: Pubkey, operation: str, place: int, what: str, error: MarketError
) -> None:
    accounts = {
        "escrow": lambda: world.open_escrow(5),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "wallet": lambda: world.wallet(world.node),
        "another stake": lambda: world.open_stake(5, world.stranger),
        "second vault": lambda: world.second_vault(stake, "second vault"),
        "treasury": lambda: world.treasury,
        "another mint": lambda: world.new_mint(),
        "system": lambda: SYSTEM_PROGRAM,
    }
    assert world.refusal(swap(_operation(world, operation), place, accounts[what]())) == error


@pytest.mark.parametrize("operation", ["deposit", "slash", "request", "withdraw", "move", "close"])
@pytest.mark.parametrize("forgery", ["a copy of another program", "a stump of this program"])
def test_a_forged_state_is_refused(world: World, stake: Pubkey, operation: str, forgery: str) -> None:
    original = world.chain.account(stake)
    assert original is not None
    if forgery == "a copy of another program":
        forged = world.forge("forged", original.data, SYSTEM_PROGRAM)
    else:
        forged = world.forge("forged", original.data[:-1], world.market.program)
    assert world.refusal(swap(_operation(world, operation), 1, forged)) == MarketError.NOT_OURS


@pytest.mark.parametrize("operation", ["open", "deposit", "slash", "request", "withdraw", "move", "close"])
@pytest.mark.parametrize("change", ["one byte more", "one byte less", "accounts missing"])
def test_malformed_calls_are_refused(world: World, stake: Pubkey, operation: str, change: str) -> None:
    opening = world.market.stake_open(world.stranger, world.coordinator)
    call = opening if operation == "open" else _operation(world, operation)
    if change == "accounts missing":
        broken = Instruction(call.program_id, call.data, list(call.accounts)[:4])
    else:
        broken = with_data(call, call.data + b"\0" if change == "one byte more" else call.data[:-1])
    assert world.refusal(broken) in {"InvalidInstructionData", "InvalidArgument"}


# Opening


def test_a_stake_opens_once(world: World, stake: Pubkey) -> None:
    again = world.market.stake_open(world.node, world.coordinator)
    assert world.refusal(again) == MarketError.ALREADY_OPEN


def test_a_stake_is_not_opened_in_somebody_elses_name(world: World) -> None:
    opening, vault = (
        world.market.stake_open(world.node, world.coordinator),
        world.create_wallet(world.market.stake(world.node)),
    )
    assert world.refusal(vault, unsigned(opening)) == "MissingRequiredSignature"
    assert world.refusal(vault, swap(opening, 0, world.stranger)) == MarketError.WRONG_ADDRESS


@pytest.mark.parametrize("what", ["escrow", "stake", "nothing", "wallet", "a copy", "a stump", "another kind"])
def test_forged_terms_are_refused(world: World, what: str) -> None:
    terms = world.chain.account(world.market.terms())
    assert terms is not None
    accounts = {
        "escrow": lambda: world.open_escrow(5),
        "stake": lambda: world.open_stake(5, world.stranger),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "wallet": lambda: world.wallet(world.node),
        "a copy": lambda: world.forge("forged", terms.data, SYSTEM_PROGRAM),
        "a stump": lambda: world.forge("forged", terms.data[:-1], world.market.program),
        "another kind": lambda: world.forge("forged", b"\1" + terms.data[1:], world.market.program),
    }
    forged = swap(world.market.stake_open(world.node, world.coordinator), 5, accounts[what]())
    vault = world.create_wallet(world.market.stake(world.node))
    assert world.refusal(vault, forged) == MarketError.NOT_OURS


def test_a_stake_in_a_worthless_token_is_refused(world: World) -> None:
    mint, owner = world.new_mint(), world.market.stake(world.node)
    vault = get_associated_token_address(owner, mint)
    forged = swap(swap(world.market.stake_open(world.node, world.coordinator), 3, mint), 2, vault)
    assert world.refusal(world.create_wallet(owner, mint), forged) == MarketError.WRONG_MINT


def test_a_deposit_of_nothing_is_refused(world: World, stake: Pubkey) -> None:
    assert world.refusal(world.market.stake_deposit(world.node, world.node, 0)) == MarketError.ZERO_AMOUNT


@pytest.mark.parametrize("operation", ["deposit", "slash", "request", "withdraw", "move", "close"])
def test_an_escrow_of_the_same_size_is_no_stake(world: World, stake: Pubkey, operation: str) -> None:
    escrow = world.open_escrow(5, max_payees=(STAKE_SIZE - ESCROW_SIZE) // PAYEE_SIZE)
    found = world.chain.account(escrow)
    assert found is not None
    assert len(found.data) == STAKE_SIZE
    assert world.refusal(swap(_operation(world, operation), 1, escrow)) == MarketError.NOT_OURS


def test_anybody_may_add_to_a_stake(world: World, stake: Pubkey) -> None:
    world.send(world.market.stake_deposit(world.stranger, world.node, 5))
    world.send(world.move_tokens(world.stranger, world.wallet(stake), 3))
    world.send(world.market.stake_request(world.node, 1008))
    assert _totals(world, stake) == (1008, 0, 0, 1008)


# The challenger's part


def _shared(world: World, amount: int, challenger: Pubkey | None = None) -> Instruction:
    return world.market.stake_slash(
        world.coordinator, world.node, world.treasury, amount, REASON, challenger=challenger or world.stranger
    )


@pytest.mark.parametrize(("bps", "amount", "part"), [(5000, 401, 200), (0, 400, 0), (10_000, 400, 400), (3333, 3, 0)])
def test_the_challenger_gets_its_share_and_the_treasury_the_rest(
    world: World, bps: int, amount: int, part: int
) -> None:
    world.send(_configure(world, slash_bps=5000, challenger_bps=bps))
    stake = world.open_stake(1000)
    signature = world.send(_shared(world, amount))
    assert (world.tokens(world.stranger) - TOKENS, world.units(world.treasury)) == (part, amount - part)
    assert _totals(world, stake) == (1000, amount, 0, 1000 - amount)
    (event,) = read_events(world.logs(signature), world.market.program)
    assert event.payload[40:] == part.to_bytes(8, "little") + bytes(world.wallet(world.stranger))


@pytest.mark.parametrize("who", ["coordinator", "node", "vault", "no token account", "the coordinator's other account"])
def test_nobody_shares_in_a_slash_who_judges_or_is_judged(world: World, stake: Pubkey, who: str) -> None:
    accounts = {
        "coordinator": lambda: world.wallet(world.coordinator),
        "node": lambda: world.wallet(world.node),
        "vault": lambda: world.wallet(stake),
        "no token account": lambda: world.stranger,
        "the coordinator's other account": lambda: world.second_vault(world.coordinator, "on the side"),
    }
    assert world.refusal(swap(_shared(world, 10), 6, accounts[who]())) == MarketError.WRONG_DESTINATION


def test_a_treasury_of_the_coordinator_receives_nothing(world: World) -> None:
    own = world.second_vault(world.coordinator, "the coordinator's treasury")
    terms = world.market.configure(world.genesis.root.pubkey(), own, slash_bps=5000, cooldown=60, window=60)
    world.send(terms)
    world.open_stake(1000)
    asked = world.market.stake_slash(world.coordinator, world.node, own, 10, REASON)
    assert world.refusal(asked) == MarketError.WRONG_DESTINATION


# Another coordinator, and the end


def test_an_empty_stake_changes_its_coordinator_at_once(world: World) -> None:
    stake = world.market.stake(world.node)
    world.send(world.create_wallet(stake), world.market.stake_open(world.node, world.coordinator))
    world.send(world.market.stake_move(world.node, world.submitter))
    assert world.stake(stake).coordinator == world.submitter


def test_a_stake_with_money_changes_its_coordinator_after_the_cool_down(world: World, stake: Pubkey) -> None:
    move = world.market.stake_move(world.node, world.submitter)
    world.send(move)
    state = world.stake(stake)
    assert (state.coordinator, state.next_coordinator) == (world.coordinator, world.submitter)
    assert state.move_at == int(world.clock.now) + COOLDOWN_S
    assert world.refusal(move) == MarketError.TOO_EARLY
    world.clock.advance(COOLDOWN_S - 1)
    assert world.refusal(move) == MarketError.TOO_EARLY
    world.send(_slash(world, 5))  # The old one judges until then.
    world.clock.advance(1)
    world.send(move)
    assert world.stake(stake).coordinator == world.submitter
    assert world.refusal(_slash(world, 5, OTHER_REASON)) == MarketError.WRONG_AUTHORITY
    assert world.refusal(move) is None  # a new request, which begins a new cool-down
    assert world.stake(stake).move_at == int(world.clock.now) + COOLDOWN_S


def test_asking_for_a_third_coordinator_begins_the_cool_down_anew(world: World, stake: Pubkey) -> None:
    world.send(world.market.stake_move(world.node, world.submitter))
    world.clock.advance(COOLDOWN_S)
    world.send(world.market.stake_move(world.node, world.stranger))
    assert world.stake(stake).coordinator == world.coordinator
    assert world.refusal(world.market.stake_move(world.node, world.stranger)) == MarketError.TOO_EARLY


def test_a_coordinator_of_nobody_is_refused(world: World, stake: Pubkey) -> None:
    assert world.refusal(world.market.stake_move(world.node, Pubkey.default())) == MarketError.BAD_TERMS


def _emptied(world: World) -> None:
    world.send(world.market.stake_request(world.node, 1000))
    world.clock.advance(COOLDOWN_S)
    world.send(world.market.stake_withdraw(world.node))


def test_an_empty_stake_closes_returns_its_rent_and_opens_anew(world: World, stake: Pubkey) -> None:
    close = world.market.stake_close(world.node)
    assert world.refusal(close) == MarketError.NOT_EMPTY
    _emptied(world)
    before = world.chain.account(world.node)
    world.send(close)
    after = world.chain.account(world.node)
    assert before is not None
    assert after is not None
    assert after.lamports - before.lamports == sum(map(world.chain.rent_minimum, (165, STAKE_SIZE)))
    assert world.chain.account(stake) is None
    assert world.refusal(close) == MarketError.NOT_OURS
    world.open_stake(7)
    assert _totals(world, stake) == (7, 0, 0, 7)


def test_a_stake_is_not_closed_while_it_must_remember_a_slash(world: World, stake: Pubkey) -> None:
    world.send(_configure(world, slash_bps=5000, cooldown=0, window=3600))
    world.open_stake(1000, world.stranger)
    market = world.market
    slash = market.stake_slash(world.coordinator, world.stranger, world.treasury, 10, REASON)
    world.send(slash, market.stake_request(world.stranger, 990), market.stake_withdraw(world.stranger))
    assert world.refusal(market.stake_close(world.stranger)) == MarketError.TOO_EARLY
    world.clock.advance(3600)
    assert world.refusal(market.stake_close(world.stranger)) is None


@pytest.mark.parametrize("operation", ["move", "close"])
def test_nobody_but_the_node_moves_or_closes_its_stake(world: World, stake: Pubkey, operation: str) -> None:
    _emptied(world)
    market = world.market
    call = market.stake_close(world.node) if operation == "close" else market.stake_move(world.node, world.stranger)
    for who in (world.coordinator, world.stranger):
        assert world.refusal(swap(call, 0, who)) == MarketError.WRONG_AUTHORITY
    assert world.refusal(unsigned(call)) == "MissingRequiredSignature"


# Terms


def _configure(world: World, **changes: int) -> Instruction:
    terms = {"slash_bps": 100, "cooldown": 60, "window": 60, **changes}
    return world.market.configure(world.genesis.root.pubkey(), world.treasury, **terms)


def test_new_terms_do_not_reach_a_stake_that_stands(world: World, stake: Pubkey) -> None:
    world.send(_configure(world, slash_bps=10_000, cooldown=0))
    state = world.stake(stake)
    assert (state.slash_bps, state.cooldown, state.window) == (5000, COOLDOWN_S, SLASH_WINDOW_S)
    later = world.stake(world.open_stake(5, world.stranger))
    assert (later.slash_bps, later.cooldown, later.window) == (10_000, 0, 60)


@pytest.mark.parametrize(
    "changes",
    [
        {"slash_bps": 10_001},
        {"challenger_bps": 10_001},
        {"verdict_time": 0},
        {"verdict_time": 91 * 86400},
        {"cooldown": -1},
        {"cooldown": 90 * 86400 + 1},
        {"window": 0},
        {"window": 31 * 86400},
    ],
)
def test_terms_out_of_bounds_are_refused(world: World, changes: dict[str, int]) -> None:
    assert world.refusal(_configure(world, **changes)) == MarketError.BAD_TERMS


@pytest.mark.parametrize("who", ["coordinator", "stranger"])
def test_only_the_upgrade_authority_sets_terms(world: World, who: str) -> None:
    assert world.refusal(swap(_configure(world), 0, getattr(world, who))) == MarketError.WRONG_AUTHORITY
    assert world.refusal(unsigned(_configure(world))) is None  # the root key signs as fee payer anyway
    forged = swap(unsigned(_configure(world)), 0, getattr(world, who))
    assert world.refusal(forged) == "MissingRequiredSignature"


def test_the_terms_of_a_program_that_nobody_may_upgrade_are_final(world: World) -> None:
    root = world.genesis.root
    market = MarketAddresses(world.deploy("a program whose terms will be final", root), world.market.mint)
    terms = market.configure(root.pubkey(), world.treasury, slash_bps=100, cooldown=60, window=60)
    assert world.refusal(terms) is None
    accounts = [AccountMeta(market.program_data(), False, True), AccountMeta(root.pubkey(), True, False)]
    world.send(Instruction(LOADER, (4).to_bytes(4, "little"), accounts))  # gives the authority up
    assert world.refusal(terms, program=market.program) == MarketError.WRONG_AUTHORITY


def test_a_treasury_that_is_no_token_account_is_refused(world: World) -> None:
    content = bytes(world.market.mint) + bytes(133)
    forged = world.forge("forged treasury", content, SYSTEM_PROGRAM)
    assert world.refusal(swap(_configure(world), 2, forged)) == MarketError.WRONG_MINT


def test_who_may_upgrade_another_program_sets_no_terms_here(world: World) -> None:
    program = world.deploy("a stranger's own program", world.keys[world.stranger])
    theirs = MarketAddresses(program, world.market.mint).program_data()
    forged = swap(swap(_configure(world), 0, world.stranger), 5, theirs)
    assert world.refusal(forged) == MarketError.WRONG_ADDRESS


@pytest.mark.parametrize("what", ["terms", "wallet", "nothing"])
def test_another_program_data_account_proves_nothing(world: World, what: str) -> None:
    accounts = {
        "terms": world.market.terms(),
        "wallet": world.wallet(world.stranger),
        "nothing": world.new_key("nobody ever paid this"),
    }
    assert world.refusal(swap(_configure(world), 5, accounts[what])) == MarketError.WRONG_ADDRESS


def test_terms_of_one_token_are_not_overwritten_through_another(world: World) -> None:
    mint = world.new_mint()
    treasury = world.market.wallet(world.stranger)
    assert world.refusal(swap(_configure(world), 3, mint)) == MarketError.WRONG_MINT
    assert world.refusal(swap(_configure(world), 2, world.stranger)) == MarketError.WRONG_MINT
    assert world.refusal(swap(_configure(world), 2, treasury)) is None


def test_terms_are_written_to_no_other_account(world: World, stake: Pubkey) -> None:
    assert world.refusal(swap(_configure(world), 1, stake)) == MarketError.NOT_OURS
    assert world.refusal(swap(_configure(world), 1, world.new_key("elsewhere"))) == MarketError.WRONG_ADDRESS


def test_a_slash_is_told_with_amount_and_reason(world: World, stake: Pubkey) -> None:
    (event,) = read_events(world.logs(world.send(_slash(world, 9))), world.market.program)
    assert (event.kind, event.account) == ("SLSH", stake)
    assert event.payload == (9).to_bytes(8, "little") + REASON + bytes(40)  # no challenger, no part

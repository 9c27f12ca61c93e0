"""The escrow half of the market program, through the real loader: what is allowed, and each way to cheat."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

import pytest
from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.rent import Rent
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.system_program import TransferParams, transfer
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger.program.interface import MAX_PAYEES, MarketError
from ledger.program.layout import ESCROW_SIZE, PAYEE_SIZE, TOMBSTONE_SIZE, EscrowStatus, read_events
from tests.ledger.world import JOB, TOKENS, World, swap, unsigned, with_data

pytestmark = pytest.mark.clusters

COORDINATOR_AND_OTHERS = ("submitter", "node", "stranger")


@pytest.fixture
def escrow(world: World) -> Pubkey:
    """An open escrow of 1,000 units."""
    return world.open_escrow(1000)


def test_money_goes_in_out_and_back_to_the_last_unit(world: World, escrow: Pubkey) -> None:
    world.send(world.settle(escrow, (world.node, 300), (world.stranger, 50)))
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    state = world.escrow(escrow)
    assert (state.deposited, state.paid, state.refunded) == (1000, 350, 650)
    assert state.status == EscrowStatus.ENDED
    assert state.payees == {world.wallet(world.node): 300, world.wallet(world.stranger): 50}
    assert world.tokens(world.node) == TOKENS + 300
    assert world.tokens(world.submitter) == TOKENS - 350
    assert world.tokens(escrow) == 0


def test_a_repeated_settlement_pays_nothing_more(world: World, escrow: Pubkey) -> None:
    for _ in range(3):
        world.send(world.settle(escrow, (world.node, 300)))
    assert world.tokens(world.node) == TOKENS + 300
    assert world.escrow(escrow).paid == 300


def test_an_older_settlement_that_arrives_late_pays_nothing(world: World, escrow: Pubkey) -> None:
    world.send(world.settle(escrow, (world.node, 300)))
    world.send(world.settle(escrow, (world.node, 100)))
    world.send(world.settle(escrow, (world.node, 301)))
    assert world.tokens(world.node) == TOKENS + 301


def test_a_payee_named_twice_in_one_settlement_gets_the_larger_total_once(world: World, escrow: Pubkey) -> None:
    world.send(world.settle(escrow, (world.node, 200), (world.node, 300)))
    assert world.tokens(world.node) == TOKENS + 300


def test_a_settlement_beyond_the_balance_pays_nobody(world: World, escrow: Pubkey) -> None:
    asked = world.settle(escrow, (world.node, 600), (world.stranger, 401))
    assert world.refusal(asked) == MarketError.INSUFFICIENT
    assert world.tokens(world.node) == TOKENS
    assert world.escrow(escrow).paid == 0


def test_more_payees_than_the_escrow_was_opened_for_are_refused(world: World) -> None:
    escrow = world.open_escrow(1000, max_payees=1)
    world.send(world.settle(escrow, (world.node, 1)))
    assert world.refusal(world.admit(escrow, world.stranger)) == MarketError.PAYEES_FULL
    assert world.refusal(world.settle(escrow, (world.stranger, 1))) == MarketError.NOT_A_PAYEE
    assert world.refusal(world.settle(escrow, (world.node, 2))) is None


def test_ten_payees_settle_in_one_transaction_without_a_table(world: World) -> None:
    payees = [world.new_key(f"payee {index}") for index in range(10)]
    escrow = world.open_escrow(1000, max_payees=10, payees=payees)
    world.prepare(*map(world.create_wallet, payees))
    world.send(world.settle(escrow, *((payee, 10 + index) for index, payee in enumerate(payees))))
    assert [world.tokens(payee) for payee in payees] == [10 + index for index in range(10)]


def test_the_largest_escrow_opens(world: World) -> None:
    escrow = world.open_escrow(1, max_payees=MAX_PAYEES)
    assert world.escrow(escrow).capacity == MAX_PAYEES


@pytest.mark.parametrize("who", COORDINATOR_AND_OTHERS)
def test_nobody_but_the_coordinator_settles(world: World, escrow: Pubkey, who: str) -> None:
    thief: Pubkey = getattr(world, who)
    asked = world.market.escrow_settle(thief, escrow, [(thief, 1)])
    assert world.refusal(asked) == MarketError.WRONG_AUTHORITY


def test_naming_the_coordinator_without_its_signature_settles_nothing(world: World, escrow: Pubkey) -> None:
    asked = unsigned(world.settle(escrow, (world.stranger, 1)))
    assert world.refusal(asked) == "MissingRequiredSignature"


def test_a_settlement_into_the_vault_itself_is_refused(world: World, escrow: Pubkey) -> None:
    assert world.refusal(world.settle(escrow, (escrow, 1))) == MarketError.WRONG_DESTINATION


@pytest.mark.parametrize("what", ["closed", "frozen", "of another token", "never opened"])
def test_who_cannot_be_paid_is_left_out_and_keeps_nobody_else_waiting(world: World, escrow: Pubkey, what: str) -> None:
    """Or one payee that closes its account would stop the payment of forty-nine others."""
    wallet = world.wallet(world.node)
    asked = world.settle(escrow, (world.node, 70), (world.stranger, 30))
    if what == "closed":
        world.send(*world.close_wallet(world.node))
    elif what == "frozen":
        found = world.chain.account(wallet)
        assert found is not None
        world.put(wallet, Account(found.lamports, found.data[:108] + b"\2" + found.data[109:], found.owner))
    else:
        new = world.new_mint() if what == "of another token" else None
        wallet = token.get_associated_token_address(world.node, new) if new else world.wallet(world.new_key("nobody"))
        admission = world.admit(escrow, world.node)
        world.send(with_data(admission, admission.data[:2] + bytes(wallet)))
        asked = swap(asked, 5, wallet)
    signature = world.send(asked)
    state = world.escrow(escrow)
    assert (world.tokens(world.stranger), state.paid) == (TOKENS + 30, 30)
    assert state.payees[wallet] == 0, "it is still owed everything"
    (told,) = [event for event in read_events(world.logs(signature), world.market.program) if event.kind == "PAID"]
    assert told.payload[:32] == bytes(world.wallet(world.stranger))
    assert len(told.payload) == 48


def test_who_opens_its_account_again_is_paid_what_was_left_out(world: World, escrow: Pubkey) -> None:
    world.send(*world.close_wallet(world.node))
    world.send(world.settle(escrow, (world.node, 70)))
    world.send(world.create_wallet(world.node), world.settle(escrow, (world.node, 70)))
    assert (world.tokens(world.node), world.escrow(escrow).paid) == (70, 70)


@pytest.mark.parametrize("operation", ["deposit", "settle", "refund", "close"])
@pytest.mark.parametrize(
    ("place", "what", "error"),
    [
        (1, "stake", MarketError.NOT_OURS),
        (1, "nothing", MarketError.NOT_OURS),
        (1, "terms", MarketError.NOT_OURS),
        (1, "wallet", MarketError.NOT_OURS),
        (1, "another escrow", MarketError.WRONG_VAULT),
        (2, "second vault", MarketError.WRONG_VAULT),
        (2, "wallet", MarketError.WRONG_VAULT),
        (3, "another mint", MarketError.WRONG_MINT),
        (4, "system", MarketError.WRONG_PROGRAM),
    ],
)
def test_a_false_account_in_any_common_place_is_refused(
    world: World, escrow: Pubkey, operation: str, place: int, what: str, error: MarketError
) -> None:
    accounts = {
        "stake": lambda: world.open_stake(5),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "terms": lambda: world.market.terms(),
        "wallet": lambda: world.wallet(world.submitter),
        "another escrow": lambda: world.open_escrow(5, b"\7" * 32),
        "second vault": lambda: world.second_vault(escrow, "second vault"),
        "another mint": lambda: world.new_mint(),
        "system": lambda: SYSTEM_PROGRAM,
    }
    assert world.refusal(swap(_operation(world, escrow, operation), place, accounts[what]())) == error


@pytest.mark.parametrize("operation", ["deposit", "settle", "refund", "close"])
@pytest.mark.parametrize("forgery", ["a copy of another program", "a stump of this program"])
def test_a_forged_state_is_refused(world: World, escrow: Pubkey, operation: str, forgery: str) -> None:
    original = world.chain.account(escrow)
    assert original is not None
    if forgery == "a copy of another program":
        forged = world.forge("forged", original.data, SYSTEM_PROGRAM)
    else:
        forged = world.forge("forged", original.data[:199], world.market.program)
    assert world.refusal(swap(_operation(world, escrow, operation), 1, forged)) == MarketError.NOT_OURS


def _operation(world: World, escrow: Pubkey, name: str) -> Instruction:
    market = world.market
    return {
        "deposit": market.escrow_deposit(world.submitter, escrow, 1),
        "settle": world.settle(escrow, (world.node, 1)),
        "refund": market.escrow_refund(world.coordinator, world.submitter, JOB),
        "close": market.escrow_close(world.submitter, world.submitter, JOB),
    }[name]


@pytest.mark.parametrize("operation", ["open", "deposit", "settle", "refund", "close"])
@pytest.mark.parametrize("change", ["one byte more", "one byte less", "accounts missing"])
def test_malformed_calls_are_refused_before_anything_happens(
    world: World, escrow: Pubkey, operation: str, change: str
) -> None:
    call = _opening(world) if operation == "open" else _operation(world, escrow, operation)
    if change == "accounts missing":
        broken = Instruction(call.program_id, call.data, list(call.accounts)[:3])
    else:
        broken = with_data(call, call.data + b"\0" if change == "one byte more" else call.data[:-1])
    assert world.refusal(broken) in {"InvalidInstructionData", "InvalidArgument"}
    assert world.tokens(escrow) == 1000


def test_unknown_operations_and_empty_data_are_refused(world: World, escrow: Pubkey) -> None:
    call = world.settle(escrow, (world.node, 1))
    for data in (b"", b"\x17", b"\xff" * 9):
        assert world.refusal(with_data(call, data)) == "InvalidInstructionData"


def test_more_accounts_than_the_program_reads_are_refused(world: World, escrow: Pubkey) -> None:
    call = world.settle(escrow, (world.node, 1))
    crowd = [AccountMeta(world.new_key("crowd"), False, False)] * 60
    assert world.refusal(Instruction(call.program_id, call.data, [*call.accounts, *crowd])) == "InvalidArgument"


# Opening


def _opening(world: World, **changes: int) -> Instruction:
    values = {"deadline": int(world.clock.now) + 60, "max_payees": 4, **changes}
    deadline, room = values["deadline"], values["max_payees"]
    return world.market.escrow_open(world.submitter, b"\5" * 32, world.coordinator, deadline, room)


def _vault(world: World) -> Instruction:
    return world.create_wallet(world.market.escrow(world.submitter, b"\5" * 32))


def test_an_escrow_opens_once_and_never_again(world: World) -> None:
    world.send(_vault(world), _opening(world))
    assert world.refusal(_opening(world)) == MarketError.ALREADY_OPEN


def test_an_escrow_is_not_opened_for_somebody_who_does_not_sign(world: World) -> None:
    assert world.refusal(_vault(world), unsigned(_opening(world))) == "MissingRequiredSignature"


def test_an_escrow_of_somebody_else_cannot_be_opened(world: World) -> None:
    assert world.refusal(_vault(world), swap(_opening(world), 0, world.stranger)) == MarketError.WRONG_ADDRESS


def test_only_the_canonical_bump_opens(world: World) -> None:
    seeds = [b"escrow", bytes(world.submitter), b"\5" * 32]
    canonical, bump = Pubkey.find_program_address(seeds, world.market.program)
    other = next(_lower_bumps(seeds, bump, world.market.program))
    assert other != canonical
    assert world.refusal(_vault(world), swap(_opening(world), 1, other)) == MarketError.WRONG_ADDRESS


def _lower_bumps(seeds: list[bytes], bump: int, program: Pubkey) -> Iterator[Pubkey]:
    for lower in range(bump - 1, -1, -1):
        material = b"".join([*seeds, bytes([lower]), bytes(program), b"ProgramDerivedAddress"])
        address = Pubkey.from_bytes(hashlib.sha256(material).digest())
        if not address.is_on_curve():
            yield address


@pytest.mark.parametrize("seconds", [0, -1, -(10**9)])
def test_a_deadline_in_the_past_is_refused(world: World, seconds: int) -> None:
    opening = _opening(world, deadline=int(world.clock.now) + seconds)
    assert world.refusal(_vault(world), opening) == MarketError.DEADLINE_PASSED


@pytest.mark.parametrize("payees", [0, MAX_PAYEES + 1, 65535])
def test_an_impossible_number_of_payees_is_refused(world: World, payees: int) -> None:
    assert world.refusal(_vault(world), _opening(world, max_payees=payees)) == MarketError.BAD_TERMS


def test_another_program_in_place_of_the_system_is_refused(world: World) -> None:
    opening = swap(_opening(world), 4, TOKEN_PROGRAM_ID)
    assert world.refusal(_vault(world), opening) == MarketError.WRONG_PROGRAM


@pytest.mark.parametrize(("threshold", "rate"), [(1.0, 6960), (2.0, 3480), (1.0, 696)])
def test_rent_follows_the_cluster(world: World, threshold: float, rate: int) -> None:
    world.set_rent(Rent(rate, threshold, 50))
    world.send(_vault(world), _opening(world, max_payees=4))
    opened = world.chain.account(world.market.escrow(world.submitter, b"\5" * 32))
    assert opened is not None
    assert opened.lamports == (ESCROW_SIZE + 4 * PAYEE_SIZE + 128) * rate * int(threshold)


def test_rent_of_an_unknown_kind_is_refused(world: World) -> None:
    world.set_rent(Rent(6960, 1.5, 50))
    assert world.refusal(_vault(world), _opening(world)) == MarketError.RENT


@pytest.mark.parametrize("lamports", [890_880, 50_000_000])
def test_lamports_sent_ahead_do_not_block_an_escrow(world: World, lamports: int) -> None:
    address = world.market.escrow(world.submitter, b"\5" * 32)
    world.send(transfer(TransferParams(from_pubkey=world.stranger, to_pubkey=address, lamports=lamports)))
    assert world.refusal(_vault(world), _opening(world)) is None


def test_tokens_sent_ahead_count_as_deposited(world: World) -> None:
    address = world.market.escrow(world.submitter, b"\5" * 32)
    world.send(_vault(world), world.move_tokens(world.stranger, world.wallet(address), 7), _opening(world))
    assert world.escrow(address).deposited == 7


@pytest.mark.parametrize("lever", ["close authority", "somebody else's", "of another token", "no token account"])
def test_a_vault_over_which_anybody_keeps_power_is_refused(world: World, lever: str) -> None:
    address = world.market.escrow(world.submitter, b"\5" * 32)
    expected = MarketError.WRONG_VAULT
    if lever == "close authority":
        vault = _handed_over_vault(world, address)
    elif lever == "somebody else's":
        vault = world.wallet(world.submitter)
    elif lever == "no token account":
        vault = world.submitter
    else:
        mint, expected = world.new_mint(), MarketError.WRONG_MINT
        vault = token.get_associated_token_address(address, mint)
        world.send(world.create_wallet(address, mint))
    assert world.refusal(swap(_opening(world), 2, vault)) == expected


def _handed_over_vault(world: World, owner: Pubkey) -> Pubkey:
    """A token account given to ``owner`` whose giver kept the right to close it."""
    vault = world.second_vault(world.stranger, "handed over")
    for kind, authority in (
        (models.AuthorityType.CLOSE_ACCOUNT, world.stranger),
        (models.AuthorityType.ACCOUNT_OWNER, owner),
    ):
        parameters = models.SetAuthorityParams(
            program_id=TOKEN_PROGRAM_ID,
            account=vault,
            authority=kind,
            current_authority=world.stranger,
            new_authority=authority,
        )
        world.send(token.set_authority(parameters))
    return vault


# Deposits


def test_anybody_may_add_to_an_escrow(world: World, escrow: Pubkey) -> None:
    world.send(world.market.escrow_deposit(world.stranger, escrow, 9))
    assert world.escrow(escrow).deposited == 1009


def test_a_deposit_of_nothing_is_refused(world: World, escrow: Pubkey) -> None:
    assert world.refusal(world.market.escrow_deposit(world.submitter, escrow, 0)) == MarketError.ZERO_AMOUNT


def test_a_deposit_beyond_the_wallet_is_refused(world: World, escrow: Pubkey) -> None:
    asked = world.market.escrow_deposit(world.submitter, escrow, TOKENS)
    assert world.refusal(asked) == "Token 1"


def test_a_deposit_from_somebody_elses_wallet_is_refused(world: World, escrow: Pubkey) -> None:
    theft = swap(world.market.escrow_deposit(world.stranger, escrow, 5), 5, world.wallet(world.submitter))
    assert world.refusal(theft) == "Token 4"


def test_the_vault_cannot_be_deposited_into_itself(world: World, escrow: Pubkey) -> None:
    trick = swap(world.market.escrow_deposit(world.stranger, escrow, 5), 5, world.wallet(escrow))
    assert world.refusal(trick) == "Token 4"


def test_a_refunded_escrow_takes_no_deposits(world: World, escrow: Pubkey) -> None:
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    assert world.refusal(world.market.escrow_deposit(world.submitter, escrow, 1)) == MarketError.ENDED


# Refunds


def test_the_submitter_alone_waits_for_the_deadline(world: World, escrow: Pubkey) -> None:
    refund = world.market.escrow_refund(world.submitter, world.submitter, JOB)
    assert world.refusal(refund) == MarketError.TOO_EARLY
    world.clock.advance(3599)
    assert world.refusal(refund) == MarketError.TOO_EARLY
    world.clock.advance(1)
    assert world.refusal(refund) is None
    assert world.tokens(world.submitter) == TOKENS


def test_submitter_and_coordinator_together_need_not_wait(world: World, escrow: Pubkey) -> None:
    world.send(world.market.escrow_refund(world.submitter, world.submitter, JOB, cosigner=world.coordinator))
    assert world.tokens(world.submitter) == TOKENS


@pytest.mark.parametrize("cosigner", ["node", "submitter", "unsigned coordinator"])
def test_no_other_second_signature_replaces_the_coordinators(world: World, escrow: Pubkey, cosigner: str) -> None:
    second = world.coordinator if cosigner == "unsigned coordinator" else getattr(world, cosigner)
    refund = world.market.escrow_refund(world.submitter, world.submitter, JOB, cosigner=second)
    if cosigner == "unsigned coordinator":
        refund = unsigned(refund, 6)
    assert world.refusal(refund) == MarketError.TOO_EARLY


@pytest.mark.parametrize("who", ["node", "stranger"])
def test_strangers_refund_after_the_deadline_and_never_before(world: World, escrow: Pubkey, who: str) -> None:
    refund = world.market.escrow_refund(getattr(world, who), world.submitter, JOB)
    assert world.refusal(refund) == MarketError.WRONG_AUTHORITY
    world.clock.advance(3599)
    assert world.refusal(refund) == MarketError.WRONG_AUTHORITY
    world.clock.advance(1)
    assert world.refusal(refund) is None
    assert world.tokens(world.submitter) == TOKENS


@pytest.mark.parametrize("signer", ["submitter", "coordinator"])
@pytest.mark.parametrize("target", ["coordinator", "stranger", "vault", "no token account"])
def test_a_refund_reaches_nobody_but_the_submitter(world: World, escrow: Pubkey, signer: str, target: str) -> None:
    world.clock.advance(4000)
    refund = world.market.escrow_refund(getattr(world, signer), world.submitter, JOB)
    places = {"vault": world.wallet(escrow), "no token account": world.submitter}
    destination = places.get(target) or world.wallet(getattr(world, target))
    assert world.refusal(swap(refund, 5, destination)) == MarketError.WRONG_DESTINATION


def test_a_refund_without_the_coordinators_signature_is_refused(world: World, escrow: Pubkey) -> None:
    refund = unsigned(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    assert world.refusal(refund) == "MissingRequiredSignature"


def test_after_a_refund_nothing_is_left_to_settle(world: World, escrow: Pubkey) -> None:
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    assert world.refusal(world.settle(escrow, (world.node, 1))) == MarketError.INSUFFICIENT


def test_a_settlement_repeated_after_the_refund_is_harmless(world: World, escrow: Pubkey) -> None:
    world.send(world.settle(escrow, (world.node, 10)))
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    assert world.refusal(world.settle(escrow, (world.node, 10))) is None
    assert world.tokens(world.node) == TOKENS + 10


# Closing


def _refund_and_close(world: World) -> None:
    world.send(
        world.market.escrow_refund(world.coordinator, world.submitter, JOB),
        world.market.escrow_close(world.submitter, world.submitter, JOB),
    )


def test_closing_returns_the_rent_and_keeps_the_totals(world: World, escrow: Pubkey) -> None:
    world.send(world.settle(escrow, (world.node, 10)))
    before = world.chain.account(world.submitter)
    _refund_and_close(world)
    after, tombstone = world.chain.account(world.submitter), world.chain.account(escrow)
    assert before is not None
    assert after is not None
    assert tombstone is not None
    vault_rent, table_rent = world.chain.rent_minimum(165), (ESCROW_SIZE - TOMBSTONE_SIZE + 8 * PAYEE_SIZE) * 6960
    assert after.lamports - before.lamports == vault_rent + table_rent
    assert tombstone.lamports == world.chain.rent_minimum(len(tombstone.data))
    state = world.escrow(escrow)
    assert (state.status, state.deposited, state.paid, state.refunded) == (EscrowStatus.CLOSED, 1000, 10, 990)
    assert world.chain.account(world.wallet(escrow)) is None


def test_a_closed_job_is_never_opened_or_paid_again(world: World, escrow: Pubkey) -> None:
    world.send(world.settle(escrow, (world.node, 10)))
    _refund_and_close(world)
    again = world.market.escrow_open(world.submitter, JOB, world.coordinator, int(world.clock.now) + 60, 4)
    assert world.refusal(world.create_wallet(escrow), again) == MarketError.ALREADY_OPEN
    world.send(world.create_wallet(escrow), world.move_tokens(world.stranger, world.wallet(escrow), 10))
    for operation in ("settle", "deposit", "refund", "close"):
        assert world.refusal(_operation(world, escrow, operation)) == MarketError.CLOSED


def test_an_escrow_with_money_in_it_cannot_be_closed(world: World, escrow: Pubkey) -> None:
    close = world.market.escrow_close(world.submitter, world.submitter, JOB)
    assert world.refusal(close) == MarketError.NOT_EMPTY
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    world.send(world.move_tokens(world.stranger, world.wallet(escrow), 1))
    assert world.refusal(close) == MarketError.NOT_EMPTY
    _refund_and_close(world)
    assert world.tokens(world.submitter) == TOKENS + 1


def test_an_open_escrow_whose_money_is_spent_cannot_be_closed_before_a_refund(world: World, escrow: Pubkey) -> None:
    world.send(world.settle(escrow, (world.node, 1000)))
    close = world.market.escrow_close(world.submitter, world.submitter, JOB)
    assert world.refusal(close) == MarketError.NOT_EMPTY


@pytest.mark.parametrize("thief", ["coordinator", "stranger"])
def test_the_rent_returns_to_nobody_but_the_submitter(world: World, escrow: Pubkey, thief: str) -> None:
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    close = swap(world.market.escrow_close(world.coordinator, world.submitter, JOB), 5, getattr(world, thief))
    assert world.refusal(close) == MarketError.WRONG_DESTINATION


def test_strangers_do_not_close(world: World, escrow: Pubkey) -> None:
    world.send(world.market.escrow_refund(world.coordinator, world.submitter, JOB))
    assert world.refusal(world.market.escrow_close(world.stranger, world.submitter, JOB)) == MarketError.WRONG_AUTHORITY


def test_the_whole_supply_of_a_token_fits(world: World) -> None:
    """The largest amounts that 64 bits hold pass through without overflow."""
    escrow = world.open_escrow(0)
    supply = 2**64 - 1 - TOKENS * 4
    root = world.genesis.root.pubkey()
    minted = models.MintToCheckedParams(
        amount=supply,
        decimals=6,
        dest=world.wallet(world.submitter),
        mint=world.market.mint,
        mint_authority=root,
        program_id=TOKEN_PROGRAM_ID,
    )
    world.send(token.mint_to_checked(minted))
    world.send(world.market.escrow_deposit(world.submitter, escrow, supply))
    world.send(world.settle(escrow, (world.node, supply)))
    assert world.tokens(world.node) == TOKENS + supply
    assert world.refusal(world.settle(escrow, (world.node, 2**64 - 1))) == MarketError.INSUFFICIENT
    # What was paid comes round once more: the totals would pass 64 bits, and the program says so.
    world.send(world.market.escrow_deposit(world.node, escrow, TOKENS))
    assert world.refusal(world.market.escrow_deposit(world.node, escrow, supply)) == MarketError.OVERFLOW


def test_events_carry_who_was_paid_how_much(world: World, escrow: Pubkey) -> None:
    signature = world.send(world.settle(escrow, (world.node, 10)))
    expected = bytes(world.wallet(world.node)) + struct.pack("<QQ", 10, 10)
    (event,) = read_events(world.logs(signature), world.market.program)
    assert (event.kind, event.account, event.payload) == ("PAID", escrow, expected)

"""Whom an escrow may pay: a list bound by its Merkle root that only grows, a table entered with a proof, a cap."""

from __future__ import annotations

import struct

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from ledger import merkle
from ledger.local.chain import TransactionRefusedError
from ledger.program.codes import MAX_BATCH, MAX_GROWTH, MAX_PAYEES, Consent, MarketError
from ledger.program.layout import ESCROW_SIZE, PAYEE_SIZE, read_events
from protocol.merkle import MerkleTree, merkle_root, node_hash, root_hash
from tests.ledger.world import JOB, TOKENS, World, swap, unsigned, with_data

pytestmark = pytest.mark.clusters


def _people(world: World, count: int) -> list[Pubkey]:
    return [world.new_key(f"payee {index}") for index in range(count)]


def _leaves(world: World, payees: list[Pubkey]) -> list[bytes]:
    return [bytes(world.wallet(payee)) for payee in payees]


def _listed(world: World, payees: list[Pubkey], *, max_payees: int = 8) -> Pubkey:
    """An escrow whose submitter gave a list at the opening."""
    leaves = _leaves(world, payees)
    return world.open_escrow(1000, max_payees=max_payees, payees=(), count=len(leaves), peaks=merkle.peaks(leaves))


def _enrol(world: World, escrow: Pubkey, payees: list[Pubkey], index: int) -> Instruction:
    return world.market.escrow_enrol(
        world.stranger, escrow, payees[index], MerkleTree(_leaves(world, payees)).proof(index)
    )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 13, 33])
def test_the_root_over_peaks_is_the_root_over_all_leaves(count: int) -> None:
    leaves = [bytes([index]) * 32 for index in range(count)]
    *larger, top = merkle.peaks(leaves) or [b""]
    for peak in reversed(larger):
        top = node_hash(peak, top)
    assert root_hash(count, top) == merkle_root(leaves)
    assert len(merkle.peaks(leaves)) == count.bit_count()


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 12])
def test_each_of_a_list_given_at_the_opening_is_enrolled_once_with_its_proof(world: World, count: int) -> None:
    payees = _people(world, count)
    escrow = _listed(world, payees, max_payees=12)
    for index in range(count):
        world.send(_enrol(world, escrow, payees, index), _enrol(world, escrow, payees, index))
    assert list(world.escrow(escrow).payees) == [world.wallet(payee) for payee in payees]


def test_nobody_is_paid_without_an_entry(world: World) -> None:
    payees = _people(world, 3)
    escrow = _listed(world, payees)
    world.send(world.create_wallet(payees[1]))
    asked = world.settle(escrow, (payees[1], 5))
    assert world.refusal(asked) == MarketError.NOT_A_PAYEE
    world.send(_enrol(world, escrow, payees, 1), asked)
    assert world.tokens(payees[1]) == 5


def test_a_list_grows_without_changing_what_was_in_it(world: World) -> None:
    """However the list was extended, its peaks are those of the whole list, so every earlier proof can be made anew."""
    payees = _people(world, 23)
    escrow, done = _listed(world, payees[:3], max_payees=30), 3
    for more in (1, 1, 4, 7, 7):
        signature = world.send(world.admit(escrow, *payees[done : done + more], enrol=False))
        told = [event.payload for event in read_events(world.logs(signature), world.market.program)]
        expected = [
            struct.pack("<II", index, 2**32 - 1) + bytes(world.wallet(payees[index]))
            for index in range(done, done + more)
        ]
        assert told == expected
        done += more
        state = world.escrow(escrow)
        assert (state.count, list(state.peaks)) == (done, merkle.peaks(_leaves(world, payees[:done])))
    for index in (0, 2, 3, 22):
        assert world.refusal(_enrol(world, escrow, payees, index)) is None


def test_a_proof_of_an_older_list_is_refused(world: World) -> None:
    payees = _people(world, 4)
    escrow = _listed(world, payees[:3])
    old = _enrol(world, escrow, payees[:3], 0)
    world.send(world.admit(escrow, payees[3], enrol=False))
    assert world.refusal(old) == MarketError.BAD_PROOF
    assert world.refusal(_enrol(world, escrow, payees, 0)) is None


@pytest.mark.parametrize(
    "lie",
    [
        "another account",
        "another place",
        "another length",
        "a sibling changed",
        "a sibling short",
        "a sibling more",
        "an inner node for a leaf",
        "index beyond",
        "empty tree",
    ],
)
def test_a_false_proof_makes_no_entry(world: World, lie: str) -> None:
    payees = _people(world, 6)
    escrow = _listed(world, payees)
    honest = _enrol(world, escrow, payees, 2)
    data, path = honest.data, honest.data[41:]
    account, index = data[1:33], 2
    forged = {
        "another account": data[:1] + bytes(world.wallet(world.stranger)) + data[33:],
        "another place": data[:33] + struct.pack("<II", 3, 6) + path,
        "another length": data[:33] + struct.pack("<II", 2, 7) + path,
        "a sibling changed": data[:-1] + bytes([data[-1] ^ 1]),
        "a sibling short": data[:-32],
        "a sibling more": data + bytes(32),
        "an inner node for a leaf": data[:1] + path[:32] + struct.pack("<II", 1, 3) + path[32:],
        "index beyond": data[:33] + struct.pack("<II", 6, 6) + path,
        "empty tree": data[:1] + account + struct.pack("<II", index, 0),
    }[lie]
    assert world.refusal(with_data(honest, forged)) == MarketError.BAD_PROOF
    assert not world.escrow(escrow).payees


@pytest.mark.parametrize("size", [1, 32, 39, 71, 42])
def test_a_malformed_proof_is_refused(world: World, size: int) -> None:
    payees = _people(world, 2)
    escrow = _listed(world, payees)
    honest = _enrol(world, escrow, payees, 1)
    assert world.refusal(with_data(honest, honest.data[: size + 1])) == "InvalidInstructionData"


@pytest.mark.parametrize(
    ("who", "consent", "error"),
    [
        ("submitter", Consent(0), None),
        ("submitter", Consent.ADMIT, None),
        ("coordinator", Consent.ADMIT, None),
        ("coordinator", Consent.END, MarketError.WRONG_AUTHORITY),
        ("node", Consent.ADMIT | Consent.END, MarketError.WRONG_AUTHORITY),
    ],
)
def test_who_admits_is_what_the_submitter_chose(
    world: World, who: str, consent: Consent, error: MarketError | None
) -> None:
    escrow = world.open_escrow(10, payees=(), consent=consent)
    call = world.market.escrow_admit(getattr(world, who), escrow, [world.node], enrol=True)
    assert world.refusal(unsigned(call)) == "MissingRequiredSignature"
    assert world.refusal(call) == error


def test_admitting_again_adds_neither_entry_nor_leaf(world: World) -> None:
    escrow = world.open_escrow(10, payees=())
    for _ in range(2):
        world.send(world.admit(escrow, world.node, world.node, world.stranger))
    state = world.escrow(escrow)
    assert list(state.payees) == [world.wallet(world.node), world.wallet(world.stranger)]
    assert state.count == 2


def test_a_wrong_slot_costs_units_and_pays_the_right_payee(world: World) -> None:
    escrow = world.open_escrow(1000)
    payouts = [(world.node, 7), (world.stranger, 9)]
    for slots in ([1, 0], [9, 65535], [0, 0]):
        world.send(world.market.escrow_settle(world.coordinator, escrow, payouts, slots))
    assert (world.tokens(world.node), world.tokens(world.stranger)) == (TOKENS + 7, TOKENS + 9)


def test_fifty_payees_settle_in_one_instruction_and_fifty_one_do_not(world: World) -> None:
    payees = _people(world, MAX_BATCH + 1)
    escrow = world.open_escrow(10_000, max_payees=60, payees=payees)
    for start in range(0, len(payees), 8):
        world.prepare(*map(world.create_wallet, payees[start : start + 8]))
    payouts = [(payee, 10 + index) for index, payee in enumerate(payees)]
    table = [world.wallet(payee) for payee in payees]
    done = world.send_batch(world.settle(escrow, *payouts[:MAX_BATCH]), table)
    assert [world.tokens(payee) for payee in payees[:MAX_BATCH]] == [total for _, total in payouts[:MAX_BATCH]]
    (paid,) = [event for event in read_events(world.logs(done), world.market.program) if event.kind == "PAID"]
    assert len(paid.payload) == MAX_BATCH * 48
    with pytest.raises(TransactionRefusedError, match="InvalidInstructionData"):
        world.send_batch(world.settle(escrow, *payouts), table)


# The cap


def test_no_sum_of_settlements_passes_the_cap(world: World) -> None:
    escrow = world.open_escrow(1000, cap=500)
    assert world.refusal(world.settle(escrow, (world.node, 300), (world.stranger, 201))) == MarketError.PAY_CAP
    world.send(world.settle(escrow, (world.node, 300)))
    assert world.refusal(world.settle(escrow, (world.stranger, 201))) == MarketError.PAY_CAP
    world.send(world.settle(escrow, (world.stranger, 200)))
    world.send(world.market.escrow_deposit(world.submitter, escrow, 100))
    assert world.refusal(world.settle(escrow, (world.node, 301))) == MarketError.PAY_CAP


def test_the_submitter_raises_the_cap_and_postpones_the_deadline(world: World) -> None:
    escrow = world.open_escrow(1000, cap=500)
    before = world.escrow(escrow)
    extend = world.market.escrow_extend(world.submitter, JOB, 600, before.deadline + 60)
    world.send(extend)
    world.send(world.settle(escrow, (world.node, 600)))
    world.clock.advance(3610)
    refund = world.market.escrow_refund(world.submitter, world.submitter, JOB)
    assert world.refusal(refund) == MarketError.TOO_EARLY
    world.clock.advance(60)
    assert world.refusal(refund) is None
    assert world.refusal(extend) == MarketError.ENDED


@pytest.mark.parametrize(("cap", "seconds"), [(499, 0), (500, -1), (0, 60), (2**64 - 1, -(2**40))])
def test_neither_cap_nor_deadline_ever_goes_down(world: World, cap: int, seconds: int) -> None:
    escrow = world.open_escrow(1000, cap=500)
    deadline = world.escrow(escrow).deadline + seconds
    assert world.refusal(world.market.escrow_extend(world.submitter, JOB, cap, deadline)) == MarketError.BAD_TERMS


@pytest.mark.parametrize("who", ["coordinator", "node", "stranger"])
def test_nobody_but_the_submitter_extends(world: World, who: str) -> None:
    world.open_escrow(1000, cap=500)
    extend = world.market.escrow_extend(world.submitter, JOB, 600, 2**40)
    assert world.refusal(swap(extend, 0, getattr(world, who))) == MarketError.WRONG_AUTHORITY
    assert world.refusal(unsigned(extend)) == "MissingRequiredSignature"


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"cap": 0}, MarketError.BAD_TERMS),
        ({"consent": 4}, MarketError.BAD_TERMS),
        ({"count": 65_536, "peaks": [bytes(32)]}, MarketError.BAD_TERMS),
        ({"count": 3, "peaks": [bytes(32)]}, "InvalidInstructionData"),
        ({"count": 0, "peaks": [bytes(32)]}, "InvalidInstructionData"),
    ],
)
def test_impossible_terms_open_nothing(world: World, terms: dict[str, object], error: object) -> None:
    escrow = world.market.escrow(world.submitter, JOB)
    opening = world.market.escrow_open(
        world.submitter,
        JOB,
        world.coordinator,
        int(world.clock.now) + 60,
        4,
        **terms,  # type: ignore[arg-type]
    )
    assert world.refusal(world.create_wallet(escrow), opening) == error


# Room


def test_a_table_grows_and_the_close_returns_all_of_its_rent(world: World) -> None:
    escrow = world.open_escrow(0, max_payees=1, payees=())
    grow = world.market.escrow_grow(world.stranger, escrow, MAX_GROWTH)
    before = world.chain.account(escrow)
    world.send(grow)
    world.send(grow)
    state, after = world.escrow(escrow), world.chain.account(escrow)
    assert before is not None
    assert after is not None
    assert state.capacity == 1 + 2 * MAX_GROWTH
    assert len(after.data) == ESCROW_SIZE + state.capacity * PAYEE_SIZE
    assert after.lamports == world.chain.rent_minimum(len(after.data))
    payees = _people(world, 40)
    for start in (0, 20):
        world.send(world.admit(escrow, *payees[start : start + 20]))
    assert list(world.escrow(escrow).payees) == [world.wallet(payee) for payee in payees]
    owner = world.chain.account(world.submitter)
    world.send(
        world.market.escrow_refund(world.coordinator, world.submitter, JOB),
        world.market.escrow_close(world.coordinator, world.submitter, JOB),
    )
    richer, tombstone = world.chain.account(world.submitter), world.chain.account(escrow)
    assert owner is not None
    assert richer is not None
    assert tombstone is not None
    returned = world.chain.rent_minimum(165) + after.lamports - tombstone.lamports
    assert richer.lamports - owner.lamports == returned


@pytest.mark.parametrize("more", [0, MAX_GROWTH + 1, 65_535])
def test_a_table_grows_by_no_more_than_one_instruction_may_allocate(world: World, more: int) -> None:
    escrow = world.open_escrow(0)
    assert world.refusal(world.market.escrow_grow(world.stranger, escrow, more)) == MarketError.BAD_TERMS


def test_growing_needs_the_payers_signature_and_the_system_program(world: World) -> None:
    escrow = world.open_escrow(0)
    grow = world.market.escrow_grow(world.stranger, escrow, 5)
    assert world.refusal(unsigned(grow)) == "MissingRequiredSignature"
    assert world.refusal(swap(grow, 2, world.market.program)) == "MissingAccount"
    assert world.refusal(swap(grow, 1, world.open_stake(5))) == MarketError.NOT_OURS
    assert world.refusal(swap(grow, 1, world.wallet(world.node))) == MarketError.NOT_OURS
    assert grow.accounts[2].pubkey == SYSTEM_PROGRAM


def test_more_entries_than_one_account_begins_with_are_refused_at_the_opening(world: World) -> None:
    with pytest.raises(Exception, match="Custom"):
        world.open_escrow(0, max_payees=MAX_PAYEES + 1)


@pytest.mark.parametrize("operation", ["admit", "enrol", "grow", "extend"])
@pytest.mark.parametrize("what", ["stake", "nothing", "terms", "wallet", "a copy of another program", "closed"])
def test_what_is_no_open_escrow_takes_no_payees(world: World, operation: str, what: str) -> None:
    payees = [world.node]
    escrow = world.open_escrow(0, payees=())
    world.send(world.admit(escrow, world.node, enrol=False))
    call = {
        "admit": world.admit(escrow, world.stranger),
        "enrol": _enrol(world, escrow, payees, 0),
        "grow": world.market.escrow_grow(world.stranger, escrow, 5),
        "extend": world.market.escrow_extend(world.submitter, JOB, 2**64 - 1, 2**40),
    }[operation]
    if what == "closed":
        world.send(
            world.market.escrow_refund(world.coordinator, world.submitter, JOB),
            world.market.escrow_close(world.coordinator, world.submitter, JOB),
        )
        assert world.refusal(call) == MarketError.CLOSED
        return
    original = world.chain.account(escrow)
    assert original is not None
    places = {
        "stake": lambda: world.open_stake(5),
        "nothing": lambda: world.new_key("nobody ever paid this"),
        "terms": lambda: world.market.terms(),
        "wallet": lambda: world.wallet(world.submitter),
        "a copy of another program": lambda: world.forge("forged", original.data, SYSTEM_PROGRAM),
    }
    assert world.refusal(swap(call, 1, places[what]())) == MarketError.NOT_OURS


@pytest.mark.parametrize("operation", ["admit", "enrol", "grow", "extend"])
@pytest.mark.parametrize("change", ["one byte more", "one byte less", "accounts missing"])
def test_malformed_calls_change_nothing(world: World, operation: str, change: str) -> None:
    escrow = world.open_escrow(0, payees=())
    world.send(world.admit(escrow, world.node, enrol=False))
    call = {
        "admit": world.admit(escrow, world.stranger),
        "enrol": _enrol(world, escrow, [world.node], 0),
        "grow": world.market.escrow_grow(world.stranger, escrow, 5),
        "extend": world.market.escrow_extend(world.submitter, JOB, 2**64 - 1, 2**40),
    }[operation]
    if change == "accounts missing":
        broken = Instruction(call.program_id, call.data, list(call.accounts)[:1])
    else:
        broken = with_data(call, call.data + b"\0" if change == "one byte more" else call.data[:-1])
    before = world.escrow(escrow)
    assert world.refusal(broken) in {"InvalidInstructionData", "InvalidArgument"}
    assert world.escrow(escrow) == before

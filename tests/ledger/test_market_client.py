"""The client's half of payees, promises, stakes and disputes, over HTTP: what it prepares, and what it refuses to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.pubkey import Pubkey

from ledger import tables
from ledger.addresses import keypair
from ledger.client import Consent, Ledger, address_of, job_bytes
from ledger.errors import (
    AmountError,
    InsufficientFundsError,
    LedgerStateError,
    NoDisputeError,
    NoStakeError,
    TransactionFailedError,
)
from ledger.local.chain import SLOT_S
from ledger.local.genesis import BOND, COOLDOWN_S, VERDICT_S
from ledger.money import Amount
from ledger.program.codes import MarketError
from ledger.program.layout import Ruling
from protocol.merkle import MerkleProof, MerkleTree
from tests.ledger.by_hand import pay, send
from tests.ledger.world import World
from tests.support.dispute_history import dispute_history

SUBMITTER, COORDINATOR, STRANGER = (bytes([number]) * 32 for number in (1, 2, 3))
NODES = [bytes([10 + index]) * 32 for index in range(60)]
PAYEES = [address_of(seed) for seed in NODES]
WHO, JUDGE = address_of(SUBMITTER), address_of(COORDINATOR)
JOB, AUDIT, EVIDENCE = job_bytes("cd" * 16), b"\7" * 32, b"\x08" * 32
BUDGET = Amount(100_000_000)
FEE_LAMPORTS = 5000  # A signature.


@pytest.fixture
async def rich(ledger: Ledger) -> Ledger:
    """Everybody has money."""
    for seed in (SUBMITTER, COORDINATOR, STRANGER, NODES[0]):
        await ledger.faucet(address_of(seed), Amount(10 * BUDGET))
    return ledger


def _key(seed: bytes) -> Pubkey:
    return keypair(seed).pubkey()


async def _open(ledger: Ledger, world: World, **terms: object) -> None:
    deadline = int(world.clock.now) + 3600
    opening = await ledger.prepare_escrow(SUBMITTER, JOB, JUDGE, BUDGET, deadline, **terms)  # type: ignore[arg-type]
    await ledger.confirm(opening)


async def test_a_closed_list_pays_those_on_it_and_nobody_else(rich: Ledger, world: World) -> None:
    await _open(rich, world, consent=Consent(0), payees=PAYEES[:5])
    with pytest.raises(LedgerStateError, match="enrol it, or let the submitter admit it"):
        await pay(rich, COORDINATOR, WHO, JOB, {PAYEES[2]: Amount(5)})
    market, escrow, newcomer = world.market, Pubkey.from_string(rich.escrow_address(WHO, JOB)), [_key(NODES[9])]
    proof = MerkleTree([bytes(market.wallet(_key(seed))) for seed in NODES[:5]]).proof(2)
    await send(rich, STRANGER, market.escrow_enrol(_key(STRANGER), escrow, _key(NODES[2]), proof))
    await pay(rich, COORDINATOR, WHO, JOB, {PAYEES[2]: Amount(5)})
    assert await rich.balance(PAYEES[2]) == 5
    with pytest.raises(TransactionFailedError) as refusal:
        await send(rich, COORDINATOR, market.escrow_admit(_key(COORDINATOR), escrow, newcomer, enrol=True))
    assert refusal.value.code == MarketError.WRONG_AUTHORITY
    await send(rich, SUBMITTER, market.escrow_admit(_key(SUBMITTER), escrow, newcomer, enrol=True))
    await pay(rich, COORDINATOR, WHO, JOB, {PAYEES[9]: Amount(7)})
    assert await rich.balance(PAYEES[9]) == 7


async def test_the_cap_is_the_deposit_until_the_submitter_raises_it(rich: Ledger, world: World) -> None:
    await _open(rich, world, cap=Amount(50))
    with pytest.raises(InsufficientFundsError, match="ask the submitter to raise the cap"):
        await pay(rich, COORDINATOR, WHO, JOB, {PAYEES[0]: Amount(51)})
    state = await rich.escrow(WHO, JOB)
    assert state is not None
    await send(rich, SUBMITTER, world.market.escrow_extend(_key(SUBMITTER), JOB, 60, state.deadline + 5))
    await pay(rich, COORDINATOR, WHO, JOB, {PAYEES[0]: Amount(51)})
    state = await rich.escrow(WHO, JOB)
    assert state is not None
    assert (state.cap, state.paid) == (60, 51)


async def test_a_provider_claims_without_the_coordinator(rich: Ledger, world: World) -> None:
    await _open(rich, world)
    earnings = rich.earnings({payee: Amount(100 + place) for place, payee in enumerate(PAYEES[:7])})
    assert earnings.total == sum(100 + place for place in range(7))
    judge, escrow = _key(COORDINATOR), Pubkey.from_string(rich.escrow_address(WHO, JOB))
    await send(rich, COORDINATOR, world.market.escrow_commit(judge, escrow, earnings.root, earnings.total, 1))
    await send(rich, COORDINATOR, world.market.escrow_admit(judge, escrow, [*map(_key, NODES[:6])], enrol=True))
    proof = earnings.proofs[PAYEES[0]]
    await rich.confirm(await rich.prepare_claim(NODES[0], WHO, JOB, PAYEES[0], Amount(100), proof))
    await rich.confirm(await rich.prepare_claim(STRANGER, WHO, JOB, PAYEES[5], Amount(105), earnings.proofs[PAYEES[5]]))
    assert await rich.balance(PAYEES[5]) == 105
    with pytest.raises(LedgerStateError, match="enrol it first"):
        await rich.prepare_claim(STRANGER, WHO, JOB, PAYEES[6], Amount(106), earnings.proofs[PAYEES[6]])
    lie = await rich.prepare_claim(STRANGER, WHO, JOB, PAYEES[1], Amount(101), MerkleProof(0, 7, proof.path))
    with pytest.raises(TransactionFailedError) as refusal:
        await rich.confirm(lie)
    assert refusal.value.code == MarketError.BAD_PROOF
    told = [event for event in await rich.history(WHO, JOB) if event.kind == "promised"]
    assert [event.fields["root"] for event in told] == [earnings.root.hex()]


async def test_submitter_and_coordinator_end_a_job_together(rich: Ledger, world: World) -> None:
    await _open(rich, world, consent=Consent.ADMIT)
    alone = await rich.prepare_refund(COORDINATOR, WHO, JOB)
    with pytest.raises(TransactionFailedError, match="has not passed yet"):
        await rich.confirm(alone)
    await rich.confirm(await rich.prepare_refund(COORDINATOR, WHO, JOB, SUBMITTER))
    assert await rich.balance(WHO) == 10 * BUDGET


async def test_many_stakes_are_read_together_and_each_as_it_is_by_itself(
    rich: Ledger, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in NODES[1:4]:
        await rich.faucet(address_of(seed), Amount(10 * BUDGET))
    for seed in NODES[:3]:
        await rich.open_stake(seed, Amount(100), JUDGE)
    await rich.confirm(await rich.prepare_stake_request(NODES[1], Amount(30)))
    await send(rich, NODES[2], world.market.stake_move(_key(NODES[2]), _key(SUBMITTER)))
    asked: list[int] = []
    real = rich._connection._client.get_multiple_accounts

    async def counted(keys: Sequence[Pubkey], *more: object) -> object:
        asked.append(len(keys))
        return await real(keys, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(rich._connection._client, "get_multiple_accounts", counted)
    found = await rich.stakes(PAYEES)
    assert asked == [100, 20], "two accounts of each of sixty nodes"
    assert [found[payee] for payee in PAYEES] == [await rich.stake(payee) for payee in PAYEES]
    first, partly, moving = (found[payee] for payee in PAYEES[:3])
    assert first is not None
    assert (first.balance, first.requested) == (100, 0)
    assert partly is not None
    assert (partly.balance, partly.requested) == (100, 30)
    assert moving is not None
    assert moving.next_coordinator == WHO
    assert {found[payee] for payee in PAYEES[3:]} == {None}
    assert await rich.stakes([]) == {}


async def _close_wallet(ledger: Ledger, world: World, seed: bytes) -> None:
    """Somebody takes the rent of its token account."""
    pair = keypair(seed)
    world.keys[pair.pubkey()] = pair
    world.send(*world.close_wallet(pair.pubkey()))


async def test_nobody_pays_for_an_account_that_a_submitter_has_closed(rich: Ledger, world: World) -> None:
    await _open(rich, world)
    await _close_wallet(rich, world, SUBMITTER)
    before = await rich.lamports(JUDGE)
    with pytest.raises(LedgerStateError, match=f"{WHO} has no token account to take its money"):
        await rich.prepare_refund(COORDINATOR, WHO, JOB)
    await rich.confirm(await rich.prepare_refund(COORDINATOR, WHO, JOB, SUBMITTER))
    assert await rich.lamports(JUDGE) == before - 2 * FEE_LAMPORTS, "the signatures; the account its owner paid"
    assert await rich.balance(WHO) == BUDGET


@pytest.mark.parametrize("upheld", [True, False])
async def test_a_verdict_costs_the_judge_a_fee_whoever_has_closed_its_account(
    rich: Ledger, world: World, upheld: bool
) -> None:
    node, challenger = PAYEES[0], address_of(STRANGER)
    await rich.open_stake(NODES[0], Amount(1000), JUDGE)
    await rich.confirm(await rich.prepare_dispute(STRANGER, node, AUDIT))
    for seed in (STRANGER, NODES[0]):
        await _close_wallet(rich, world, seed)
    before = await rich.lamports(JUDGE)
    verdict = await rich.prepare_verdict(COORDINATOR, challenger, AUDIT, EVIDENCE, upheld=upheld, slash=Amount(500))
    await rich.confirm(verdict)
    assert await rich.lamports(JUDGE) == before - FEE_LAMPORTS
    state = await rich.dispute(challenger, AUDIT)
    assert state is not None
    assert (state.ruling, state.balance) == (Ruling.UPHELD if upheld else Ruling.REJECTED, BOND)
    assert world.units(world.treasury) == (500 if upheld else 0), "who has no account has no part in the slash"
    winner, seed = (challenger, STRANGER) if upheld else (node, NODES[0])
    await rich.confirm(await rich.prepare_dispute_close(seed, challenger, AUDIT))
    assert await rich.balance(winner) == BOND
    assert await rich.dispute(challenger, AUDIT) is None


async def test_a_stake_is_emptied_and_closed_although_somebody_adds_to_it(rich: Ledger, world: World) -> None:
    node = NODES[0]
    with pytest.raises(NoStakeError, match="nothing to close"):
        await rich.prepare_stake_close(node)
    await rich.open_stake(node, Amount(100), JUDGE)
    await rich.confirm(await rich.prepare_stake_request(node, None))
    state = await rich.stake(PAYEES[0])
    assert state is not None
    assert (state.requested, state.balance) == (100, 100)
    world.clock.advance(COOLDOWN_S)
    key = world.stranger
    world.send(world.market.stake_deposit(key, keypair(node).pubkey(), 1))
    await rich.confirm(await rich.prepare_stake_close(node))
    assert await rich.stake(PAYEES[0]) is None


async def test_a_stake_moves_and_closes(rich: Ledger, world: World) -> None:
    node, move = NODES[0], world.market.stake_move(_key(NODES[0]), _key(SUBMITTER))
    await rich.open_stake(node, Amount(100), JUDGE)
    await send(rich, node, move)
    state = await rich.stake(PAYEES[0])
    assert state is not None
    assert (state.coordinator, state.next_coordinator) == (JUDGE, WHO)
    await rich.confirm(await rich.prepare_stake_request(node, Amount(100)))
    world.clock.advance(COOLDOWN_S)
    await send(rich, node, move)
    state = await rich.stake(PAYEES[0])
    assert state is not None
    assert (state.coordinator, state.next_coordinator) == (WHO, None)
    await rich.confirm(await rich.prepare_stake_withdrawal(node))
    await rich.confirm(await rich.prepare_stake_close(node))
    assert await rich.stake(PAYEES[0]) is None
    told = await rich.stake_history(PAYEES[0])
    assert [event.kind for event in told] == [
        "stake_opened",
        "stake_deposited",
        "stake_moved",
        "stake_requested",
        "stake_moved",
        "stake_withdrawn",
        "stake_closed",
    ]
    assert told[2].fields["coordinator"] == told[4].fields["coordinator"] == WHO
    assert (told[2].fields["move_at"] > 0, told[4].fields["move_at"]) == (True, 0)
    assert told[-1].fields == {"deposited": 100, "slashed": 0, "withdrawn": 100}


async def test_a_dispute_is_opened_found_decided_and_closed(rich: Ledger, world: World) -> None:
    node, challenger = PAYEES[0], address_of(STRANGER)
    with pytest.raises(NoStakeError, match="nothing to dispute about"):
        await rich.prepare_dispute(STRANGER, node, AUDIT)
    await rich.open_stake(NODES[0], Amount(1000), JUDGE)
    with pytest.raises(InsufficientFundsError, match="the bond is"):
        await rich.prepare_dispute(STRANGER, node, AUDIT, Amount(100 * BUDGET))
    with pytest.raises(NoDisputeError, match="open it first"):
        await rich.prepare_verdict(COORDINATOR, challenger, AUDIT, EVIDENCE, upheld=True)
    await rich.confirm(await rich.prepare_dispute(STRANGER, node, AUDIT))
    assert (await rich.terms()).bond == BOND
    found = await rich.dispute(challenger, AUDIT)
    assert found is not None
    assert (found.challenger, found.audit, found.bond, found.evidence) == (challenger, AUDIT, BOND, None)
    verdict = await rich.prepare_verdict(COORDINATOR, challenger, AUDIT, EVIDENCE, upheld=True, slash=Amount(500))
    await rich.confirm(verdict)
    state = await rich.dispute(challenger, AUDIT)
    assert state is not None
    assert (state.ruling, state.evidence, state.balance) == (Ruling.UPHELD, EVIDENCE, 0)
    assert await rich.balance(challenger) == 10 * BUDGET + 250
    stake = await rich.stake(node)
    assert stake is not None
    assert stake.slashed == 500
    await rich.confirm(await rich.prepare_dispute_close(COORDINATOR, challenger, AUDIT))
    told = await dispute_history(rich, challenger, AUDIT)
    assert [event.kind for event in told] == ["disputed", "dispute_decided", "dispute_closed"]
    assert (told[0].fields["ruling"], told[1].fields["ruling"]) == ("open", "upheld")
    assert (told[1].fields["evidence"], told[1].fields["node"]) == (EVIDENCE.hex(), node)
    slash = (await rich.stake_history(node))[-1]
    assert (slash.kind, slash.fields["amount"], slash.fields["part"]) == ("stake_slashed", 500, 250)
    assert (slash.fields["reason"], slash.fields["challenger"]) == (AUDIT.hex(), rich.wallet(challenger))
    assert await rich.dispute(challenger, AUDIT) is None


async def test_a_judges_silence_returns_the_bond(rich: Ledger, world: World) -> None:
    await rich.open_stake(NODES[0], Amount(1000), JUDGE)
    await rich.confirm(await rich.prepare_dispute(STRANGER, PAYEES[0], AUDIT))
    world.clock.advance(VERDICT_S)
    await rich.confirm(await rich.prepare_dispute_expiry(NODES[0], address_of(STRANGER), AUDIT))
    assert await rich.balance(address_of(STRANGER)) == 10 * BUDGET


async def test_fifty_payments_are_told_although_nodes_cut_their_logs(rich: Ledger, world: World) -> None:
    await _open(rich, world)
    fifty, root = PAYEES[:50], world.genesis.root.pubkey()
    for payee in fifty:
        await rich.faucet(payee, Amount(1), 0)
    escrow = Pubkey.from_string(rich.escrow_address(WHO, JOB))
    for some in (NODES[:25], NODES[25:50]):
        await send(
            rich,
            COORDINATOR,
            world.market.escrow_admit(_key(COORDINATOR), escrow, [*map(_key, some)], enrol=True),
        )
    wallets = [Pubkey.from_string(rich.wallet(payee)) for payee in fifty]
    slot = world.chain.slot - 1
    address = tables.table_address(root, slot)
    world.send(tables.create_table(root, slot))
    for start in (0, 20, 40):
        world.send(tables.extend_table(root, address, wallets[start : start + 20]))
    world.clock.advance(SLOT_S)
    keys = [(Pubkey.from_string(payee), 10 + place) for place, payee in enumerate(fifty)]
    settle = world.market.escrow_settle(keypair(COORDINATOR).pubkey(), escrow, keys)
    lookup = AddressLookupTableAccount(address, wallets)
    prepared = (await rich._sender.window()).sign(keypair(COORDINATOR), [settle], (), [lookup])
    await rich.confirm(prepared)
    assert any("Log truncated" in line for line in world.logs(prepared.signature))
    history = await rich.history(WHO, JOB)
    assert {event.kind for event in history} == {"opened", "deposited", "admitted", "paid"}
    told = {event.fields["account"]: event.fields["amount"] for event in history if event.kind == "paid"}
    assert told == {str(wallet): 10 + place for place, wallet in enumerate(wallets)}


async def test_amounts_that_are_none_are_refused_before_anything_is_signed(rich: Ledger, world: World) -> None:
    with pytest.raises(AmountError):
        await _open(rich, world, cap=Amount(-1))
    with pytest.raises(AmountError):
        rich.earnings({PAYEES[0]: Amount(-1)})

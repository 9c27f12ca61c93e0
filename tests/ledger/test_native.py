"""Escrow by the token program alone: bounded by the allowance, ended by two of three, and honest about what it lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ledger.addresses import address_of, job_bytes, keypair
from ledger.errors import (
    EscrowExistsError,
    InsufficientFundsError,
    LedgerAnswerError,
    NoEscrowError,
    TransactionFailedError,
    UnsupportedError,
)
from ledger.local.genesis import give
from ledger.money import Amount
from ledger.native import NativeConfig, NativeLedger
from tests.ledger.world import TOKENS, World

SUBMITTER, COORDINATOR, ARBITER, NODE = (bytes([number]) * 32 for number in (1, 2, 3, 4))
JOB = job_bytes("ab" * 16)
WHO, JUDGE = address_of(SUBMITTER), address_of(COORDINATOR)


@pytest.fixture
async def native(world: World, url: str) -> AsyncIterator[NativeLedger]:
    """A vault of 1,000 units, 400 of which the coordinator may pay alone."""
    for seed in (SUBMITTER, COORDINATOR, ARBITER):
        give(world.chain, world.genesis, keypair(seed).pubkey(), TOKENS, 10**10, world.entropy)
    config = NativeConfig(url, str(world.market.mint), address_of(ARBITER))
    async with await NativeLedger.connect(config) as ledger:
        await ledger.confirm(await ledger.prepare_escrow(SUBMITTER, JOB, JUDGE, Amount(1000)))
        draft = await ledger.draft_allowance(SUBMITTER, JOB, JUDGE, Amount(400))
        await ledger.confirm(draft.complete(COORDINATOR))
        yield ledger


async def _settle(ledger: NativeLedger, total: int, payee: bytes = NODE) -> bool:
    prepared = await ledger.prepare_settlement(COORDINATOR, WHO, JOB, {address_of(payee): Amount(total)})
    if prepared is None:
        return False
    await ledger.confirm(prepared)
    return True


async def test_cumulative_settlements_pay_once_and_add_up(native: NativeLedger) -> None:
    assert await _settle(native, 100)
    assert not await _settle(native, 100)
    assert await _settle(native, 150)
    assert await native.balance(address_of(NODE)) == 150
    state = await native.escrow(WHO, JUDGE, JOB)
    assert state is not None
    assert (state.deposited, state.paid, state.refunded, state.balance) == (1000, 150, 0, 850)
    assert await native.allowance(WHO, JUDGE, JOB) == 250


async def test_two_settlements_prepared_from_one_state_pay_once(native: NativeLedger) -> None:
    payouts = {address_of(NODE): Amount(100)}
    first = await native.prepare_settlement(COORDINATOR, WHO, JOB, payouts)
    second = await native.prepare_settlement(COORDINATOR, WHO, JOB, {**payouts, address_of(ARBITER): Amount(1)})
    assert first is not None
    assert second is not None
    await native.confirm(first)
    with pytest.raises(TransactionFailedError):
        await native.confirm(second)
    assert await native.balance(address_of(NODE)) == 100


async def test_no_more_than_the_allowance_is_paid_without_the_submitter(native: NativeLedger) -> None:
    with pytest.raises(InsufficientFundsError, match=r"allows 0\.0004"):
        await _settle(native, 401)
    assert await _settle(native, 400)
    with pytest.raises(InsufficientFundsError, match="the submitter has to allow more"):
        await _settle(native, 401)
    draft = await native.draft_allowance(SUBMITTER, JOB, JUDGE, Amount(100))
    await native.confirm(draft.complete(COORDINATOR))
    assert await _settle(native, 500)


@pytest.mark.parametrize(("first", "second"), [(SUBMITTER, COORDINATOR), (SUBMITTER, ARBITER), (ARBITER, SUBMITTER)])
async def test_any_two_of_three_return_what_is_left(native: NativeLedger, first: bytes, second: bytes) -> None:
    await _settle(native, 100)
    draft = await native.draft_refund(first, WHO, JUDGE, JOB, address_of(second), Amount(900))
    await native.confirm(draft.complete(second))
    state = await native.escrow(WHO, JUDGE, JOB)
    assert state is not None
    assert (state.paid, state.refunded, state.balance) == (100, 900, 0)
    assert await native.balance(WHO) == TOKENS - 100


async def test_one_alone_returns_nothing_and_a_stranger_signs_nothing(native: NativeLedger) -> None:
    alone = await native.draft_refund(SUBMITTER, WHO, JUDGE, JOB, WHO, Amount(900))
    with pytest.raises(TransactionFailedError):
        await native.confirm(alone.complete(SUBMITTER))
    draft = await native.draft_refund(SUBMITTER, WHO, JUDGE, JOB, JUDGE, Amount(900))
    with pytest.raises(LedgerAnswerError, match="does not sign this transaction"):
        draft.complete(NODE)
    outsider = await native.draft_refund(SUBMITTER, WHO, JUDGE, JOB, address_of(NODE), Amount(900))
    with pytest.raises(TransactionFailedError):
        await native.confirm(outsider.complete(NODE))


async def test_an_allowance_that_only_the_submitter_signed_allows_nothing(native: NativeLedger) -> None:
    draft = await native.draft_allowance(SUBMITTER, JOB, JUDGE, Amount(0))
    with pytest.raises(TransactionFailedError):
        await native.confirm(draft.complete(SUBMITTER))
    assert await native.allowance(WHO, JUDGE, JOB) == 400


async def test_a_vault_opens_once_and_others_have_none(native: NativeLedger) -> None:
    with pytest.raises(EscrowExistsError, match="another job id"):
        await native.prepare_escrow(SUBMITTER, JOB, JUDGE, Amount(1))
    assert await native.escrow(WHO, JUDGE, bytes(32)) is None
    with pytest.raises(NoEscrowError, match="never opened"):
        await native.allowance(WHO, JUDGE, bytes(32))
    with pytest.raises(InsufficientFundsError, match="fund the wallet"):
        await native.prepare_escrow(SUBMITTER, bytes(32), JUDGE, Amount(10 * TOKENS))


@pytest.mark.parametrize("what", ["prepare_stake", "prepare_slash", "prepare_stake_request", "prepare_claim", "terms"])
async def test_what_only_the_program_can_do_is_refused_by_name(native: NativeLedger, what: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{what}: .* needs the market program, .* cottage ledger deploy"):
        getattr(native, what)
    assert await native.stake(WHO) is None
    assert not hasattr(native, "prepare_nothing")

"""The client over HTTP: what the coordinator, submitters and nodes do, and what goes wrong between two answers."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from solana.rpc.async_api import AsyncClient
from solders.pubkey import Pubkey
from solders.signature import Signature

from ledger import events
from ledger.client import Ledger, LedgerConfig, PreparedTransaction, address_of, job_bytes
from ledger.errors import (
    AddressError,
    AmountError,
    EscrowExistsError,
    EventError,
    InsufficientFundsError,
    LedgerAnswerError,
    LedgerUnavailableError,
    NoEscrowError,
    NoStakeError,
    TransactionExpiredError,
    TransactionFailedError,
)
from ledger.local.chain import BLOCKHASH_SLOTS, SLOT_S
from ledger.local.genesis import COOLDOWN_S
from ledger.money import MAX_AMOUNT, Amount, parse
from ledger.program.interface import MarketError
from tests.ledger.by_hand import pay
from tests.ledger.conftest import serving_world
from tests.ledger.world import World

SUBMITTER, COORDINATOR, STRANGER = b"\1" * 32, b"\2" * 32, b"\3" * 32
NODES = [bytes([10 + index]) * 32 for index in range(45)]
JOB_ID = "0123456789abcdef" * 2
JOB = job_bytes(JOB_ID)
BUDGET = parse("100")


@pytest.fixture
async def funded(ledger: Ledger, world: World) -> Ledger:
    """A submitter with money, a coordinator with SOL, and an open escrow."""
    await ledger.faucet(address_of(SUBMITTER), parse("1000"))
    await ledger.faucet(address_of(COORDINATOR), Amount(0))
    deadline = int(world.clock.now) + 3600
    await ledger.open_escrow(SUBMITTER, JOB, address_of(COORDINATOR), BUDGET, deadline)
    return ledger


async def _settle(ledger: Ledger, payouts: dict[str, Amount]) -> list[PreparedTransaction]:
    return await pay(ledger, COORDINATOR, address_of(SUBMITTER), JOB, payouts)


async def _payment(ledger: Ledger, total: Amount) -> PreparedTransaction:
    """What pays the first node, who has had one unit before, and has all that it takes."""
    payouts = ledger.payouts(COORDINATOR)
    await _settle(ledger, {address_of(NODES[0]): Amount(1)})
    prepared = await payouts.prepare(address_of(SUBMITTER), JOB, {address_of(NODES[0]): total})
    assert prepared is not None
    assert prepared.step == ""
    return prepared


async def test_an_escrow_says_what_it_holds(funded: Ledger, world: World) -> None:
    state = await funded.escrow(address_of(SUBMITTER), JOB)
    assert state is not None
    assert (state.deposited, state.paid, state.refunded, state.balance) == (BUDGET, 0, 0, BUDGET)
    assert (state.coordinator, state.job, state.closed) == (address_of(COORDINATOR), JOB, False)
    assert state.deadline == int(world.clock.now) + 3600
    assert state.address == funded.escrow_address(address_of(SUBMITTER), JOB)
    assert await funded.balance(address_of(SUBMITTER)) == parse("900")
    assert await funded.escrow(address_of(STRANGER), JOB) is None


async def test_settling_the_same_totals_again_pays_nothing(funded: Ledger) -> None:
    payouts = {address_of(NODES[0]): parse("10")}
    await _settle(funded, payouts)
    assert await _settle(funded, payouts) == []
    assert await funded.balance(address_of(NODES[0])) == parse("10")


async def test_two_settlements_prepared_at_once_pay_once(funded: Ledger, world: World) -> None:
    """A coordinator that crashed before storing a signature prepares the same payout a second time."""
    first = await _payment(funded, parse("10"))
    world.clock.advance(SLOT_S)  # another blockhash: another signature
    second = await _payment(funded, parse("10"))
    assert first.signature != second.signature
    for one in (first, second):
        await funded.confirm(one)
    assert await funded.balance(address_of(NODES[0])) == parse("10")


async def test_the_signature_is_known_before_sending_and_tells_the_outcome(funded: Ledger) -> None:
    prepared = await _payment(funded, Amount(2))
    assert await funded.outcome(prepared.signature, prepared.last_valid_block_height) == "pending"
    assert await funded.confirm(prepared) == prepared.signature
    assert await funded.outcome(prepared.signature, prepared.last_valid_block_height) == "confirmed"


async def test_sending_twice_pays_once(funded: Ledger) -> None:
    prepared = await _payment(funded, Amount(7))
    for _ in range(3):
        await funded.submit(prepared)
    assert await funded.balance(address_of(NODES[0])) == 7


async def test_an_unsent_transaction_expires_for_good(funded: Ledger, world: World) -> None:
    prepared = await _payment(funded, Amount(7))
    world.clock.advance((BLOCKHASH_SLOTS + 2) * SLOT_S)
    assert await funded.outcome(prepared.signature, prepared.last_valid_block_height) == "expired"
    with pytest.raises(TransactionExpiredError, match="prepare it anew"):
        await funded.submit(prepared)
    assert await funded.balance(address_of(NODES[0])) == 1, "what it had before"


async def test_a_sent_transaction_never_counts_as_expired(funded: Ledger, world: World) -> None:
    prepared = (await _settle(funded, {address_of(NODES[0]): Amount(7)}))[-1]
    world.clock.advance((BLOCKHASH_SLOTS + 2) * SLOT_S)
    assert await funded.outcome(prepared.signature, prepared.last_valid_block_height) == "confirmed"
    await funded.submit(prepared)


async def test_a_refund_returns_the_rest_even_to_a_wallet_that_was_closed(funded: Ledger) -> None:
    await _settle(funded, {address_of(NODES[0]): parse("30")})
    await funded.confirm(await funded.prepare_refund(COORDINATOR, address_of(SUBMITTER), JOB))
    assert await funded.balance(address_of(SUBMITTER)) == parse("970")
    state = await funded.escrow(address_of(SUBMITTER), JOB)
    assert state is not None
    assert (state.ended, state.closed, state.refunded) == (True, False, parse("70"))


async def test_the_submitter_refunds_itself_only_after_the_deadline(funded: Ledger, world: World) -> None:
    early = await funded.prepare_refund(SUBMITTER, address_of(SUBMITTER), JOB)
    with pytest.raises(TransactionFailedError, match="has not passed yet") as refusal:
        await funded.confirm(early)
    assert refusal.value.code == MarketError.TOO_EARLY
    assert refusal.value.signature == early.signature
    assert any("failed" in line for line in refusal.value.logs)
    world.clock.advance(3600)
    await funded.confirm(await funded.prepare_refund(SUBMITTER, address_of(SUBMITTER), JOB))
    assert await funded.balance(address_of(SUBMITTER)) == parse("1000")


async def test_a_closed_escrow_keeps_its_totals_and_takes_nothing_more(funded: Ledger, world: World) -> None:
    await _settle(funded, {address_of(NODES[0]): parse("30")})
    await funded.confirm(await funded.prepare_refund(COORDINATOR, address_of(SUBMITTER), JOB))
    await funded.confirm(await funded.prepare_close(COORDINATOR, address_of(SUBMITTER), JOB))
    state = await funded.escrow(address_of(SUBMITTER), JOB)
    assert state is not None
    assert (state.closed, state.deposited, state.paid, state.refunded) == (True, BUDGET, parse("30"), parse("70"))
    for attempt in (funded.prepare_refund, funded.prepare_close):
        with pytest.raises(NoEscrowError, match="was closed"):
            await attempt(COORDINATOR, address_of(SUBMITTER), JOB)
    with pytest.raises(EscrowExistsError, match="another job id"):
        await funded.open_escrow(SUBMITTER, JOB, address_of(COORDINATOR), Amount(1), int(world.clock.now) + 9)


async def test_stake_is_opened_slashed_once_and_withdrawn(ledger: Ledger, world: World) -> None:
    node = address_of(NODES[0])
    await ledger.faucet(node, parse("50"))
    await ledger.faucet(address_of(COORDINATOR), Amount(0))
    assert await ledger.stake(node) is None
    await ledger.open_stake(NODES[0], parse("40"), address_of(COORDINATOR))
    state = await ledger.stake(node)
    assert state is not None
    assert (state.balance, state.coordinator, state.treasury) == (parse("40"), address_of(COORDINATOR), ledger.treasury)
    assert state.slashable(world.clock.now) == parse("20")
    for _ in range(2):
        await ledger.confirm(await ledger.prepare_slash(COORDINATOR, node, parse("15"), b"\7" * 32))
        world.clock.advance(SLOT_S)
    state = await ledger.stake(node)
    assert state is not None
    assert (state.balance, state.slashed, state.slashable(world.clock.now)) == (parse("25"), parse("15"), parse("5"))
    with pytest.raises(TransactionFailedError, match="one window"):
        await ledger.confirm(await ledger.prepare_slash(COORDINATOR, node, parse("6"), b"\x08" * 32))
    await ledger.confirm(await ledger.prepare_stake_request(NODES[0], parse("25")))
    world.clock.advance(COOLDOWN_S)
    await ledger.confirm(await ledger.prepare_stake_withdrawal(NODES[0]))
    assert await ledger.balance(node) == parse("35")


async def test_stake_is_added_to_the_same_coordinator_only(ledger: Ledger) -> None:
    await ledger.faucet(address_of(NODES[0]), parse("50"))
    await ledger.open_stake(NODES[0], parse("10"), address_of(COORDINATOR))
    await ledger.open_stake(NODES[0], parse("5"), address_of(COORDINATOR))
    state = await ledger.stake(address_of(NODES[0]))
    assert state is not None
    assert state.balance == parse("15")
    with pytest.raises(LedgerAnswerError, match="names coordinator"):
        await ledger.open_stake(NODES[0], parse("5"), address_of(STRANGER))


# At the door


async def test_a_budget_beyond_the_balance_is_refused_before_anything_is_sent(ledger: Ledger, world: World) -> None:
    await ledger.faucet(address_of(SUBMITTER), parse("5"))
    count = world.chain.store.count()
    with pytest.raises(InsufficientFundsError, match=r"holds 5, 5\.000001 are needed"):
        await ledger.open_escrow(SUBMITTER, JOB, address_of(COORDINATOR), parse("5.000001"), 4_000_000_000)
    with pytest.raises(InsufficientFundsError):
        await ledger.open_stake(SUBMITTER, parse("6"), address_of(COORDINATOR))
    assert world.chain.store.count() == count


@pytest.mark.parametrize("units", [0, -1, MAX_AMOUNT + 1])
async def test_impossible_budgets_are_refused(ledger: Ledger, units: int) -> None:
    with pytest.raises(AmountError):
        await ledger.open_escrow(SUBMITTER, JOB, address_of(COORDINATOR), Amount(units), 4_000_000_000)


async def test_payouts_beyond_the_escrow_are_refused_with_both_amounts(funded: Ledger) -> None:
    with pytest.raises(InsufficientFundsError, match=r"100\.000001 are due.*holds 100"):
        await _settle(funded, {address_of(NODES[0]): Amount(BUDGET + 1)})


async def test_what_does_not_exist_is_named(ledger: Ledger) -> None:
    with pytest.raises(NoEscrowError, match="never opened"):
        await _settle(ledger, {})
    with pytest.raises(NoStakeError, match="has no stake"):
        await ledger.prepare_slash(COORDINATOR, address_of(NODES[0]), Amount(1), b"\1" * 32)


@pytest.mark.parametrize("text", ["", "0", "l" * 44, "1" * 60, "not an address", address_of(SUBMITTER) + "1"])
async def test_what_is_no_address_is_refused(ledger: Ledger, text: str) -> None:
    with pytest.raises(AddressError, match=r"is no address|there is no address"):
        await ledger.balance(text)


async def test_seeds_jobs_and_digests_have_32_bytes(ledger: Ledger) -> None:
    with pytest.raises(AddressError, match="seed of 3 bytes"):
        await ledger.prepare_stake_request(b"abc", Amount(1))
    with pytest.raises(AddressError, match="job of 3 bytes"):
        await ledger.escrow(address_of(SUBMITTER), b"abc")
    with pytest.raises(AddressError, match="hexadecimal"):
        job_bytes("not a job")


async def test_a_slash_needs_a_reason(ledger: Ledger) -> None:
    await ledger.faucet(address_of(NODES[0]), parse("5"))
    await ledger.open_stake(NODES[0], parse("5"), address_of(COORDINATOR))
    with pytest.raises(AddressError, match="no digest"):
        await ledger.prepare_slash(COORDINATOR, address_of(NODES[0]), Amount(1), bytes(32))


async def test_a_signer_without_sol_is_told_what_it_lacks(ledger: Ledger) -> None:
    prepared = await ledger.prepare_memo(STRANGER, "hello", address_of(SUBMITTER), JOB)
    with pytest.raises(TransactionFailedError, match="cannot pay the fee: give it SOL"):
        await ledger.confirm(prepared)


# Histories


async def test_a_history_tells_events_and_money_in_order(funded: Ledger) -> None:
    submitter, node = address_of(SUBMITTER), address_of(NODES[0])
    told: list[events.Event] = [events.Funded(job=JOB_ID, amount=BUDGET), *events.assignments(JOB_ID, 1, [node])]
    for event in told:
        await funded.confirm(await funded.prepare_memo(COORDINATOR, events.encode(event), submitter, JOB))
    await _settle(funded, {node: parse("10")})
    await funded.confirm(await funded.prepare_refund(COORDINATOR, submitter, JOB))
    history = await funded.history(submitter, JOB)
    kinds = ["opened", "deposited", "funded", "assigned", "admitted", "paid", "refunded"]
    assert [entry.kind for entry in history] == kinds
    assert history[3].fields == {"job": JOB_ID, "attempt": 1, "nodes": [node]}
    assert {"payee": node, "amount": parse("10"), "cumulative": parse("10")}.items() <= history[5].fields.items()
    assert history[6].fields == {"amount": parse("90")}
    assert [entry.slot for entry in history] == sorted(entry.slot for entry in history)


async def test_memos_of_strangers_are_no_history(funded: Ledger) -> None:
    await funded.faucet(address_of(STRANGER), Amount(0))
    lie = events.encode(events.Settled(job=JOB_ID, paid=1, refunded=1))
    await funded.confirm(await funded.prepare_memo(STRANGER, lie, address_of(SUBMITTER), JOB))
    await funded.confirm(await funded.prepare_memo(COORDINATOR, "just a note", address_of(SUBMITTER), JOB))
    history = await funded.history(address_of(SUBMITTER), JOB)
    assert [event.kind for event in history] == ["opened", "deposited"]


@pytest.mark.parametrize("text", ["", "x" * 567])
async def test_memos_that_do_not_fit_are_refused(funded: Ledger, text: str) -> None:
    with pytest.raises(EventError, match="between 1 and 566"):
        await funded.prepare_memo(COORDINATOR, text, address_of(SUBMITTER), JOB)


async def test_the_longest_memo_fits(funded: Ledger) -> None:
    prepared = await funded.prepare_memo(COORDINATOR, "x" * 566, address_of(SUBMITTER), JOB)
    await funded.confirm(prepared)


async def test_a_plain_solana_client_reads_the_same(funded: Ledger, url: str) -> None:
    wallet_made, *_, prepared = await _settle(funded, {address_of(NODES[0]): Amount(7)})
    async with AsyncClient(url) as client:
        found = (await client.get_transaction(Signature.from_string(prepared.signature))).value
        assert found is not None
        assert found.transaction.meta is not None
        assert found.transaction.meta.err is None
        wallet = Pubkey.from_string(funded.wallet(address_of(NODES[0])))
        assert (await client.get_token_account_balance(wallet)).value.amount == "7"
        listed = (await client.get_signatures_for_address(wallet)).value
        assert [str(entry.signature) for entry in listed] == [prepared.signature, wallet_made.signature]


# Lost answers


class _Lossy:
    """Stands before the ledger and loses answers to transactions that it passed on."""

    def __init__(self, target: str) -> None:
        self.target, self.lose = target, 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession() as session, session.post(self.target, data=body, headers=headers) as answer:
            content = await answer.read()
        if b"sendTransaction" in body and self.lose > 0:
            self.lose -= 1
            assert request.transport is not None
            request.transport.abort()
        return web.Response(body=content, content_type="application/json")


@pytest.fixture
async def lossy(url: str) -> AsyncIterator[tuple[_Lossy, Ledger]]:
    """A client behind a network that loses answers."""
    network = _Lossy(url)
    app = web.Application()
    app.router.add_post("/", network.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with await Ledger.connect(LedgerConfig(f"http://{host}:{port}")) as client:
        yield network, client
    await runner.cleanup()


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_lost_acknowledgement_never_pays_twice(funded: Ledger, lossy: tuple[_Lossy, Ledger], lost: int) -> None:
    network, client = lossy
    prepared = await _payment(client, Amount(7))
    network.lose = lost
    if lost == 1:  # the transport itself asks once more
        await client.confirm(prepared)
    else:
        with pytest.raises(LedgerUnavailableError, match="is the ledger running"):
            await client.confirm(prepared)
    assert await client.outcome(prepared.signature, prepared.last_valid_block_height) == "confirmed"
    await client.submit(prepared)
    assert await client.balance(address_of(NODES[0])) == 7


# Connecting


async def test_a_ledger_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(LedgerUnavailableError, match="is the ledger running"):
        await Ledger.connect(LedgerConfig("http://127.0.0.1:9"))


async def test_what_is_no_url_is_refused() -> None:
    with pytest.raises(AddressError, match="the ledger's URL"):
        await Ledger.connect(LedgerConfig("127.0.0.1:8899"))


async def test_a_wrong_program_or_token_is_found_when_connecting(url: str, ledger: Ledger) -> None:
    stranger = address_of(STRANGER)
    with pytest.raises(LedgerAnswerError, match="no program"):
        await Ledger.connect(LedgerConfig(url, program=stranger))
    with pytest.raises(LedgerAnswerError, match="no token with 6 decimals"):
        await Ledger.connect(LedgerConfig(url, mint=stranger))
    with pytest.raises(LedgerAnswerError, match="no program"):
        await Ledger.connect(LedgerConfig(url, program=ledger.mint, mint=ledger.mint))


async def test_program_and_token_given_by_hand_need_no_embedded_ledger(url: str, ledger: Ledger) -> None:
    async with await Ledger.connect(LedgerConfig(url, ledger.program, ledger.mint)) as cluster:
        assert await cluster.balance(address_of(SUBMITTER)) == 0
        assert cluster.treasury is None


async def test_a_ledger_is_the_same_at_whichever_endpoint_it_is_asked(url: str, ledger: Ledger, world: World) -> None:
    known = await ledger.identity()
    async with serving_world(world) as other:
        assert other != url
        async with await Ledger.connect(LedgerConfig(other, ledger.program, ledger.mint)) as there:
            assert await there.identity() == known


@pytest.mark.parametrize("body", [b"<html>", b"{}", b'{"jsonrpc":"2.0","id":"1","result":5}', b"null"])
async def test_a_server_that_is_no_ledger_is_told_apart(body: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    key = address_of(secrets.token_bytes(32))
    for config in (LedgerConfig(f"http://{host}:{port}"), LedgerConfig(f"http://{host}:{port}", key, key)):
        with pytest.raises(LedgerAnswerError):
            await Ledger.connect(config)
    await runner.cleanup()

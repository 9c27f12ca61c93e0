"""Paying many: durable nonces, lookup tables, token accounts first; on the embedded ledger over its RPC."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from solders.address_lookup_table_account import AddressLookupTable
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from ledger.client import Ledger, job_bytes
from ledger.errors import InsufficientFundsError, LedgerUnavailableError, TransactionExpiredError
from ledger.local.chain import BLOCKHASH_SLOTS, MAX_SLOTS_AHEAD, SLOT_S, TransactionRefusedError
from ledger.local.genesis import open_chain
from ledger.money import Amount
from ledger.nonces import advance, create_nonces, nonce_address, read_nonce
from ledger.payouts import Payouts
from ledger.program.codes import MAX_BATCH
from ledger.states import PreparedTransaction
from tests.ledger.world import World, key

JOB = job_bytes("0" * 32)
COORDINATOR, SUBMITTER = key("coordinator"), key("submitter")
SEED = bytes(COORDINATOR.secret())


def payees(count: int) -> list[str]:
    return [str(key(f"payee {number}").pubkey()) for number in range(count)]


@pytest.fixture
async def payouts(world: World, ledger: Ledger) -> Payouts:
    """A coordinator with three nonces and a funded escrow of 250 payees."""
    paying = ledger.payouts(SEED)
    await paying.nonces(3)
    opening = await ledger.prepare_escrow(
        bytes(SUBMITTER.secret()), JOB, str(COORDINATOR.pubkey()), Amount(1_000_000), int(world.clock.now) + 3600, 200
    )
    await ledger.confirm(opening)
    world.clock.advance(SLOT_S)
    return paying


async def carry(
    world: World, ledger: Ledger, paying: Payouts, due: Mapping[str, Amount], nonces: list[str]
) -> list[PreparedTransaction]:
    """Do all that it takes, one slot after the other, with the nonces in turn; what was done."""
    done: list[PreparedTransaction] = []
    tables: list[str] = []
    while True:
        nonce = nonces[len(done) % len(nonces)] if nonces else ""
        prepared = await paying.prepare(str(SUBMITTER.pubkey()), JOB, due, nonce, tables)
        if prepared is None:
            return done
        await ledger.confirm(prepared)
        tables = list(dict.fromkeys([*tables, prepared.table])) if prepared.table else tables
        done.append(prepared)
        world.clock.advance(2 * SLOT_S)


async def test_a_full_batch_is_paid_in_one_transaction_once_their_accounts_and_a_table_are_there(
    world: World, ledger: Ledger, payouts: Payouts
) -> None:
    due = {payee: Amount(10 + number) for number, payee in enumerate(payees(MAX_BATCH))}
    done = await carry(world, ledger, payouts, due, await payouts.nonces(3))
    assert [one.step for one in done] == ["wallets"] * 5 + ["admit"] * 3 + ["table"] * 3 + [""]
    assert len(done[-1].wire) <= 1232
    assert [await ledger.balance(payee) for payee in payees(MAX_BATCH)] == list(due.values())
    more = {payee: Amount(total + 1) for payee, total in due.items()}
    table = done[-1].table
    again = await payouts.prepare(str(SUBMITTER.pubkey()), JOB, more, "", [table])
    assert again is not None, "the table is used again"
    assert (again.step, again.table) == ("", table)
    newcomer = {**dict(list(more.items())[1:]), str(key("late").pubkey()): Amount(5)}
    steps = await carry_on(world, ledger, payouts, newcomer, table)
    assert [(one.step, one.table) for one in steps] == [("wallets", ""), ("admit", ""), ("table", table), ("", table)]


async def carry_on(
    world: World, ledger: Ledger, paying: Payouts, due: Mapping[str, Amount], table: str
) -> list[PreparedTransaction]:
    done: list[PreparedTransaction] = []
    while (prepared := await paying.prepare(str(SUBMITTER.pubkey()), JOB, due, "", [table])) is not None:
        await ledger.confirm(prepared)
        done.append(prepared)
        world.clock.advance(2 * SLOT_S)
    return done


async def test_a_few_payees_need_no_table(world: World, ledger: Ledger, payouts: Payouts) -> None:
    done = await carry(world, ledger, payouts, dict.fromkeys(payees(10), Amount(7)), [])
    assert [(one.step, one.table) for one in done] == [("wallets", ""), ("admit", ""), ("", "")]
    assert await payouts.prepare(str(SUBMITTER.pubkey()), JOB, dict.fromkeys(payees(10), Amount(7))) is None


async def test_what_the_escrow_does_not_hold_is_not_even_begun(ledger: Ledger, payouts: Payouts) -> None:
    with pytest.raises(InsufficientFundsError, match=r"1\.000001 are due"):
        await payouts.prepare(str(SUBMITTER.pubkey()), JOB, {payees(1)[0]: Amount(1_000_001)})


async def test_the_history_names_every_payee_of_a_large_payment_and_the_addresses_that_a_table_held(
    world: World, ledger: Ledger, payouts: Payouts
) -> None:
    due = {payee: Amount(10 + number) for number, payee in enumerate(payees(MAX_BATCH))}
    await carry(world, ledger, payouts, due, [])
    paid = {e.fields["payee"]: e.fields for e in await ledger.history(str(SUBMITTER.pubkey()), JOB) if e.kind == "paid"}
    assert {payee: fields["amount"] for payee, fields in paid.items()} == due
    assert {payee: fields["cumulative"] for payee, fields in paid.items()} == due


async def test_payments_that_begin_in_one_slot_get_a_table_each_with_their_own_addresses(
    world: World, ledger: Ledger, payouts: Payouts
) -> None:
    jobs = {JOB: payees(MAX_BATCH), job_bytes("1" * 32): [str(key(f"other {n}").pubkey()) for n in range(MAX_BATCH)]}
    opening = await ledger.prepare_escrow(
        bytes(SUBMITTER.secret()),
        job_bytes("1" * 32),
        str(COORDINATOR.pubkey()),
        Amount(1_000_000),
        int(world.clock.now) + 3600,
        200,
    )
    await ledger.confirm(opening)
    world.clock.advance(SLOT_S)
    tables: dict[bytes, list[str]] = {job: [] for job in jobs}
    while True:
        steps = {
            job: await payouts.prepare(
                str(SUBMITTER.pubkey()), job, dict.fromkeys(names, Amount(7)), "", tables[job][:1]
            )
            for job, names in jobs.items()
        }
        for job, prepared in steps.items():
            if prepared is not None:
                await ledger.confirm(prepared)
                tables[job] += [prepared.table] if prepared.table else []
        if not any(steps.values()):
            break
        world.clock.advance(2 * SLOT_S)
    mine, others = (set(named) for named in tables.values())
    assert len(mine) == len(others) == 1
    assert mine != others
    for name in mine | others:
        account = world.chain.account(Pubkey.from_string(name))
        assert account is not None
        held = AddressLookupTable.deserialize(bytes(account.data)).addresses
        assert len(held) == len(set(held)) == MAX_BATCH + 4  # The payees' accounts, escrow, vault, mint, program.


async def test_where_every_recent_slot_has_its_table_a_payment_asks_again(
    world: World, ledger: Ledger, payouts: Payouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ledger.payouts.RECENT_SLOTS", 0)
    with pytest.raises(LedgerUnavailableError, match="every recent slot has its lookup table"):
        await carry(world, ledger, payouts, dict.fromkeys(payees(MAX_BATCH), Amount(7)), [])


async def test_a_table_is_deactivated_and_closed_and_its_rent_comes_back(
    world: World, ledger: Ledger, payouts: Payouts
) -> None:
    before = await ledger.lamports(str(COORDINATOR.pubkey()))
    done = await carry(world, ledger, payouts, dict.fromkeys(payees(MAX_BATCH), Amount(7)), [])
    table = done[-1].table
    held = world.chain.account(Pubkey.from_string(table))
    assert held is not None
    ending = await payouts.prepare_end_of_table(table)
    assert ending is not None
    await ledger.confirm(ending)
    with pytest.raises(LedgerUnavailableError, match=r"can be closed in 51\d slots"):
        await payouts.prepare_end_of_table(table)
    world.clock.advance(514 * SLOT_S)
    closing = await payouts.prepare_end_of_table(table)
    assert closing is not None
    assert (ending.step, closing.step) == ("deactivate", "")
    rich = await ledger.lamports(str(COORDINATOR.pubkey()))
    await ledger.confirm(closing)
    assert await ledger.lamports(str(COORDINATOR.pubkey())) == rich + held.lamports - 5000
    assert await payouts.prepare_end_of_table(table) is None
    assert before > rich


# Durable nonces


async def test_several_who_share_a_key_have_parts_of_its_nonces(world: World, ledger: Ledger) -> None:
    """Each makes its own part alone, so that two who begin at a time make none twice."""
    paying = ledger.payouts(SEED)
    first, last = await paying.nonces(7, 0, 3), await paying.nonces(7, 2, 3)
    named = [nonce_address(COORDINATOR.pubkey(), number) for number in range(7)]
    made = [nonce for nonce in named if world.chain.account(nonce) is not None]
    assert sorted(map(str, made)) == sorted(first + last)
    every = await paying.nonces(7)
    assert [await paying.nonces(7, part, 3) for part in range(3)] == [sorted(every)[part::3] for part in range(3)]
    assert (first, last) == (sorted(every)[0::3], sorted(every)[2::3])


async def test_a_transaction_with_a_nonce_is_good_for_ever_and_once(
    world: World, ledger: Ledger, payouts: Payouts
) -> None:
    nonce = (await payouts.nonces(3))[0]
    prepared = await ledger.prepare_refund(SEED, str(SUBMITTER.pubkey()), JOB, nonce=nonce)
    world.clock.advance(1000 * BLOCKHASH_SLOTS * SLOT_S)
    assert await ledger.outcome_of(prepared) == "pending"
    assert await ledger.outcome(prepared.signature, 0) == "expired", "a blockhash would be long gone"
    await ledger.confirm(prepared)
    await ledger.submit(prepared)
    assert await ledger.outcome_of(prepared) == "confirmed"


async def test_of_two_transactions_with_one_nonce_only_one_happens(
    world: World, ledger: Ledger, payouts: Payouts
) -> None:
    nonce, who = (await payouts.nonces(3))[0], str(SUBMITTER.pubkey())
    await carry(world, ledger, payouts, dict.fromkeys(payees(1), Amount(1)), [])
    first = await payouts.prepare(who, JOB, {payees(1)[0]: Amount(100)}, nonce)
    second = await payouts.prepare(who, JOB, {payees(1)[0]: Amount(250)}, nonce)
    assert first is not None
    assert second is not None
    await ledger.confirm(second)
    assert await ledger.outcome_of(first) == "expired"
    with pytest.raises(TransactionExpiredError, match="expired"):
        await ledger.submit(first)
    assert await ledger.balance(payees(1)[0]) == 250


async def test_a_nonce_serves_once_a_block_and_the_next_block_begins_for_it_but_not_for_ever(
    world: World, ledger: Ledger, payouts: Payouts
) -> None:
    nonce, who = (await payouts.nonces(3))[0], str(SUBMITTER.pubkey())
    slots = set[int]()
    for total in range(1, MAX_SLOTS_AHEAD + 1):
        prepared = await payouts.prepare(who, JOB, {payees(1)[0]: Amount(total)}, nonce)
        assert prepared is not None
        await ledger.confirm(prepared)
        slots.add(world.chain.slot)
    assert len(slots) == MAX_SLOTS_AHEAD
    for total in (MAX_SLOTS_AHEAD + 1, MAX_SLOTS_AHEAD + 2):
        prepared = await payouts.prepare(who, JOB, {payees(1)[0]: Amount(total)}, nonce)
        assert prepared is not None
        if world.chain.slot - slot_of_clock(world) < MAX_SLOTS_AHEAD:
            await ledger.confirm(prepared)
    assert prepared is not None
    with pytest.raises(LedgerUnavailableError, match="does not know the blockhash yet"):
        await ledger.submit(prepared)
    world.clock.advance((MAX_SLOTS_AHEAD + 2) * SLOT_S)
    await ledger.confirm(prepared)


def slot_of_clock(world: World) -> int:
    return world.chain._wall


def forged(world: World, signer: Keypair, owner: Pubkey) -> VersionedTransaction:
    """A transfer of one's own under somebody else's nonce."""
    address = nonce_address(owner, 0)
    account = world.chain.account(address)
    assert account is not None
    nonce = read_nonce(address, account, 0)
    move = transfer(TransferParams(from_pubkey=signer.pubkey(), to_pubkey=signer.pubkey(), lamports=1))
    instructions = [advance(nonce), move] if signer.pubkey() == owner else [move]
    return VersionedTransaction(MessageV0.try_compile(signer.pubkey(), instructions, [], nonce.value), [signer])


async def test_a_nonce_without_its_advance_is_no_blockhash(world: World, payouts: Payouts) -> None:
    world.clock.advance(2 * BLOCKHASH_SLOTS * SLOT_S)
    with pytest.raises(TransactionRefusedError, match="BlockhashNotFound"):
        world.chain.submit(forged(world, key("stranger"), COORDINATOR.pubkey()), preflight=False)
    world.chain.submit(forged(world, COORDINATOR, COORDINATOR.pubkey()), preflight=False)


def test_a_transaction_that_fails_uses_up_its_nonce_and_its_fee(world: World) -> None:
    owner = COORDINATOR.pubkey()
    world.send(*create_nonces(owner, [0], world.chain.rent_minimum(80)))
    world.clock.advance(SLOT_S)
    world.chain.tick()
    address = nonce_address(owner, 0)
    before = world.chain.account(address)
    assert before is not None
    nonce = read_nonce(address, before, 0)
    rich = world.chain.account(owner)
    assert rich is not None
    too_much = transfer(TransferParams(from_pubkey=owner, to_pubkey=key("stranger").pubkey(), lamports=10**18))
    failing = VersionedTransaction(
        MessageV0.try_compile(owner, [advance(nonce), too_much], [], nonce.value), [COORDINATOR]
    )
    world.chain.submit(failing, preflight=False)
    after, poorer = world.chain.account(address), world.chain.account(owner)
    assert after is not None
    assert poorer is not None
    assert read_nonce(address, after, 0).value != nonce.value
    assert rich.lamports - poorer.lamports == 5000


def test_nonces_and_tables_survive_a_restart(world: World) -> None:
    owner = COORDINATOR.pubkey()
    world.send(*create_nonces(owner, [0], world.chain.rent_minimum(80)))
    before = world.chain.account(nonce_address(owner, 0))
    chain, _ = open_chain(world.chain.store, world.clock, world.entropy)
    after = chain.account(nonce_address(owner, 0))
    assert before is not None
    assert after is not None
    assert after.data == before.data

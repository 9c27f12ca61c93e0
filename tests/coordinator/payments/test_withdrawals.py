"""The coordinator pays fee and rent of withdrawals on the real program's ledger, to whom it should, and is paid back exactly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from solders.account import Account
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.transaction import VersionedTransaction

from coordinator.config import Config
from coordinator.domain import withdrawal as rules
from coordinator.domain.withdrawal import WithdrawalBooks, WithdrawalFacts, WithdrawalLimits
from coordinator.services.core.context import Context
from coordinator.services.payments.withdrawals import ALL_ASKS, ASKS, LedgerSponsor, WithdrawalService
from coordinator.store.memory import MemoryStore
from coordinator.store.records import CommitRecord, NodeRecord, WithdrawalRecord
from ledger.client import Ledger, LedgerConfig
from ledger.errors import LedgerUnavailableError
from ledger.local.chain import BLOCKHASH_SLOTS, SLOT_S
from ledger.money import Amount
from ledger.sponsored import SponsoredTransfer
from ledger.transfers import TransferCost
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalOffer,
    WithdrawalRefusal,
    WithdrawalRequest,
)
from tests.coordinator.bench import CONFIG
from tests.coordinator.fakes import profile
from tests.ledger.conftest import serving_world
from tests.ledger.world import World
from tests.sim.world import SimClock

SOL = 10**9
PRICE = 150_000_000  # Millionths for one SOL: a fee of 10,000 lamports is 1,500, a token account 305,892 more.
FEE, ACCOUNT = 1_500, 305_892
PRICED: Config = replace(CONFIG, sol_price=PRICE, ledger_program="named")
HELD = 5_000_000
HERE = "192.0.2.7"


@dataclass
class Town:
    """A coordinator with its ledger, and lenders who hold tokens and no SOL."""

    world: World
    ledger: Ledger
    config: Config = PRICED
    clock: SimClock = field(default_factory=SimClock)
    store: MemoryStore = field(default_factory=MemoryStore)

    def __post_init__(self) -> None:
        self.desk = self.begin(self.config)

    def begin(self, config: Config) -> WithdrawalService:
        """A process of the coordinator with these settings, over the same database."""
        context = Context(config, self.clock, self.store, lambda size: bytes(size))
        seed = bytes(self.world.key("coordinator").secret())
        return WithdrawalService(
            context, LedgerSponsor(self.ledger, "http://ledger.test", seed, str(self.world.coordinator))
        )

    async def lender(self, name: str, held: int = HELD, earned: int = HELD) -> Pubkey:
        """Somebody with tokens, of whom the books say what was earned."""
        who = self.world.new_key(name)
        self.world.send(
            self.world.create_wallet(who), self.world.move_tokens(self.world.node, self.world.wallet(who), held)
        )
        async with self.store.transaction() as tx:
            await tx.insert(NodeRecord(str(who), str(who), profile(name), 0.0, 0.0, earned=earned))
        return who

    async def offer(
        self, owner: Pubkey, target: Pubkey | str, amount: int = HELD
    ) -> WithdrawalOffer | WithdrawalRefusal:
        answer = await self.desk.offer(WithdrawalRequest(str(owner), str(target), amount), HERE)
        found = answer.offer or answer.refused
        assert found is not None
        return found

    async def signed(self, owner: Pubkey, target: Pubkey, amount: int = HELD) -> SignedWithdrawal:
        """What an honest owner returns."""
        found = await self.offer(owner, target, amount)
        assert isinstance(found, WithdrawalOffer), found
        agreed = self.agreed(owner, target, found)
        wire, _ = await self.ledger.sign_sponsored(bytes(self.world.keys[owner].secret()), agreed, found.transaction)
        request = WithdrawalRequest(str(owner), str(target), amount)
        return SignedWithdrawal(request, found.arrives, found.fee, found.opens, wire)

    def agreed(self, owner: Pubkey, target: Pubkey, found: WithdrawalOffer) -> SponsoredTransfer:
        return SponsoredTransfer(
            str(self.world.coordinator), str(owner), str(target), Amount(found.arrives), Amount(found.fee), found.opens
        )

    async def withdraw(self, owner: Pubkey, target: Pubkey, amount: int = HELD) -> SentWithdrawal:
        return await self.desk.take(await self.signed(owner, target, amount), HERE)

    async def done(self, owner: Pubkey, target: Pubkey, amount: int = HELD) -> SentWithdrawal:
        """Withdrawn and followed to its end."""
        sent = await self.withdraw(owner, target, amount)
        assert sent.signature, sent.refused
        self.world.clock.advance(SLOT_S)  # Or the next one of the same amount would be the same transaction.
        await self.desk.follow()
        return sent

    async def records(self) -> list[WithdrawalRecord]:
        async with self.store.transaction() as tx:
            return await tx.find(WithdrawalRecord)

    def age(self) -> None:
        """Let more than a blockhash's life pass on the ledger."""
        self.world.clock.advance(SLOT_S * (BLOCKHASH_SLOTS + 2))


@pytest.fixture
async def town() -> AsyncIterator[Town]:
    world = World()
    async with serving_world(world) as url, await Ledger.connect(LedgerConfig(url)) as ledger:
        yield Town(world, ledger)


def share(node: str, payout: str, amount: int) -> CommitRecord:
    """A round's share that was verified."""
    one = "1" * 64
    return CommitRecord(
        job="j" * 32,
        epoch=0,
        round=0,
        stage=0,
        replica=0,
        lease="l" * 32,
        node=node,
        payout=payout,
        root=one,
        leaves=1,
        pseudo_gradient=one,
        tokens=1,
        operations=1,
        drawable=True,
        state="verified",
        amount=amount,
    )


def reason(found: object) -> str:
    """Why; every refusal is a sentence that names a way out."""
    refused = found if isinstance(found, WithdrawalRefusal) else getattr(found, "refused", None)
    assert isinstance(refused, WithdrawalRefusal), found
    assert len(refused.text) > 40, refused
    assert ":" in refused.text, refused
    return refused.reason


# --- what is paid -------------------------------------------------------------------------------------------------------


async def test_fee_and_rent_come_back_in_the_same_transaction_to_the_last_unit(town: Town) -> None:
    world, owner = town.world, await town.lender("lender")
    target, mine = world.new_key("receiver"), world.tokens(world.coordinator)
    lamports = await town.ledger.lamports(str(world.coordinator))
    found = await town.offer(owner, target, 2_000_000)
    assert isinstance(found, WithdrawalOffer)
    assert (found.arrives, found.fee, found.opens) == (2_000_000 - FEE - ACCOUNT, FEE + ACCOUNT, True)
    sent = await town.done(owner, target, 2_000_000)
    second = await town.done(owner, target, HELD - 2_000_000)
    assert sent.signature != second.signature
    assert world.tokens(owner) == 0
    assert world.tokens(target) == HELD - 2 * FEE - ACCOUNT
    assert world.tokens(world.coordinator) - mine == 2 * FEE + ACCOUNT
    assert lamports - await town.ledger.lamports(str(world.coordinator)) == 20_000 + 2_039_280
    assert await town.ledger.lamports(str(owner)) == 0
    assert sorted((row.state, row.amount, row.fee, row.lamports) for row in await town.records()) == [
        ("confirmed", 2_000_000, FEE + ACCOUNT, 2_049_280),
        ("confirmed", 3_000_000, FEE, 10_000),
    ]


async def test_what_it_costs_is_published(town: Town) -> None:
    await town.done(await town.lender("lender"), town.world.stranger)
    terms = await town.desk.terms()
    assert (terms.offered, terms.sol_price, terms.fee, terms.account) == (True, PRICE, FEE, ACCOUNT)
    assert (terms.lamports_a_day, terms.lamports_left) == (500_000_000, 500_000_000 - 10_000)
    assert terms.ledger is not None
    assert terms.ledger.coordinator == str(town.world.coordinator)


async def test_on_the_embedded_ledger_nothing_is_taken(town: Town) -> None:
    town.desk = town.begin(replace(PRICED, sol_price=0, ledger_program=None))
    owner, target = await town.lender("lender"), town.world.new_key("receiver")
    await town.done(owner, target)
    assert (town.world.tokens(owner), town.world.tokens(target)) == (0, HELD)


async def test_the_first_withdrawal_makes_the_coordinators_own_account(town: Town) -> None:
    world = town.world
    world.send(*world.close_wallet(world.coordinator))
    owner = await town.lender("lender")
    await town.done(owner, world.stranger)
    assert world.tokens(world.coordinator) == FEE


# --- who is refused, and what ---------------------------------------------------------------------------------------------


async def test_strangers_get_nothing_and_a_payee_or_a_node_does(town: Town) -> None:
    idle = await town.lender("has earned nothing", earned=0)
    assert reason(await town.offer(idle, town.world.stranger)) == "stranger"
    assert reason(await town.offer(town.world.node, town.world.stranger)) == "stranger", "with tokens, but unknown here"
    payee = town.world.new_key("a wallet that others' work was paid to")
    town.world.send(
        town.world.create_wallet(payee), town.world.move_tokens(town.world.node, town.world.wallet(payee), HELD)
    )
    async with town.store.transaction() as tx:
        await tx.insert(NodeRecord("node", str(payee), profile("node"), 0.0, 0.0, earned=HELD))
    assert reason(await town.offer(payee, town.world.stranger)) == "stranger", "a node may name any number of wallets"
    async with town.store.transaction() as tx:
        await tx.insert(share("node", str(payee), FEE))
    assert isinstance(await town.offer(payee, town.world.stranger), WithdrawalOffer)


async def test_the_fees_of_a_day_come_to_no_more_than_what_was_earned(town: Town) -> None:
    """Whoever had earned a millionth could use up what everybody has in a day, under one wallet after the other."""
    owner, world = await town.lender("lender", earned=FEE + ACCOUNT + FEE), town.world
    await town.done(owner, world.new_key("receiver"), 400_000)
    refused = await town.offer(owner, world.new_key("another"), 400_000)
    assert reason(refused) == "your day"
    assert isinstance(refused, WithdrawalRefusal)
    assert refused.seconds == 86_400
    await town.done(owner, world.stranger, 100_000)
    assert reason(await town.offer(owner, world.stranger, 100_000)) == "your day"
    town.clock.t += rules.DAY_S + 1
    assert isinstance(await town.offer(owner, world.stranger, 100_000), WithdrawalOffer)
    poor = await town.lender("has earned next to nothing", earned=ACCOUNT)
    assert reason(await town.offer(poor, world.new_key("one more"), 400_000)) == "stranger"
    assert isinstance(await town.offer(poor, world.stranger, 400_000), WithdrawalOffer)


async def test_what_cannot_arrive_is_refused_with_the_least_that_can(town: Town) -> None:
    owner, new = await town.lender("lender"), town.world.new_key("receiver")
    least = FEE + ACCOUNT + town.config.least_withdrawal
    refused = await town.offer(owner, new, least - 1)
    assert reason(refused) == "too little"
    assert isinstance(refused, WithdrawalRefusal)
    assert refused.amount == least
    assert isinstance(await town.offer(owner, new, least), WithdrawalOffer)
    refused = await town.offer(owner, new, HELD + 1)
    assert reason(refused) == "holds less"
    assert isinstance(refused, WithdrawalRefusal)
    assert refused.amount == HELD
    assert reason(await town.offer(owner, owner)) == "own wallet"
    assert reason(await town.offer(owner, town.world.wallet(town.world.stranger))) == "no wallet"


async def test_without_a_price_or_a_budget_nothing_is_offered(town: Town) -> None:
    owner = await town.lender("lender")
    for changed, why in (({"sol_price": 0}, "no rate"), ({"withdrawal_lamports": 0}, "not offered")):
        town.desk = town.begin(replace(PRICED, **changed))  # type: ignore[arg-type]
        assert reason(await town.offer(owner, town.world.stranger)) == why
        assert not (await town.desk.terms()).offered
    nowhere = WithdrawalService(Context(PRICED, town.clock, town.store, bytes), None)
    answer = await nowhere.offer(WithdrawalRequest(str(owner), str(town.world.stranger), 1), HERE)
    assert reason(answer) == "not offered"
    assert (await nowhere.terms()).ledger is None


async def test_an_owner_has_one_under_way_and_ten_a_day(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    sent = await town.withdraw(owner, world.stranger, 200_000)
    assert reason(await town.offer(owner, world.stranger, 100_000)) == "under way"
    await town.desk.follow()
    for _ in range(rules.MAX_A_DAY - 1):
        town.clock.t += 60.0
        await town.done(owner, world.stranger, 100_000)
    assert sent.signature
    refused = await town.offer(owner, world.stranger, 100_000)
    assert reason(refused) == "your day"
    assert isinstance(refused, WithdrawalRefusal)
    assert refused.seconds == 86_400 - 60 * (rules.MAX_A_DAY - 1)
    town.clock.t += refused.seconds + 1
    assert isinstance(await town.offer(owner, world.stranger, 100_000), WithdrawalOffer)


async def test_an_owner_has_three_accounts_made_a_day_and_goes_on_to_old_ones(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    for number in range(rules.MAX_OPENED_A_DAY):
        await town.done(owner, world.new_key(f"receiver {number}"), 400_000)
    assert reason(await town.offer(owner, world.new_key("one more"), 400_000)) == "your day"
    assert isinstance(await town.offer(owner, world.stranger, 400_000), WithdrawalOffer)


async def test_everybody_together_has_so_many_lamports_a_day_through_a_restart(town: Town) -> None:
    config = replace(PRICED, withdrawal_lamports=2_049_280 + 10_000)
    town.desk = town.begin(config)
    first, second = await town.lender("first"), await town.lender("second")
    await town.done(first, town.world.new_key("receiver"))
    town.desk = town.begin(config)
    refused = await town.offer(second, town.world.new_key("another"))
    assert reason(refused) == "everybody's day"
    await town.done(second, town.world.stranger, 100_000)
    assert reason(await town.offer(second, town.world.stranger, 100_000)) == "everybody's day"
    assert (await town.desk.terms()).lamports_left == 0
    town.clock.t += rules.DAY_S + 1
    assert isinstance(await town.offer(second, town.world.stranger, 100_000), WithdrawalOffer)


async def test_an_address_asks_so_often_and_others_go_on(town: Town) -> None:
    owner = await town.lender("lender")
    for _ in range(int(ASKS)):
        assert isinstance(await town.offer(owner, town.world.stranger), WithdrawalOffer)
    assert reason(await town.offer(owner, town.world.stranger)) == "too often"
    request = WithdrawalRequest(str(owner), str(town.world.stranger), HELD)
    assert (await town.desk.offer(request, "192.0.2.8")).offer is not None


async def test_strangers_use_up_nothing_of_what_lenders_may_ask(town: Town) -> None:
    """Twenty addresses that had earned nothing kept everybody from withdrawing, for as long as they went on."""
    owner, thief = await town.lender("lender"), town.world.new_key("thief")
    good = await town.signed(owner, town.world.stranger)
    forged = replace_struct(good, transaction=signed_by(town, good, thief))
    nobody = WithdrawalRequest(str(thief), str(town.world.stranger), HELD)
    asked = town.desk._sponsor
    assert asked is not None
    asked.cost = None  # type: ignore[assignment] # The ledger is asked nothing.
    for number in range(int(ALL_ASKS) + 1):
        assert reason(await town.desk.offer(nobody, f"192.0.2.{number // 20}")) == "stranger"
        assert reason(await town.desk.take(forged, f"198.51.100.{number // 20}")) == "altered"
    del asked.cost  # type: ignore[attr-defined]
    assert isinstance(await town.offer(owner, town.world.stranger), WithdrawalOffer)
    assert (await town.desk.take(good, HERE)).signature


async def test_a_coordinator_without_sol_says_so(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    world.put(world.coordinator, Account(rules.RESERVE_LAMPORTS + 9_999, b"", SYSTEM_PROGRAM))
    assert reason(await town.offer(owner, world.stranger)) == "no sol"
    world.put(world.coordinator, Account(rules.RESERVE_LAMPORTS + 10_000, b"", SYSTEM_PROGRAM))
    assert isinstance(await town.offer(owner, world.stranger), WithdrawalOffer)


async def test_a_ledger_that_is_away_moves_nothing(town: Town) -> None:
    owner = await town.lender("lender")
    signed = await town.signed(owner, town.world.stranger)
    real = town.desk._sponsor
    assert real is not None

    async def away() -> TransferCost:
        raise LedgerUnavailableError("no answer")

    real.cost = away  # type: ignore[method-assign]
    assert reason(await town.offer(owner, town.world.stranger)) == "ledger away"
    assert reason(await town.desk.take(signed, HERE)) == "ledger away"
    assert await town.records() == []


# --- what comes back signed -----------------------------------------------------------------------------------------------


async def test_what_was_changed_after_the_offer_is_not_signed(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    good = await town.signed(owner, world.stranger)
    request = good.request
    thief = world.new_key("thief")
    other = replace_struct(good, request=WithdrawalRequest(request.owner, str(world.submitter), request.amount))
    cheaper = replace_struct(good, arrives=good.arrives + 1, fee=good.fee - 1)
    opened = replace_struct(good, opens=True)
    forged = replace_struct(good, transaction=signed_by(town, good, thief))
    unsigned = replace_struct(good, transaction=blank(good.transaction))
    garbage = replace_struct(good, transaction=b"\x00" * 40)
    for bad, why in (
        (other, "altered"),
        (cheaper, "altered"),
        (opened, "altered"),
        (forged, "altered"),
        (unsigned, "altered"),
        (garbage, "altered"),
    ):
        assert reason(await town.desk.take(bad, HERE)) == why
    assert await town.records() == []
    assert world.tokens(owner) == HELD
    assert (await town.desk.take(good, HERE)).signature


async def test_who_closes_the_account_after_the_offer_has_it_not_paid_for(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    signed = await town.signed(owner, world.stranger)
    world.send(*world.close_wallet(world.stranger))
    before = await town.ledger.lamports(str(world.coordinator))
    refused = await town.desk.take(signed, HERE)
    assert reason(refused) == "changed"
    assert await town.ledger.lamports(str(world.coordinator)) == before
    assert world.units(world.wallet(world.stranger)) == 0


async def test_making_and_closing_accounts_pays_each_rent_itself(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    thief, mine = world.new_key("thief"), world.tokens(world.coordinator)
    for _ in range(2):
        await town.done(owner, thief, 400_000)
        world.send(*world.close_wallet(thief))
    assert world.tokens(world.coordinator) - mine == 2 * (FEE + ACCOUNT)


async def test_what_is_given_twice_is_sent_once(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    signed = await town.signed(owner, world.stranger, 100_000)
    sent = await town.desk.take(signed, HERE)
    assert reason(await town.desk.take(signed, HERE)) == "under way"
    await town.desk.follow()
    assert await town.desk.take(signed, HERE) == sent
    assert world.tokens(owner) == HELD - 100_000
    assert len(await town.records()) == 1


async def test_what_was_signed_too_long_ago_is_refused(town: Town) -> None:
    owner = await town.lender("lender")
    signed = await town.signed(owner, town.world.stranger)
    town.age()
    assert reason(await town.desk.take(signed, HERE)) == "expired"
    assert await town.records() == []


async def test_tokens_that_left_meanwhile_cost_no_rent(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    signed = await town.signed(owner, world.new_key("receiver"))
    real = town.desk._sponsor
    assert real is not None
    before = await town.ledger.lamports(str(world.coordinator))

    async def gone_by_then(prepared: Any) -> None:
        world.send(world.move_tokens(owner, world.wallet(world.node), 1))
        await LedgerSponsor.submit(real, prepared)  # type: ignore[arg-type]

    real.submit = gone_by_then  # type: ignore[method-assign]
    assert reason(await town.desk.take(signed, HERE)) == "failed"
    assert await town.ledger.lamports(str(world.coordinator)) == before
    assert [row.state for row in await town.records()] == ["refused"]
    assert reason(await town.offer(owner, world.stranger, 1_000_000)) == "under way"
    town.age()
    await town.desk.follow()
    assert [row.state for row in await town.records()] == ["expired"]
    assert isinstance(await town.offer(owner, world.stranger, 1_000_000), WithdrawalOffer)


async def test_a_process_that_died_before_sending_sends_after_its_restart(town: Town) -> None:
    owner, world = await town.lender("lender"), town.world
    signed = await town.signed(owner, world.stranger)
    real = town.desk._sponsor
    assert real is not None

    async def dies(_prepared: Any) -> None:
        raise KeyboardInterrupt

    real.submit = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        await town.desk.take(signed, HERE)
    assert world.tokens(owner) == HELD
    town.desk = town.begin(PRICED)
    assert reason(await town.offer(owner, world.stranger)) == "under way"
    await town.desk.follow()
    await town.desk.follow()
    assert (world.tokens(owner), [row.state for row in await town.records()]) == (0, ["confirmed"])


async def test_what_is_over_is_forgotten_after_a_month(town: Town) -> None:
    await town.done(await town.lender("lender"), town.world.stranger)
    town.clock.t += 31 * rules.DAY_S
    await town.desk.follow()
    assert await town.records() == []


def replace_struct(signed: SignedWithdrawal, **changes: Any) -> SignedWithdrawal:
    fields = {name: getattr(signed, name) for name in SignedWithdrawal.__struct_fields__}
    return SignedWithdrawal(**fields | changes)


def blank(wire: bytes) -> bytes:
    parsed = VersionedTransaction.from_bytes(wire)
    return bytes(VersionedTransaction.populate(parsed.message, [Signature.default()] * 2))


def signed_by(town: Town, good: SignedWithdrawal, thief: Pubkey) -> bytes:
    parsed = VersionedTransaction.from_bytes(good.transaction)
    assert isinstance(parsed.message, MessageV0)
    seed = town.world.keys[thief]
    return bytes(VersionedTransaction.populate(parsed.message, [Signature.default(), seed.sign_message(b"something")]))


# --- the decision alone ---------------------------------------------------------------------------------------------------

LIMITS = WithdrawalLimits(lamports_a_day=SOL, least=1_000, priced=True)
BOOKS = WithdrawalBooks(earned=HELD, waiting=False, times=(), opened=(), lamports=0, now=1_000_000.0)
FACTS = WithdrawalFacts(
    amount=HELD, fee=FEE, held=HELD, lamports=10_000, sponsor=SOL, opens=False, wallet=True, other=True
)


def test_who_has_earned_and_asks_for_what_there_is_is_not_refused() -> None:
    assert rules.refused_by_books(LIMITS, BOOKS) is None
    assert rules.refused_by_ledger(LIMITS, BOOKS, FACTS) is None


@pytest.mark.parametrize("rent", [0, 2_039_280])
@pytest.mark.parametrize("amount", [0, 1, 999, 1_000, FEE, 400_000])
def test_the_fee_never_leaves_less_than_the_least(amount: int, rent: int) -> None:
    fee = -(-(10_000 + rent) * PRICE // SOL)
    facts = replace_facts(amount=amount, fee=fee)
    refused = rules.refused_by_ledger(LIMITS, BOOKS, facts)
    assert (refused is None) == (amount - fee >= LIMITS.least)


def replace_facts(**changes: Any) -> WithdrawalFacts:
    fields = {name: getattr(FACTS, name) for name in WithdrawalFacts.__struct_fields__}
    return WithdrawalFacts(**fields | changes)

"""The agent lets nobody take more of a withdrawal than its owner has seen: coordinators of every kind, on the real ledger."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest
from aiohttp import web
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from coordinator.services.core.context import Context
from coordinator.services.payments.withdrawals import LedgerSponsor, WithdrawalService
from coordinator.store.memory import MemoryStore
from coordinator.store.records import NodeRecord
from desktop.agent.app.status import WithdrawOrder
from desktop.agent.earnings.withdrawals import OwnWithdrawals
from desktop.answers import WalletWithdrawal
from ledger.client import Ledger, LedgerConfig
from ledger.local.chain import BLOCKHASH_SLOTS, SLOT_S
from ledger.money import Amount
from ledger.sponsored import SponsoredTransfer
from protocol.identity import NodeKey
from protocol.node import LedgerInfo
from protocol.rest.withdrawals import (
    SentWithdrawal,
    SignedWithdrawal,
    WithdrawalAnswer,
    WithdrawalOffer,
    WithdrawalRequest,
    WithdrawalTerms,
)
from tests.coordinator.bench import CONFIG
from tests.coordinator.fakes import profile
from tests.ledger.conftest import serving_world
from tests.ledger.test_sponsored import moved
from tests.ledger.world import World
from tests.protocol.test_wallets import SECRETS
from tests.sim.world import SimClock
from tests.support.withdrawals import serving_withdrawals

HELD, FEE, ACCOUNT = 5_000_000, 1_500, 305_892
KEY = NodeKey(b"lender's own key, 32 bytes long.")
OWNER = Pubkey.from_string(KEY.address)
PRICED = replace(CONFIG, sol_price=150_000_000, ledger_program="named")

ChangeOffer = Callable[["Twisting", WithdrawalRequest, WithdrawalOffer], WithdrawalOffer]


@dataclass
class Twisting:
    """A coordinator that changes what it says. ``keeps``: it takes what was signed, does not send it, and answers nonsense."""

    real: WithdrawalService
    world: World
    offered: ChangeOffer = lambda _self, _asked, offer: offer
    answered: Callable[[SentWithdrawal], SentWithdrawal] = lambda sent: sent
    keeps: bool = False
    taken: list[SignedWithdrawal] = field(default_factory=list)

    async def terms(self) -> WithdrawalTerms:
        return await self.real.terms()

    async def offer(self, asked: WithdrawalRequest, address: str) -> WithdrawalAnswer:
        answer = await self.real.offer(asked, address)
        return answer if answer.offer is None else WithdrawalAnswer(self.offered(self, asked, answer.offer))

    async def take(self, signed: SignedWithdrawal, address: str) -> SentWithdrawal:
        self.taken.append(signed)
        if self.keeps:
            return SentWithdrawal("5ig", b"something else")
        return self.answered(await self.real.take(signed, address))

    def message(self, asked: WithdrawalRequest, offer: WithdrawalOffer, **other: Any) -> bytes:
        """A transaction that is well made, of other terms than those that are told."""
        fields = {
            "sponsor": str(self.world.coordinator),
            "owner": asked.owner,
            "target": asked.target,
            "arrives": Amount(offer.arrives),
            "costs": Amount(offer.fee),
            "opens": offer.opens,
        }
        return SponsoredTransfer(**fields | other).draft(self.world.market, self.world.chain.blockhash())

    def with_one_more(self, offer: WithdrawalOffer) -> bytes:
        """What was offered, and a delegate beside it who may take the rest."""
        world, owner = self.world, Keypair.from_seed(KEY.seed)
        sent = moved(offer.arrives, world.keys[world.stranger], world.market, owner)
        paid = moved(offer.fee, world.keys[world.coordinator], world.market, owner)
        approve = token.approve(
            models.ApproveParams(
                program_id=TOKEN_PROGRAM_ID,
                source=self.world.wallet(OWNER),
                delegate=self.world.submitter,
                owner=OWNER,
                amount=HELD,
                signers=[],
            )
        )
        whole = MessageV0.try_compile(world.coordinator, [sent, paid, approve], [], world.chain.blockhash())
        return bytes(VersionedTransaction.populate(whole, [Signature.default()] * 2))


@dataclass
class Scene:
    """An owner without SOL before a coordinator."""

    world: World
    ledger: Ledger
    coordinator: Twisting
    url: str
    own: OwnWithdrawals = field(default_factory=OwnWithdrawals)

    async def ask(self, target: Pubkey | str | None = None, amount: str = "", **more: Any) -> WalletWithdrawal:
        to = str(self.world.stranger if target is None else target)
        return await self.own.withdraw(self.url, None, KEY, WithdrawOrder(to, amount, **more))

    async def send(self, target: Pubkey | None = None, amount: str = "") -> WalletWithdrawal:
        """As a window does: the fee is shown, and then it is sent."""
        shown = await self.ask(target, amount)
        if shown.denied is not None:
            return shown
        exact = f"{shown.amount // 10**6}.{shown.amount % 10**6:06d}"
        return await self.ask(target, exact, send=True, fee=shown.fee)

    def age(self) -> None:
        self.world.clock.advance(SLOT_S * (BLOCKHASH_SLOTS + 2))


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    world, store = World(), MemoryStore()
    world.send(world.create_wallet(OWNER), world.move_tokens(world.node, world.wallet(OWNER), HELD))
    async with store.transaction() as tx:
        await tx.insert(NodeRecord(KEY.address, KEY.address, profile("lender"), 0.0, 0.0, earned=10_000_000))
    async with serving_world(world) as url, await Ledger.connect(LedgerConfig(url)) as ledger:
        sponsor = LedgerSponsor(ledger, url, bytes(world.key("coordinator").secret()), str(world.coordinator))
        real = WithdrawalService(Context(PRICED, SimClock(), store, secrets.token_bytes), sponsor)
        twisting = Twisting(real, world)
        async with serving_withdrawals(twisting) as base:
            yield Scene(world, ledger, twisting, base)


def reason(found: WalletWithdrawal) -> str:
    """Why; each denial is a sentence with a way out, and nothing is called sent."""
    assert found.denied is not None, found
    assert not found.signature
    assert ":" in found.denied.text or ";" in found.denied.text, found.denied.text
    return found.denied.reason


async def test_what_was_shown_is_what_leaves_and_arrives(scene: Scene) -> None:
    world, target = scene.world, scene.world.new_key("receiver")
    mine, before = world.tokens(world.coordinator), HELD
    shown = await scene.ask(target, "2")
    assert (shown.amount, shown.fee, shown.arrives, shown.held) == (
        2_000_000,
        FEE + ACCOUNT,
        2_000_000 - FEE - ACCOUNT,
        HELD,
    )
    assert shown.opens
    assert world.tokens(OWNER) == before, "asking costs nothing"
    sent = await scene.send(target, "2")
    assert sent.denied is None
    assert (sent.signature != "", sent.held) == (True, HELD - 2_000_000)
    assert (world.tokens(OWNER), world.tokens(target)) == (HELD - 2_000_000, 2_000_000 - FEE - ACCOUNT)
    assert world.tokens(world.coordinator) - mine == FEE + ACCOUNT
    assert await scene.ledger.lamports(KEY.address) == 0


OFFERS: dict[str, ChangeOffer] = {
    "the transaction takes a higher fee than is told": lambda s, a, o: msgspec.structs.replace(
        o, transaction=s.message(a, o, arrives=Amount(o.arrives - 1), costs=Amount(o.fee + 1))
    ),
    "the transaction takes the rest, too": lambda s, a, o: msgspec.structs.replace(
        o, transaction=s.message(a, o, costs=Amount(o.fee + HELD - a.amount))
    ),
    "the amounts told are more than was asked for": lambda s, a, o: msgspec.structs.replace(
        o, fee=o.fee + 1, transaction=s.message(a, o, costs=Amount(o.fee + 1))
    ),
    "it goes to somebody else": lambda s, a, o: msgspec.structs.replace(
        o, transaction=s.message(a, o, target=str(s.world.submitter))
    ),
    "the costs go to somebody else": lambda s, a, o: msgspec.structs.replace(
        o, transaction=s.message(a, o, sponsor=str(s.world.submitter))
    ),
    "rent is told that is not paid": lambda s, a, o: msgspec.structs.replace(o, opens=not o.opens),
    "a delegate is approved": lambda s, a, o: msgspec.structs.replace(o, transaction=s.with_one_more(o)),
    "there is no transaction": lambda s, a, o: msgspec.structs.replace(o, transaction=b""),
    "nothing is left": lambda s, a, o: msgspec.structs.replace(o, arrives=0, fee=a.amount, transaction=s.message(a, o)),
}


@pytest.mark.parametrize("change", OFFERS)
async def test_an_offer_that_is_something_else_is_not_even_shown(scene: Scene, change: str) -> None:
    honest = (await scene.ask(amount="1")).fee
    scene.coordinator.offered = OFFERS[change]
    assert reason(await scene.ask(amount="1")) == "altered"
    assert reason(await scene.ask(amount="1", send=True, fee=honest)) == "altered"
    assert scene.coordinator.taken == [], "nothing was signed"
    assert scene.world.tokens(OWNER) == HELD


async def test_a_fee_that_rose_after_it_was_shown_is_shown_again(scene: Scene) -> None:
    def dearer(self: Twisting, asked: WithdrawalRequest, offer: WithdrawalOffer) -> WithdrawalOffer:
        fee, arrives = offer.fee + 1, offer.arrives - 1
        draft = self.message(asked, offer, arrives=Amount(arrives), costs=Amount(fee))
        return msgspec.structs.replace(offer, arrives=arrives, fee=fee, transaction=draft)

    shown = await scene.ask(amount="1")
    scene.coordinator.offered = dearer
    found = await scene.ask(amount="1", send=True, fee=shown.fee)
    assert reason(found) == "changed"
    assert found.denied is not None
    assert found.denied.amount == shown.fee + 1
    assert scene.coordinator.taken == []


async def test_what_was_signed_and_not_sent_is_over_before_another_one_is_signed(scene: Scene) -> None:
    scene.coordinator.keeps = True
    assert reason(await scene.send(amount="1")) == "undecided"
    assert reason(await scene.send(amount="1")) == "under way"
    assert len(scene.coordinator.taken) == 1
    kept = scene.coordinator.taken[0]
    scene.age()
    assert (await scene.coordinator.real.take(kept, "192.0.2.1")).refused is not None, "it is void by now"
    scene.coordinator.keeps = False
    assert (await scene.send(amount="1")).denied is None
    assert scene.world.tokens(OWNER) == HELD - 1_000_000


async def test_an_answer_that_is_lost_says_that_it_may_have_been_sent(scene: Scene) -> None:
    def lost(_sent: SentWithdrawal) -> SentWithdrawal:
        raise ConnectionResetError

    scene.coordinator.answered = lost
    found = await scene.send(amount="1")
    assert reason(found) == "undecided"
    assert scene.world.tokens(OWNER) == HELD - 1_000_000, "it was"
    scene.coordinator.answered = lambda sent: sent
    assert reason(await scene.send(amount="1")) == "under way", "so it is not sent a second time"
    assert scene.world.tokens(OWNER) == HELD - 1_000_000


@pytest.mark.parametrize("forged", ["another signature", "another transaction", "no signature of the coordinator"])
async def test_a_receipt_is_believed_only_with_both_signatures(scene: Scene, forged: str) -> None:
    def answer(sent: SentWithdrawal) -> SentWithdrawal:
        parsed = VersionedTransaction.from_bytes(sent.transaction)
        assert isinstance(parsed.message, MessageV0)
        second = parsed.signatures[1]
        signatures = [Signature.default(), second] if forged.startswith("no") else [second, second]
        wire = bytes(VersionedTransaction.populate(parsed.message, signatures))
        return msgspec.structs.replace(sent, transaction=b"\x01" + wire[1:] if "transaction" in forged else wire)

    scene.coordinator.answered = answer
    assert reason(await scene.send(amount="1")) == "undecided"


async def test_what_the_owner_got_wrong_is_said_without_asking_the_coordinator(scene: Scene) -> None:
    world = scene.world
    for target, amount, why in (
        (KEY.address, "1", "own wallet"),
        ("not an address", "1", "no address"),
        (str(world.wallet(world.stranger)), "1", "no wallet"),
        (str(world.stranger), "1,5", "no amount"),
        (str(world.stranger), "0", "no amount"),
        (str(world.stranger), "5.000001", "holds less"),
    ):
        assert reason(await scene.ask(target, amount)) == why
    empty = await scene.ask("", "")
    assert (reason(empty), empty.held) == ("no address", HELD), "a window asks so what there is"
    found = await scene.ask(amount="5.000001")
    assert (found.held, found.denied and found.denied.amount) == (HELD, HELD)


async def test_where_to_send_is_read_as_every_address_and_a_secret_is_not_repeated(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    found = await scene.ask(f" solana:{scene.world.stranger}\n", "1")
    assert (found.denied, found.target) == (None, str(scene.world.stranger))
    for secret in SECRETS.values():
        found = await scene.ask(secret, "1")
        assert reason(found) == "secret"
        assert found.denied is not None
        assert "whoever has it has the money" in found.denied.text
        said = str(found) + caplog.text
        assert not any(part in said for part in secret.split() if len(part) > 8)


async def test_an_empty_wallet_says_so_before_anything_else(scene: Scene) -> None:
    assert (await scene.send()).denied is None
    assert scene.world.tokens(OWNER) == 0
    assert reason(await scene.ask("")) == "nothing"


async def test_the_coordinators_refusal_is_passed_on_with_its_amount(scene: Scene) -> None:
    found = await scene.ask(scene.world.new_key("receiver"), "0.3")
    assert reason(found) == "too little"
    assert found.denied is not None
    assert found.denied.amount == FEE + ACCOUNT + PRICED.least_withdrawal


@pytest.mark.parametrize(
    ("url", "why"), [("", "no coordinator"), ("http://127.0.0.1:9", "no answer"), ("ftp://x", "no answer")]
)
async def test_a_coordinator_that_is_not_there_is_named(scene: Scene, url: str, why: str) -> None:
    found = await scene.own.withdraw(url, None, KEY, WithdrawOrder(str(scene.world.stranger)))
    assert reason(found) == why


async def test_an_older_coordinator_and_a_ledger_that_is_away_are_named(scene: Scene) -> None:
    known = LedgerInfo("http://127.0.0.1:9", "", "", str(scene.world.coordinator))
    found = await scene.own.withdraw(scene.url, known, KEY, WithdrawOrder(str(scene.world.stranger)))
    assert reason(found) == "ledger away"
    app = web.Application()
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    older = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        found = await scene.own.withdraw(older, None, KEY, WithdrawOrder(str(scene.world.stranger)))
    finally:
        await runner.cleanup()
    assert reason(found) == "not offered"


async def test_with_sol_of_its_own_the_wallet_needs_no_coordinator(scene: Scene) -> None:
    world = scene.world
    info = LedgerInfo(scene.ledger._connection.url, "", "", str(world.coordinator))
    order = WithdrawOrder(str(world.stranger), "1", own_sol=True)
    shown = await scene.own.withdraw("", info, KEY, order)
    assert (shown.fee, shown.arrives, shown.lamports, shown.opens) == (0, 1_000_000, 5_000, False)
    poor = await scene.own.withdraw("", info, KEY, msgspec.structs.replace(order, send=True))
    assert reason(poor) == "own sol"
    await scene.ledger.faucet(KEY.address, Amount(0), 10_000_000)
    sent = await scene.own.withdraw("", info, KEY, msgspec.structs.replace(order, send=True))
    assert (sent.denied, world.tokens(OWNER)) == (None, HELD - 1_000_000)

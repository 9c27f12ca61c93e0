"""A program that an older version has deployed: upgraded where it is, with everything that lies under it; or still served.

``old/`` holds the builds from before the terms had a revision: no ``escrow_accept``, no loans, disputes without a bound.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from ledger import deploy as deploying
from ledger import events, merkle
from ledger.client import Ledger, LedgerConfig
from ledger.connection import Connection
from ledger.deploy import Deployer, DeployTerms
from ledger.errors import DeployError
from ledger.local import genesis
from ledger.local.chain import SLOT_S
from ledger.local.genesis import BOND, COOLDOWN_S, VERDICT_S, open_chain
from ledger.local.rpc import Rpc
from ledger.local.server import build_app
from ledger.local.store import LocalStore
from ledger.money import Amount
from ledger.program import loader
from ledger.program.build import program_path
from ledger.program.codes import REVISION, Consent, MarketError
from ledger.program.interface import MarketAddresses
from ledger.program.layout import EscrowStatus, Ruling, read_terms
from ledger.states import Asked
from protocol.merkle import MerkleTree, merkle_root
from tests.ledger.by_hand import pay
from tests.ledger.surfpool import serving
from tests.ledger.test_clusters import Cluster, People
from tests.ledger.world import JOB, TOKENS, HandClock, World

OLD = Path(__file__).parents[1] / "old"
AUDIT, LATER_AUDIT, EVIDENCE, REASON = (bytes([number]) * 32 for number in range(1, 5))
NOTE = events.encode(events.Funded(job="5" * 32, amount=1000))


def old_path(version: int) -> Path:
    return OLD / f"market.v{version}.so"


class OldWorld(World):
    """A ledger that an older version began, and that can be opened anew by this one."""

    def __init__(self) -> None:
        self.clock, self.store = HandClock(), LocalStore(":memory:")
        self.chain, self.genesis = open_chain(self.store, self.clock, self.entropy)
        self.clock.advance(1.1)
        self._meet()

    def reopen(self) -> None:
        self.chain, self.genesis = open_chain(self.store, self.clock, self.entropy)

    @property
    def held(self) -> bytes:
        """The program's code."""
        data = self.chain.account(loader.data_address(self.market.program))
        assert data is not None
        return data.data[loader.DATA_HEADER :].rstrip(b"\0")


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> OldWorld:
    with monkeypatch.context() as patched:
        patched.setattr(genesis, "program_path", old_path)
        patched.setattr(genesis, "REVISION", 0)
        return OldWorld()


def _accuse(world: World, audit: bytes) -> list[Any]:
    vault = world.market.dispute(world.stranger, audit)
    opening = world.market.dispute_open(world.stranger, world.node, audit)
    return [world.create_wallet(vault), world.move_tokens(world.stranger, world.wallet(vault), BOND), opening]


def test_what_an_older_program_began_goes_on_under_the_new_one(old: OldWorld) -> None:
    market = old.market
    escrow, stake = old.open_escrow(1000, cap=900, max_payees=2), old.open_stake(1000)
    old.send(old.settle(escrow, (old.node, 100)), market.escrow_grow(old.coordinator, escrow, 3))
    earned = {old.node: 300, old.stranger: 50}
    leaves = [merkle.earning(bytes(old.wallet(payee)), total) for payee, total in earned.items()]
    old.send(market.escrow_commit(old.coordinator, escrow, merkle_root(leaves), 350, 1))
    old.send(market.stake_slash(old.coordinator, old.node, old.treasury, 100, REASON))
    old.send(*_accuse(old, AUDIT))
    assert old.held == old_path(3).read_bytes().rstrip(b"\0")
    before = (old.escrow(escrow), old.stake(stake), old.dispute(market.dispute(old.stranger, AUDIT)))

    old.reopen()
    assert old.held == program_path(3).read_bytes().rstrip(b"\0")
    assert (old.escrow(escrow), old.stake(stake), old.dispute(market.dispute(old.stranger, AUDIT))) == before
    assert (before[0].lent, before[0].accepted, before[1].hold) == (0, False, 0)
    terms = old.chain.account(market.terms())
    assert terms is not None
    assert read_terms(terms.data).revision == REVISION

    # The escrow: paid, claimed, refunded, closed.
    old.send(market.escrow_claim(old.stranger, escrow, old.node, 300, 0, MerkleTree(leaves).proof(0)))
    old.send(market.escrow_grow(old.coordinator, escrow, 1))
    assert (
        old.refusal(market.escrow_accept(old.coordinator, escrow, deadline=0, cap=1, amount=1, max_payees=1))
        == MarketError.USED
    )
    old.send(old.settle(escrow, (old.stranger, 60)), market.escrow_refund(old.coordinator, old.submitter, JOB))
    lent = old.chain.account(old.coordinator)
    old.send(market.escrow_close(old.submitter, old.submitter, JOB, old.coordinator))
    after = old.chain.account(old.coordinator)
    assert lent is not None
    assert after is not None
    assert after.lamports - lent.lamports == 40 * 6960, "what was lent under this program"
    assert old.escrow(escrow).status == EscrowStatus.CLOSED

    # The stake and its dispute: slashed by the cap of now, held by what waits, closed.
    old.send(market.stake_deposit(old.node, old.node, 9000))
    old.send(market.stake_slash(old.coordinator, old.node, old.treasury, 4900, EVIDENCE))
    old.send(market.stake_request(old.node, 4100))
    old.clock.advance(COOLDOWN_S - 1)
    assert old.refusal(market.stake_withdraw(old.node)) == MarketError.DISPUTED
    verdict = market.dispute_verdict(old.coordinator, old.stranger, old.node, AUDIT, EVIDENCE, upheld=True)
    old.send(verdict, market.dispute_close(old.stranger, old.stranger, AUDIT))
    old.send(*_accuse(old, LATER_AUDIT))
    old.clock.advance(VERDICT_S)
    assert old.refusal(market.stake_withdraw(old.node)) == MarketError.DISPUTED
    old.clock.advance(1)
    old.send(market.stake_withdraw(old.node))
    assert old.tokens(old.node) == TOKENS + 300 - 10_000 + 4100
    assert old.stake(stake).disputes == 1


def test_opening_it_again_changes_nothing_more(old: OldWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    old.reopen()
    sent: list[object] = []
    monkeypatch.setattr(genesis, "send", lambda *call: sent.append(call))
    old.reopen()
    assert sent == []


def test_an_interrupted_upgrade_is_done_at_the_next_start(old: OldWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Exception):
        pass

    def cut(*_: object) -> None:
        raise Cut

    for name in ("extend", "upgrade"):
        with monkeypatch.context() as patched:
            patched.setattr(loader, name, cut)
            with pytest.raises(Cut):
                old.reopen()
    with monkeypatch.context() as patched:
        patched.setattr(genesis, "set_terms", cut)
        with pytest.raises(Cut):
            old.reopen()
    old.reopen()
    assert old.held == program_path(3).read_bytes().rstrip(b"\0")
    terms = old.chain.account(old.market.terms())
    assert terms is not None
    assert read_terms(terms.data).revision == REVISION


# On a cluster


class SteppingRpc(Rpc):
    """Answers while time passes: a slot a question."""

    def __init__(self, world: World) -> None:
        super().__init__(world.chain, world.genesis)
        self._world = world

    def call(self, method: str, params: list[Any]) -> Any:
        self._world.clock.advance(SLOT_S)
        return super().call(method, params)


@pytest.fixture(params=["embedded", "surfpool"])
async def cluster(request: pytest.FixtureRequest, world: World) -> AsyncIterator[Cluster]:
    """Two ledgers whose slots go on."""
    if request.param == "surfpool":
        with serving() as server:
            yield Cluster(server.url, server.payer, 0)
        return
    runner = web.AppRunner(build_app(SteppingRpc(world), lambda: None), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    yield Cluster(f"http://{host}:{port}", world.genesis.root, 3, world)
    await runner.cleanup()


async def _run(url: str, payer: Keypair, authority: Pubkey | None, terms: DeployTerms) -> str:
    connection = Connection(url)
    try:
        return (await Deployer(connection, payer, b"\x31" * 32).run(authority, terms)).program
    finally:
        await connection.aclose()


async def test_a_cluster_is_upgraded_by_its_authority_and_served_before(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    people, connection = People(cluster), Connection(cluster.url)
    treasury = await people.settle_in(connection)
    await connection.aclose()
    payer, mint = cluster.payer, people.mint.pubkey()
    terms = DeployTerms(mint, treasury, slash_bps=4000, cooldown=0, window=1, bond=50, verdict_time=3600)
    with monkeypatch.context() as patched:
        patched.setattr(deploying, "program_path", old_path)
        patched.setattr(deploying, "REVISION", 0)
        program = await _run(cluster.url, payer, payer.pubkey(), terms)
    who, judge, node = (str(people.keys[name].pubkey()) for name in ("submitter", "coordinator", "node"))
    asked = Asked(2**40, Amount(1000), Amount(1000), 8)
    config = LedgerConfig(cluster.url, program, str(mint))
    async with await Ledger.connect(config) as ledger:
        assert (await ledger.terms()).revision == 0
        await ledger.confirm(await ledger.prepare_escrow(people.seed("submitter"), JOB, judge, Amount(1000), 2**40, 8))
        await ledger.confirm(await ledger.prepare_acceptance(people.seed("coordinator"), who, JOB, asked, NOTE))
        await ledger.open_stake(people.seed("node"), Amount(100), judge)
        assert [event.kind for event in await ledger.history(who, JOB)] == ["opened", "deposited", "funded"]

        assert await _run(cluster.url, payer, payer.pubkey(), DeployTerms(mint, treasury)) == program
        kept = await ledger.terms()
        assert (kept.revision, kept.slash_bps, kept.bond, kept.cooldown) == (REVISION, 4000, 50, 0)
        await ledger.confirm(await ledger.prepare_acceptance(people.seed("coordinator"), who, JOB, asked, NOTE))
        await pay(ledger, people.seed("coordinator"), who, JOB, {node: Amount(7)})
        state = await ledger.escrow(who, JOB)
        assert state is not None
        assert (state.accepted, state.paid, state.consent) == (True, 7, Consent.ADMIT | Consent.END)
        await ledger.confirm(await ledger.prepare_dispute(people.seed("stranger"), node, AUDIT))
        challenger = str(people.keys["stranger"].pubkey())
        await ledger.confirm(
            await ledger.prepare_verdict(
                people.seed("coordinator"), challenger, AUDIT, EVIDENCE, upheld=True, slash=Amount(40)
            )
        )
        found = await ledger.dispute(challenger, AUDIT)
        assert found is not None
        assert found.ruling == Ruling.UPHELD
        with pytest.raises(DeployError, match="may upgrade"):
            await _run(cluster.url, people.keys["payee"], None, terms)


async def test_a_final_program_is_told_and_left_alone(world: World, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    payer = world.keys[world.stranger]
    terms = DeployTerms(world.market.mint, world.treasury)
    with monkeypatch.context() as patched:
        patched.setattr(deploying, "program_path", old_path)
        program = Pubkey.from_string(await _run(url, payer, None, terms))
    with pytest.raises(DeployError, match="another program than this Cottage, and nobody may upgrade it"):
        await _run(url, payer, None, terms)
    data = world.chain.account(loader.data_address(program))
    assert data is not None
    assert data.data[loader.DATA_HEADER :] == old_path(3).read_bytes()
    assert MarketAddresses(program, world.market.mint).terms() is not None

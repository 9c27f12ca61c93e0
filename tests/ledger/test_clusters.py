"""One story of the whole market, with every instruction, over JSON-RPC, on the embedded ledger and an independent one.

The second is Surfpool (``surfpool.py``): a process of its own here, whose clock runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
from aiohttp import ClientSession
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountParams, TransferParams, create_account, transfer
from spl.token import instructions as token
from spl.token import models
from spl.token.constants import TOKEN_PROGRAM_ID

from ledger import events
from ledger.client import Ledger, LedgerConfig
from ledger.connection import Connection
from ledger.deploy import Deployer, DeployTerms
from ledger.errors import TransactionFailedError
from ledger.money import Amount
from ledger.program.codes import Consent, MarketError
from ledger.program.interface import MarketAddresses
from ledger.program.layout import Ruling
from ledger.sender import Sender
from ledger.states import Asked
from protocol.merkle import MerkleProof, MerkleTree
from tests.ledger.by_hand import pay, promise, send
from tests.ledger.surfpool import serving
from tests.ledger.world import World, key

NAMES = ("submitter", "coordinator", "node", "stranger", "payee")
JOB, AUDIT, EVIDENCE, REASON, SECOND_JOB, SECOND_AUDIT = (bytes([number]) * 32 for number in range(1, 7))
RICH = 1_000_000
LATER = 2**40  # A deadline that no clock of a test reaches.


@dataclass(frozen=True)
class Cluster:
    """Somewhere to deploy to: its address, a key with SOL, and the sBPF version that it should take."""

    url: str
    payer: Keypair
    version: int
    world: World | None = None

    async def forward(self, unix: int) -> None:
        """Move the ledger's clock on to a time."""
        if self.world is not None:
            self.world.clock.advance(unix - self.world.clock.now)
            return
        asked = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "surfnet_timeTravel",
            "params": [{"absoluteTimestamp": unix * 1000}],
        }
        async with ClientSession() as session, session.post(self.url, json=asked) as answer:
            said = await answer.json()
        assert "error" not in said, said


@pytest.fixture(params=["embedded", "surfpool"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The embedded ledger, and an independent one."""
    if request.param == "embedded":
        world: World = request.getfixturevalue("world")
        yield Cluster(request.getfixturevalue("url"), world.genesis.root, 3, world)
        return
    with serving() as server:
        yield Cluster(server.url, server.payer, 0)


class People:
    """Keys with SOL and tokens of a new mint, made with nothing but a payer's key."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.mint = cluster, key("a mint of its own")
        self.keys = {name: key(f"{name} of the story") for name in NAMES}

    def __getattr__(self, name: str) -> Pubkey:
        return self.keys[name].pubkey()

    def seed(self, name: str) -> bytes:
        return bytes(self.keys[name])[:32]

    async def settle_in(self, connection: Connection) -> Pubkey:
        """Mint and wallets; returns the treasury's token account."""
        payer, mint = self.cluster.payer, self.mint.pubkey()
        sender = Sender(connection, Pubkey.default())
        space = CreateAccountParams(
            from_pubkey=payer.pubkey(),
            to_pubkey=mint,
            lamports=await connection.rent(82),
            space=82,
            owner=TOKEN_PROGRAM_ID,
        )
        rules = models.InitializeMint2Params(
            decimals=6, program_id=TOKEN_PROGRAM_ID, mint=mint, mint_authority=payer.pubkey()
        )
        treasury = key("treasury of the story").pubkey()
        batches: list[tuple[list[Instruction], list[Keypair]]] = [
            ([create_account(space), token.initialize_mint2(rules), self._wallet(treasury)], [self.mint])
        ]
        for pair in self.keys.values():
            who = pair.pubkey()
            minted = models.MintToCheckedParams(
                amount=RICH,
                decimals=6,
                dest=token.get_associated_token_address(who, mint),
                mint=mint,
                mint_authority=payer.pubkey(),
                program_id=TOKEN_PROGRAM_ID,
            )
            sol = TransferParams(from_pubkey=payer.pubkey(), to_pubkey=who, lamports=10**9)
            batches.append(([transfer(sol), self._wallet(who), token.mint_to_checked(minted)], []))
        for instructions, others in batches:
            prepared = (await sender.window()).sign(payer, instructions, others)
            await sender.confirm(prepared, 60)
        return token.get_associated_token_address(treasury, mint)

    def _wallet(self, owner: Pubkey) -> Instruction:
        return token.create_idempotent_associated_token_account(self.cluster.payer.pubkey(), owner, self.mint.pubkey())


async def _refused(ledger: Ledger, signer: Keypair, call: Instruction) -> MarketError | str:
    try:
        await ledger.confirm(await ledger._prepare(signer, [call]))
    except TransactionFailedError as error:
        return error.reason if error.code is None else MarketError(error.code)
    return "nothing refused it"


async def test_the_whole_market_works_and_refuses_alike_on_every_implementation(cluster: Cluster) -> None:
    people, connection = People(cluster), Connection(cluster.url)
    try:
        treasury = await people.settle_in(connection)
        terms = DeployTerms(
            people.mint.pubkey(), treasury, slash_bps=5000, cooldown=0, window=1, bond=50, verdict_time=3600
        )
        deployed = await Deployer(connection, cluster.payer, b"\x21" * 32).run(None, terms)
    finally:
        await connection.aclose()
    assert deployed.version == cluster.version
    config = LedgerConfig(cluster.url, deployed.program, str(people.mint.pubkey()))
    async with await Ledger.connect(config) as ledger:
        market = MarketAddresses(Pubkey.from_string(deployed.program), people.mint.pubkey())
        await _escrow_story(ledger, market, people)
        await _dispute_story(ledger, market, people, treasury)
        await _ending_story(ledger, market, people, cluster)


async def _escrow_story(ledger: Ledger, market: MarketAddresses, people: People) -> None:
    who, judge, node, payee = (
        str(people.keys[name].pubkey()) for name in ("submitter", "coordinator", "node", "payee")
    )
    opening = await ledger.prepare_escrow(
        people.seed("submitter"),
        JOB,
        judge,
        Amount(1000),
        LATER,
        3,
        cap=Amount(900),
        consent=Consent.ADMIT,
        payees=[node],
    )
    await ledger.confirm(opening)
    escrow = market.escrow(people.submitter, JOB)
    proof = MerkleTree([bytes(market.wallet(people.node))]).proof(0)
    await send(ledger, people.seed("stranger"), market.escrow_enrol(people.stranger, escrow, people.node, proof))
    await pay(ledger, people.seed("coordinator"), who, JOB, {node: Amount(100), payee: Amount(50)})
    earnings = ledger.earnings({node: Amount(300), payee: Amount(60)})
    await promise(ledger, people.seed("coordinator"), who, JOB, earnings.cumulative)
    claim = await ledger.prepare_claim(people.seed("node"), who, JOB, node, Amount(300), earnings.proofs[node])
    await ledger.confirm(claim)
    assert [await ledger.balance(one) for one in (node, payee)] == [RICH + 300, RICH + 50]
    await _refusals(ledger, people, _forbidden(market, people, escrow, earnings.proofs[node]))
    both = await ledger.prepare_refund(people.seed("submitter"), who, JOB, people.seed("coordinator"))
    await ledger.confirm(both)
    state = await ledger.escrow(who, JOB)
    assert state is not None
    assert (state.deposited, state.paid, state.refunded, state.balance) == (1000, 350, 640, 10)
    history = [event.kind for event in await ledger.history(who, JOB)]
    assert history == ["opened", "deposited", "enrolled", "admitted", "paid", "paid", "promised", "paid", "refunded"]


def _forbidden(
    market: MarketAddresses, people: People, escrow: Pubkey, proof: MerkleProof
) -> Sequence[tuple[str, Instruction, MarketError]]:
    """Who tries, what, and why not."""
    coordinator, submitter, stranger = people.coordinator, people.submitter, people.stranger
    return [
        ("stranger", market.escrow_settle(stranger, escrow, [(people.node, 400)]), MarketError.WRONG_AUTHORITY),
        ("coordinator", market.escrow_settle(coordinator, escrow, [(stranger, 1)]), MarketError.NOT_A_PAYEE),
        ("coordinator", market.escrow_settle(coordinator, escrow, [(people.node, 851)]), MarketError.PAY_CAP),
        ("coordinator", market.escrow_settle(coordinator, escrow, [(people.node, 2**64 - 1)]), MarketError.PAY_CAP),
        ("stranger", market.escrow_admit(stranger, escrow, [stranger], enrol=True), MarketError.WRONG_AUTHORITY),
        ("stranger", market.escrow_enrol(stranger, escrow, stranger, proof), MarketError.BAD_PROOF),
        ("stranger", market.escrow_claim(stranger, escrow, people.node, 301, 0, proof), MarketError.BAD_PROOF),
        ("coordinator", market.escrow_commit(coordinator, escrow, REASON, 901, 2), MarketError.PAY_CAP),
        ("coordinator", market.escrow_commit(coordinator, escrow, REASON, 400, 1), MarketError.STALE),
        ("coordinator", market.escrow_refund(coordinator, submitter, JOB), MarketError.TOO_EARLY),
        ("submitter", market.escrow_refund(submitter, submitter, JOB), MarketError.TOO_EARLY),
        ("stranger", market.escrow_refund(stranger, submitter, JOB), MarketError.WRONG_AUTHORITY),
        ("submitter", market.escrow_close(submitter, submitter, JOB), MarketError.NOT_EMPTY),
        ("submitter", market.escrow_extend(submitter, JOB, 899, LATER), MarketError.BAD_TERMS),
        ("submitter", market.escrow_open(submitter, JOB, coordinator, LATER, 3), MarketError.ALREADY_OPEN),
    ]


async def _refusals(ledger: Ledger, people: People, forbidden: Sequence[tuple[str, Instruction, MarketError]]) -> None:
    for name, call, error in forbidden:
        assert await _refused(ledger, people.keys[name], call) == error


async def _dispute_story(ledger: Ledger, market: MarketAddresses, people: People, treasury: Pubkey) -> None:
    judge, node, challenger = (str(people.keys[name].pubkey()) for name in ("coordinator", "node", "stranger"))
    await ledger.open_stake(people.seed("node"), Amount(1000), judge)
    await ledger.confirm(await ledger.prepare_dispute(people.seed("stranger"), node, AUDIT))
    state = await ledger.dispute(challenger, AUDIT)
    assert state is not None
    assert (state.ruling, state.bond, state.node) == (Ruling.OPEN, 50, node)
    slash, who = market.stake_slash, people.coordinator
    await _refusals(
        ledger,
        people,
        [
            ("coordinator", slash(who, people.node, treasury, 501, REASON), MarketError.SLASH_CAP),
            ("coordinator", slash(who, people.node, treasury, 1, REASON, who), MarketError.WRONG_DESTINATION),
            ("stranger", slash(people.stranger, people.node, treasury, 1, REASON), MarketError.WRONG_AUTHORITY),
            (
                "stranger",
                market.dispute_expire(people.stranger, people.stranger, people.node, AUDIT),
                MarketError.TOO_EARLY,
            ),
            ("node", market.dispute_open(people.node, people.node, EVIDENCE), MarketError.SELF),
            ("node", market.stake_close(people.node), MarketError.NOT_EMPTY),
            ("node", market.stake_close(people.node), MarketError.NOT_EMPTY),
        ],
    )
    verdict = await ledger.prepare_verdict(
        people.seed("coordinator"), challenger, AUDIT, EVIDENCE, upheld=True, slash=Amount(400)
    )
    await ledger.confirm(verdict)
    assert await ledger.balance(challenger) == RICH + 200
    await ledger.confirm(await ledger.prepare_dispute_close(people.seed("node"), challenger, AUDIT))
    assert await ledger.dispute(challenger, AUDIT) is None
    await ledger.confirm(await ledger.prepare_stake_request(people.seed("node"), Amount(550)))
    await ledger.confirm(await ledger.prepare_stake_withdrawal(people.seed("node")))
    assert await ledger.balance(node) == RICH + 300 - 450


async def _ending_story(ledger: Ledger, market: MarketAddresses, people: People, cluster: Cluster) -> None:
    """What nobody decides or uses comes back once its time has passed, and everything that is empty can be closed."""
    who, judge, node, challenger = (
        str(people.keys[name].pubkey()) for name in ("submitter", "coordinator", "node", "stranger")
    )

    async def done(name: str, *calls: Instruction) -> None:
        await ledger.confirm(await ledger._prepare(people.keys[name], list(calls)))

    before = {one: await ledger.balance(one) for one in (who, challenger)}
    await ledger.confirm(await ledger.prepare_dispute(people.seed("stranger"), node, SECOND_AUDIT))
    dispute = await ledger.dispute(challenger, SECOND_AUDIT)
    assert dispute is not None
    deadline = dispute.deadline - 60
    opening = await ledger.prepare_escrow(
        people.seed("submitter"), SECOND_JOB, judge, Amount(500), deadline - 60, 1, consent=Consent.ADMIT
    )
    await ledger.confirm(opening)
    escrow = market.escrow(people.submitter, SECOND_JOB)
    note = events.encode(events.Funded(job="5" * 32, amount=500))
    asked = Asked(deadline - 60, Amount(500), Amount(500), 1, Consent.ADMIT)
    odd = replace(asked, deadline=deadline)
    acceptance = await ledger.prepare_acceptance(people.seed("coordinator"), who, SECOND_JOB, odd, note)
    with pytest.raises(TransactionFailedError) as refused:
        await ledger.confirm(acceptance)
    assert refused.value.code == MarketError.BAD_TERMS
    acceptance = await ledger.prepare_acceptance(people.seed("coordinator"), who, SECOND_JOB, asked, note)
    await ledger.confirm(acceptance)
    await done("submitter", market.escrow_extend(people.submitter, SECOND_JOB, 600, deadline))
    await done("coordinator", market.escrow_grow(people.coordinator, escrow, 2))
    await done("stranger", market.escrow_deposit(people.stranger, escrow, 100))
    state = await ledger.escrow(who, SECOND_JOB)
    assert state is not None
    assert (state.cap, state.deadline, state.max_payees, state.balance) == (600, deadline, 3, 600)
    assert (state.accepted, state.lent) == (True, 2)
    lamports = await ledger.lamports(judge)
    refund = market.escrow_refund(people.payee, people.submitter, SECOND_JOB)
    await ledger.confirm(await ledger.prepare_stake_request(people.seed("node"), None))
    expire = market.dispute_expire(people.payee, people.stranger, people.node, SECOND_AUDIT)
    assert await _refused(ledger, people.keys["payee"], refund) == MarketError.WRONG_AUTHORITY
    assert await _refused(ledger, people.keys["payee"], expire) == MarketError.TOO_EARLY
    await cluster.forward(dispute.deadline + 60)
    await done("payee", refund, expire)
    await ledger.confirm(await ledger.prepare_close(people.seed("submitter"), who, SECOND_JOB))
    assert await ledger.lamports(judge) == lamports + 2 * 40 * 6960, "what it lent for two entries"
    assert await ledger.balance(who) == before[who] + 100, "what was deposited comes back, whoever had deposited it"
    assert await ledger.balance(challenger) == before[challenger] - 100, "the bond has come back"
    await ledger.confirm(await ledger.prepare_dispute_close(people.seed("node"), challenger, SECOND_AUDIT))
    history = [event.kind for event in await ledger.history(who, SECOND_JOB)]
    first = ["opened", "deposited", "accepted", "funded"]
    assert history == [*first, "extended", "grown", "deposited", "refunded", "closed"]
    await ledger.confirm(await ledger.prepare_stake_close(people.seed("node")))
    assert await ledger.stake(node) is None
    assert await ledger.balance(node) == RICH + 300 - 400

"""A coordinator loses its disk long after its last backup: it asks its nodes and the ledger, and goes on where it was."""

from collections import Counter
from typing import cast

import pytest

from coordinator.domain.audits import auditors
from coordinator.domain.job import JobState
from coordinator.restoring import LOOK_S
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.context import Context
from coordinator.services.network.nodes import Nodes
from coordinator.services.recovery.catching_up import CatchingUp
from coordinator.services.recovery.job_records import RecordsSeal
from coordinator.services.recovery.recall import NobodysLeases, Recall
from coordinator.services.views.restores import restores_of
from coordinator.store.memory import MemoryStore
from coordinator.store.records import CommitRecord, EventRecord, NodeRecord, RoundRecord, RunRecord
from protocol.codec import decode
from protocol.node import MAX_RECORDS, PROTOCOL, Hello, NodeMessage
from tests.coordinator.fakes import COORDINATOR, COORDINATOR_KEY, FakeArtifacts, spec
from tests.sim.test_everybody_leaves import calm, to_the_end, until_rounds
from tests.sim.test_faults import check, gather_nodes, read, submit
from tests.sim.world import HOST, NONCE, FaultyStore, SimNode, World
from tests.support.seeds import seeds

A_ROUND = 1024  # Tokens: two steps of two replicas.
ROUNDS, BACKUP, DISASTER = 24, 3, 19


def backup_of(store: MemoryStore) -> MemoryStore:
    """The database as it is now, and nothing that comes after."""
    made = MemoryStore()
    made._rows = {kind: dict(rows) for kind, rows in store._rows.items()}
    made._numbers = dict(store._numbers)
    return made


async def restore(world: World, backup: MemoryStore, stood: dict[str, tuple[int, int]] | None = None) -> Recall:
    """Another coordinator begins from a backup, with what nodes return and the ledger shows.

    ``stood``: where jobs stood in the backup; None: they do.
    """
    world._fall()
    world.records = backup
    context = Context(world.config, world.clock, FaultyStore(backup, world), world.chance.randbytes)
    work = CatchingUp(context, world.chain, cast(ArtifactStore, FakeArtifacts()))
    nodes = Nodes(context, NobodysLeases(context), world.chain, COORDINATOR, lambda _node: (), COORDINATOR_KEY)
    now = await work.at_work()
    recall = Recall(context, nodes, RecordsSeal(COORDINATOR_KEY.seed), now)
    for node in world.nodes:
        if node.up:
            await ask(world, node, nodes, recall)
    await work.run(recall.found, now if stood is None else stood)
    return recall


async def ask(world: World, node: SimNode, nodes: Nodes, recall: Recall) -> None:
    """A node says what it keeps, and returns what is asked for."""
    signature = node.key.sign("cottage-hello", NONCE, HOST.encode())
    hello = Hello(PROTOCOL, node.key.address, node.payout, signature, node.profile, node.held())
    node.session = session = await nodes.enter(hello, NONCE, HOST, node._receive, lambda _reason: node.cut())
    await recall.begin(session, hello)
    while node.inbox or recall.waits:
        while node.inbox:
            node.obey()
            while node.out:
                await recall.receive(session, decode(node.out.popleft(), NodeMessage))
        world.clock.t += LOOK_S
        recall.look()
    recall.left(session)
    node.cut()


async def disaster(seed: int, nodes: int = 5, kept: int = ROUNDS) -> tuple[World, str, Counter[str]]:
    """A world that has been restored; what its payees had been paid by then. ``kept``: entries until so many rounds are left."""
    world = calm(seed, nodes)
    world.chain.sees_paid = True
    await gather_nodes(world)
    job = await submit(world, 2, 2, spec(2, 2, tokens=ROUNDS * A_ROUND))
    await until_rounds(world, job, BACKUP)
    backup = backup_of(world.records)
    await until_rounds(world, job, DISASTER)
    for _ in range(world.chance.randrange(300)):
        await world.turn()
    paid = Counter(world.chain.escrows[job].paid)
    for node in world.nodes:
        node.records = {entry: data for entry, data in node.records.items() if entry.rounds <= kept}
    await restore(world, backup)
    return world, job, paid


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", seeds(3, of=20))
async def test_a_job_goes_on_where_its_nodes_are_and_nobody_is_paid_twice_or_punished(seed: int) -> None:
    world, job, paid = await disaster(seed)
    assert paid.total() > 0
    before = [record for record in await read(world, RoundRecord, job) if record.state == "complete"]
    assert len(before) >= DISASTER - 1, "what nodes kept has every round but the one that had just ended"
    stored = await to_the_end(world, job)
    await check(world, job, stored)
    done = Counter(r.number for r in await read(world, RoundRecord, job) if r.state == "complete")
    assert set(done.values()) == {1}, "no complete round was done again"
    assert all(c.lease for c in await read(world, CommitRecord, job)), "whatever was paid is known by its share"
    pots = [r.pot for r in await read(world, RoundRecord, job) if r.state == "complete" and r.steps]
    assert max(pots) - min(pots) <= 1, "each round is worth what it was quoted at"
    assert stored.state is JobState.SETTLED
    async with world.records.transaction() as tx:
        nodes = await tx.find(NodeRecord)
    assert not any(node.banned for node in nodes)
    earned = Counter({node.payout: node.earned for node in nodes})
    assert +earned == +Counter(world.chain.escrows[job].paid)


@pytest.mark.parametrize("seed", [3])
async def test_a_restore_that_is_begun_again_leaves_what_it_had_brought_up(seed: int) -> None:
    """After a crash in the middle, say, when nodes keep nothing newer any more."""
    world, job, _ = await disaster(seed)
    [before] = await read(world, RunRecord, job)
    assert before.run.kept
    assert before.run.done >= DISASTER - 1
    told = await read(world, EventRecord, job)
    for _ in range(2):
        await restore(world, backup_of(world.records), {job: (0, BACKUP)})
    assert await read(world, RunRecord, job) == [before]
    assert await read(world, EventRecord, job) == told
    stored = await to_the_end(world, job)
    await check(world, job, stored)
    done = Counter(r.number for r in await read(world, RoundRecord, job) if r.state == "complete")
    assert set(done.values()) == {1}, "no complete round was done again"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kept", [0, 12])
@pytest.mark.parametrize("seed", seeds(1, of=10))
async def test_where_nodes_have_kept_little_or_nothing_the_books_are_those_of_the_ledger(seed: int, kept: int) -> None:
    world, job, paid = await disaster(seed, kept=kept)
    commits = await read(world, CommitRecord, job)
    known: Counter[str] = Counter()
    for commit in commits:
        if commit.state == "verified" and commit.settlement is not None:
            known[commit.payout] += commit.amount
    assert not paid - known, "whatever the ledger has paid is in the books"
    stored = await to_the_end(world, job)
    await check(world, job, stored)
    await published_as_paid(world, job)
    assert stored.state is JobState.SETTLED
    assert stored.paid <= stored.quote.price


async def published_as_paid(world: World, job: str) -> None:
    """Shares of published rounds and what restores are said to have found paid make what the ledger has paid, by payee."""
    async with world.records.transaction() as tx:
        (restore,) = await restores_of(tx, job)
    rounds = {(r.epoch, r.number) for r in await read(world, RoundRecord, job) if r.state == "complete"}
    told: Counter[str] = Counter()
    for payout in restore.payouts:
        told[payout.payee] += payout.amount
    for commit in await read(world, CommitRecord, job):
        if commit.state == "verified" and (commit.epoch, commit.round) in rounds:
            told[commit.payout] += commit.amount
    assert +told == +Counter(world.chain.escrows[job].paid)


@pytest.mark.parametrize("away", [pytest.param(False, marks=pytest.mark.long), True])
async def test_a_job_of_which_seventy_rounds_wait_for_looks_goes_on_where_any_of_its_nodes_is(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Of more than sixty no entry was taken: all of them were in each, and a disaster went back to before they waited.

    Of those that keep them one comes back. ``away``: it had not been there for ten rounds.
    """
    waiting, more = 70, 2
    # As many rounds wait where nodes are trusted, of whom less is drawn.
    monkeypatch.setattr(auditors, "MOST_LOOKS", 1_000)
    world = World(5, nodes=6, faults=0.0, operators=(6,), settings={"stall_seconds": 90.0})
    world.crashes, world.chain.sees_paid = False, True
    await gather_nodes(world)
    auditor = world.nodes[5]
    job = await submit(world, 2, 2, spec(2, 2, tokens=(waiting + more) * A_ROUND))
    await until_rounds(world, job, BACKUP)
    backup = backup_of(world.records)
    world._leave(auditor)
    auditor.forget()
    auditor.up, auditor.away_until = False, float("inf")
    await until_rounds(world, job, 40)
    keeper = max(world.nodes, key=lambda node: len(node.records))
    if away:
        kept = dict(keeper.records)
        await until_rounds(world, job, 50)
        keeper.records = kept
        keeper.cut()
    await until_rounds(world, job, waiting)
    for _ in range(200):
        await world.turn()
    assert sum(not record.concluded for record in await read(world, RoundRecord, job)) > waiting - BACKUP
    newest = max(entry.rounds for entry in keeper.records)
    assert newest >= waiting
    assert max(len(data) for node in world.nodes for data in node.records.values()) <= MAX_RECORDS
    before = await waits(world, job, newest)
    for node in world.nodes:
        node.records = node.records if node is keeper else {}
    await restore(world, backup)
    auditor.up, auditor.away_until = True, 0.0
    assert await waits(world, job, newest) == before
    stored = await to_the_end(world, job)
    await check(world, job, stored)
    done = Counter(r.number for r in await read(world, RoundRecord, job) if r.state == "complete")
    assert set(done.values()) == {1}, "no complete round was done again"
    assert set(done) >= set(range(waiting + more)), "and each is known"
    assert stored.state is JobState.SETTLED
    async with world.records.transaction() as tx:
        assert not any(node.banned for node in await tx.find(NodeRecord))


async def waits(world: World, job: str, before: int) -> dict[tuple[int, str], int]:
    commits = [c for c in await read(world, CommitRecord, job) if c.state == "pending" and c.round < before]
    return {(commit.round, commit.node): commit.amount for commit in commits}

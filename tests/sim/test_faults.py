"""Hundreds of worlds, each from one seed: whatever happens, jobs end, money is exact, and the rules of the wire hold."""

import itertools
import json
from collections import Counter

import pytest

from coordinator.domain.account import LOCAL_ACCOUNT
from coordinator.domain.audits.penalty import EVASIONS
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, NEXT, JobState
from coordinator.domain.job import Job as StoredJob
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError
from coordinator.services.payments.stakes import POLL_S
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, EventRecord, NodeRecord, OutboxRecord, RoundRecord
from protocol.audit import ProvenLeaf, StepLeaf
from protocol.codec import decode
from protocol.contradiction import contradiction, stands
from protocol.job.job import JobSpec
from protocol.rest.api import NewJob
from protocol.task import EVASION_BPS
from tests.coordinator.fakes import WALLET, Lie, spec
from tests.sim.world import CrashError, World
from tests.support.seeds import seeds

TURNS_WITH_FAULTS = 6_000
ROUNDS = 20
TURNS_TO_END = 30_000


async def submit(
    world: World, stages: int, replicas: int, document: JobSpec | None = None, account: str = LOCAL_ACCOUNT
) -> str:
    """A funded job; the coordinator may die in the middle of it and the submitter tries again."""
    document = document or spec(stages, replicas, tokens=ROUNDS * 512 * replicas)
    while True:
        parts = world.parts or await world.start()
        try:
            job = (await parts.jobs.create(NewJob(document), account)).id
        except CrashError:
            world.parts = None
            for node in world.nodes:
                node.cut()
            await gather_nodes(world)
            continue
        break
    while True:
        parts = world.parts or await world.start()
        try:
            async with parts.desk.open(job) as work:
                await parts.funding.queue_funding(work)
            return job
        except CrashError:
            world.parts = None


async def gather_nodes(world: World) -> None:
    """Connect everybody."""
    while world.parts is None or sum(one.stake_known for one in world.parts.nodes.sessions()) < len(world.nodes):
        try:
            parts = world.parts or await world.start()
            for node in world.nodes:
                if parts.nodes.session(node.key.address) is None:
                    await node.connect()
            world.clock.t += POLL_S
            await parts.stakes.look()
        except CrashError:
            world.parts = None
            for node in world.nodes:
                node.cut()


async def run_world(world: World, stages: int, replicas: int, document: JobSpec | None = None) -> tuple[str, StoredJob]:
    """Faults for a while, then none until the job has ended."""
    await gather_nodes(world)
    job = await submit(world, stages, replicas, document)
    for _ in range(TURNS_WITH_FAULTS):
        await world.turn()
    world.faults, world.crashes = 0.0, False
    for node in world.nodes:
        node.up, node.away_until, node.hung, node.accepting = True, 0.0, False, True
        node.careless = True  # Its owner goes on, also where it is told once more on its way back in.
    parts = world.parts or await world.start()
    for _ in [node for node in world.nodes if parts.nodes.is_banned(node.key.address)]:
        world.join()  # Who hung through two openings may not come back; without newcomers the job would wait for ever.
    for _ in range(TURNS_TO_END):
        await world.turn()
        stored = await read(world, StoredJob, job)
        if stored[0].state not in LIVE and not await open_rows(world, job):
            return job, stored[0]
    raise AssertionError(f"stuck as {stored[0].state}: {await timeline(world, job)}")


async def read(world: World, kind: type, job: str) -> list:  # type: ignore[type-arg]
    async with world.records.transaction() as tx:
        return await tx.find(kind, col(kind.id if kind is StoredJob else kind.job).equals(job))


async def open_rows(world: World, job: str) -> bool:
    return any(row.state in ("queued", "sent") for row in await read(world, OutboxRecord, job))


async def timeline(world: World, job: str) -> str:
    return "\n".join(f"{e.time:.1f} {e.kind}: {e.text}" for e in (await read(world, EventRecord, job))[-30:])


async def check(world: World, job: str, stored: StoredJob) -> None:
    """Everything that must be true at the end of any world."""
    assert world.peers.violations == []
    rows: list[OutboxRecord] = await read(world, OutboxRecord, job)
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    rounds: list[RoundRecord] = await read(world, RoundRecord, job)
    check_money(world, job, stored, rows, commits)
    await check_conduct(world, job)
    complete = Counter(r.number for r in rounds if r.state == "complete")
    went_back = any("is done again" in e.text for e in await read(world, EventRecord, job) if e.kind == "lost")
    assert set(complete.values()) <= {1} or went_back, (
        "a round is complete once, unless its state was lost with its keepers"
    )
    assert not any(c.state == "pending" for c in commits)
    agreed = {(r.number, p) for r in rounds if r.state == "complete" for p in enumerate(r.parameters)}
    named = [c for c in commits if c.anchor is not None]
    assert all((c.round - 1, (c.stage, c.anchor)) in agreed for c in named), "an anchor is that of the round before"
    states = [e.kind for e in await read(world, EventRecord, job) if e.kind in set(JobState)]
    assert all(JobState(after) in NEXT[JobState(before)] for before, after in itertools.pairwise(states))
    if stored.state is JobState.SETTLED and stored.halt:  # Stopped: the model is of the newest stored state.
        assert set(range(stored.rounds_done)) <= set(complete)
        assert stored.model is not None
    elif stored.state is JobState.SETTLED:
        assert sorted(complete) == list(range(stored.rounds_done + 1))
        assert stored.model is not None


async def check_conduct(world: World, job: str) -> None:
    """Only who hung, or evades by intent, is said to have evaded; and an honest machine loses nothing by it."""
    audits: list[Audit] = await read(world, Audit, job)
    honest = {node.key.address: node for node in world.nodes if node.lie is None and not (node.accuse or node.blind)}
    silent = {audit.node for audit in audits if audit.state == "failed" and audit.blame in EVASIONS} & set(honest)
    assert all(honest[node].ever_hung for node in silent), "neither a cut nor the coordinator's end is a node's silence"
    assert not set(honest) & set(world.chain.slashed)
    shown = [audit for audit in audits if audit.node in honest and audit.outer is None and not audit.canary]
    assert not any(contradiction(every_leaf(world, audit), audit) for audit in shown), (
        "whoever shows whatever it was given"
    )


def every_leaf(world: World, audit: Audit) -> list[ProvenLeaf]:
    """All of an honest member's round, as an auditor could show it that wants to convict it."""
    work = world.peers.trees[audit.root].work
    places = range(len(work.leaves))
    shown = [ProvenLeaf(n, decode(work.leaves[n], StepLeaf), work.tree.proof(n).path) for n in places]
    assert all(stands(leaf, audit) for leaf in shown)
    return shown


def check_money(
    world: World, job: str, stored: StoredJob, rows: list[OutboxRecord], commits: list[CommitRecord]
) -> None:
    account = world.chain.escrows[job]
    paid = sum(account.paid.values())
    assert account.balance == 0
    assert account.ended
    assert paid + account.refunded == account.deposited == stored.spec.budget
    assert (stored.paid, stored.refunded, stored.escrow) == (paid, account.refunded, stored.spec.budget)
    due: Counter[str] = Counter()
    for commit in commits:
        if commit.state == "verified":
            due[commit.payout] += commit.amount
    assert +due == +Counter(account.paid), "everybody got what was verified, to the unit"
    assert sum(world.chain.wallets.values()) == 1_000_000_000, "no unit was made or lost"
    assert world.chain.wallets[WALLET] == 1_000_000_000 - paid
    executed = Counter(what for what in world.chain.executed.values() if not what.startswith("memo"))
    assert set(executed.values()) == {1}, "nothing happened twice on the ledger"
    memos = Counter(json.dumps(json.loads(text), sort_keys=True) for text in world.chain.memos)
    assert set(memos.values()) == {1}
    assert all(row.state == "confirmed" for row in rows)


def world_of(seed: int) -> tuple[World, int, int]:
    """Stages, replicas and the number of nodes beyond them follow from the seed."""
    stages, replicas = 1 + seed % 3, 1 + seed // 3 % 3
    return World(seed, nodes=stages * replicas + seed % 4), stages, replicas


@pytest.mark.parametrize("seed", seeds(3, of=30))
async def test_a_job_ends_and_its_money_is_exact_whatever_happens(seed: int) -> None:
    world, stages, replicas = world_of(seed)
    job, stored = await run_world(world, stages, replicas)
    await check(world, job, stored)


@pytest.mark.long
@pytest.mark.parametrize("hundred", range(1, 6))
async def test_hundreds_of_worlds(hundred: int) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        world, stages, replicas = world_of(seed)
        job, stored = await run_world(world, stages, replicas)
        await check(world, job, stored)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", seeds(1, of=11))
@pytest.mark.parametrize("lie", ["root", "substitute", "anchor"])
async def test_a_liar_is_caught_unpaid_and_slashed_and_nobody_else_is(lie: Lie, seed: int) -> None:
    world = World(seed, nodes=7, faults=0.3, special={7: {"lie": lie}})  # The quickest gets a seat.
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    liar = world.nodes[6].key.address
    audits = await read(world, Audit, job)
    caught = {audit.node for audit in audits if audit.blame == "wrong"}
    assert caught == {liar}
    assert set(world.chain.slashed) == caught
    assert (await read_node(world, liar)).banned
    banned = next(e.time for e in await read(world, EventRecord, job) if e.kind == "rejected")
    rows = {row.id: row for row in await read(world, OutboxRecord, job)}
    paid = [c.settlement for c in await read(world, CommitRecord, job) if c.node == liar and c.state == "verified"]
    assert all(row is not None and rows[row].created <= banned for row in paid), "nothing is paid after the ban"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", seeds(2, of=11))
async def test_a_class_that_nobody_has_is_no_way_out_of_audits_and_costs_stake_the_second_time(seed: int) -> None:
    world = World(seed, nodes=7, faults=0.0, special={7: {"lie": "class"}})
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    evader = world.nodes[6].key.address
    audits: list[Audit] = await read(world, Audit, job)
    # In some worlds it is sent away before it could open a second draw: that is not called misstated.
    assert {a.blame for a in audits if a.node == evader and a.state == "failed"} <= {"misstated", "gone"}
    failed = {(a.epoch, a.round) for a in audits if a.node == evader and a.blame == "misstated"}
    assert failed
    # An outer step is bit-equal in every class: of it, an audit may pass.
    trained = [a for a in audits if a.outer is None]
    assert not any(a.node == evader and a.state in ("passed", "void") for a in trained)
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    drawn = [c for c in commits if c.node == evader and (c.epoch, c.round) in failed]
    assert {c.state for c in drawn} == {"rejected"}
    again = len(failed) > 1
    assert world.chain.slashed == ({evader: 1_000_000 * EVASION_BPS // 10_000} if again else {})
    assert (await read_node(world, evader)).banned == again
    assert not any(a.state == "failed" for a in audits if a.node != evader)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", seeds(2, of=6))
async def test_a_false_accuser_harms_nobody_where_a_second_auditor_is(seed: int) -> None:
    world = World(seed, nodes=6, faults=0.0, special={6: {"accuse": True}})
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    accuser = world.nodes[5].key.address
    audits: list[Audit] = await read(world, Audit, job)
    steps = [audit for audit in audits if audit.outer is None]
    accused = any(v.auditor == accuser and v.verdict != "match" for audit in steps for v in audit.verdicts)
    assert world.chain.slashed == ({accuser: 500_000} if accused else {}), "a dispute proves what it is"
    assert not any(audit.state == "failed" for audit in audits if audit.node != accuser)


@pytest.mark.parametrize("seed", seeds(3, of=20))
async def test_a_job_cancelled_at_any_moment_pays_what_is_verified_and_refunds_the_rest(seed: int) -> None:
    world = World(seed, nodes=5)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    for _ in range(world.chance.randrange(3_000)):
        await world.turn()
    world.faults, world.crashes = 0.0, False
    parts = world.parts or await world.start()
    cancelled = True
    try:
        await parts.jobs.cancel(job)
    except ConflictError:
        cancelled = False  # It was settled before.
    for _ in range(TURNS_TO_END):
        await world.turn()
        stored = (await read(world, StoredJob, job))[0]
        if stored.state not in LIVE and not await open_rows(world, job):
            break
    assert (stored.state is JobState.CANCELLED) == cancelled
    if job in world.chain.escrows:
        await check(world, job, stored)
    assert not any(lease.state != "ended" for lease in await read(world, Lease, job))


async def read_node(world: World, address: str) -> NodeRecord:
    async with world.records.transaction() as tx:
        return await tx.get(NodeRecord, address)


async def test_without_faults_a_job_is_settled_and_paid_in_full() -> None:
    world = World(1, nodes=5, faults=0.0)
    world.crashes = False
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    assert stored.paid == stored.quote.price
    audits: list[Audit] = await read(world, Audit, job)
    assert {a.round for a in audits if a.anchor is None} <= {0}, "only the first round has no round before it"
    assert max(a.round for a in audits) > 0


async def test_the_same_seed_gives_the_same_world() -> None:
    ends = []
    for _ in range(2):
        world = World(11, nodes=5)
        _, stored = await run_world(world, 2, 2)
        ends.append((stored, world.clock.t, sorted(world.happened.items())))
    assert ends[0] == ends[1]

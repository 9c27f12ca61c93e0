"""Federations in worlds of a virtual clock: who gets a seat, what is spent, and that nothing is opened or paid, whatever dies."""

from collections.abc import Sequence

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job as StoredJob
from coordinator.domain.job import JobState
from coordinator.domain.lease import Lease
from coordinator.domain.privacy import PrivacyBudget, PrivateRelease, epsilon
from coordinator.services.artifacts.model_cards import card_facts
from coordinator.services.training.federations import CHANGED
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, EventRecord, MetricRecord, NodeRecord, RoundRecord, RunRecord
from protocol.codec import decode
from protocol.federated.federations import FederationTold, FederationWish, terms_digest
from protocol.job.federated import FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec, TrainingSpec
from protocol.node import CoordinatorMessage
from tests.sim.test_everybody_leaves import calm
from tests.sim.test_faults import TURNS_TO_END, gather_nodes, open_rows, read, submit, timeline
from tests.sim.world import CrashError, SimNode, World
from tests.support.seeds import seeds

ROUNDS = 5


def document(nodes: Sequence[SimNode], privacy: PrivacySpec | None, rounds: int = ROUNDS, least: int = 2) -> JobSpec:
    owners = tuple(node.key.address for node in nodes)
    return JobSpec(
        name="a federation",
        model=ModelSpec(preset="tiny-llama"),
        budget=1,
        tokenizer=TokenizerSpec("bytes"),
        training=TrainingSpec(sequence=32, batch=8, micro_batches=2, inner_steps=2, commit_every=1),
        federated=FederatedSpec(owners, rounds, least, privacy),
    )


async def wish(world: World, node: SimNode, asked: FederationWish) -> FederationTold:
    """What a node hears; the world stands still meanwhile."""
    parts = world.parts
    assert parts is not None
    session = node.session
    assert session is not None
    before = len(node.inbox)
    await parts.conversation.receive(session, asked)
    while node.inbox:
        said: CoordinatorMessage = decode(node.inbox.pop(), CoordinatorMessage)
        if isinstance(said, FederationTold):
            return said
    raise AssertionError(f"nothing was said; {before} messages waited")


async def join(world: World, job: str, nodes: Sequence[SimNode]) -> None:
    for node in nodes:
        spec = (await wish(world, node, FederationWish(job, "look"))).spec
        assert spec is not None
        told = await wish(world, node, FederationWish(job, "join", terms_digest(spec)))
        assert told.joined, told.problem


async def to_the_end(world: World, job: str) -> StoredJob:
    for _ in range(TURNS_TO_END):
        await world.turn()
        stored: StoredJob = (await read(world, StoredJob, job))[0]
        if stored.state in (JobState.SETTLED, JobState.FAILED) and not await open_rows(world, job):
            return stored
    raise AssertionError(f"stuck as {stored.state}: {await timeline(world, job)}")


async def check_unopened(world: World, job: str) -> None:
    """Nobody is asked to open anything, is paid, or gains standing."""
    assert await read(world, Audit, job) == []
    commits: list[CommitRecord] = await read(world, CommitRecord, job)
    assert {(c.state, c.amount) for c in commits} == {("void", 0)}
    async with world.records.transaction() as tx:
        known = await tx.find(NodeRecord, col(NodeRecord.rounds) > 0)
    assert known == [], "nobody gains standing by work that nobody looked at"


async def test_only_owners_who_have_joined_take_seats_and_the_model_comes_of_their_rounds() -> None:
    world = calm(1, nodes=5)
    await gather_nodes(world)
    owners = world.nodes[:3]
    job = await submit(world, 1, 3, document(owners, None))
    for _ in range(400):
        await world.turn()
    assert (await read(world, StoredJob, job))[0].state is JobState.FUNDED
    assert any("0 of 3 owners have joined" in event.text for event in await read(world, EventRecord, job))
    stranger = await wish(world, world.nodes[4], FederationWish(job, "look"))
    assert stranger.spec is None
    assert world.nodes[4].key.address in stranger.problem
    await join(world, job, owners)
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    assert end.model is not None
    assert (end.rounds_done, end.released, end.paid, end.verified) == (ROUNDS, ROUNDS, 0, 0)
    assert end.refunded == end.escrow == 1
    assert {lease.node for lease in await read(world, Lease, job)} == {node.key.address for node in owners}
    await check_unopened(world, job)


async def test_terms_that_are_not_those_that_were_looked_at_are_joined_by_nobody() -> None:
    world = calm(2, nodes=3)
    await gather_nodes(world)
    job = await submit(world, 1, 3, document(world.nodes, PrivacySpec(epsilon=4.0)))
    seen = (await wish(world, world.nodes[0], FederationWish(job, "look"))).spec
    assert seen is not None
    assert seen.federated is not None
    assert seen.federated.privacy is not None
    weaker = msgspec.structs.replace(seen.federated.privacy, epsilon=40.0)
    other = msgspec.structs.replace(seen, federated=msgspec.structs.replace(seen.federated, privacy=weaker))
    told = await wish(world, world.nodes[0], FederationWish(job, "join", terms_digest(other)))
    assert (told.joined, told.problem) == (False, CHANGED)


async def test_an_owner_who_leaves_gets_no_seat_again_and_too_few_wait() -> None:
    world = calm(3, nodes=3)
    await gather_nodes(world)
    job = await submit(world, 1, 3, document(world.nodes, None, rounds=50, least=3))
    await join(world, job, world.nodes)
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await read(world, StoredJob, job))[0].rounds_done >= 2:
            break
    told = await wish(world, world.nodes[1], FederationWish(job, "leave"))
    assert not told.joined
    done = (await read(world, StoredJob, job))[0].rounds_done
    for _ in range(3_000):
        await world.turn()
    now = (await read(world, StoredJob, job))[0]
    assert now.rounds_done == done, "no round begins with fewer owners than the document says"
    held = [lease for lease in await read(world, Lease, job) if lease.state != "ended"]
    assert world.nodes[1].key.address not in {lease.node for lease in held}
    await join(world, job, world.nodes[1:2])
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await read(world, StoredJob, job))[0].rounds_done > done:
            return
    raise AssertionError(await timeline(world, job))


@pytest.mark.parametrize("seed", seeds(3, of=24))
async def test_no_crash_and_no_loss_spends_more_than_the_budget(seed: int) -> None:
    """Nodes die, lines break, the coordinator is killed at any wait: what was begun stays counted, and the end is hard."""
    world = World(seed, nodes=4, faults=1.0, settings={"stall_seconds": 30.0, "min_stake": 0})
    await gather_nodes(world)
    budget = PrivacyBudget(6.0, 1e-5)
    privacy = PrivacySpec(epsilon=budget.epsilon, delta=budget.delta)
    job = await submit(world, 1, 4, document(world.nodes, privacy, rounds=8))
    faults, world.faults, crashes, world.crashes = world.faults, 0.0, world.crashes, False
    await gather_nodes(world)
    await join(world, job, world.nodes)
    world.faults, world.crashes = faults, crashes
    counted = 0
    for _ in range(6_000):
        await world.turn()
        stored: StoredJob = (await read(world, StoredJob, job))[0]
        assert stored.released >= counted, "what was counted once stays counted"
        counted = stored.released
    world.faults, world.crashes = 0.0, False
    for node in world.nodes:
        node.up, node.away_until, node.hung, node.accepting, node.careless = True, 0.0, False, True, True
    end = await to_the_end(world, job)
    rounds: list[RoundRecord] = await read(world, RoundRecord, job)
    assert end.spec.federated is not None
    assert end.spec.federated.privacy is not None
    settled = end.spec.federated.privacy
    assert settled.noise_multiplier is not None
    assert len(rounds) == end.released <= (settled.most_rounds or 0)
    spent = epsilon([PrivateRelease(settled.noise_multiplier, count=end.released)], budget.delta)
    more = epsilon([PrivateRelease(settled.noise_multiplier, count=(settled.most_rounds or 0) + 1)], budget.delta)
    assert spent <= budget.epsilon < more
    if end.state is JobState.SETTLED:
        assert end.model is not None
        assert end.rounds_done == 8 or end.released == settled.most_rounds
    else:
        assert "budget" in end.reason or "in a row" in end.reason, end.reason
    await check_unopened(world, job)


async def test_the_end_is_hard_though_the_last_round_was_lost() -> None:
    """A round that fails has told as much as one that counts: the job ends with a round less, and never begins another."""
    world = calm(5, nodes=2)
    await gather_nodes(world)
    job = await submit(world, 1, 2, document(world.nodes, PrivacySpec(epsilon=8.0), rounds=4))
    await join(world, job, world.nodes)
    broken = False
    for _ in range(TURNS_TO_END):
        await world.turn()
        stored: StoredJob = (await read(world, StoredJob, job))[0]
        under_way = [record.run.round for record in await read(world, RunRecord, job) if record.run.round is not None]
        working = any(seat.commit is None for current in under_way for seat in current.seats)
        if not broken and stored.rounds_done == 2 and working:
            world._leave(world.nodes[1])
            world.nodes[1].forget()  # Fewer than two are left: the round cannot count.
            broken = True
        if broken:
            break
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    assert broken
    assert (end.released, end.rounds_done) == (4, 3), await timeline(world, job)
    rounds = await read(world, RoundRecord, job)
    assert sorted(r.state for r in rounds) == ["complete", "complete", "complete", "void"]
    assert [r.released for r in sorted(rounds, key=lambda r: r.started)] == [1, 2, 3, 4]


async def test_rounds_whose_steps_protect_examples_end_at_the_budget_too() -> None:
    """Every round is charged with all its steps, and the run ends before one that would pass epsilon."""
    world = calm(7, nodes=2)
    await gather_nodes(world)
    privacy = PrivacySpec("example", epsilon=2.0, sampling=0.02)
    job = await submit(world, 1, 2, document(world.nodes, privacy, rounds=4))
    await join(world, job, world.nodes)
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    settled = end.spec.federated.privacy  # type: ignore[union-attr]
    assert settled is not None
    assert settled.noise_multiplier is not None
    assert end.released == 4 <= (settled.most_rounds or 0)
    steps = end.spec.training.inner_steps
    spent = epsilon([PrivateRelease(settled.noise_multiplier, 0.02, end.released * steps)], settled.delta)
    assert 0.5 < spent <= 2.0
    await check_unopened(world, job)


async def test_a_coordinator_that_comes_back_counts_on_from_what_it_had_stored() -> None:
    world = calm(6, nodes=2)
    await gather_nodes(world)
    job = await submit(world, 1, 2, document(world.nodes, PrivacySpec(epsilon=8.0), rounds=6))
    await join(world, job, world.nodes)
    for _ in range(TURNS_TO_END):
        await world.turn()
        if (await read(world, StoredJob, job))[0].released >= 3:
            break
    world._fall()
    try:
        await world.start()
    except CrashError as error:
        raise AssertionError from error
    end = await to_the_end(world, job)
    assert end.released == len(await read(world, RoundRecord, job)) >= 6


async def test_the_losses_that_owners_tell_are_a_curve_and_the_card_says_when_they_are_of() -> None:
    """Each is of the state before a round's steps, so the last one is no loss of the finished model."""
    world = calm(8, nodes=3)
    await gather_nodes(world)
    job = await submit(world, 1, 3, document(world.nodes, PrivacySpec(epsilon=8.0, heldout=HeldoutLoss()), rounds=4))
    await join(world, job, world.nodes)
    end = await to_the_end(world, job)
    assert end.state is JobState.SETTLED, end.reason
    points = [point for point in await read(world, MetricRecord, job) if point.kind == "validation"]
    assert [point.round for point in points] == [0, 1, 2, 3]
    assert [point.loss for point in points] == pytest.approx([5.0, 3.0, 2 + 1 / 3, 2.0])
    assert [point.tokens for point in points] == sorted({point.tokens for point in points})
    assert points[0].tokens == 0
    assert (end.first_validation_loss, end.validation_loss) == pytest.approx((5.0, 2.0))
    rounds = sorted(await read(world, RoundRecord, job), key=lambda record: record.number)
    assert [record.validation_loss for record in rounds] == pytest.approx([5.0, 3.0, 2 + 1 / 3, 2.0])
    facts = card_facts(end, rounds)
    assert (facts["loss_before"], facts["loss_after"]) == (5.0, None)
    assert [point["validation_loss"] for point in facts["rounds"]] == [*(r.validation_loss for r in rounds[1:]), None]
    assert facts["privacy"]["held-out loss before the last round, noised"] == pytest.approx(2.0)
    await check_unopened(world, job)


async def test_a_loss_that_the_document_does_not_ask_for_is_no_point_of_a_curve() -> None:
    world = calm(9, nodes=2)
    await gather_nodes(world)
    job = await submit(world, 1, 2, document(world.nodes, PrivacySpec(epsilon=8.0), rounds=2))
    await join(world, job, world.nodes)
    end = await to_the_end(world, job)
    assert end.validation_loss is None
    assert [point for point in await read(world, MetricRecord, job) if point.kind == "validation"] == []

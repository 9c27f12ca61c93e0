"""Jobs that are paused, resumed and stopped at any moment, and budgets that end: nothing is lost, and nothing paid too much."""

from collections.abc import Sequence

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import LIVE, JobAction, JobState
from coordinator.domain.job import Job as StoredJob
from coordinator.domain.lease import Lease
from coordinator.errors import ConflictError, FundsError
from coordinator.store.records import CommitRecord, EventRecord, RoundRecord
from tests.coordinator.fakes import spec
from tests.sim.test_everybody_leaves import calm, seats, until_rounds
from tests.sim.test_faults import TURNS_TO_END, check, gather_nodes, open_rows, read, submit, timeline, world_of
from tests.sim.world import CrashError, World
from tests.support.seeds import seeds


async def stored(world: World, job: str) -> StoredJob:
    found: StoredJob = (await read(world, StoredJob, job))[0]
    return found


async def until(world: World, job: str, states: Sequence[JobState]) -> StoredJob:
    for _ in range(TURNS_TO_END):
        await world.turn()
        now = await stored(world, job)
        if now.state in states and not (now.state not in LIVE and await open_rows(world, job)):
            return now
    raise AssertionError(f"stuck as {now.state}, wish {now.wish!r}: {await timeline(world, job)}")


async def ask(world: World, job: str, action: JobAction) -> bool:
    """Whether it was taken."""
    try:
        parts = world.parts or await world.start()
        await parts.jobs.ask(job, action)
    except (ConflictError, FundsError):
        return False
    except CrashError:
        world._fall()
        return False
    return True


async def losses(world: World, job: str) -> list[tuple[int, float | None, float | None]]:
    done = [r for r in await read(world, RoundRecord, job) if r.state == "complete"]
    return [(r.number, r.train_loss, r.validation_loss) for r in done]


@pytest.mark.parametrize("seed", seeds(1, of=4))
async def test_a_paused_job_holds_nobody_costs_nothing_and_goes_on_to_the_same_losses(seed: int) -> None:
    straight = calm(seed, nodes=5)
    await gather_nodes(straight)
    other = await submit(straight, 2, 2)
    await until(straight, other, [JobState.SETTLED])

    world = calm(seed, nodes=5)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until_rounds(world, job, 5)
    before = await seats(world, job)
    assert await ask(world, job, JobAction.PAUSE)
    paused = await until(world, job, [JobState.PAUSED])
    assert not [lease for lease in await read(world, Lease, job) if lease.state != "ended"]
    parts = world.parts
    assert parts is not None
    view = await parts.jobs.get(job)
    assert view.checkpoint == paused.rounds_done >= 5, "the newest state is stored, whatever the turn of storing"
    assert view.ready_likely is None
    assert not [a for a in await read(world, Audit, job) if not a.over], "everything that is done was looked at"
    assert {c.state for c in await read(world, CommitRecord, job)} <= {"verified", "void"}
    for _ in range(1_500):
        await world.turn()
    later = await stored(world, job)
    assert (later.verified, later.rounds_done) == (paused.verified, paused.rounds_done)
    assert later.paid == later.verified, "what was earned is paid although the job rests"
    assert not any(task for node in world.nodes for task in node.tasks), "the nodes are free"

    assert await ask(world, job, JobAction.RESUME)
    await until_rounds(world, job, paused.rounds_done + 1)
    assert await seats(world, job) == before, "everybody sits where its optimizer lies"
    end = await until(world, job, [JobState.SETTLED])
    await check(world, job, end)
    assert await losses(world, job) == await losses(straight, other)
    assert (end.paid, end.validation_loss) == (end.quote.price, (await stored(straight, other)).validation_loss)


@pytest.mark.parametrize("seed", seeds(3, of=24))
async def test_pauses_and_resumes_at_any_moment_in_any_weather_change_nothing_that_counts(seed: int) -> None:
    world, stages, replicas = world_of(seed)
    await gather_nodes(world)
    job = await submit(world, stages, replicas)
    for _ in range(6_000):
        await world.turn()
        if world.chance.random() < 0.003:
            await ask(world, job, world.chance.choice((JobAction.PAUSE, JobAction.RESUME)))
    world.faults, world.crashes = 0.0, False
    for node in world.nodes:
        node.up, node.away_until, node.hung = True, 0.0, False
    parts = world.parts or await world.start()
    for _ in [node for node in world.nodes if parts.nodes.is_banned(node.key.address)]:
        world.join()
    await ask(world, job, JobAction.RESUME)
    end = await until(world, job, [JobState.SETTLED, JobState.FAILED])
    await check(world, job, end)


@pytest.mark.parametrize("seed", seeds(3, of=16))
async def test_a_job_stopped_at_any_moment_keeps_a_verified_model_and_gets_the_rest_back(seed: int) -> None:
    world = World(seed, nodes=6, faults=0.5)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    for _ in range(1_500 + world.chance.randrange(2_500)):
        await world.turn()
    world.faults, world.crashes = 0.0, False
    for node in world.nodes:
        node.up, node.away_until, node.hung = True, 0.0, False
    if seed % 2:
        await ask(world, job, JobAction.PAUSE)
    while not await ask(world, job, JobAction.STOP):
        await world.turn()
        if (await stored(world, job)).state not in LIVE - {JobState.VERIFYING}:
            return  # It was over, or nearly, before anything could be stopped.
    asked = world.clock.t
    end = await until(world, job, [JobState.SETTLED])
    await check(world, job, end)
    rounds = {r.number: r for r in await read(world, RoundRecord, job) if r.state == "complete"}
    assert all(rounds[number].concluded for number in range(end.rounds_done)), "only what was looked at is in the model"
    begun = [r for r in await read(world, RoundRecord, job) if r.started > asked and r.steps]
    assert not begun, "nothing is trained after the stop"
    assert end.paid < end.quote.price
    assert end.refunded == end.escrow - end.paid


async def test_a_stop_before_any_checkpoint_says_what_to_do_instead() -> None:
    world = calm(1, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until(world, job, [JobState.RUNNING])
    assert world.parts is not None
    with pytest.raises(ConflictError, match="no checkpoint to keep yet: wait for one, or cancel"):
        await world.parts.jobs.ask(job, JobAction.STOP)
    assert (await stored(world, job)).state is JobState.RUNNING


@pytest.mark.parametrize("seed", seeds(1, of=8))
async def test_a_budget_that_ends_pauses_the_job_with_a_checkpoint_and_more_of_it_goes_on(seed: int) -> None:
    world = World(seed, nodes=5, faults=0.3)
    await gather_nodes(world)
    document = spec(2, 2, tokens=20 * 512 * 2)
    price = 1_000_000
    part = price * (30 + 5 * seed) // 100
    job = await submit(world, 2, 2, msgspec.structs.replace(document, budget=part, over_budget="pause"))
    paused = await until(world, job, [JobState.PAUSED])
    assert paused.quote.price == price
    assert paused.halt == "budget"
    assert 0 < paused.verified <= part == paused.escrow, "never above the cap"
    assert part - paused.verified < 2 * price / 20, "as far as the budget goes"
    world.faults, world.crashes = 0.0, False
    for node in world.nodes:
        node.up, node.away_until, node.hung = True, 0.0, False
    parts = world.parts or await world.start()
    view = await parts.jobs.get(job)
    assert view.checkpoint == view.rounds_done > 0
    assert (view.cap, view.cost) == (part, paused.verified)
    assert "is used up" in view.sentence
    assert not await ask(world, job, JobAction.RESUME), "there is nothing to pay with"
    with pytest.raises(ConflictError, match="millionths at most"):
        await parts.jobs.add_budget(job, price)
    await parts.jobs.add_budget(job, price - part)
    for _ in range(TURNS_TO_END):
        await world.turn()
        assert world.parts is not None
        await world.parts.upkeep.look_at_paused()
        end = await stored(world, job)
        if end.state not in LIVE and not await open_rows(world, job):
            break
    assert end.state is JobState.SETTLED, await timeline(world, job)
    await check(world, job, end)
    assert end.escrow == price
    assert [e.text for e in await read(world, EventRecord, job) if e.kind == "spent"], "four fifths were told"


async def test_a_paused_job_whose_deadline_passes_keeps_its_model_and_gets_the_rest_back() -> None:
    world = calm(2, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    await until_rounds(world, job, 3)
    await ask(world, job, JobAction.PAUSE)
    paused = await until(world, job, [JobState.PAUSED])
    world.clock.t = paused.deadline + 1
    assert world.parts is not None
    await world.parts.upkeep.look_at_paused()
    end = await until(world, job, [JobState.SETTLED])
    await check(world, job, end)
    assert end.refunded > 0

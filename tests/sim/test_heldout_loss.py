"""The held-out loss, measured by replicas of several owners on a virtual clock: what is reported, and what follows for a liar."""

from typing import Any

import pytest

from coordinator.domain.job import Job, JobState
from coordinator.services.views.resources import JobResources as Place
from coordinator.services.views.resources import job_view, round_view
from coordinator.store.records import EventRecord, MetricRecord, NodeRecord, RoundRecord, RunRecord
from protocol.rest.api import Agreement
from protocol.task import PreferenceScore
from tests.sim.test_draws import everybody
from tests.sim.test_faults import check, read, run_world
from tests.sim.world import World

ODD = 5  # The quickest, so it has a seat.
MANY = {"validations": 4, "min_stake": 1_000}


async def run(
    stages: int, replicas: int, nodes: int, faults: float = 0.0, compares: bool = False, **odd: Any
) -> tuple[World, str, Job]:
    """A job, one node of which is odd; it ends, and its money is exact."""
    settings = {**MANY, **odd.pop("settings", {})}
    world = World(3, nodes=nodes, faults=faults, settings=settings, special={ODD: odd})
    world.peers.compares = compares
    job, stored = await run_world(world, stages, replicas)
    await check(world, job, stored)
    assert stored.state is JobState.SETTLED
    return world, job, stored


async def measured(world: World, job: str) -> list[RoundRecord]:
    """Rounds in which the loss was measured, the last one included."""
    return [r for r in await read(world, RoundRecord, job) if r.state == "complete" and r.agreement is not None]


async def differing(world: World, job: str) -> list[str]:
    return [event.text for event in await read(world, EventRecord, job) if event.kind == "differs"]


async def standing(world: World, number: int) -> NodeRecord:
    address = world.nodes[number - 1].key.address
    return next(record for record in await everybody(world) if record.address == address)


def honest(number: int) -> float:
    return 5.0 / (1 + number)


async def test_three_owners_measure_each_loss_and_honest_ones_never_differ() -> None:
    world, job, stored = await run(1, 4, nodes=5)
    rounds = await measured(world, job)
    assert len(rounds) >= 3
    assert {r.agreement for r in rounds} == {Agreement(3, 0, 3)}
    assert all(r.validation_loss == honest(r.number) for r in rounds)
    assert rounds[-1].steps == 0
    assert (stored.validation_loss, stored.agreement) == (rounds[-1].validation_loss, Agreement(3, 0, 3))
    points = [point for point in await read(world, MetricRecord, job) if point.kind == "validation"]
    assert [(p.round, p.loss) for p in points] == [(r.number, r.validation_loss) for r in rounds], "one point each"
    assert await differing(world, job) == []
    assert not any(record.faults for record in await everybody(world))
    view = job_view(stored, [], lambda _lease: None, "", Place(stored.ended or 0.0))
    assert view.agreement == Agreement(3, 0, 3)
    shown = round_view(rounds[0])
    assert shown is not None
    assert shown.agreement == Agreement(3, 0, 3)


async def test_whoever_lies_about_the_loss_is_outvoted_and_looked_at_and_loses_nothing_else() -> None:
    world, job, stored = await run(1, 3, nodes=5, lie="loss")
    rounds = await measured(world, job)
    lied = [r for r in rounds if r.agreement == Agreement(2, 0, 3)]
    assert lied, "the liar was asked"
    assert all(r.validation_loss == honest(r.number) for r in rounds)
    liar = await standing(world, ODD)
    assert (liar.faults, liar.banned, liar.stake) == (len(lied), False, 1_000_000)
    assert liar.rounds < 20, "its standing began anew"
    assert not any(record.faults for record in await everybody(world) if record.address != liar.address)
    assert world.chain.slashed == {}
    told = await differing(world, job)
    assert len(told) == len(lied)
    assert all(liar.address in text and "proves nothing" in text for text in told)
    assert stored.validation_loss == honest(stored.rounds_done)


async def test_how_answers_are_told_apart_is_what_most_say_and_a_lie_about_it_is_seen() -> None:
    world, job, stored = await run(1, 3, nodes=5, compares=True, lie="accuracy")
    rounds = await measured(world, job)
    lied = [r for r in rounds if r.agreement == Agreement(2, 0, 3)]
    assert lied, "the liar was asked"
    assert all(r.preference == PreferenceScore(1 - honest(r.number) / 5.0, r.number / 4) for r in rounds)
    assert stored.preference == rounds[-1].preference
    told = await differing(world, job)
    assert len(told) == len(lied)
    assert all("the same, from something else" in text for text in told), "its loss was right"
    view = job_view(stored, [], lambda _lease: None, "", Place(stored.ended or 0.0))
    shown = round_view(rounds[1])
    assert shown is not None
    assert (view.preference, shown.preference) == (stored.preference, rounds[1].preference)
    texts = [e.text for e in await read(world, EventRecord, job) if e.kind == "validation"]
    number = rounds[1].number
    assert f"({100 * (1 - honest(number) / 5.0):.1f} % of pairs told apart, margin {number / 4:.3f})" in texts[1]


@pytest.mark.long
async def test_in_a_pipeline_nobody_is_at_fault_for_what_a_neighbour_may_have_done() -> None:
    world, job, _ = await run(2, 3, nodes=7, lie="loss")
    assert await differing(world, job)
    assert not any(record.faults for record in await everybody(world)), "but it is looked at as a newcomer"
    assert all(r.validation_loss == honest(r.number) for r in await measured(world, job))


async def test_two_that_contradict_each_other_leave_no_loss_and_no_blame() -> None:
    world, job, _ = await run(1, 2, nodes=5, lie="loss")
    rounds = await measured(world, job)
    assert [r for r in rounds if r.agreement == Agreement(0, 0, 2)]
    assert all((r.validation_loss is None) == (r.agreement == Agreement(0, 0, 2)) for r in rounds)
    assert all("is not known: computers came to" in text for text in await differing(world, job))
    assert not any(record.faults for record in await everybody(world))


async def test_one_replica_is_one_computers_word() -> None:
    world, job, stored = await run(1, 1, nodes=5)
    assert {r.agreement for r in await measured(world, job)} == {Agreement(1, 0, 1)}
    texts = [e.text for e in await read(world, EventRecord, job) if e.kind == "validation"]
    assert texts
    assert all(text.endswith(", one computer's word") for text in texts)
    assert stored.agreement == Agreement(1, 0, 1)


@pytest.mark.long
async def test_another_kind_of_machine_is_close_and_not_blamed() -> None:
    world, job, _ = await run(1, 3, nodes=5, env_class="gpu")
    assert Agreement(2, 1, 3) in {r.agreement for r in await measured(world, job)}
    assert await differing(world, job) == []


async def test_whoever_says_nothing_holds_no_round_up() -> None:
    world, job, stored = await run(1, 3, nodes=5, lie="no loss")
    plain, other, prompt = await run(1, 3, nodes=5)
    rounds = await measured(world, job)
    assert {r.agreement for r in rounds} >= {Agreement(2, 0, 2)}
    assert all(r.validation_loss == honest(r.number) for r in rounds)
    assert stored.validation_loss == prompt.validation_loss
    last = rounds[-1]
    assert last.ended is not None
    assert last.ended - last.started < world.config.stall_seconds, "nobody was given up for it"
    assert len(await read(plain, RoundRecord, other)) == len(await read(world, RoundRecord, job)), (
        "nothing was done again"
    )


async def test_a_replica_that_dies_while_it_measures_is_not_waited_for() -> None:
    world, job, _ = await run(1, 3, nodes=5, lie="dies measuring")
    rounds = await measured(world, job)
    assert rounds[0].validation_loss == honest(0)
    assert rounds[0].agreement == Agreement(2, 0, 2)
    assert not any(record.faults for record in await everybody(world))


async def test_a_coordinator_that_is_killed_between_two_results_forgets_neither() -> None:
    world = World(3, nodes=5, faults=0.0, settings=MANY)
    turn, killed = world.turn, set()

    async def turn_and_kill() -> None:
        """Once for each number of results that are there and not weighed yet, whatever the round."""
        await turn()
        async with world.records.transaction() as tx:
            runs = [record.run.round for record in await tx.find(RunRecord)]
        for current in runs:
            if current is not None and not current.weighed and len(current.measured) not in killed | {0}:
                killed.add(len(current.measured))
                world._fall()

    world.turn = turn_and_kill  # type: ignore[method-assign]
    job, stored = await run_world(world, 1, 3)
    await check(world, job, stored)
    assert killed == {1, 2}
    rounds = await measured(world, job)
    assert [(r.number, r.validation_loss, r.agreement) for r in rounds] == [
        (r.number, honest(r.number), Agreement(3, 0, 3)) for r in rounds
    ]
    points = [point.round for point in await read(world, MetricRecord, job) if point.kind == "validation"]
    assert points == [r.number for r in rounds], "and none is reported twice"

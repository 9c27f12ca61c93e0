"""Anybody in a job may doubt a finished round: a lie that was not drawn is found, and nothing else can be had by asking."""

import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.store.records import OutboxRecord, RoundRecord
from protocol.task import StepChallenge
from tests.sim.test_faults import gather_nodes, read, submit
from tests.sim.world import World

LIAR, ASKING = 7, 1
NEVER = {"disputes": True, "canaries": 0, "audits_per_round": 0, "audit_floor": 0}


async def asked(
    wanted: StepChallenge | None = None,
    special: dict[int, dict[str, object]] | None = None,
    kind: type[World] = World,
    **settings: object,
) -> tuple[World, str]:
    """A world in which nothing is drawn and the slowest node, a spare, challenges the liar's newest round."""
    world = kind(2, nodes=7, faults=0.0, settings={**NEVER, **settings}, special=special or {LIAR: {"lie": "skips"}})
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    liar, asking = world.nodes[LIAR - 1], world.nodes[ASKING - 1]
    done = False
    for _ in range(6_000):
        await world.turn()
        rounds: list[RoundRecord] = [r for r in await read(world, RoundRecord, job) if r.state == "complete"]
        if rounds and not done and asking.tasks:
            newest = rounds[-1]
            place = next(m for m in newest.plan.members if m.node == liar.key.address)
            challenge = wanted or StepChallenge(newest.number, place.stage, place.replica, 0)
            asking.say(next(iter(asking.tasks)), [challenge, challenge])
            done = True
    assert done
    return world, job


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.domain.audits.rate.look", lambda _standing: 0)
    monkeypatch.setattr("coordinator.domain.audits.rate.MARGIN", 0)


async def test_a_lie_that_was_not_drawn_is_found_by_whoever_doubts_it_and_slashed() -> None:
    world, job = await asked()
    audits: list[Audit] = await read(world, Audit, job)
    assert [(a.challenger, a.state, a.blame) for a in audits] == [
        (world.nodes[ASKING - 1].key.address, "failed", "wrong")
    ], "asking twice opens one audit"
    liar = world.nodes[LIAR - 1].key.address
    assert world.chain.slashed == {liar: 500_000}
    rows: list[OutboxRecord] = await read(world, OutboxRecord, job)
    assert [row.payload.get("challenger") for row in rows if row.kind == "slash"] == [world.nodes[ASKING - 1].payout]


async def test_doubting_honest_work_costs_nobody_anything() -> None:
    world, job = await asked(special={LIAR: {}})
    assert [a.state for a in await read(world, Audit, job)] == ["passed"]
    assert world.chain.slashed == {}


async def test_a_false_challenge_costs_the_challenger_its_stake() -> None:
    world, job = await asked(special={LIAR: {}, ASKING: {"accuse": True}})
    assert [a.state for a in await read(world, Audit, job)] == ["passed"]
    assert world.chain.slashed == {world.nodes[ASKING - 1].key.address: 500_000}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wanted", [StepChallenge(0, 9, 0, 0), StepChallenge(900, 0, 0, 0), StepChallenge(0, 0, 0, 77)])
async def test_what_is_not_there_cannot_be_challenged(wanted: StepChallenge) -> None:
    world, job = await asked(wanted)
    assert await read(world, Audit, job) == []


async def test_nobody_challenges_work_of_the_same_owner() -> None:
    world, job = await asked(special={LIAR: {"lie": "skips"}, ASKING: {"owner": LIAR}})
    assert await read(world, Audit, job) == []

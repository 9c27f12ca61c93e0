"""What two neighbours committed to about the payloads between them is compared at an audit of one of them.

Nothing is drawn here: an honest member is challenged, and the liar sits beside it.
"""

import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.store.records import EventRecord, RoundRecord
from protocol.task import StepChallenge
from tests.sim.test_challenges import ASKING, LIAR, NEVER
from tests.sim.test_faults import gather_nodes, read, submit
from tests.sim.world import World


async def beside(lie: str | None) -> tuple[World, str]:
    """A world in which a spare challenges the neighbour of the liar, once."""
    world = World(2, nodes=7, faults=0.0, settings=NEVER, special={LIAR: {"lie": lie}})
    await gather_nodes(world)
    job = await submit(world, 2, 2)
    liar, asking = world.nodes[LIAR - 1].key.address, world.nodes[ASKING - 1]
    for _ in range(6_000):
        await world.turn()
        rounds: list[RoundRecord] = [r for r in await read(world, RoundRecord, job) if r.state == "complete"]
        if rounds and asking.tasks:
            place = next(m for m in rounds[-1].plan.members if m.node == liar)
            challenge = StepChallenge(rounds[-1].number, 1 - place.stage, place.replica, 1)
            asking.say(next(iter(asking.tasks)), [challenge])
            break
    for _ in range(6_000):
        await world.turn()
    return world, job


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.domain.audits.rate.look", lambda _standing: 0)
    monkeypatch.setattr("coordinator.domain.audits.rate.MARGIN", 0)


async def fates(world: World, job: str) -> dict[str, Audit]:
    """The audits of the challenged member and of the liar beside it."""
    liar = world.nodes[LIAR - 1].key.address
    audits: list[Audit] = await read(world, Audit, job)
    return {"liar" if audit.node == liar else "neighbour": audit for audit in audits}


async def said(world: World, job: str) -> str:
    return "\n".join(event.text for event in await read(world, EventRecord, job))


async def test_where_all_say_the_same_only_what_was_challenged_is_audited() -> None:
    world, job = await beside(None)
    audits = await fates(world, job)
    assert set(audits) == {"neighbour"}
    audit = audits["neighbour"]
    assert (audit.state, audit.apart, len(audit.sides)) == ("passed", (), 2)
    assert all(side.leaf for side in audit.sides)


async def test_whoever_says_that_it_sent_something_else_is_found_by_an_audit_of_its_neighbour() -> None:
    world, job = await beside("sent")
    audits = await fates(world, job)
    assert (audits["neighbour"].state, audits["neighbour"].apart) == ("passed", (audits["liar"].seat,))
    assert (audits["liar"].state, audits["liar"].blame, audits["liar"].step) == ("failed", "wrong", 1)
    assert world.chain.slashed == {world.nodes[LIAR - 1].key.address: 500_000}
    assert "nobody is blamed" not in await said(world, job)


async def test_where_both_steps_give_what_was_committed_to_nobody_is_blamed_and_the_pair_is_named() -> None:
    world, job = await beside("received")
    audits = await fates(world, job)
    assert [audits[who].state for who in ("neighbour", "liar")] == ["passed", "passed"]
    assert world.chain.slashed == {}
    line = next(line for line in (await said(world, job)).splitlines() if "nobody is blamed" in line)
    assert all(audit.node in line for audit in audits.values())


async def test_whoever_shows_no_leaf_has_its_step_audited_and_pays_for_not_opening_it() -> None:
    world, job = await beside("mute")
    audits = await fates(world, job)
    assert (audits["neighbour"].state, audits["neighbour"].apart) == ("passed", ())
    assert (audits["liar"].state, audits["liar"].blame) == ("failed", "refused")
    assert world.chain.slashed == {}


async def test_a_neighbour_whose_leaf_stands_under_no_root_is_audited_and_slashed() -> None:
    world, job = await beside("root")
    audits = await fates(world, job)
    assert (audits["neighbour"].state, audits["liar"].blame) == ("passed", "wrong")

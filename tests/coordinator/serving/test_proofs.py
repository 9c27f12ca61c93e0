"""A wrong answer costs stake once two owners' machines of its class came to the same bits, and nobody loses any for less."""

import msgspec
import pytest

from coordinator.domain import accusations as rules
from coordinator.domain.accusations import OPERATOR, AccusedAnswer, Witness
from coordinator.store.records import NodeRecord
from tests.coordinator.serving.deployed import Deployed, Home
from tests.coordinator.serving.test_deployments import count, shares

STAKE = 1_000_000


async def staked(bench: Deployed, number: int, env_class: str = "cpu") -> Home:
    home = await bench.come(number)
    home.env_class = env_class
    bench.fake.stakes[home.node] = STAKE
    async with bench.store.transaction() as tx:
        record = await tx.get(NodeRecord, home.node)
        await tx.update(msgspec.structs.replace(record, stake=STAKE))
    return home


async def accused(bench: Deployed) -> list[AccusedAnswer]:
    async with bench.store.transaction() as tx:
        return await tx.find(AccusedAnswer)


async def lied(bench: Deployed, job: str, liar: Home, seconds: float = 20.0) -> None:
    """One of the homes answers with another token, and what follows is followed."""
    liar.lie = lambda place, token: token + 1 if place == 5 else token
    async with bench.checking():
        asked = [bench.ask(await bench.stored(job), seed=seed) for seed in range(4)]
        await bench.pass_time(3.0)
        assert all(answer.task.done() for answer in asked)
        await bench.pass_time(seconds, 0.5)
        await bench.turn(job)


async def banned(bench: Deployed, home: Home) -> bool:
    async with bench.store.transaction() as tx:
        return (await tx.get(NodeRecord, home.node)).banned


async def test_a_lie_that_no_rounding_explains_costs_pay_place_and_half_of_the_stake() -> None:
    bench = Deployed()
    one, two = await staked(bench, 1), await staked(bench, 2)
    job = await bench.deploy(replicas=2)
    await lied(bench, job, one)
    assert [record.state for record in await accused(bench)].count("proven") == 1, (
        "the rest of its lies cost nothing more"
    )
    found = next(record for record in await accused(bench) if record.state == "proven")
    assert (found.node, {witness.owner for witness in found.witnesses}) == (one.node, {OPERATOR, two.session.payout})
    assert all(record.evidence == b"" for record in await accused(bench)), "people's words are forgotten"
    await bench.while_time_moves(bench.parts.lanes.drain())
    assert bench.fake.slashed == {one.node: STAKE // 2}
    assert (await banned(bench, one), await banned(bench, two)) == (True, False)
    async with bench.checking():
        await count(bench, job)
    assert {share.node for share in await shares(bench, job) if share.amount} == {two.node}


async def test_who_rounds_otherwise_loses_no_stake() -> None:
    bench = Deployed()
    bench.checker.rounding = True
    one, two = await staked(bench, 1), await staked(bench, 2)
    job = await bench.deploy(replicas=2)
    await lied(bench, job, one)
    assert {record.state for record in await accused(bench)} == {"cleared"}
    assert one.lease is None, "its place is gone, as ever"
    assert two.lease is not None
    assert (bench.fake.slashed, await banned(bench, one)) == ({}, False)


async def test_machines_of_another_class_prove_nothing_and_those_that_come_later_do() -> None:
    bench = Deployed()
    bench.checker.env_class = "a server"
    one, two = await staked(bench, 1), await staked(bench, 2)
    far = await staked(bench, 3, "a card")
    job = await bench.deploy(replicas=3)
    await lied(bench, job, one, 60.0)
    assert {record.state for record in await accused(bench)} == {"open"}
    assert not [command for command in far.asked if type(command).__name__ == "ProveCommand"]
    assert bench.fake.slashed == {}
    four = await staked(bench, 4)
    async with bench.checking():
        await bench.turn(job)
        await bench.pass_time(20.0, 0.5)
    await bench.while_time_moves(bench.parts.lanes.drain())
    assert [record.state for record in await accused(bench)].count("proven") == 1
    assert bench.fake.slashed == {one.node: STAKE // 2}
    assert not any([await banned(bench, home) for home in (two, far, four)])


async def test_a_friend_that_vouches_for_a_liar_saves_nothing() -> None:
    bench = Deployed()
    one, friend, three = [await staked(bench, number) for number in (1, 2, 3)]
    friend.vouches = True
    job = await bench.deploy(replicas=3)
    await lied(bench, job, one, 60.0)
    await bench.while_time_moves(bench.parts.lanes.drain())
    assert bench.fake.slashed == {one.node: STAKE // 2}
    assert not await banned(bench, three)


async def test_what_is_accused_outlives_the_coordinator_and_costs_stake_once() -> None:
    bench = Deployed()
    bench.checker.env_class = "a server"
    one, _two = await staked(bench, 1), await staked(bench, 2)
    job = await bench.deploy(replicas=2)
    await lied(bench, job, one)
    del bench.homes[one.node]
    await bench.restart()
    bench.checker.env_class = "cpu"
    await staked(bench, 3)
    async with bench.checking():
        await bench.turn(job)
        await bench.pass_time(40.0, 0.5)
    await bench.while_time_moves(bench.parts.lanes.drain())
    assert bench.fake.slashed == {one.node: STAKE // 2}
    assert not [record for record in await accused(bench) if record.evidence]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("end", ["the deployment", "a day"])
async def test_where_nobody_can_say_in_time_nothing_is_lost_and_the_words_are_forgotten(end: str) -> None:
    bench = Deployed()
    bench.checker.env_class = "a server"
    one = await staked(bench, 1)
    await staked(bench, 2)
    job = await bench.deploy(replicas=2, hours=48.0 if end == "a day" else 1.0)
    await lied(bench, job, one)
    async with bench.checking():
        for _ in range(30):
            await bench.time.advance(3600.0)
            await bench.turn(job)
        await bench.pass_time(10.0, 0.5)
    assert {record.state for record in await accused(bench)} == {"dropped"}
    assert all(record.evidence == b"" for record in await accused(bench))
    assert bench.fake.slashed == {}


async def test_two_wallets_of_one_stranger_slash_nobody_while_the_operators_machine_cannot_say() -> None:
    bench = Deployed()
    one, two, three = [await staked(bench, number) for number in (1, 2, 3)]
    bench.checker.proves = False
    job = await bench.deploy(replicas=3)
    await lied(bench, job, one, 60.0)
    assert {record.state for record in await accused(bench)} == {"open"}
    assert (bench.fake.slashed, await banned(bench, one)) == ({}, False)
    assert two.lease is not None
    assert three.lease is not None


async def test_a_node_that_says_nothing_keeps_no_other_answer_waiting() -> None:
    bench = Deployed()
    one = await staked(bench, 1)
    await staked(bench, 2)
    far, silent = await staked(bench, 3, "card"), await staked(bench, 4, "card")
    silent.looks = False
    job = await bench.deploy(replicas=4)
    await lied(bench, job, far)
    await lied(bench, job, one, 60.0)
    states = {(record.node, record.state) for record in await accused(bench)}
    assert (far.node, "open") in states
    assert (one.node, "proven") in states


def an_accused() -> AccusedAnswer:
    return AccusedAnswer("a", "job", "node", "liar", "cpu", b"{}", "0" * 64, "1" * 64, 0.0)


def found(owner: str, wrong: str = "far off", digest: str = "d", env_class: str = "cpu") -> Witness:
    return Witness(owner, f"node of {owner}", env_class, wrong, digest)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ((found("one"), found("two")), "open"),
        ((found("one"), found("two"), found(OPERATOR, env_class="card")), "proven"),
        ((found(OPERATOR), found("one")), "proven"),
        ((found("one"), found("one")), "open"),
        ((found("liar"), found("one")), "open"),
        ((found("one"), found("two", digest="other")), "open"),
        ((found("one"), found("two", wrong="nearer")), "open"),
        ((found("one"), found("two", env_class="card")), "open"),
        ((found(OPERATOR, env_class="card"), found("one")), "open"),
        ((found(OPERATOR, wrong="", env_class="card"),), "cleared"),
        ((found("one", wrong=""), found("two")), "open"),
        ((found("one", wrong=""), found("two", wrong="")), "cleared"),
        ((found(OPERATOR, env_class="card"), found("one", wrong=""), found("two"), found("three")), "proven"),
    ],
)
def test_two_owners_of_the_class_decide_bit_for_bit(said: tuple[Witness, ...], state: str) -> None:
    answer = an_accused()
    for witness in said:
        answer = rules.heard(answer, witness)
    assert answer.state == state
    if state != "open":
        assert rules.heard(answer, found("late", wrong="" if state == "proven" else "far off")) == answer

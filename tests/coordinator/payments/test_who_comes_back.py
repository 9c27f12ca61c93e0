"""A node that is killed and comes back hears how its job has ended: while it was away, or once it is here again."""

from typing import get_args

import pytest

from protocol.node import Accounts, Due, JobEarned
from tests.coordinator.conftest import House, ScriptedNode, nodes, until
from tests.coordinator.payments.test_pay_reasons import BUSY_S, kinds, newest, seated, state
from tests.coordinator.serving.deployed import Deployed
from tests.coordinator.test_faults import ended, reached, start

OPEN = set(get_args(Due))


async def killed(house: House, made: list[ScriptedNode]) -> int:
    """Break the connection of a node that works; returns its number."""
    victim = (await seated(house, made))[0]
    victim.silent = True
    assert victim._socket is not None
    await victim._socket.close()
    await until(lambda: house.parts.nodes.session(victim.key.address) is None, BUSY_S)
    return made.index(victim) + 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize("back", ["before the end", "after the end"])
async def test_who_was_killed_hears_how_its_training_ended(house: House, back: str) -> None:
    async with nodes(house, 5) as made:
        job = await start(house)
        await reached(house, job, 2)
        number = await killed(house, made)
        if back == "after the end":
            assert (await ended(house, job)).state == "settled"
        async with nodes(house, 1, first=number) as again:
            await again[0].send(Accounts((job,)))
            assert (await ended(house, job)).state == "settled"
            await until(lambda: state(again[0], job) == "settled" and not kinds(newest(again[0], job)) & OPEN, BUSY_S)
            told = newest(again[0], job)
            assert told is not None
            assert told.paid == house.chain.escrows[job].paid.get(again[0].payout, 0)


@pytest.mark.parametrize("back", ["before the end", "after the end"])
async def test_who_was_killed_hears_what_its_answers_were_paid(back: str) -> None:
    bench = Deployed()
    home = await bench.come(1)
    job = await bench.deploy()
    asked = bench.ask(await bench.stored(job))
    await bench.pass_time(2.0)
    await asked.task
    await home.vanish()
    if back == "before the end":
        home = await bench.come(1)
    await bench.parts.jobs.cancel(job)
    async with bench.checking():
        await bench.pass_time(1.0)
        await bench.turn(job, 6)
    if back == "after the end":
        home = await bench.come(1)
        await bench.parts.conversation.receive(home.session, Accounts((job,)))
    await bench.parts.conversation.flush()
    told = [message for message in bench.sent[home.node] if isinstance(message, JobEarned)][-1]
    assert (told.job, told.state, kinds(told)) == (job, "cancelled", {"paid"})
    assert told.paid == told.verified == (await bench.stored(job)).paid > 0

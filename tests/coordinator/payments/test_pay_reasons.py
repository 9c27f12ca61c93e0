"""What nodes are told of their work: at once when it ends, and again when they ask; over the real WebSocket and database."""

import asyncio

from protocol.node import Accounts, JobEarned
from tests.coordinator.conftest import House, ScriptedNode, nodes, until
from tests.coordinator.test_faults import start

BUSY_S = 120.0


def newest(node: ScriptedNode, job: str) -> JobEarned | None:
    return next((earned for earned in reversed(node.earned) if earned.job == job), None)


def kinds(earned: JobEarned | None) -> set[str]:
    return set() if earned is None else {tally.state for tally in earned.tallies}


def state(node: ScriptedNode, job: str) -> str | None:
    earned = newest(node, job)
    return None if earned is None else earned.state


async def seated(house: House, made: list[ScriptedNode]) -> list[ScriptedNode]:
    def here() -> list[ScriptedNode]:
        return [node for node in made if any(task.assign.stage is not None for task in node.tasks.values())]

    await until(lambda: len(here()) >= 4, BUSY_S)
    return here()


async def test_a_cancelled_job_without_a_finished_round_says_so_at_once(house: House) -> None:
    async with nodes(house, 4) as made:
        for node in made:
            node.frozen = True  # No round ever begins.
        job = await start(house)
        at_work = await seated(house, made)
        await house.parts.jobs.cancel(job)
        await until(lambda: all(state(node, job) == "cancelled" for node in at_work), BUSY_S)
        for node in at_work:
            told = newest(node, job)
            assert told is not None
            assert (told.state, told.seat, told.tallies) == ("cancelled", "stopped", ())


async def test_after_a_job_every_share_is_paid_or_says_why_not(house: House) -> None:
    async with nodes(house, 5) as made:
        job = await start(house, rounds=4)

        async def over() -> bool:
            view = await house.parts.jobs.get(job)
            return view.state == "settled"

        await until(over, BUSY_S)
        told_all = [node for node in made if newest(node, job) is not None]
        await until(lambda: all(state(node, job) == "settled" for node in told_all), BUSY_S)
        assert any(kinds(newest(node, job)) == {"paid"} for node in told_all)
        account = house.chain.escrows[job]
        for node in made:
            told = newest(node, job)
            if told is None or not told.tallies:
                continue
            assert told.state == "settled"
            assert "unaudited" not in kinds(told), "nothing waits for an audit once the job is over"
            assert told.paid == account.paid.get(node.payout, 0)
            assert told.signature or not told.paid


async def test_who_leaves_is_told_and_who_comes_back_can_ask(house: House) -> None:
    async with nodes(house, 5) as made:
        job = await start(house, rounds=8)
        leaver = (await seated(house, made))[0]
        await leaver.goodbye()
        await until(lambda: leaver.closed, BUSY_S)
        async with nodes(house, 1, first=made.index(leaver) + 1) as again:
            await again[0].send(Accounts((job, "cd" * 16)))
            await until(lambda: newest(again[0], job), BUSY_S)
            told = newest(again[0], job)
            assert told is not None
            assert told.seat in ("left", "held", "stopped")
            assert [earned.job for earned in again[0].earned if earned.job != job] == [], (
                "of nobody's job nothing is said"
            )


async def test_a_stranger_hears_nothing_of_a_job_that_it_had_no_part_in(house: House) -> None:
    async with nodes(house, 4) as made:
        for node in made:
            node.frozen = True
        job = await start(house)
        await seated(house, made)
        await house.parts.jobs.cancel(job)  # Before the stranger comes, who could be given a place.
        await until(lambda: all(state(node, job) == "cancelled" for node in made), BUSY_S)
    async with nodes(house, 1, first=77) as stranger, nodes(house, 1) as again:
        await stranger[0].send(Accounts((job,)))
        await again[0].send(Accounts((job,)))
        await until(lambda: newest(again[0], job), 20.0)
        await asyncio.sleep(0.5)
        assert not stranger[0].earned

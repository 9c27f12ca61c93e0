"""Stakes are watched for as long as somebody is here: what is asked back, moved or taken counts no more, at once."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from coordinator.config import Config
from coordinator.domain.lease import Lease
from coordinator.services.network.nodes import NodeSession
from coordinator.services.payments.stakes import MAX_AT_ONCE, POLL_S, WATCH_S
from coordinator.store.records import NodeRecord
from ledger.errors import LedgerUnavailableError
from tests.coordinator.bench import CONFIG, Bench
from tests.coordinator.fakes import COORDINATOR, WALLET
from tests.support.wait import HANGS_S

LEAST = 1_000
STAKED: Config = replace(CONFIG, min_stake=LEAST)


class Counting(Bench):
    """A bench that knows whom the ledger was asked about."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(replace(STAKED, **fields))
        self.asked: list[list[str]] = []
        self.silent = False
        real = self.fake.stakes_of

        async def stakes_of(nodes: Sequence[str]) -> Any:
            self.asked.append(list(nodes))
            if self.silent:
                raise LedgerUnavailableError("no answer")
            return await real(nodes)

        self.fake.stakes_of = stakes_of  # type: ignore[method-assign]

    async def come(self, number: int, stake: int = LEAST) -> NodeSession:
        """A node with a stake, which has been looked at."""
        session = await self.enter(number)
        self.fake.stakes[session.node] = stake
        await self.later(0.0)
        return session

    async def later(self, seconds: float = WATCH_S) -> None:
        self.clock.t += seconds
        await self.parts.stakes.look()

    def able(self) -> list[str]:
        return [candidate.node for candidate in self.parts.nodes.candidates()]

    async def record(self, node: str) -> NodeRecord:
        async with self.store.transaction() as tx:
            return await tx.get(NodeRecord, node)


async def test_a_node_gets_no_work_before_it_has_staked() -> None:
    bench = Counting()
    session = await bench.come(1, stake=LEAST - 1)
    assert bench.able() == []
    bench.fake.stakes[session.node] = LEAST
    await bench.later(POLL_S)
    assert bench.able() == [session.node]
    assert (await bench.parts.network.nodes())[0].stake == LEAST


@pytest.mark.parametrize("how", ["withdrawn", "asked back", "asked back in part", "taken", "moves away", "closed"])
async def test_what_leaves_a_stake_counts_no_more(how: str) -> None:
    bench = Counting()
    session = await bench.come(1)
    match how:
        case "withdrawn" | "taken":
            bench.fake.stakes[session.node] = LEAST - 1
        case "asked back":
            bench.fake.requested[session.node] = LEAST
        case "asked back in part":
            bench.fake.requested[session.node] = 1
        case "moves away":
            bench.fake.moving[session.node] = WALLET
        case "closed":
            del bench.fake.stakes[session.node]
    assert bench.able() == [session.node], "until the next look"
    await bench.later()
    assert bench.able() == []
    assert (await bench.record(session.node)).stake == session.stake < LEAST
    bench.fake.stakes[session.node] = LEAST
    bench.fake.requested.clear()
    bench.fake.moving.clear()
    await bench.later()
    assert bench.able() == [session.node], "and back again"


async def test_a_stake_with_another_coordinator_is_none() -> None:
    bench = Bench(STAKED, coordinator=WALLET)
    session = await bench.enter(1)
    bench.fake.stakes[session.node] = LEAST
    await bench.parts.stakes.look()
    assert session.stake_known
    assert bench.parts.nodes.candidates() == []


async def test_one_that_asked_to_move_to_this_coordinator_where_it_is_counts() -> None:
    bench = Counting()
    session = await bench.come(1)
    bench.fake.moving[session.node] = COORDINATOR
    await bench.later()
    assert bench.able() == [session.node]


async def test_while_the_ledger_is_silent_nodes_come_in_and_keep_what_they_have_but_get_nothing_new() -> None:
    bench = Counting()
    old = await bench.come(1)
    bench.silent = True
    await bench.later()
    assert bench.able() == [old.node], "the last figure counts"
    back = await bench.enter(1)
    assert back.stake == LEAST, "as it was last seen"
    await bench.later()
    assert bench.able() == [], "but who has just come was not looked at yet"
    assert not bench.parts.nodes.short_of_stake(back.node), "which is no reason to take anything away"
    bench.silent = False
    await bench.later(POLL_S)
    assert bench.able() == [back.node]


async def test_a_slow_ledger_holds_up_neither_greetings_nor_other_work() -> None:
    bench = Counting()
    await bench.come(1)
    hanging = asyncio.Event()

    async def stakes_of(_nodes: Sequence[str]) -> Any:
        await hanging.wait()
        return {}

    bench.fake.stakes_of = stakes_of  # type: ignore[method-assign]
    bench.clock.t += WATCH_S
    looking = asyncio.create_task(bench.parts.stakes.look())
    await asyncio.sleep(0)
    async with asyncio.timeout(HANGS_S):
        await bench.enter(2)
        await bench.parts.upkeep.tick()
    assert not looking.done()
    looking.cancel()


async def test_stakes_are_asked_for_together_and_no_more_often_than_needed() -> None:
    bench = Counting()
    staked = [await bench.come(number) for number in range(1, 4)]
    poor = await bench.come(4, stake=0)
    bench.asked.clear()
    for _ in range(5):
        await bench.later(POLL_S)
    assert [names.count(poor.node) for names in bench.asked] == [1] * 5, "who may stake at any moment is looked at soon"
    for session in staked:
        assert sum(names.count(session.node) for names in bench.asked) == 1
    assert len(bench.asked) == 5, "one request, however many they are"


async def test_a_crowd_without_stakes_does_not_keep_the_others_waiting() -> None:
    bench = Counting()
    holder = await bench.come(1)
    async with bench.store.transaction() as tx:
        held = await tx.insert(Lease("a" * 32, "b" * 32, holder.node, holder.payout, 1, None, None, bench.clock.t))
    bench.parts.leases.remember(held)
    crowd = [await bench.enter(number) for number in range(2, 2 + 2 * MAX_AT_ONCE)]
    await bench.later(WATCH_S)
    await bench.later(POLL_S)
    assert len(bench.asked[-1]) == MAX_AT_ONCE
    assert all(session.stake_known for session in crowd), "everybody had a turn"
    bench.asked.clear()
    for _ in range(5):
        await bench.later(POLL_S)
    assert all(len(names) <= MAX_AT_ONCE for names in bench.asked)
    assert sum(holder.node in names for names in bench.asked) == 1, "a lease is watched, whoever else waits"


async def test_without_a_least_stake_nobody_is_asked_about() -> None:
    bench = Counting(min_stake=0)
    session = await bench.enter(1)
    await bench.parts.stakes.look()
    assert bench.asked == []
    assert bench.able() == [session.node]

"""Who is asked for which entry: whoever goes, comes back, is silent, lies or names what nobody has keeps no entry from coming."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator import restoring
from coordinator.services.core.context import Context
from coordinator.services.network.nodes import Nodes, NodeSession
from coordinator.services.recovery import recall as recalling
from coordinator.services.recovery.job_records import RecordsSeal
from coordinator.services.recovery.recall import ANSWER_S, Recall
from coordinator.web.signal import _Bucket
from protocol.node import MAX_ENTRIES, Heartbeat, Hello, RecordsEntry, RecordsKept, RecordsReturned, ReturnRecords
from tests.support.clock import VirtualClock

FIRST, SECOND = "1" * 32, "2" * 32
ENTRIES = (RecordsEntry(FIRST, 3, 20), RecordsEntry(FIRST, 3, 16), RecordsEntry(SECOND, 0, 8))
TRUE = b"as it was sealed"


class Keeper:
    """A connection of a node, and what it does when it is asked."""

    def __init__(self, town: "Town", node: str, data: bytes | None = TRUE) -> None:
        self.node, self.begun, self._town, self._data = node, asyncio.Event(), town, data
        self.asked: list[RecordsEntry] = []

    def send(self, message: object) -> None:
        if isinstance(message, ReturnRecords):
            self.asked.append(message.entry)

    async def come(self, *entries: RecordsEntry) -> None:
        """In place of an earlier connection of the node; name these entries."""
        self._town.sessions[self.node] = self
        await self._town.recall.begin(cast(NodeSession, self), cast(Hello, None))
        if entries:
            await self._town.recall.receive(cast(NodeSession, self), RecordsKept(entries))

    async def answer(self) -> None:
        """Return all that it is asked for, unless it is silent."""
        while self._data is not None and self.asked:
            returned = RecordsReturned(self.asked.pop(0), self._data)
            await self._town.recall.receive(cast(NodeSession, self), returned)

    def go(self) -> None:
        self._town.recall.left(cast(NodeSession, self))


class Town:
    """A restored coordinator with a backup in which no job has a round."""

    def __init__(self) -> None:
        self.clock, self.sessions = VirtualClock(), dict[str, Keeper]()
        context = SimpleNamespace(clock=self.clock, config=SimpleNamespace(heartbeat_seconds=2.0))
        nodes = SimpleNamespace(session=self.sessions.get, leave=self._leave)
        seal = SimpleNamespace(open=lambda entry, data: entry if data == TRUE else None)
        known = {FIRST: (0, 0)}
        self.recall = Recall(cast(Context, context), cast(Nodes, nodes), cast(RecordsSeal, seal), known)

    def _leave(self, session: Keeper) -> None:
        if self.sessions.get(session.node) is session:
            del self.sessions[session.node]

    def found(self) -> list[Any]:
        return [entry for entries in self.recall.found.values() for entry in entries]

    def has_all(self) -> None:
        """Each entry came once, and nobody is waited for."""
        assert sorted(self.found(), key=ENTRIES.index) == list(ENTRIES)
        assert not self.recall.waits


async def both(data: bytes | None = TRUE) -> tuple[Town, Keeper, Keeper]:
    """Two who keep the same; what the first one returns."""
    town = Town()
    first, other = Keeper(town, "a", data), Keeper(town, "b")
    await first.come(*ENTRIES)
    await other.come(*ENTRIES)
    return town, first, other


async def test_the_newest_of_each_job_comes_first_and_nothing_that_the_backup_has() -> None:
    town = Town()
    keeper = Keeper(town, "a")
    await keeper.come(RecordsEntry(FIRST, 0, 0), *reversed(ENTRIES))
    await keeper.answer()
    assert town.found() == [ENTRIES[0], ENTRIES[1], ENTRIES[2]]
    assert not town.recall.waits
    order = Town()
    keeper = Keeper(order, "a")
    await keeper.come(*ENTRIES)
    seen = [keeper.asked[0]]
    while keeper.asked:
        await order.recall.receive(cast(NodeSession, keeper), RecordsReturned(keeper.asked.pop(0), TRUE))
        seen += keeper.asked
    assert seen == [ENTRIES[0], ENTRIES[2], ENTRIES[1]]


@pytest.mark.parametrize("data", [b"", b"something else", None])
async def test_who_goes_lies_or_is_silent_keeps_nothing_from_coming(data: bytes | None) -> None:
    town, first, other = await both(data)
    await first.answer()
    await other.answer()
    await town.clock.advance(ANSWER_S)
    town.recall.look()
    await other.answer()
    town.has_all()


async def test_who_goes_before_it_has_returned_anything_leaves_all_of_it_to_others_at_once() -> None:
    town, first, other = await both()
    first.go()
    assert town.recall.waits
    await other.answer()
    town.recall.look()
    await other.answer()
    town.has_all()


async def test_who_comes_back_is_asked_again_whenever_its_old_connection_ends() -> None:
    town = Town()
    before, after = Keeper(town, "a"), Keeper(town, "a")
    await before.come(*ENTRIES)
    await after.come()
    before.go()
    assert town.recall.waits, "it has not named anything yet"
    await town.recall.receive(cast(NodeSession, before), RecordsReturned(ENTRIES[0], TRUE))
    assert town.found() == [], "nobody says anything over a connection that is over"
    await town.recall.receive(cast(NodeSession, after), RecordsKept(ENTRIES))
    await after.answer()
    assert sorted(town.found(), key=ENTRIES.index) == list(ENTRIES)


async def test_names_of_what_nobody_has_crowd_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalling, "MAX_NAMED", 3 * MAX_ENTRIES)
    town = Town()
    for number in range(5):
        made_up = [RecordsEntry(f"{number:032x}", 9, place) for place in range(MAX_ENTRIES)]
        await Keeper(town, f"stranger {number}", None).come(*made_up)
    honest = Keeper(town, "a")
    await honest.come(*ENTRIES)
    await honest.answer()
    assert sorted(town.found(), key=ENTRIES.index) == list(ENTRIES)
    assert sum(len(one.named or ()) for one in town.recall._keepers.values()) <= recalling.MAX_NAMED
    await town.clock.advance(ANSWER_S)
    assert not town.recall.waits


@pytest.mark.parametrize("size", [100, 60_000, 192 << 10])
async def test_nobody_is_asked_for_more_than_its_connection_may_say(size: int) -> None:
    town = Town()
    many = [RecordsEntry(FIRST, 1, rounds) for rounds in range(150)]
    keeper, bucket = Keeper(town, "a", None), _Bucket(town.clock.now())
    await keeper.come(*many)
    data = TRUE.ljust(size, b"\0")
    town.recall._seal.open = lambda entry, _data: entry  # type: ignore[method-assign,assignment,return-value]
    passed = 0.0
    while town.recall.waits:
        while keeper.asked:
            assert bucket.take(town.clock.now(), size + 100), f"{len(town.found())} came"
            await town.recall.receive(cast(NodeSession, keeper), RecordsReturned(keeper.asked.pop(0), data))
        assert bucket.take(town.clock.now(), 50)
        await town.recall.receive(cast(NodeSession, keeper), Heartbeat(()))
        await town.clock.advance(restoring.LOOK_S)
        passed += restoring.LOOK_S
        town.recall.look()
    assert len(town.found()) == len(many)
    assert passed < restoring.MOST_S

"""What machines offered and were paid, day by day; and what that lets another machine expect.

Counted every minute in memory and stored every ten: a crash forgets ten minutes, which no forecast notices.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from coordinator.domain import forecast
from coordinator.domain.forecast import Range
from coordinator.services.core.context import Context
from coordinator.services.network.nodes import Nodes
from coordinator.store.ports import Transaction, col
from coordinator.store.records import MachineDay

COUNT_S = 60.0
STORE_S = 600.0
DAY_S = 86_400
WEEK_DAYS = 7
WEEKS = 4  # That a forecast learns from.
LEAST_HERE_S = 3600  # Of a week; a machine that was here for less says nothing of it.
GIGAFLOP = 10**9
PETAFLOP = 10**15
AT_ONCE = 8_192  # Machines that one statement asks for: a database takes some 32,000 values.


class MachineDays:
    """Counts who is here."""

    def __init__(self, context: Context, nodes: Nodes) -> None:
        self._context = context
        self._nodes = nodes
        self._counted = self._stored = context.clock.time()
        self._waiting: dict[str, tuple[float, float]] = {}
        self.pay: Range | None = None

    async def run(self) -> None:
        """Count for ever."""
        await self._learn()
        while True:
            await self._context.clock.sleep(COUNT_S)
            await self.poll()

    async def poll(self) -> None:
        """Count everybody who is here, and store it when it is time."""
        self._count()
        if self._counted - self._stored >= STORE_S:
            await self.store()

    async def store(self) -> None:
        """Store what was counted, forget what is old, and learn from the rest."""
        self._count()
        now, waiting, self._waiting = self._counted, self._waiting, {}
        self._stored = now
        async with self._context.store.transaction() as tx:
            await tx.hold_shared()
            offered = {
                node: Added(round(seconds), round(operations / GIGAFLOP))
                for node, (seconds, operations) in waiting.items()
            }
            await add(tx, now, offered)
            await tx.forget(MachineDay, col(MachineDay.day) < day_of(now) - (WEEKS + 1) * WEEK_DAYS)
        await self._learn()

    def waiting(self) -> float:
        """Operations that machines could have done since it was last stored."""
        self._count()
        return sum(operations for _, operations in self._waiting.values())

    def _count(self) -> None:
        now = self._context.clock.time()
        for lent in self._nodes.everybody():
            session = self._nodes.session(lent.node)
            if session is not None:
                here = max(0.0, now - max(self._counted, session.began))
                seconds, operations = self._waiting.get(lent.node, (0.0, 0.0))
                self._waiting[lent.node] = (seconds + here, operations + here * session.profile.flops)
        self._counted = now

    async def _learn(self) -> None:
        """Sums are the store's work: rows of a thousand machines would hold everybody up here."""
        today = day_of(self._context.clock.time())
        weeks: list[tuple[str, int, int, int]] = []
        async with self._context.store.transaction() as tx:
            for end in range(today, today - WEEKS * WEEK_DAYS, -WEEK_DAYS):
                within = col(MachineDay.day) > end - WEEK_DAYS, col(MachineDay.day) < end + 1
                fields = col(MachineDay.seconds), col(MachineDay.gigaflop), col(MachineDay.earned)
                seconds, gigaflop, earned = [
                    await tx.sums(MachineDay, field, (col(MachineDay.node),), *within) for field in fields
                ]
                weeks += [(str(key[0]), seconds[key][1], gigaflop[key][1], earned[key][1]) for key in seconds]
        paid = {node for node, _, _, earned in weeks if earned > 0}
        self.pay = forecast.pay(
            [
                earned * (PETAFLOP // GIGAFLOP) / gigaflop
                for node, seconds, gigaflop, earned in weeks
                if node in paid and seconds >= LEAST_HERE_S and gigaflop > 0
            ]
        )


class Added(NamedTuple):
    """What comes to a machine's day."""

    seconds: int = 0
    gigaflop: int = 0
    earned: int = 0


async def add(tx: Transaction, now: float, machines: Mapping[str, Added]) -> None:
    """Add to machines' days, thousands at once."""
    day, nodes = day_of(now), sorted(machines)
    before: list[MachineDay] = []
    for start in range(0, len(nodes), AT_ONCE):
        some = tuple(nodes[start : start + AT_ONCE])
        before += await tx.find(MachineDay, col(MachineDay.node).in_(some), col(MachineDay.day).equals(day))
    after = [
        msgspec.structs.replace(
            known,
            seconds=known.seconds + more.seconds,
            gigaflop=known.gigaflop + more.gigaflop,
            earned=known.earned + more.earned,
        )
        for known in before
        for more in (machines[known.node],)
    ]
    await tx.update_all(after, before)
    new = machines.keys() - {known.node for known in before}
    await tx.insert_all([MachineDay(node, day, *machines[node]) for node in sorted(new)])


async def week(tx: Transaction, now: float) -> tuple[int, int]:
    """What all machines were paid today and on the six days before, and the operations that they could have done."""
    recent = col(MachineDay.day) > day_of(now) - WEEK_DAYS
    earned = await tx.sums(MachineDay, col(MachineDay.earned), (), recent)
    offered = await tx.sums(MachineDay, col(MachineDay.gigaflop), (), recent)
    return earned.get((), (0, 0))[1], offered.get((), (0, 0))[1] * GIGAFLOP


def day_of(now: float) -> int:
    """The day (UTC) of a moment, since 1970."""
    return int(now // DAY_S)

"""What nodes say of themselves when they come in is kept: of all that come while others do, in one transaction.

After an outage thousands come within seconds. Each by itself would open a transaction, take cells' common lock, and commit.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from coordinator.services.core.context import Context
from coordinator.services.core.errands import Joint
from coordinator.services.network.admission import Crowd, CrowdedError
from coordinator.store.ports import Transaction, col
from coordinator.store.records import NodeRecord
from protocol.node import Hello


class Arrival(NamedTuple):
    """A node that comes in from an address."""

    hello: Hello
    address: str


class KeptNode(NamedTuple):
    """What is stored of a node, and whether it is known; of a banned one nothing was changed."""

    record: NodeRecord
    known: bool


class Arrivals:
    """Keeps it, where there is room."""

    def __init__(self, context: Context, crowd: Crowd[Any], is_known: Callable[[str, NodeRecord | None], bool]) -> None:
        """``is_known``: whether a node, of which this is stored, is (``admission``)."""
        self._context, self._crowd, self._is_known = context, crowd, is_known
        self._joint = Joint(self._all_kept)

    async def kept(self, hello: Hello, address: str) -> KeptNode:
        """Once it is stored.

        Raises:
            CrowdedError: there is no room.
            StoreAwayError: nothing is stored now.
        """
        return await self._joint.ask(Arrival(hello, address))

    async def _all_kept(self, arrivals: Sequence[Arrival]) -> Sequence[KeptNode | Exception]:
        async with self._context.store.transaction() as tx:
            return await self._stored(tx, arrivals)

    async def _stored(self, tx: Transaction, arrivals: Sequence[Arrival]) -> list[KeptNode | Exception]:
        await tx.hold_shared()
        nodes = {arrival.hello.node for arrival in arrivals}
        there = {one.address: one for one in await tx.find(NodeRecord, col(NodeRecord.address).in_(sorted(nodes)))}
        before, changed, coming = dict(there), dict[str, NodeRecord](), Counter[tuple[str, bool]]()
        answers: list[KeptNode | Exception] = []
        for arrival in arrivals:
            node, address = arrival.hello.node, arrival.address
            found = there.get(node)
            known = self._is_known(node, found)
            if found is not None and found.banned:
                answers.append(KeptNode(found, known))
                continue
            try:
                self._crowd.check(address, new=found is None, known=known, coming=coming)
            except CrowdedError as crowded:
                answers.append(crowded)
                continue
            coming[address, known] += 1
            there[node] = changed[node] = self._now(arrival.hello, found)
            answers.append(KeptNode(changed[node], known))
        await tx.insert_all([record for node, record in changed.items() if node not in before])
        again = [node for node in changed if node in before]
        newer = await tx.update_all([changed[node] for node in again], [before[node] for node in again])
        stored = changed | dict(zip(again, newer, strict=True))
        return [
            KeptNode(stored.get(one.record.address, one.record), one.known) if isinstance(one, KeptNode) else one
            for one in answers
        ]

    def _now(self, hello: Hello, found: NodeRecord | None) -> NodeRecord:
        now = self._context.clock.time()
        if found is None:
            return NodeRecord(hello.node, hello.payout, hello.profile, now, now)
        return msgspec.structs.replace(found, payout=hello.payout, profile=hello.profile, seen=now)

"""The stakes of those who are here, looked at again for as long as they are: leases and rates rest on what is there now.

A look asks the ledger for many nodes at a time and holds nobody up: until it answers, the last figure counts. That costs nothing
while the ledger is away for less than the cool-down of stakes: what is asked back in the meantime can be taken all the same.
"""

import logging
from collections.abc import Sequence

import msgspec

from coordinator.errors import ConflictError
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.nodes import Nodes, NodeSession
from coordinator.services.payments.chain import ChainPort
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord
from ledger.errors import LedgerError
from ledger.states import StakeState

POLL_S = 2.0
WATCH_S = 10.0  # Between two looks at a stake that is enough, or that a lease is held with.
MAX_AT_ONCE = 1_000  # Twenty requests; whoever waits for more than that has come with a storm, and gets its turn.

LOG = logging.getLogger(__name__)


class StakeService:
    """Follows stakes; without a least stake nobody's matters."""

    def __init__(self, context: Context, nodes: Nodes, leases: Leases, chain: ChainPort, coordinator: str) -> None:
        self._context = context
        self._nodes = nodes
        self._leases = leases
        self._chain = chain
        self._coordinator = coordinator
        self._tried: dict[str, float] = {}  # When each node that is here was asked about last.

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look()
            await self._context.clock.sleep(POLL_S)

    async def look(self) -> None:
        """Ask for every stake that is due: who has just come first, then who holds a lease, then who waited longest."""
        if self._context.config.min_stake == 0:
            return
        due = self._due()
        now = self._context.clock.now()
        self._tried |= dict.fromkeys((session.node for session in due), now)
        try:
            found = await self._chain.stakes_of([session.node for session in due]) if due else {}
        except LedgerError as error:
            self._context.metrics.count("ledger_unavailable_total")
            LOG.warning("stakes cannot be read: %s", error)
            return
        for session in due:
            await self._learn(session, takeable(found[session.node], self._coordinator))

    def _due(self) -> Sequence[NodeSession]:
        now, busy = self._context.clock.now(), self._leases.busy()
        here = [session for session in self._nodes.sessions() if not session.operator]
        self._tried = {session.node: self._tried[session.node] for session in here if session.node in self._tried}
        least = self._context.config.min_stake

        def waits(session: NodeSession) -> bool:
            watched = session.stake_known and (session.stake >= least or session.node in busy)
            return now - self._tried.get(session.node, -WATCH_S) >= (WATCH_S if watched else POLL_S)

        def order(session: NodeSession) -> tuple[bool, bool, float]:
            return session.stake_known, session.node not in busy, self._tried.get(session.node, 0.0)

        return sorted(filter(waits, here), key=order)[:MAX_AT_ONCE]

    async def _learn(self, session: NodeSession, stake: int) -> None:
        changed, session.stake_known = stake != session.stake or not session.stake_known, True
        if not changed:
            return
        session.stake = stake
        try:
            async with self._context.store.transaction() as tx:
                await tx.hold_shared()
                for record in await tx.find(NodeRecord, col(NodeRecord.address).equals(session.node)):
                    if record.stake != stake:
                        await tx.update(msgspec.structs.replace(record, stake=stake))
        except ConflictError:
            session.stake_known = False  # Somebody has just changed the record: the next look writes it.
        self._context.bus.publish(session.node)


def takeable(state: StakeState | None, coordinator: str) -> int:
    """What of a stake answers for work from now on: not what was asked back, and nothing where it is to change hands."""
    if state is None or state.coordinator != coordinator or state.next_coordinator not in (None, coordinator):
        return 0
    return max(0, state.balance - state.requested)

"""What the network page shows."""

from collections.abc import Sequence
from functools import lru_cache

from common.untrusted_text import untrusted
from coordinator.domain.job import Job, JobState
from coordinator.errors import ForbiddenError
from coordinator.services.core.context import Context
from coordinator.services.core.leases import Leases
from coordinator.services.network.nodes import Nodes
from coordinator.services.network.relays import Relays
from coordinator.services.payments.chain import ChainPort
from coordinator.services.views import resources
from coordinator.store.ports import col
from coordinator.store.records import NodeRecord
from protocol.network import RelayEnvelope, RelayOrder, RelayQuestion
from protocol.node import IceServers
from protocol.rest import api

MAX_NODES = 2_000  # Shown at a time, those longest known first.

_RUNNING = (JobState.FUNDED, JobState.PLANNED, JobState.RUNNING, JobState.VERIFYING)
NO_RELAYS = (
    "this network's relays are for computers that may lend here: the line can be tested once this one has been let in"
)
_NONE = (0, 0)  # How many there are, and their sum.

# Most nodes are what they were when somebody looked before.
_node_view = lru_cache(2 * MAX_NODES)(resources.node_view)


class NetworkService:
    """Implements ``ports.NetworkPort``."""

    def __init__(
        self,
        context: Context,
        nodes: Nodes,
        leases: Leases,
        chain: ChainPort,
        relays: Relays,
        coordinator: str,
        test_wallet: bool,
    ) -> None:
        self._context = context
        self._nodes = nodes
        self._leases = leases
        self._chain = chain
        self._relays = relays
        self._coordinator = coordinator
        self._test_wallet = test_wallet

    async def view(self) -> api.NetworkView:
        """Capacity, work and price at a glance."""
        async with self._context.everywhere.transaction() as tx:
            states = await tx.sums(Job, col(Job.paid), (col(Job.state),))
            earned = await tx.sums(NodeRecord, col(NodeRecord.earned), ())
        here = self._nodes.everybody()
        busy = self._leases.busy()
        return api.NetworkView(
            nodes_online=len(here),
            nodes_busy=sum(node.node in busy for node in here),
            memory_mb=sum(node.memory_mb for node in here),
            flops=sum(node.flops for node in here),
            jobs_running=sum(states.get((state,), _NONE)[0] for state in _RUNNING),
            jobs_done=states.get((JobState.SETTLED,), _NONE)[0],
            paid_total=earned.get((), _NONE)[1],
            price_per_petaflop=self._context.config.price_per_petaflop,
            coordinator=self._coordinator,
            ledger_url=self._chain.url,
            test_wallet=self._test_wallet,
            relays_up=len([relay for relay in self._relays.views() if relay.state in ("up", "full")]),
            evaluation_tasks=self._context.config.evaluation.names,
            who_may_lend=self._context.config.who_may_lend,
            min_stake=self._context.config.min_stake,
            notice=untrusted("" if here else "no node is connected: jobs wait until some are"),
        )

    async def nodes(self) -> Sequence[api.NodeView]:
        """Every node that ever was here, those that are online first."""
        async with self._context.everywhere.transaction() as tx:
            records = await tx.find(NodeRecord, limit=MAX_NODES)
        busy = self._leases.busy()
        here = {record.address for record in records if self._nodes.session(record.address) is not None}
        shown = [_node_view(one, one.address in here, one.address in busy & here) for one in records]
        return sorted(shown, key=lambda node: not node.online)

    async def relays(self) -> Sequence[api.RelayView]:
        """Every relay, those that do not report last."""
        return self._relays.views()

    async def announce_relay(self, envelope: RelayEnvelope) -> RelayOrder:
        """Take a relay's report."""
        return self._relays.announce(envelope)

    async def relay_credentials(self, question: RelayQuestion, host: str) -> IceServers:
        """Every relay that lives, for a node that measures them.

        Raises:
            ForbiddenError: it may not lend here, or the question is not its own.
        """
        found = self._relays.credentials(question, host)
        if await self._nodes.lenders.enter(question.node, ""):  # Another cell may have let it in a moment ago.
            raise ForbiddenError(NO_RELAYS)
        return found

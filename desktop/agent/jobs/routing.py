"""Who may send what to whom: the plans a lease has been told, and what they say about a delivery. Pure."""

from collections.abc import Iterable
from enum import Enum

from protocol.task import Plan
from protocol.worker import PeerHeader

KEPT_PLANS = 4  # The plan in force, and those whose last messages may still be on the way.


class RoutingVerdict(Enum):
    """What becomes of a payload that a peer sent."""

    TAKE = "take"
    EARLY = "early"
    """Its epoch is not known here yet: the plan is on its way."""
    STALE = "stale"
    """Its epoch is over."""
    FOREIGN = "foreign"
    """The sender does not hold the place that it speaks for."""


class Plans:
    """The newest plans of one lease, by epoch."""

    def __init__(self, first: Plan, ring: bool = False) -> None:
        """Begin with the plan of ``Assign``; ``ring``: of a model that answers, whose last stage sends to the first."""
        self._ring = ring
        self._by_epoch: dict[int, Plan] = {first.epoch: first}
        self._expected: frozenset[str] = frozenset()

    @property
    def newest(self) -> Plan:
        """The plan in force."""
        return self._by_epoch[max(self._by_epoch)]

    @property
    def replicas(self) -> int:
        """How many replicas a round may have had of late, at most."""
        return max(len(plan.replicas()) for plan in self._by_epoch.values())

    def learn(self, plan: Plan) -> None:
        """Take over the plan of a ``BeginRound`` or ``JoinStages``; one older than those kept is ignored."""
        if plan.epoch < min(self._by_epoch):
            return
        self._by_epoch[plan.epoch] = plan
        for epoch in sorted(self._by_epoch)[:-KEPT_PLANS]:
            del self._by_epoch[epoch]

    def expect(self, nodes: Iterable[str]) -> None:
        """Take those that are on their way to this place's stage, and no others."""
        self._expected = frozenset(nodes)

    def names(self, node: str) -> bool:
        """Whether a node has a place under the plan in force, or is on its way to one."""
        return node in self._expected or any(member.node == node for member in self.newest.members)

    def node_of(self, epoch: int, stage: int, replica: int) -> str | None:
        """Where a payload of ``epoch`` goes; ``None`` when that epoch is over or nobody has the place.

        A worker may be ahead of nobody: an epoch that is not known here is answered by the plan in force.
        """
        if epoch < self.newest.epoch:
            return None
        return self._by_epoch.get(epoch, self.newest).node_of(stage, replica)

    def neighbours(self, stage: int | None, replica: int | None) -> set[str]:
        """The nodes that the holder of this place exchanges messages with: the next stages, and its own in other replicas.

        Those too that come to its own stage.
        """
        if stage is None or replica is None:
            return set()
        near = self.near(stage, replica)
        return {m.node for m in self.newest.members if (m.stage, m.replica) in near} | self._expected

    def near(self, stage: int, replica: int) -> set[tuple[int, int]]:
        """Stage and replica of those neighbours; around a ring the two next stages only."""
        plan = self.newest
        if self._ring:
            count = len(plan.layers)
            around = {(stage - 1) % count, (stage + 1) % count} - {stage}
            return {(m.stage, m.replica) for m in plan.members if m.replica == replica and m.stage in around}
        return {
            (member.stage, member.replica)
            for member in plan.members
            if (member.replica == replica and abs(member.stage - stage) == 1)
            or (member.stage == stage and member.replica != replica)
        }

    def judge(self, sender: str, header: PeerHeader) -> RoutingVerdict:
        """Whether ``sender`` may deliver a payload with ``header`` to this lease, and whether its time has come."""
        epoch = header.name.epoch
        if epoch > self.newest.epoch:
            return RoutingVerdict.EARLY
        plan = self._by_epoch.get(epoch)
        if plan is None or epoch < self.newest.epoch:
            return RoutingVerdict.STALE
        if plan.node_of(header.from_stage, header.from_replica) != sender:
            return RoutingVerdict.FOREIGN
        return RoutingVerdict.TAKE

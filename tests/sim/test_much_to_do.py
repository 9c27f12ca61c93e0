"""A coordinator that falls behind: what has arrived is in time, and nobody honest is let go for the wait."""

from typing import Any

import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.lease import Lease
from protocol.codec import decode
from protocol.node import Heartbeat, NodeMessage, Report
from protocol.task import AuditReport, BisectAnswer, LeafShown, StepOpened
from tests.sim.test_challenges import LIAR, asked
from tests.sim.test_faults import read
from tests.sim.world import SimNode, World


class BusyWorld(World):
    """Answers about audits arrive at once, and wait for their turn longer than an audit has time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.waits = self.config.audit_seconds + 1
        self._came: dict[bytes, float] = {}

    async def _deliver(self, node: SimNode) -> None:
        assert self.parts is not None
        assert node.session is not None
        waiting = [encoded for encoded in node.out if _answers(encoded)]
        for encoded in waiting:
            self._came.setdefault(encoded, self.clock.t)
        node.session.unhandled = len(waiting)
        if node.out[0] not in waiting or self.clock.t > self._came[node.out[0]] + self.waits:
            await super()._deliver(node)
            return
        for encoded in [encoded for encoded in node.out if isinstance(decode(encoded, NodeMessage), Heartbeat)]:
            node.out.remove(encoded)
            await self.parts.conversation.receive(node.session, decode(encoded, NodeMessage))


def _answers(encoded: bytes) -> bool:
    message: NodeMessage = decode(encoded, NodeMessage)
    return isinstance(message, Report) and isinstance(message.body, StepOpened | LeafShown | AuditReport | BisectAnswer)


@pytest.fixture(autouse=True)
def nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.domain.audits.rate.look", lambda _standing: 0)
    monkeypatch.setattr("coordinator.domain.audits.rate.MARGIN", 0)


async def test_an_honest_node_whose_opening_waits_for_its_turn_is_not_let_go() -> None:
    world, job = await asked(special={LIAR: {}}, kind=BusyWorld, stall_seconds=90.0)
    assert [(audit.state, audit.detail) for audit in await read(world, Audit, job)] == [("passed", "")]
    assert [lease.reason for lease in await read(world, Lease, job) if lease.end == "failed"] == []


async def test_a_lie_is_proven_though_both_sides_answers_wait_for_their_turn() -> None:
    world, job = await asked(kind=BusyWorld, stall_seconds=90.0)
    audits: list[Audit] = await read(world, Audit, job)
    assert [(audit.state, audit.blame) for audit in audits] == [("failed", "wrong")]
    assert world.chain.slashed == {world.nodes[LIAR - 1].key.address: 500_000}

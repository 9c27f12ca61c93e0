"""Nobody holds a job up for ever by saying that it works, by holding what it should send, or by coming and going."""

from dataclasses import dataclass

import pytest

from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import Lease
from protocol.task import BeginRound, Progress, RoundHolding
from tests.coordinator.fake_task import digest
from tests.coordinator.fakes import Lie
from tests.sim.test_faults import check, gather_nodes, open_rows, read, submit, timeline
from tests.sim.world import Scheme, SimNode, World

ROUNDS_END = 30_000  # Turns in which twenty rounds end many times over.
SAID_S = 5.0


@dataclass
class Idler(Scheme):
    """Begins rounds, does nothing, and says now and then that it comes on.

    Attributes:
        how: that it has come ``further`` in the round, or is where it ``was``, or ``holds`` something else by now.
    """

    how: str = "was"
    said: float = 0.0
    begun: tuple[int, int] = (0, 0)

    def lie(self, node: SimNode, begun: BeginRound) -> Lie | None:
        """Note which round it is."""
        self.begun = begun.plan.epoch, begun.round
        return None

    def turn(self, node: SimNode) -> None:
        """Say so."""
        for lease, task in node.tasks.items():
            task.abandoned = True
            if node.world.clock.t - self.said > SAID_S and node.session is not None:
                self.said = node.world.clock.t
                step = int(self.said) if self.how == "further" else 1
                if self.how == "holds":
                    held = {0: digest("something else", self.said)}
                    node.report(lease, RoundHolding(*self.begun, held))
                else:
                    node.report(lease, Progress(*self.begun, step, 1))


@pytest.mark.parametrize("how", ["was", "further", "holds"])
async def test_who_only_says_that_it_works_loses_its_seat_and_the_job_goes_on(how: str) -> None:
    """One of two nodes of the only replica held a job until its deadline."""
    world = World(3, nodes=4, faults=0.0, special={4: {"flops": 1e10, "scheme": Idler(how)}})
    await gather_nodes(world)
    job = await submit(world, 2, 1)
    for _ in range(ROUNDS_END):
        await world.turn()
        (stored,) = await read(world, Job, job)
        if stored.state is JobState.SETTLED and not await open_rows(world, job):
            break
    assert stored.state is JobState.SETTLED, await timeline(world, job)
    await check(world, job, stored)
    idler = [lease for lease in await read(world, Lease, job) if lease.node == world.nodes[3].key.address]
    assert {lease.end for lease in idler if lease.seat} == {"stalled"}
    assert world.chain.slashed == {}

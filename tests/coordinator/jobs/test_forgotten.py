"""What a coordinator remembers of a job ends with it: else a million ended ones would fill its memory."""

from coordinator.domain.job import JobState
from tests.sim.test_faults import run_world
from tests.sim.world import World


async def test_nothing_is_remembered_of_a_job_that_is_over() -> None:
    world = World(7, nodes=7, faults=0.0)
    world.crashes = False
    job, stored = await run_world(world, 2, 2)
    assert stored.state is JobState.SETTLED
    assert world.parts is not None
    parts, left = world.parts, set()
    for part in (parts.runs, parts.runs._staffing, parts.upkeep, parts.conversation, parts.draw_blocks):
        left |= {f"{type(part).__name__}.{name}" for name, value in vars(part).items() if _names(value, job)}
    assert not left


def _names(value: object, job: str) -> bool:
    return isinstance(value, dict | set) and job in value

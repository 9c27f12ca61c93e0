"""Jobs that are kept lean: who trains a stage audits it from an anchor of its own, and lies are found and proven as ever."""

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from protocol.job.job import JobSpec
from tests.coordinator.fakes import spec
from tests.sim.test_faults import check, read, run_world
from tests.sim.world import World


def lean(stages: int, replicas: int) -> JobSpec:
    job = spec(stages, replicas, tokens=8 * 512 * replicas)
    return msgspec.structs.replace(job, training=msgspec.structs.replace(job.training, memory="lean", precision="bf16"))


async def trained(seed: int, faults: float = 0.0, **special: dict[str, object]) -> tuple[World, list[Audit]]:
    """A whole job, and its audits."""
    named = {int(name[1:]): what for name, what in special.items()}
    world = World(seed, nodes=7, faults=faults, settings={"audits_per_round": 2}, special=named)
    job, stored = await run_world(world, 1, 4, lean(1, 4))
    await check(world, job, stored)
    found: list[Audit] = await read(world, Audit, job)
    return world, [audit for audit in found if not audit.canary and audit.outer is None]


@pytest.mark.parametrize("seed", [1, 2])
async def test_replicas_audit_each_other_without_their_anchor(seed: int) -> None:
    world, audits = await trained(seed)
    short = [audit for audit in audits if audit.anchor_in == "auditor"]
    assert len(short) > 3, "only the first round, and states that were taken, have no anchor that is agreed on"
    assert any(audit.anchor is not None for audit in audits if audit.anchor_in == "opening"), (
        "one in four can go to anybody"
    )
    assert all(audit.anchor is not None and audit.state == "passed" for audit in short)
    assert world.chain.slashed == {}


@pytest.mark.parametrize("seed", [3, 4])
async def test_a_lie_in_an_opening_without_its_anchor_is_proven_with_the_one_that_its_finder_stores(seed: int) -> None:
    world, audits = await trained(seed, n4={"lie": "skips"}, n5={"lie": "skips"})
    failed = [audit for audit in audits if audit.state == "failed"]
    assert "wrong" in {audit.blame for audit in failed}
    assert {audit.anchor_in for audit in failed} <= {"artifact", "opening"}
    liars = {world.nodes[number - 1].key.address for number in (4, 5)}
    assert set(world.chain.slashed) <= liars
    assert world.chain.slashed


# Worlds in which the accuser is first asked about an opening without its anchor: afterwards nobody asks it any more.
@pytest.mark.parametrize("seed", [6, 8])
async def test_a_false_accuser_stores_an_anchor_and_gains_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.services.audits.sampling.OPENED_WHOLE", 1 << 33)
    world, audits = await trained(seed, n4={"accuse": True})
    accuser = world.nodes[3].key.address
    assert set(world.chain.slashed) <= {accuser}
    assert any(audit.anchor_in == "artifact" and audit.state == "passed" for audit in audits)


@pytest.mark.parametrize("seed", [7, pytest.param(8, marks=pytest.mark.long), pytest.param(9, marks=pytest.mark.long)])
async def test_faults_leave_no_job_stuck_and_no_honest_node_slashed(seed: int) -> None:
    world, audits = await trained(seed, faults=1.0)
    assert any(audit.anchor_in == "auditor" for audit in audits)
    assert world.chain.slashed == {}

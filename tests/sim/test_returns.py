"""Machines whose line is cut, or that crash, just when something was drawn of them: who is back in time opens it and is paid."""

from dataclasses import dataclass, field

import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.lease import Lease
from coordinator.store.records import CommitRecord
from tests.sim.test_faults import check, read, run_world
from tests.sim.world import RESTORE_S, Scheme, SimNode, World


@dataclass
class Wanderer(Scheme):
    """Honest, and away for so long whenever something is to be opened under a lease that it has not left before."""

    seconds: float
    crashing: bool = False
    left: set[str] = field(default_factory=set)

    def turn(self, node: SimNode) -> None:
        """Look at what is drawn, as no node can, so that the line is cut at the worst moment."""
        parts = node.world.parts
        if node.session is None or parts is None:
            return
        audits = node.world.records._rows[Audit].values()
        drawn = {a.lease for a in audits if isinstance(a, Audit) and a.node == node.key.address and a.unopened}
        if fresh := (drawn & set(node.tasks)) - self.left:
            self.left |= fresh
            parts.nodes.leave(node.session)
            if self.crashing:
                node.crash(self.seconds + RESTORE_S)
            else:
                node.cut()
            node.away_until = node.world.clock.t + self.seconds


IN_TIME = [
    (1, 0.0),
    (3, 0.3),
    pytest.param(2, 0.0, marks=pytest.mark.long),
    pytest.param(4, 0.3, marks=pytest.mark.long),
]
"""Worlds: a seed, and how often messages are lost."""


async def wandering(
    seed: int, seconds: float, faults: float, crashing: bool = False
) -> tuple[World, list[Audit], list[CommitRecord]]:
    """One of five nodes goes whenever it is drawn: its audits under leases that ran out meanwhile, and their commitments."""
    scheme = Wanderer(seconds, crashing)
    world = World(seed, nodes=5, faults=faults, special={5: {"scheme": scheme}})  # The quickest gets a seat.
    job, stored = await run_world(world, 2, 2)
    await check(world, job, stored)
    own = world.nodes[4].key.address
    ran_out = {lease.id for lease in await read(world, Lease, job) if lease.end == "expired"} & scheme.left
    audits = [a for a in await read(world, Audit, job) if a.lease in ran_out and not a.canary]
    assert audits, "it was away for longer than its lease, and something was drawn"
    assert all(a.node == own for a in audits)
    places = {(a.epoch, a.round, a.lease) for a in audits}
    commits = [c for c in await read(world, CommitRecord, job) if (c.epoch, c.round, c.lease) in places]
    return world, audits, commits


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("seed", "faults"), IN_TIME)
async def test_who_is_back_in_time_opens_what_was_drawn_and_is_paid(seed: int, faults: float) -> None:
    world, audits, commits = await wandering(seed, 20.0, faults)
    assert {audit.blame for audit in audits} == {""}
    assert {audit.state for audit in audits} <= {"passed", "void"}
    assert any(audit.state == "passed" and audit.absent > 4.0 for audit in audits)
    assert {commit.state for commit in commits} == {"verified"}
    assert world.chain.slashed == {}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("seed", "faults"), IN_TIME)
async def test_who_crashes_and_is_back_in_time_with_its_folder_opens_and_is_paid(seed: int, faults: float) -> None:
    world, audits, commits = await wandering(seed, 14.0, faults, crashing=True)
    assert {audit.blame for audit in audits} == {""}
    assert {audit.state for audit in audits} <= {"passed", "void"}
    assert any(audit.state == "passed" and audit.absent > 4.0 for audit in audits)
    assert {commit.state for commit in commits} == {"verified"}
    assert world.chain.slashed == {}


async def test_who_crashes_and_is_back_too_late_has_left() -> None:
    _, audits, commits = await wandering(1, 90.0, 0.0, crashing=True)
    assert {audit.blame for audit in audits} == {"gone"}
    assert {commit.state for commit in commits} == {"rejected"}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
async def test_who_is_back_later_has_left_and_loses_what_it_did_before(seed: int) -> None:
    _, audits, commits = await wandering(seed, 90.0, 0.0)
    assert {audit.blame for audit in audits} == {"gone"}
    assert {commit.state for commit in commits} == {"rejected"}

"""A node that comes in the middle of a job that fetches weights: its stage hears of it before its first round, to give them."""

import dataclasses
from collections.abc import Mapping

import pytest

from coordinator.domain.lease import Lease
from coordinator.services.artifacts.models import Prepared
from protocol.job.job import JobSpec
from protocol.models.weights import WEIGHT_INDEX
from protocol.node import Command
from protocol.task import BeginRound, ExpectPeers
from tests.coordinator.fakes import FakeModels, digest
from tests.sim.test_draining import SHORT, order
from tests.sim.test_everybody_leaves import calm, seats, to_the_end, until_rounds
from tests.sim.test_faults import check, gather_nodes, read, submit
from tests.sim.world import SimNode

Heard = list[tuple[str, BeginRound | ExpectPeers]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What nodes are told about each other, in its order."""
    told: Heard = []
    obey = SimNode._obey

    def listen(node: SimNode, message: Command) -> None:
        if isinstance(message.body, BeginRound | ExpectPeers):
            told.append((node.key.address, message.body))
        obey(node, message)

    monkeypatch.setattr(SimNode, "_obey", listen)
    return told


@pytest.fixture(params=[True, False])
def fetches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the job starts from weights."""
    prepare = FakeModels.prepare

    async def with_weights(
        models: FakeModels, spec: JobSpec, name: str = "", called: Mapping[str, str] | None = None
    ) -> Prepared:
        made = await prepare(models, spec, name, called)
        return dataclasses.replace(made, files=made.files | {WEIGHT_INDEX: digest(WEIGHT_INDEX)})

    if request.param:
        monkeypatch.setattr(FakeModels, "prepare", with_weights)
    return bool(request.param)


async def test_its_stage_expects_it_until_its_first_round_and_nobody_else_does(fetches: bool, heard: Heard) -> None:
    world = calm(5, nodes=6)
    await gather_nodes(world)
    job = await submit(world, 2, 2, SHORT)
    await until_rounds(world, job, 2)
    before = await seats(world, job)
    leaving = next(iter(before))
    heard.clear()
    await order(world, leaving, "drain")
    await check(world, job, await to_the_end(world, job))
    expected = [(node, body) for node, body in heard if isinstance(body, ExpectPeers)]
    if not fetches:
        assert not expected, "whoever begins without weights has nothing to ask its peers for"
        return
    held = {lease.node: lease for lease in await read(world, Lease, job) if lease.seat}
    (new,) = held.keys() - before.keys()
    mates = {node for node, lease in held.items() if lease.stage == held[new].stage} - {new, leaving}
    assert {node for node, body in expected if new in body.nodes} - {leaving} == mates
    for mate in mates:
        said = [body for node, body in heard if node == mate]
        first = next(at for at, body in enumerate(said) if isinstance(body, ExpectPeers) and new in body.nodes)
        begun = next(at for at, body in enumerate(said) if isinstance(body, BeginRound) and names(body, new))
        assert first < begun
        last = [body for body in said[begun:] if isinstance(body, ExpectPeers)][-1]
        assert new not in last.nodes, "once its plan names it"


def names(begun: BeginRound, node: str) -> bool:
    return any(member.node == node for member in begun.plan.members)

"""Who may read and store what, over whole worlds: exactly what messages under leases that a node holds have named to it."""

from collections import defaultdict

import msgspec
import pytest

from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job as StoredJob
from coordinator.domain.wanted import named_by
from coordinator.errors import GoneError, NotFoundError, TooLargeError
from coordinator.services.artifacts import model_files
from coordinator.services.artifacts.access import GRACE_S
from coordinator.store.records import DeliveryRecord, DisputeRecord, RunRecord
from protocol.artifacts import audit_answer, inputs_answer, state_answer
from protocol.audit import AskInputs
from protocol.job.job import JobSpec
from protocol.node import Assign, Command, CoordinatorMessage
from protocol.task import ApplyRound, BeginRound, BisectQuery, OpenOuter, OpenStep, ReplayStep
from tests.coordinator.fakes import digest, spec
from tests.sim.test_everybody_leaves import calm
from tests.sim.test_faults import gather_nodes, read, submit
from tests.sim.world import SimNode, World
from tests.support.seeds import seeds

OTHERS = digest("a private dataset of somebody else")


class Told:
    """What messages have named to each node, by lease; and what they have asked it to store."""

    def __init__(self, world: World) -> None:
        self.named: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.asked: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.kinds: set[type] = set()
        for node in world.nodes:
            self._listen(node)

    def _listen(self, node: SimNode) -> None:
        receive = node._receive

        def hear(message: CoordinatorMessage) -> None:
            self._take(node.key.address, message)
            receive(message)

        node._receive = hear  # type: ignore[method-assign]

    def _take(self, node: str, message: CoordinatorMessage) -> None:
        match message:
            case Assign():
                self.named[node, message.lease] |= {*message.files.values(), *message.spec.model.weight_files}
            case Command(body=body):
                named = named_by(body)
                self.kinds |= {type(body)} if named else set()
                self.named[node, message.lease] |= set(named)
                asked = self.asked[node, message.lease]
                match body:
                    case OpenStep() | OpenOuter():
                        asked.add(audit_answer(body.audit))
                    case ApplyRound(checkpoint=True):
                        asked.add(state_answer(body.epoch, body.round))
                    case BisectQuery(ask=AskInputs()):
                        asked.add(inputs_answer(body.dispute))


@pytest.fixture(autouse=True)
def weights_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds have names of files and no files; ``tests/coordinator/artifacts/test_weights_fit.py`` has what is in them."""
    monkeypatch.setattr(model_files, "check_fit", lambda config, files: "")


def with_weights(name: str, tokens: int = 4096, **fields: int) -> JobSpec:
    """A job of its own, which starts from weights of its own."""
    document = spec(1, 2, tokens=tokens)
    model = msgspec.structs.replace(document.model, weights=digest("weights", name))
    return msgspec.structs.replace(document, name=name, model=model)


async def everything(world: World, jobs: list[str]) -> set[str]:
    """Every artifact that anything names."""
    found = {OTHERS}
    for job in jobs:
        for stored in await read(world, StoredJob, job):
            found |= {*stored.files.values(), *stored.spec.model.weight_files, stored.spec.dataset.artifact}
            found |= {stored.model} - {None}
        for record in await read(world, RunRecord, job):
            found |= {state for point in record.run.points for state in point.checkpoints}
            found |= set(record.run.checkpoints)
        for audit in await read(world, Audit, job):
            found |= {audit.opening, audit.made} - {None}
        for dispute in await read(world, DisputeRecord, job):
            found.add(dispute.dispute.replay.opening)
    return found


async def may_read(world: World, node: str, artifact: str) -> bool:
    assert world.parts is not None
    try:
        await world.parts.doors.check_read(node, artifact)
    except NotFoundError:
        return False
    return True


async def may_store(world: World, node: str, lease: str, answers: str, artifact: str, size: int = 1) -> bool:
    assert world.parts is not None
    try:
        async with world.parts.doors.storing(node, lease, answers, artifact, size, "192.0.2.1"):
            return True
    except GoneError:
        return False


async def two_jobs(seed: int) -> tuple[World, list[str], Told]:
    """Two tenants' jobs side by side, with audits, liars who dispute, nodes that leave and come."""
    special = {11: {"lie": "skips"}, 10: {"accuse": True}}  # The quickest get seats.
    world = World(
        seed,
        nodes=11,
        faults=0.5,
        special=special,
        settings={"audits_per_round": 3, "canaries": 300_000, "stall_seconds": 60.0, "store_every": 1},
    )
    world.crashes = False
    told = Told(world)
    await gather_nodes(world)
    jobs = [await submit(world, 1, 2, with_weights(name, 16_384)) for name in ("alice", "bob")]
    return world, jobs, told


# In these somebody joins from a stored state, and steps are disputed.
@pytest.mark.parametrize("seed", [2, pytest.param(4, marks=pytest.mark.long)])
async def test_a_node_reads_what_it_was_told_of_under_a_lease_that_it_holds_and_nothing_else(seed: int) -> None:
    world, jobs, told = await two_jobs(seed)
    held_until: dict[tuple[str, str], float] = {}
    checks = readable = 0
    for turn in range(9_000):
        await world.turn()
        assert world.parts is not None
        live = {(lease.node, lease.id) for lease in world.parts.leases._live.values()}
        held_until |= dict.fromkeys(live, world.clock.now())
        if turn % 150:
            continue
        files = await everything(world, jobs)
        for node in world.nodes:
            if (session := node.session) is None or not session.begun.is_set():
                continue
            address = node.key.address
            mine = [key for key in told.named if key[0] == address and key in live]
            lately = [
                key for key, at in held_until.items() if key[0] == address and world.clock.now() - at <= GRACE_S + 1.0
            ]
            must = set().union(*(told.named[key] for key in mine)) & files
            may = set().union(*(told.named[key] for key in lately)) & files
            got = {artifact for artifact in files if await may_read(world, address, artifact)}
            assert must <= got, "what it was told of it can have"
            assert got <= may, "and nothing that it was not told of, or told of under a lease that is long over"
            checks, readable = checks + 1, readable + len(got)
    assert checks > 100
    assert readable > checks, "most held something"
    assert {BeginRound, ReplayStep, BisectQuery} <= told.kinds, "states, openings and dispute material were among it"


async def test_after_its_lease_an_ex_holder_reads_a_little_longer_and_then_no_more() -> None:
    world = calm(4, nodes=4)
    told = Told(world)
    await gather_nodes(world)
    job = await submit(world, 1, 2)
    for _ in range(800):
        await world.turn()
    assert world.parts is not None
    lease = next(lease for lease in world.parts.leases._live.values() if lease.seat)
    node, files = lease.node, set((await read(world, StoredJob, job))[0].files.values())
    assert files <= told.named[node, lease.id]
    assert all([await may_read(world, node, artifact) for artifact in files])
    async with world.parts.desk.open(job) as work:
        work.end(lease.id, "left", "it leaves")
    assert all([await may_read(world, node, artifact) for artifact in files]), "what is under way is not cut"
    world.clock.t += GRACE_S + 1.0
    assert not any([await may_read(world, node, artifact) for artifact in files])
    assert world.parts.doors._held.keys() <= {held.id for held in world.parts.leases._live.values()}
    assert node not in world.parts.doors._of_node, "and nothing is remembered of it"


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1, of=2))
async def test_a_node_stores_what_it_was_asked_for_and_each_answer_once(seed: int) -> None:
    world, jobs, told = await two_jobs(seed)
    tried = stored = 0
    for turn in range(6_000):
        await world.turn()
        if turn % 100 or world.parts is None:
            continue
        live = {lease.id: lease for lease in world.parts.leases._live.values()}
        everywhere = {answers for asked in told.asked.values() for answers in asked}
        for node in world.nodes:
            if (session := node.session) is None or not session.begun.is_set():
                continue
            for lease in live.values():
                for answers in everywhere:
                    tried += 1
                    mine = digest("mine", node.key.address, answers)
                    if not await may_store(world, node.key.address, lease.id, answers, mine):
                        continue
                    stored += 1
                    assert lease.node == node.key.address, "under its own lease"
                    assert answers in told.asked[node.key.address, lease.id], "what it was asked for under this one"
                    assert await may_store(world, node.key.address, lease.id, answers, mine), "again, after a cut"
                    other = digest("other", node.key.address, answers)
                    assert not await may_store(world, node.key.address, lease.id, answers, other), "but nothing else"
    assert tried > 1_000
    assert stored > 5
    rows = [row for job in jobs for row in await read(world, DeliveryRecord, job)]
    assert len(rows) == len({(row.lease, row.artifact) for row in rows}) >= stored - tried // 100


async def test_nobody_stores_more_than_what_is_asked_for_can_be() -> None:
    world = calm(4, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 1, 2)
    for _ in range(3_000):
        await world.turn()
        assert world.parts is not None
        waits = [
            (held, wanted) for held in world.parts.doors._held.values() for wanted in held.wanted if held.until is None
        ]
        if waits:
            break
    held, wanted = waits[0]
    assert 1_000_000 < wanted.most < 1 << 30, "a tiny model's opening has some megabytes"
    with pytest.raises(TooLargeError, match="at most"):
        await may_store(world, held.lease.node, held.lease.id, wanted.answers, OTHERS, wanted.most + 1)
    assert await may_store(world, held.lease.node, held.lease.id, wanted.answers, OTHERS, wanted.most)
    assert held.lease.job == job

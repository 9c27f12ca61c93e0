"""What nodes of one cell want of jobs of another: to join a federation, to leave it, to be paid, to know how work stands."""

import asyncio
from collections.abc import Sequence

import pytest

from coordinator.domain.cells import cell_of
from coordinator.domain.job import JobState
from coordinator.errors import OtherCellError, UnavailableError
from coordinator.services.network.nodes import NodeSession
from coordinator.services.payments.settlement import CLAIM_S
from coordinator.services.training.federations import AWAY, CHANGED
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, EventRecord
from coordinator.web.fronts import between
from coordinator.web.fronts.between import BetweenCells
from protocol.federated.federations import FederationTold, FederationWish, terms_digest
from protocol.ids import JobId, NodeAddress
from protocol.job.federated import FederatedSpec
from protocol.job.job import JobSpec, ModelSpec, TokenizerSpec, TrainingSpec
from protocol.node import Accounts, Claim, JobEarned
from protocol.rest.api import NewJob
from tests.coordinator.bench import Bench
from tests.coordinator.cells.test_between import Cells, node_of, running
from tests.coordinator.cells.test_between import cells as cells_at_doors
from tests.coordinator.cells.test_shared_records import share
from tests.coordinator.cells.towns import CellTown, TownNode
from tests.coordinator.conftest import until
from tests.coordinator.fakes import spec
from tests.coordinator.payments.test_settlement import DEAR, earning, payee

ROUNDS = 5


def document(owners: Sequence[str], least: int = 2) -> JobSpec:
    """A federation of these owners."""
    return JobSpec(
        name="a federation",
        model=ModelSpec(preset="tiny-llama"),
        budget=1,
        tokenizer=TokenizerSpec("bytes"),
        training=TrainingSpec(sequence=32, batch=8, micro_batches=2, inner_steps=2, commit_every=1),
        federated=FederatedSpec(tuple(NodeAddress(node) for node in owners), ROUNDS, least, None),
    )


@pytest.fixture
def town() -> CellTown:
    return CellTown()


def session_of(town: CellTown, node: TownNode) -> NodeSession:
    assert node.cell is not None
    session = town.benches[node.cell].parts.nodes.session(node.node)
    assert session is not None
    return session


async def wish(town: CellTown, node: TownNode, asked: FederationWish) -> FederationTold:
    """What a node hears, over the connection that it has."""
    session, before = session_of(town, node), len(node.sent)
    await town.benches[node.cell or 0].parts.conversation.receive(session, asked)
    [told] = [message for message in node.sent[before:] if isinstance(message, FederationTold)]
    return told


async def join(town: CellTown, node: TownNode, job: str) -> FederationTold:
    seen = (await wish(town, node, FederationWish(JobId(job), "look"))).spec
    assert seen is not None
    return await wish(town, node, FederationWish(JobId(job), "join", terms_digest(seen), rows=7))


# --- federations ------------------------------------------------------------------------------------------------------------


async def test_owners_join_a_federation_of_another_cell_and_are_led_there_once_it_can_begin(town: CellTown) -> None:
    for cell in range(3):
        await town.come(1, cell)
    owners = list(town.nodes)
    job = await town.submit(0, document([node.node for node in owners], least=3))
    for node in owners:
        told = await join(town, node, job)
        assert (told.joined, told.problem) == (True, "")
    assert [node.cell for node in owners] == [0, 1, 2], "nobody goes only to join"
    assert (await wish(town, owners[1], FederationWish(JobId(job), "look"))).owners == 3
    await town.turns(12)
    assert town.held(job) == {node.node for node in owners}
    stored = await town.benches[0].stored(job)
    assert stored.state is JobState.PLANNED
    assert {(owner.node, owner.rows) for owner in stored.owners} == {(node.node, 7) for node in owners}


async def test_who_is_at_work_in_one_cell_joins_in_another_and_works_on(town: CellTown) -> None:
    await town.come(2, 1)
    work = await town.submit(1, spec(1, 2))
    await town.turns(3)
    busy = town.nodes[0]
    assert busy.node in town.held(work)
    federation = await town.submit(0, document([busy.node, town.nodes[1].node]))
    assert (await join(town, busy, federation)).joined
    await town.turns(5)
    assert (busy.cell, busy.closed) == (1, [])
    assert busy.node in town.held(work)


async def test_an_owner_leaves_a_federation_of_another_cell(town: CellTown) -> None:
    mine, other = [(await town.come(1, cell))[0] for cell in (1, 2)]
    job = await town.submit(0, document([mine.node, other.node]))
    assert (await join(town, mine, job)).joined
    told = await wish(town, mine, FederationWish(JobId(job), "leave"))
    assert (told.joined, told.owners, told.problem) == (False, 0, "")
    async with town.benches[0].store.transaction() as tx:
        events = [event.text for event in await tx.find(EventRecord, col(EventRecord.job).equals(job))]
    assert f"node {mine.node} has joined with data of its owner" in events
    assert f"node {mine.node} takes no part any more: its owner has left the federation" in events


async def test_terms_and_invitations_are_looked_at_as_in_the_federations_own_cell(town: CellTown) -> None:
    [mine], [stranger] = await town.come(1, 1), await town.come(1, 1)
    job = await town.submit(0, document([mine.node, TownNode(77).node]))
    told = await wish(town, mine, FederationWish(JobId(job), "join", terms_digest(spec())))
    assert (told.joined, told.problem) == (False, CHANGED)
    told = await wish(town, stranger, FederationWish(JobId(job), "join", terms_digest(spec())))
    assert told.spec is None
    assert stranger.node in told.problem
    assert (await town.benches[0].stored(job)).owners == ()


async def test_who_joins_while_nobody_carries_the_cell_is_told_so_and_how_it_stands(
    town: CellTown, monkeypatch: pytest.MonkeyPatch
) -> None:
    [mine] = await town.come(1, 1)
    job = await town.submit(0, document([mine.node, TownNode(77).node]))

    async def nobody(_node: NodeAddress, _asked: FederationWish) -> FederationTold:
        raise UnavailableError("cell 1")

    monkeypatch.setattr(town.benches[1].beside, "wish", nobody)
    told = await join(town, mine, job)
    assert (told.joined, told.problem, told.owners) == (False, AWAY, 0)
    assert told.spec is not None


async def test_a_cell_grants_nothing_of_a_job_of_another(town: CellTown) -> None:
    [mine] = await town.come(1, 1)
    job = await town.submit(0, document([mine.node, TownNode(77).node]))
    with pytest.raises(OtherCellError):
        await town.benches[2].parts.federations.grant(NodeAddress(mine.node), FederationWish(JobId(job), "leave"))


# --- claims and accounts ----------------------------------------------------------------------------------------------------


async def test_a_claim_is_told_to_the_cells_whose_jobs_owe_something_and_to_no_other(town: CellTown) -> None:
    mine, *_ = await town.come(4, 1)
    session, benches = session_of(town, mine), town.benches
    for bench, state in zip(benches, ("pending", "verified", "verified"), strict=True):
        job = await bench.job(nodes=0)
        async with bench.store.transaction() as tx:
            for number in range(2):
                await tx.insert(share(job, number, payout=session.payout, state=state))
    await benches[1].parts.conversation.receive(session, Claim())
    assert benches[1].beside.claims == [(session.payout, 2)], "what waits in the first cell is not verified yet"
    assert benches[1].parts.settlement._claimed.keys() == {session.payout}
    assert benches[2].beside.claims == []
    await benches[2].parts.settlement.claim_here(session.payout)
    assert benches[2].beside.claims == [], "who hears of a claim tells nobody"


async def test_a_node_asks_how_its_work_in_another_cell_stands(town: CellTown) -> None:
    nodes = await town.come(2, 1)
    job = await town.submit(1, spec(1, 2))
    await town.turns(3)
    assert town.held(job) == {node.node for node in nodes}
    town.benches[1].parts.nodes.leave(session_of(town, nodes[0]))
    await town.connect(nodes[0], 2)
    await town.connect(stranger := TownNode(77), 2)
    town.nodes.append(stranger)
    asks = Accounts((job,))
    await town.benches[2].parts.conversation.receive(session_of(town, stranger), asks)
    await town.benches[2].parts.conversation.flush()
    assert not [message for message in stranger.sent if isinstance(message, JobEarned)]
    await town.benches[2].parts.conversation.receive(session_of(town, nodes[0]), asks)
    await town.benches[2].parts.conversation.flush()
    assert [message.job for message in nodes[0].sent if isinstance(message, JobEarned)][-1:] == [job]


# --- between doors ----------------------------------------------------------------------------------------------------------


async def federation(at: Cells, cell: int) -> str:
    """One that belongs to a cell, and invites nodes 1 and 2."""
    jobs = at.benches[cell].parts.jobs
    while cell_of(job := (await jobs.create(NewJob(document([node_of(1), node_of(2)])))).id, len(at.benches)) != cell:
        pass
    return job


def joining(spec_: JobSpec, job: str) -> FederationWish:
    return FederationWish(JobId(job), "join", terms_digest(spec_))


async def ask(asking: BetweenCells, bench: Bench, job: str) -> FederationTold:
    return await asking.wish(NodeAddress(node_of(1)), joining((await bench.stored(job)).spec, job))


async def test_a_wish_is_granted_over_http_and_asked_again_it_is_as_if_it_had_been_once() -> None:
    async with cells_at_doors(count=2) as at:
        for number in (1, 2):
            await at.benches[1].enter(number)
        job = await federation(at, 1)
        for _ in range(2):
            told = await ask(at.asking[0], at.benches[1], job)
            assert (told.joined, told.owners, told.problem) == (True, 1, "")
            assert told.spec == (await at.benches[1].stored(job)).spec, "to the last number: owners agree to its digest"
        [owner] = (await at.benches[1].stored(job)).owners
        assert owner.node == node_of(1)
        left = await at.asking[0].wish(NodeAddress(node_of(1)), FederationWish(JobId(job), "leave"))
        assert not left.joined


async def test_a_wish_waits_for_whoever_comes_to_carry_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cells_at_doors(count=2) as at:
        for number in (1, 2):
            await at.benches[1].enter(number)
        job, door = await federation(at, 1), at.doors.pop(1)
        waiting = asyncio.create_task(ask(at.asking[0], at.benches[1], job))
        await asyncio.sleep(0.1)
        at.doors[1] = "http://127.0.0.1:9"  # Whoever carried it is gone, and it is not known yet.
        await until(lambda: 1 in at.asking[0]._silent)
        assert not waiting.done()
        at.doors[1] = door
        assert (await waiting).joined
        monkeypatch.setattr(between, "WISH_S", 0.2)
        del at.doors[1]
        with pytest.raises(UnavailableError, match="no coordinator carries cell 2 now"):
            await ask(at.asking[0], at.benches[1], job)


async def test_a_claim_is_kept_until_the_cell_hears_it_and_paid_there_once() -> None:
    async with cells_at_doors(DEAR, count=2) as at:
        mine = payee(9)
        job, door = await earning(at.benches[1], {mine: 9_000}), at.doors.pop(1)
        asking = at.asking[0]
        async with running(asking):
            asking.claim(mine, [1])
            await asyncio.sleep(1.2)
            assert await at.benches[1].rows(job, "settle") == []
            at.doors[1] = "http://127.0.0.1:9"
            await until(lambda: 1 in asking._silent)
            at.doors[1] = door
            await until(lambda: not any(asking._claims.values()))
            await until(lambda: at.benches[1].parts.settlement._claimed.keys() == {mine})
            asking.claim(mine, [1])
            await until(lambda: not any(asking._claims.values()))
        await at.benches[1].parts.lanes.drain()
        assert len(await at.benches[1].rows(job, "settle")) == 1
        async with at.benches[1].store.transaction() as tx:
            paid = await tx.find(CommitRecord, col(CommitRecord.payout).equals(mine))
        assert [one.settlement is not None for one in paid] == [True]


async def test_claims_are_kept_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between, "MAX_CLAIMS_KEPT", 3)
    async with cells_at_doors(count=2) as at:
        del at.doors[1]
        asking = at.asking[0]
        for number in range(9):
            asking.claim(f"payee {number}", [1])
        assert len(asking._claims[1]) == 3
        monkeypatch.setattr(between, "CLAIM_KEPT_S", 0.0)
        await asking._tell()
        assert asking._claims == {1: {}}
        assert between.CLAIM_KEPT_S < CLAIM_S

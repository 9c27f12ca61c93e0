"""The nodes' files over HTTP: whoever asks, by whatever route, has bytes by a right and never by a digest."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from aiohttp import web

from coordinator.app import add_interface
from coordinator.assembly import CoordinatorParts
from coordinator.domain.audits.dispute import Dispute
from coordinator.domain.audits.trust import Audit
from coordinator.errors import UnavailableError
from coordinator.services.artifacts.dataset_checks import DatasetChecks, Inspector
from coordinator.services.artifacts.deliveries import Deliveries
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.disk_space import MIN_FREE_BYTES, Room
from coordinator.services.artifacts.models import Prepared
from coordinator.services.artifacts.uploads import UploadService
from coordinator.store.ports import col
from coordinator.store.records import DeliveryRecord, DisputeRecord
from coordinator.web.auth import Access, Auth, access_of
from coordinator.web.life import LifeRoutes
from protocol.artifacts import audit_answer, state_answer
from protocol.audit import AskInputs, InputsAnswer, NoAnswer, ReplayStep
from protocol.job.job import JobSpec
from protocol.models.model import resolve
from protocol.node import Command, CoordinatorMessage
from protocol.task import ApplyRound, BisectAnswer, OpenStep, RoundApplied, StepOpened
from tests.coordinator.fakes import FakeModels, spec
from tests.sim.test_faults import gather_nodes, submit
from tests.sim.world import SimNode, World

PRIVATE = b"a private recipe\n" * 100
LONG = 400 * 512


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Kitchen(FakeModels):
    """Prepares real files, another set for each job."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.store = DiskArtifacts(folder / "artifacts")

    async def prepare(self, spec: JobSpec, name: str = "", called: Mapping[str, str] | None = None) -> Prepared:
        made = {}
        for file in ("train.bin", "heldout.bin", "tokenizer.json", "config.json"):
            made[file] = await self.put(f"{file} of {spec.name}".encode())
        return Prepared(made, resolve(spec.model, 259))

    async def put(self, data: bytes) -> str:
        async def chunks() -> AsyncIterator[bytes]:
            yield data

        return await self.store.put(chunks(), None, len(data))


@dataclass
class Town:
    """Two jobs under way, each with nodes of its own, and a node that nobody has asked for anything. Time stands still."""

    world: World
    kitchen: Kitchen
    http: aiohttp.ClientSession
    base: str
    jobs: dict[str, str]

    @property
    def parts(self) -> CoordinatorParts:
        assert self.world.parts is not None
        return self.world.parts

    def at_work(self, name: str) -> list[SimNode]:
        """The nodes that hold a lease in a job."""
        held = {lease.node for lease in self.parts.leases._live.values() if lease.job == self.jobs[name]}
        return [node for node in self.world.nodes if node.key.address in held]

    def stranger(self) -> SimNode:
        busy = self.parts.leases.busy()
        return next(node for node in self.world.nodes if node.key.address not in busy)

    def token(self, node: SimNode) -> dict[str, str]:
        assert node.session is not None
        return {"Authorization": f"Bearer {node.session.token}"}

    async def get(self, digest: str, headers: dict[str, str]) -> tuple[int, bytes]:
        async with self.http.get(f"{self.base}/api/v1/artifacts/{digest}", headers=headers) as answer:
            return answer.status, await answer.read()

    async def put(self, data: bytes, node: SimNode, lease: str, answers: str, digest: str = "") -> int:
        url = f"{self.base}/api/v1/artifacts/{digest or sha(data)}?lease={lease}&answers={answers}"
        async with self.http.put(url, data=data, headers=self.token(node)) as answer:
            return answer.status

    def files(self) -> set[str]:
        """Digests of what lies in the store, and names of what has not become anything."""
        return {path.name for path in self.kitchen.store._root.rglob("*") if path.is_file()}

    async def left_open(self, kind: type) -> tuple[SimNode, str, Any]:
        """Let a node of alice's job leave a command of a kind unanswered; the node, its lease and the command."""
        found: list[tuple[SimNode, str, Any]] = []
        for node in self.at_work("alice"):
            receive = node._receive

            def hear(message: CoordinatorMessage, node: SimNode = node, receive: Any = receive) -> None:
                receive(message)
                body = message.body if isinstance(message, Command) else None
                if isinstance(body, kind) and getattr(body, "checkpoint", True):
                    node.hung = True
                    found.append((node, message.lease, body))  # type: ignore[union-attr]

            assert node.session is not None
            node.session.send = hear
        for _ in range(5_000):
            await self.world.turn()
            if found:
                return found[0]
        raise AssertionError("nobody is asked")


@pytest.fixture
async def town(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Town]:
    kitchen = Kitchen(tmp_path)
    await kitchen.put(PRIVATE)
    monkeypatch.setattr("tests.sim.world.FakeModels", lambda: kitchen)
    world = World(
        3, nodes=7, faults=0.0, settings={"spares": 1, "audits_per_round": 2, "stall_seconds": 300.0, "store_every": 1}
    )
    world.crashes = False
    await gather_nodes(world)
    assert world.parts is not None
    jobs = {}
    for name in ("alice", "bob"):
        jobs[name] = await submit(world, 1, 2, msgspec.structs.replace(spec(1, 2, tokens=LONG), name=name))
    while len(ready := [one for one in world.parts.leases._live.values() if one.state == "ready"]) < 6:
        await world.turn()
    assert len({lease.node for lease in ready}) == 6
    app = web.Application()
    uploads = UploadService(tmp_path / "uploads", kitchen.store)
    auth = Auth(world.records, world.clock, replace(world.config, open=True))
    checks = DatasetChecks(tmp_path / "checks", kitchen.store, cast(Inspector, kitchen))
    add_interface(app, world.parts, uploads, checks, kitchen.store, auth)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as http:
        yield Town(world, kitchen, http, "http://{}:{}".format(*runner.addresses[0][:2]), jobs)
    await runner.cleanup()


async def test_each_node_has_its_own_jobs_files_and_nobody_has_any_by_digest_alone(town: Town) -> None:
    alices, bobs, stranger = town.at_work("alice"), town.at_work("bob"), town.stranger()
    assert len(alices) == len(bobs) == 3
    files = {
        name: {
            sha(f"{file} of {name}".encode()) for file in ("train.bin", "heldout.bin", "tokenizer.json", "config.json")
        }
        for name in ("alice", "bob")
    }
    assert files["alice"] | files["bob"] | {sha(PRIVATE)} == town.files(), "they all lie here"
    for name, own in (("alice", alices), ("bob", bobs)):
        for digest in files[name]:
            for node in town.world.nodes:
                status, data = await town.get(digest, town.token(node))
                assert (status, sha(data) == digest) == ((200, True) if node in own else (404, False))
    for node in (*alices, *bobs, stranger):
        known, unknown = await town.get(sha(PRIVATE), town.token(node)), await town.get("0" * 64, town.token(node))
        assert known[0] == unknown[0] == 404
        assert known[1].replace(sha(PRIVATE).encode(), b"?") == unknown[1].replace(b"0" * 64, b"?"), (
            "it tells nobody what is here"
        )
    for headers in ({}, {"Authorization": "Bearer nobodys"}):
        assert (await town.get(sha(PRIVATE), headers))[0] == 403
        assert (await town.get(next(iter(files["alice"])), headers))[0] == 403


async def test_no_other_route_takes_a_digest(town: Town) -> None:
    async with town.http.get(f"{town.base}/openapi.json") as answer:
        paths = (await answer.json())["paths"]
    assert {path for path in paths if "digest" in path} == {"/api/v1/artifacts/{digest}"}


async def test_the_token_of_a_connection_that_is_over_opens_nothing(town: Town) -> None:
    node = town.at_work("alice")[0]
    headers, digest = town.token(node), sha(b"train.bin of alice")
    assert (await town.get(digest, headers))[0] == 200
    assert node.session is not None
    town.parts.nodes.leave(node.session)
    assert (await town.get(digest, headers))[0] == 403


async def test_a_stranger_stores_nothing_whatever_it_says(town: Town) -> None:
    stranger, holder = town.stranger(), town.at_work("alice")[0]
    lease = next(lease for lease in town.parts.leases.of_node(holder.key.address))
    before = town.files()
    for answers in (state_answer(0, 3), audit_answer("a" * 32), audit_answer(lease.id)):
        for under in (lease.id, "b" * 32):
            assert await town.put(b"junk" * 1000, stranger, under, answers) == 410
            assert await town.put(b"junk" * 1000, holder, under, answers) == 410, "nor does a holder, unasked"
    assert town.files() == before


async def test_what_was_asked_is_stored_once_and_then_believed(town: Town) -> None:
    node, lease, asked = await town.left_open(OpenStep)
    answers, opening, other = audit_answer(asked.audit), b"an opening" * 500, b"another" * 500
    before = town.files()
    (other_holder, *_) = [one for one in town.at_work("alice") if one is not node]
    assert await town.put(opening, other_holder, lease, answers) == 410, "another holder's lease"
    assert await town.put(other, node, lease, answers, digest=sha(opening)) == 422, "other bytes than were named"
    assert await town.put(opening, node, lease, answers) == 204
    assert await town.put(opening, node, lease, answers) == 204, "again, after a cut"
    assert await town.put(other, node, lease, answers) == 410, "one answer each"
    assert town.files() - before == {sha(opening)}
    async with town.world.records.transaction() as tx:
        (row,) = await tx.find(DeliveryRecord)
    assert (row.lease, row.artifact, row.node, row.size) == (lease, sha(opening), node.key.address, len(opening))


async def test_a_digest_that_a_node_only_knows_is_not_bytes_that_it_stored(town: Town) -> None:
    """Named as a state or an opening, somebody else's file would be handed to members, auditors and the submitter."""
    node, lease, asked = await town.left_open(ApplyRound)
    answers = state_answer(asked.epoch, asked.round)
    assert await town.put(b"junk", node, lease, answers, digest=sha(PRIVATE)) == 422, "it has not got the bytes"
    deliveries = Deliveries(town.world.records, town.world.clock)
    applied = RoundApplied(asked.epoch, asked.round, "1" * 64, checkpoint=sha(PRIVATE))
    opened_ = StepOpened("a" * 32, sha(PRIVATE))
    inputs = BisectAnswer("a" * 32, AskInputs(0, 0), InputsAnswer(sha(PRIVATE)))
    async with town.world.records.transaction() as tx:
        assert (await deliveries.believed(tx, lease, applied)).checkpoint is None  # type: ignore[union-attr]
        refused = await deliveries.believed(tx, lease, opened_)
        assert isinstance(refused, StepOpened)
        assert (refused.opening, bool(refused.reason)) == (None, True)
        silent = await deliveries.believed(tx, lease, inputs)
        assert isinstance(silent, BisectAnswer)
        assert isinstance(silent.answer, NoAnswer)
    own = b"the true state" * 100
    assert await town.put(own, node, lease, answers) == 204
    said = msgspec.structs.replace(applied, checkpoint=sha(own))
    async with town.world.records.transaction() as tx:
        assert await deliveries.believed(tx, lease, said) == said
        assert (await deliveries.believed(tx, "c" * 32, said)).checkpoint is None, "under that lease alone"  # type: ignore[union-attr]


async def test_what_a_dispute_publishes_names_openings_that_nobody_can_read(town: Town) -> None:
    node, lease, asked = await town.left_open(OpenStep)
    opening = b"all that a step was computed from" * 100
    assert await town.put(opening, node, lease, audit_answer(asked.audit)) == 204
    async with town.world.records.transaction() as tx:
        (audit,) = await tx.find(Audit, col(Audit.id).equals(asked.audit))
        shown = msgspec.structs.replace(audit, state="replaying", auditor_lease=lease, opening=sha(opening), afar=False)
        replay = shown.command_for(lease)
        assert isinstance(replay, ReplayStep)
        challenger = town.stranger().key.address
        over = Dispute(audit.id, audit.node, challenger, replay, 0, 0.0, phase="over", winner="prover", why="operation")
        await tx.insert(DisputeRecord(audit.id, audit.job, True, over, 0.0, 1.0))
    async with town.http.get(f"{town.base}/api/v1/disputes/{audit.id}") as answer:
        evidence = (await answer.json())["evidence"]
    assert evidence["replay"]["opening"] == sha(opening), "anybody knows its digest"
    for one in town.world.nodes:
        status, said = await town.get(sha(opening), town.token(one))
        assert (status, opening in said) == (404, False), "the accused, its peers, other tenants' nodes, strangers"
    for headers in ({}, {"Authorization": "Bearer nobodys"}):
        assert (await town.get(sha(opening), headers))[0] == 403
    assert sha(opening) in town.files(), "it does lie here"


def test_what_an_audit_was_opened_with_is_for_the_jobs_owner_also_where_the_job_is_shared() -> None:
    for handler in (LifeRoutes.records, LifeRoutes.record):
        assert access_of(handler) == Access()


async def test_where_the_disk_is_short_nothing_is_begun(town: Town) -> None:
    node, lease, asked = await town.left_open(OpenStep)
    answers, opening = audit_answer(asked.audit), b"an opening" * 500
    free = MIN_FREE_BYTES + len(opening) - 1
    town.parts.doors._room = Room(Path("unused"), lambda: free)
    before = town.files()
    assert await town.put(opening, node, lease, answers) == 503
    assert town.files() == before
    free += 1
    assert await town.put(opening, node, lease, answers) == 204


def test_room_is_promised_before_it_is_used_and_shared() -> None:
    room = Room(Path("unused"), lambda: MIN_FREE_BYTES + 1_000)
    with room.take(400, "owner a", "address 1"):
        assert room.left() == 600
        with pytest.raises(UnavailableError, match="has room for 600"), room.take(601):
            raise AssertionError
        with pytest.raises(UnavailableError, match="of owner a are on their way"), room.take(200, "owner a"):
            raise AssertionError
        with pytest.raises(UnavailableError, match="of address 1"), room.take(200, "owner b", "address 1"):
            raise AssertionError
        with room.take(500, "owner b", "address 2"):
            assert room.left() == 100
    assert room.left() == 1_000
    assert not room._promised, "nothing is remembered of who is through"
    room.also(lambda: 900)
    assert room.left() == 100

"""The first minute of a restored coordinator, over real sockets: nodes are asked, with liars and losers among them."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import aiohttp
import msgspec
import pytest

from common.clock import SystemClock
from coordinator import restoring
from coordinator.config import Config
from coordinator.domain.job import Job, JobState
from coordinator.domain.lease import TAKES_ANY, Lease
from coordinator.services.artifacts.artifacts import ArtifactStore
from coordinator.services.core.context import Context
from coordinator.services.recovery import catching_up
from coordinator.services.recovery.job_records import RecordsSeal
from coordinator.store.ports import col
from coordinator.store.records import CommitRecord, RoundRecord, RunRecord
from coordinator.store.sql import SqlStore
from ledger.errors import LedgerAnswerError
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.node import (
    PROTOCOL,
    Beat,
    Challenge,
    CoordinatorMessage,
    Heartbeat,
    HeldLease,
    Hello,
    ListRecords,
    RecordsEntry,
    RecordsKept,
    RecordsReturned,
    ReturnRecords,
    Welcome,
)
from tests.coordinator.fakes import COORDINATOR_KEY, FakeArtifacts, FakeChain, profile, spec
from tests.sim.test_everybody_leaves import calm, until_rounds
from tests.sim.test_faults import gather_nodes, read, submit

Records = dict[RecordsEntry, bytes]


async def kept_by_nodes() -> tuple[str, Records, FakeChain, list[CommitRecord]]:
    """A job of a network, what its nodes keep of it, its ledger, and its true shares."""
    world = calm(5, nodes=4)
    await gather_nodes(world)
    job = await submit(world, 2, 2, spec(2, 2, tokens=12 * 1024))
    await until_rounds(world, job, 6)
    while not any(entry.rounds == 6 for node in world.nodes for entry in node.records):
        await world.turn()
    kept = {entry: data for node in world.nodes for entry, data in node.records.items()}
    return job, kept, world.chain, await read(world, CommitRecord, job)


async def node(
    url: str, number: int, records: Records, answers: Callable[[RecordsEntry, bytes], bytes | None]
) -> list[object]:
    """Keep these records until the coordinator closes; ``answers``: what is returned of one, None: nothing is said.

    Returns what the coordinator said.
    """
    key, said = NodeKey(number.to_bytes(32, "big")), list[object]()
    async with aiohttp.ClientSession() as http, http.ws_connect(url) as wire:
        challenge = decode(await wire.receive_bytes(), Challenge)
        signature = key.sign("cottage-hello", challenge.nonce, challenge.host.encode())
        held = (HeldLease("f" * 32, 7),)
        await wire.send_bytes(encode(Hello(PROTOCOL, key.address, key.address, signature, profile("node"), held)))
        await wire.send_bytes(encode(Heartbeat(held)))
        async for frame in wire:
            if frame.type is not aiohttp.WSMsgType.BINARY:
                break
            message: CoordinatorMessage = decode(frame.data, CoordinatorMessage)
            said.append(message)
            match message:
                case ListRecords():
                    await wire.send_bytes(encode(RecordsKept(tuple(records))))
                case ReturnRecords(entry=entry):
                    data = answers(entry, records[entry])
                    if data is not None:
                        await wire.send_bytes(encode(RecordsReturned(entry, data)))
                case _:
                    pass
    return said


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(restoring, "LEAST_S", 3.0)
    monkeypatch.setattr(restoring, "MOST_S", 6.0)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return Config(data=tmp_path, ledger_url="http://ledger.test", port=port, min_stake=0)


async def test_a_job_that_the_backup_never_had_comes_back_from_those_who_tell_the_truth(quick: Config) -> None:
    job, kept, chain, shares = await kept_by_nodes()
    restoring.mark(quick.data)
    store = await SqlStore.open(quick.database)
    context = Context(quick, SystemClock(), store, bytes)
    work = asyncio.create_task(
        restoring.catch_up(context, chain, cast(ArtifactStore, FakeArtifacts()), COORDINATOR_KEY)
    )
    url = f"http://127.0.0.1:{quick.port}"
    async with aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.get(url) as page:
                    assert page.status == 503
                    assert "restored from a backup" in await page.text()
                    assert page.headers["Retry-After"]
                for path in ("/readyz", "/healthz"):
                    async with http.get(url + path) as probe:
                        assert (probe.status, await probe.json()) == (200, {"status": "restoring"}), (
                            "nodes come in by it"
                        )
                break
            except aiohttp.ClientConnectionError:
                assert not work.done(), work.exception()
                await asyncio.sleep(0.02)
    ways: list[Callable[[RecordsEntry, bytes], bytes | None]] = [
        lambda _entry, data: data[:-1] + bytes([data[-1] ^ 1]),
        lambda _entry, _data: b"",
        lambda _entry, data: data,
    ]
    told = []
    for number, way in enumerate(ways, 1):
        told.append(asyncio.create_task(node(f"{url}/api/v1/node", number, kept, way)))
        await asyncio.sleep(0.2)  # The first two are asked first.
    await asyncio.wait_for(work, 60.0)
    for one in told:
        said = await asyncio.wait_for(one, 20.0)
        assert any(isinstance(message, Welcome) for message in said)
        assert all(message.gone == () for message in said if isinstance(message, Beat)), "nobody's worker is ended"
    assert not restoring.is_restored(quick.data)
    async with store.transaction() as tx:
        [stored] = await tx.find(Job, col(Job.id).equals(job))
        [record] = await tx.find(RunRecord, col(RunRecord.job).equals(job))
        leases = await tx.find(Lease, col(Lease.job).equals(job))
        rounds = await tx.find(RoundRecord, col(RoundRecord.job).equals(job), col(RoundRecord.state).equals("complete"))
        commits = await tx.find(CommitRecord, col(CommitRecord.job).equals(job))
    await store.close()
    assert stored.state is JobState.RUNNING
    assert (record.run.done, record.run.round) == (6, None)
    assert record.run.epoch > 10_000
    assert [one.number for one in rounds] == list(range(6))
    assert {lease.seq for lease in leases if lease.state != "ended"} == {TAKES_ANY}
    amounts = {(c.epoch, c.round, c.stage, c.replica): c.amount for c in shares}
    assert {(c.epoch, c.round, c.stage, c.replica): c.amount for c in commits} == {
        key: amount for key, amount in amounts.items() if key[1] < 6
    }
    assert stored.paid == sum(chain.escrows[job].paid.values())


async def test_where_nobody_comes_the_backup_alone_is_gone_on_from(quick: Config) -> None:
    restoring.mark(quick.data)
    store = await SqlStore.open(quick.database)
    context = Context(replace(quick, port=0), SystemClock(), store, bytes)
    await restoring.catch_up(context, FakeChain(), cast(ArtifactStore, FakeArtifacts()), COORDINATOR_KEY)
    await store.close()
    assert not restoring.is_restored(quick.data)


async def test_who_is_to_end_meanwhile_does_and_the_next_one_goes_on_with_it(quick: Config) -> None:
    restoring.mark(quick.data)
    store = await SqlStore.open(quick.database)
    context, ends = Context(quick, SystemClock(), store, bytes), [asyncio.Event(), asyncio.Event()]
    files = cast(ArtifactStore, FakeArtifacts())
    asyncio.get_running_loop().call_later(0.3, ends[1].set)
    with pytest.raises(restoring.EndedError):
        async with asyncio.timeout(restoring.LEAST_S):
            await restoring.catch_up(context, FakeChain(), files, COORDINATOR_KEY, ends)
    assert restoring.is_restored(quick.data)
    with socket.create_server(("127.0.0.1", quick.port)):
        pass  # Nobody has it.
    await restoring.catch_up(context, FakeChain(), files, COORDINATOR_KEY)
    await store.close()
    assert not restoring.is_restored(quick.data)


@pytest.mark.parametrize("times", [1, 1_000])
async def test_what_is_on_the_ledger_and_cannot_be_read_holds_nothing_up(
    quick: Config, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A stranger may name an escrow in more transactions than are read; an endpoint may not have what it lists yet."""
    monkeypatch.setattr(catching_up, "PAUSE_S", 0.01)
    job, kept, chain, _ = await kept_by_nodes()
    seal, asked, written = RecordsSeal(COORDINATOR_KEY.seed), list[str](), chain.written

    async def unreadable(submitter: str, asked_of: str) -> Mapping[str, str]:
        asked.append(asked_of)
        if len(asked) <= times:
            raise LedgerAnswerError("more than 20000 transactions mention it")
        return await written(submitter, asked_of)

    monkeypatch.setattr(chain, "written", unreadable)
    store = await SqlStore.open(quick.database)
    found = [records for entry, data in kept.items() if (records := seal.open(entry, data)) is not None]
    work = catching_up.CatchingUp(
        Context(quick, SystemClock(), store, bytes), chain, cast(ArtifactStore, FakeArtifacts())
    )
    await work.run({job: found}, {})
    async with store.transaction() as tx:
        [record] = await tx.find(RunRecord, col(RunRecord.job).equals(job))
        [stored] = await tx.find(Job, col(Job.id).equals(job))
    await store.close()
    assert asked == [job] * min(times + 1, catching_up.TRIES)
    assert record.run.done == 6
    assert stored.paid == sum(chain.escrows[job].paid.values())


def test_a_mark_remembers_where_jobs_stood_until_another_backup_is_brought_back(tmp_path: Path) -> None:
    restoring.mark(tmp_path)
    assert restoring._as_in_backup(tmp_path, {"a": (3, 7)}) == {"a": (3, 7)}
    assert restoring._as_in_backup(tmp_path, {"a": (10_003, 19), "b": (10_000, 1)}) == {"a": (3, 7)}
    restoring.mark(tmp_path)
    assert restoring._as_in_backup(tmp_path, {}) == {}


async def test_an_entry_is_opened_by_its_coordinator_alone_and_only_whole() -> None:
    job, kept, _, _ = await kept_by_nodes()
    (entry, data), *_ = kept.items()
    seal = RecordsSeal(COORDINATOR_KEY.seed)
    opened = seal.open(entry, data)
    assert opened is not None
    assert opened.job.id == job
    assert RecordsSeal(b"x" * 32).open(entry, data) is None
    assert seal.open(RecordsEntry("0" * 32, entry.epoch, entry.rounds), data) is None
    assert seal.open(RecordsEntry(job, entry.epoch, entry.rounds + 1), data) is None
    assert all(seal.open(entry, data[:cut]) is None for cut in (0, 5, 12, len(data) - 1))
    assert job.encode() not in data, "a node reads nothing of it"


async def test_a_job_that_names_a_number_without_an_end_is_kept_as_any_other() -> None:
    job, kept, _, _ = await kept_by_nodes()
    seal = RecordsSeal(COORDINATOR_KEY.seed)
    (entry, data), *_ = kept.items()
    records = seal.open(entry, data)
    assert records is not None
    config = records.job.config | {"model_max_length": 1_000_000_000_000_000_019_884_624_838_656}
    changed = msgspec.structs.replace(records, job=msgspec.structs.replace(records.job, config=config))
    opened = seal.open(entry, seal.seal(changed))
    assert opened == changed
    assert opened is not None
    assert opened.job.id == job

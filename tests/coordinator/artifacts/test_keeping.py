"""What nothing refers to any more leaves the disk; what somebody may still ask for stays."""

import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.untrusted_text import untrusted
from coordinator.config import RetentionPolicy
from coordinator.domain.audits.trust import Audit
from coordinator.domain.job import Job, JobState
from coordinator.domain.rounds.run import Base, Run, RunPoint
from coordinator.services.artifacts.disk_artifacts import DiskArtifacts
from coordinator.services.artifacts.retention import DAY, FRESH_S, PASSED_S, UNPAID_S, Keeping
from coordinator.store.records import DeliveryRecord, FileRecord, RunRecord
from protocol.ids import Digest
from protocol.plan import Layers, Member, Plan
from tests.coordinator.bench import Bench

ENDED_S = FILE_S = 30 * DAY  # As the policy is where nobody has chosen another one.
PLAN = Plan(0, (Layers(0, 4),), (Member(0, 0, "1" * 32),))


def sha(name: str) -> Digest:
    return hashlib.sha256(name.encode()).hexdigest()


class Cellar:
    """A bench beside a real folder of artifacts, whose files are named by what they are."""

    def __init__(self, folder: Path) -> None:
        self.bench = Bench()
        self.bench.clock.t = 1_800_000_000.0
        self.store = DiskArtifacts(folder / "artifacts")
        self.made: list[Digest] = []
        self.keeping = Keeping(self.bench.parts.context, self.store, lambda: self.made)

    async def put(self, *names: str, age: float = FRESH_S + 1.0) -> None:
        for name in names:

            async def chunks(name: str = name) -> AsyncIterator[bytes]:
                yield name.encode()

            digest = await self.store.put(chunks(), None, 1 << 20)
            when = self.bench.clock.t - age
            os.utime(self.store.path(digest), (when, when))

    async def job(
        self, name: str, state: JobState = JobState.RUNNING, ended: float | None = None, **fields: Any
    ) -> Job:
        """A job with files of its own, ended so many seconds ago."""
        made = await self.bench.job()
        now = self.bench.clock.t
        async with self.bench.store.transaction() as tx:
            stored = await tx.get(Job, made)
            dataset = msgspec.structs.replace(stored.spec.dataset, artifact=sha(f"dataset of {name}"))
            files = {file: sha(f"{file} of {name}") for file in ("train.bin", "tokenizer.json", "config.json")}
            changed = msgspec.structs.replace(
                stored,
                state=state,
                files=files,
                spec=msgspec.structs.replace(stored.spec, dataset=dataset),
                ended=None if ended is None else now - ended,
                **{"escrow": 5, **fields},
            )
            return await tx.update(changed)

    async def left(self) -> set[Digest]:
        """What is there after a sweep."""
        await self.keeping.sweep()
        return {path.name for path in self.store._root.rglob("*") if path.is_file()}


@pytest.fixture
def cellar(tmp_path: Path) -> Cellar:
    return Cellar(tmp_path)


async def test_what_nothing_refers_to_goes_once_it_is_not_new_any_more(cellar: Cellar) -> None:
    await cellar.put("old junk")
    await cellar.put("new junk", age=FRESH_S - 60.0)
    assert await cellar.left() == {sha("new junk")}
    assert cellar.bench.parts.context.metrics.value("artifacts_removed_total") == 1
    cellar.bench.clock.t += 120.0
    assert await cellar.left() == set()


async def test_what_is_stored_again_is_new_again(cellar: Cellar) -> None:
    await cellar.put("junk", age=10 * DAY)
    cellar.bench.clock.t = os.stat(cellar.store._root).st_mtime + 10.0

    async def chunks() -> AsyncIterator[bytes]:
        yield b"junk"

    await cellar.store.put(chunks(), None, 100)
    assert await cellar.left() == {sha("junk")}


@pytest.mark.parametrize(
    ("state", "ended", "fields", "kept"),
    [
        (JobState.RUNNING, None, {}, {"dataset", "train.bin", "tokenizer.json", "config.json"}),
        (JobState.CREATED, None, {"escrow": 0}, {"dataset", "train.bin", "tokenizer.json", "config.json"}),
        (
            JobState.SETTLED,
            ENDED_S - 60,
            {"model": sha("model of j")},
            {"dataset", "train.bin", "tokenizer.json", "config.json", "model"},
        ),
        (JobState.SETTLED, ENDED_S + 60, {"model": sha("model of j")}, {"tokenizer.json", "config.json", "model"}),
        (JobState.FAILED, ENDED_S - 60, {}, {"dataset", "train.bin", "tokenizer.json", "config.json"}),
        (JobState.FAILED, ENDED_S + 60, {}, set()),
        (JobState.CANCELLED, UNPAID_S - 60, {"escrow": 0}, {"dataset", "train.bin", "tokenizer.json", "config.json"}),
        (JobState.CANCELLED, UNPAID_S + 60, {"escrow": 0}, set()),
    ],
)
async def test_a_jobs_files_stay_as_long_as_somebody_may_ask_for_them(
    cellar: Cellar, state: JobState, ended: float | None, fields: dict[str, Any], kept: set[str]
) -> None:
    await cellar.put(*(f"{file} of j" for file in ("dataset", "train.bin", "tokenizer.json", "config.json", "model")))
    await cellar.job("j", state, ended, **fields)
    assert await cellar.left() == {sha(f"{file} of j") for file in kept}


async def test_states_that_a_run_cannot_go_back_to_any_more_go(cellar: Cellar) -> None:
    await cellar.put("state 1", "state 2", "state 3", "folder")
    cellar.made.append(sha("folder"))
    job = await cellar.job("j")
    run = Run(
        (Layers(0, 4),),
        1,
        8,
        2,
        (),
        checkpoints=(sha("state 3"),),
        points=(RunPoint(Base(2), (sha("state 2"),)), RunPoint(Base(3), (sha("state 3"),))),
    )
    async with cellar.bench.store.transaction() as tx:
        await tx.insert(RunRecord(job.id, run))
    assert await cellar.left() == {sha("state 2"), sha("state 3"), sha("folder")}
    cellar.made.clear()
    assert await cellar.left() == {sha("state 2"), sha("state 3")}


def audit(job: str, name: str, state: str, age: float, now: float, **fields: Any) -> Audit:
    opening = {"opening": sha(name)} if state != "showing" else {"made": sha(name)}
    return Audit(
        sha(name)[:32],
        job,
        0,
        0,
        0,
        0,
        0,
        "a" * 32,
        "1" * 32,
        "1" * 32,
        "cpu",
        PLAN,
        0,
        8,
        "0" * 64,
        2,
        "0" * 64,
        deadline=now - age,
        state=state,
        **opening,
        **fields,  # type: ignore[arg-type]
    )


async def test_openings_stay_for_a_week_and_those_that_proved_something_with_the_job(cellar: Cellar) -> None:
    now, job = cellar.bench.clock.t, await cellar.job("j")
    of = [
        audit(job.id, "passed lately", "passed", PASSED_S - 60, now),
        audit(job.id, "passed long ago", "passed", PASSED_S + 60, now),
        audit(job.id, "void long ago", "void", PASSED_S + 60, now),
        audit(job.id, "failed long ago", "failed", 3 * PASSED_S, now),
        audit(job.id, "on its way", "showing", 0.0, now),
        audit(job.id, "waits for a look", "replaying", 3 * PASSED_S, now),
    ]
    names = ("passed lately", "passed long ago", "void long ago", "failed long ago", "on its way", "waits for a look")
    await cellar.put(*names)
    async with cellar.bench.store.transaction() as tx:
        for one in of:
            await tx.insert(one)
    kept = {sha(name) for name in ("passed lately", "failed long ago", "on its way", "waits for a look")}
    assert await cellar.left() == kept


async def test_what_a_node_has_just_stored_waits_for_its_report_and_rows_end_with_the_job(cellar: Cellar) -> None:
    now = cellar.bench.clock.t
    live, over = await cellar.job("j"), await cellar.job("k", JobState.FAILED, ENDED_S + 60)
    await cellar.put("just stored", "stored long ago", age=10 * DAY)
    async with cellar.bench.store.transaction() as tx:
        for job, name, age in ((live, "just stored", 60.0), (live, "stored long ago", DAY), (over, "of k", DAY)):
            await tx.insert(DeliveryRecord("b" * 32, sha(name), job.id, "1" * 32, "an opening", 5, now - age))
    assert await cellar.left() == {sha("just stored")}
    async with cellar.bench.store.transaction() as tx:
        assert {row.job for row in await tx.find(DeliveryRecord)} == {live.id}


async def test_uploaded_files_stay_for_a_month_and_as_long_as_a_job_of_their_account_names_them(cellar: Cellar) -> None:
    now = cellar.bench.clock.t
    job = await cellar.job("j", account_id="alice")
    files = {
        ("alice", "dataset of j"): FILE_S + DAY,
        ("alice", "old"): FILE_S + 60,
        ("alice", "new"): FILE_S - 60,
        ("bob", "dataset of j"): FILE_S + DAY,
    }
    await cellar.put("dataset of j", "old", "new")
    async with cellar.bench.store.transaction() as tx:
        for (account, name), age in files.items():
            await tx.insert(FileRecord(account, sha(name), "dataset", name, 5, now - age))
    assert await cellar.left() == {sha("dataset of j"), sha("new")}
    async with cellar.bench.store.transaction() as tx:
        kept = {(file.account_id, file.name) for file in await tx.find(FileRecord)}
    assert kept == {("alice", "dataset of j"), ("alice", "new")}, "another tenant's old file gives no right any more"
    assert job.account_id == "alice"


async def test_a_survey_says_what_a_sweep_would_free_and_changes_nothing(cellar: Cellar) -> None:
    ended = await cellar.job("over", JobState.SETTLED, ENDED_S + 60, model=sha("model of over"))
    await cellar.put("model of over", "train.bin of over", "an old upload", "junk")
    await cellar.put("new junk", age=60.0)
    now = cellar.bench.clock.t
    upload = FileRecord(ended.account_id, sha("an old upload"), "dataset", untrusted("a"), 13, now - FILE_S - 60)
    delivery = DeliveryRecord("lease", sha("state"), ended.id, "1" * 32, "state", 5, now - 10 * DAY)
    async with cellar.bench.store.transaction() as tx:
        await tx.insert(upload)
        await tx.insert(delivery)
    _, told = await cellar.keeping.survey(RetentionPolicy())
    goes = ("train.bin of over", "an old upload", "junk")
    assert told.largest == tuple(sorted(((len(name), sha(name)) for name in goes), reverse=True))
    assert (told.files, told.removable, told.removable_size) == (5, 3, sum(map(len, goes)))
    async with cellar.bench.store.transaction() as tx:
        assert await tx.find(FileRecord) == [upload]
        assert await tx.find(DeliveryRecord) == [delivery]
    assert await cellar.keeping.survey(RetentionPolicy()) == (cellar.bench.clock.time(), told)
    assert await cellar.keeping.sweep() == told.removable_size, "and the sweep does what was said"
    _, after = await cellar.keeping.survey(RetentionPolicy())
    assert (after.files, after.removable) == (2, 0)


async def test_a_policy_is_what_a_sweep_does_and_another_one_is_only_looked_at(cellar: Cellar) -> None:
    """A job that ended ten days ago, and an upload of as long ago; both would go by a week."""
    await cellar.put("train.bin of over", "an upload")
    ended = await cellar.job("over", JobState.SETTLED, 10 * DAY)
    upload = FileRecord(
        ended.account_id, sha("an upload"), "dataset", untrusted("a"), 9, cellar.bench.clock.t - 10 * DAY
    )
    async with cellar.bench.store.transaction() as tx:
        await tx.insert(upload)
    there = {sha("train.bin of over"), sha("an upload")}
    for policy, goes in (
        (RetentionPolicy(), set()),
        (RetentionPolicy(job_files=7), {sha("train.bin of over")}),
        (RetentionPolicy(uploads=7), {sha("an upload")}),
        (RetentionPolicy(7, 7), there),
        (RetentionPolicy(11, 11), set()),
    ):
        _, told = await cellar.keeping.survey(policy)
        assert {digest for _, digest in told.largest} == goes
    assert await cellar.left() == there, "what was asked about was not done"
    config = cellar.bench.parts.context.config
    cellar.bench.parts.context.__dict__["config"] = replace(config, retention=RetentionPolicy(7, 7))
    assert await cellar.left() == set()

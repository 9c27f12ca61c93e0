"""Records of rounds on the disk: whole or none, sealed, bounded, and gone with their lease."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from common.encrypted_files import SealedWriter
from desktop.agent.jobs import crash_records
from desktop.agent.jobs.crash_records import CrashRecords, RoundStart, RoundStarts
from desktop.agent.jobs.state_store import StateStore
from protocol.audit import KEPT_ROUNDS
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec
from protocol.node import Assign
from protocol.worker import RecordPart, RecordRecall
from tests.desktop.conftest import JOB, plan_of

SECRET, NODE, URL = b"s" * 32, "1" * 32, "https://coordinator.example"
PLENTY = 1 << 30


class Desk:
    """A store and records of one node, as every process of it has them."""

    def __init__(
        self, folder: Path, secret: bytes = SECRET, url: str = URL, limit: int = PLENTY, now: float = 0.0
    ) -> None:
        self.folder = folder / "records"
        self.now = now or os.stat(folder).st_mtime
        self.store = StateStore(folder / "states", secret)
        self.records = CrashRecords(self.folder, secret, self.store, url, limit, lambda: self.now)

    def round(self, assign: Assign, number: int, data: bytes = b"leaves and payloads" * 9000) -> RoundStart:
        """A round is begun from states that are put on the store, and recorded."""
        start = RoundStart()
        if number:
            owner = f"{assign.job}-0-0"
            state, own = (f"{what} {assign.lease} {number} ".encode() * 3000 for what in ("state", "moments"))
            start = RoundStart(self.store.keep(owner, state), self.store.keep(f"{owner}-own", own))
        self.records.keep(assign, RecordPart(0, number, "steps"), start, data + bytes([number]))
        return start

    def files(self) -> list[str]:
        return sorted(file.name for file in self.folder.rglob("*") if file.is_file())


def lease() -> Assign:
    spec = JobSpec("small", ModelSpec("tiny-llama"), 1_000_000, DatasetSpec("00" * 32))
    return Assign(secrets.token_hex(16), 3, JOB, spec, 0, 0, plan_of((0, 0, NODE)), {"config.json": "ab" * 32})


def given(desk: Desk, assign: Assign) -> dict[tuple[int, str], bytes]:
    return {(part.round, part.kind): payload.read() for part, payload in desk.records.parts(assign)}


def test_what_was_recorded_is_there_for_the_next_process_with_what_it_takes(tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 4)
    desk.round(assign, 5)
    desk.records.keep(assign, RecordPart(0, 4, "outer"), RoundStart(), b"contributions")
    again = Desk(tmp_path)
    [found] = again.records.found()
    assert (found.assign, found.rounds) == (assign, (4, 5))
    parts = given(again, assign)
    assert set(parts) == {(n, kind) for n in (4, 5) for kind in ("state", "moments", "steps")} | {(4, "outer")}
    assert parts[5, "steps"] == b"leaves and payloads" * 9000 + b"\x05"
    assert parts[4, "state"] == f"state {assign.lease} 4 ".encode() * 3000
    assert parts[4, "outer"] == b"contributions"


def test_a_worker_has_back_what_an_audit_takes_of_its_round_and_no_more(tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    start = desk.round(assign, 4)
    assert desk.records.keep(assign, RecordPart(0, 4, "outer"), start, b"contributions")
    found = {}
    for kind in ("state", "steps", "outer"):
        parts = desk.records.recalled(assign, RecordRecall(0, 4, kind))  # type: ignore[arg-type]
        found[kind] = {
            part.kind: b"".join(part.payload.read(at, at + 997) for at in range(0, part.payload.size, 997))
            for part in parts
        }
    everything = {kind: data for (_, kind), data in given(desk, assign).items()}
    assert found == {
        "state": {"state": everything["state"]},
        "steps": {kind: everything[kind] for kind in ("state", "moments", "steps")},
        "outer": {kind: everything[kind] for kind in ("state", "outer")},
    }
    assert desk.records.recalled(assign, RecordRecall(1, 4, "steps")) == []
    [*_, record] = desk.records.recalled(assign, RecordRecall(0, 4, "steps"))
    for file in desk.folder.rglob("0-4.steps.sealed"):
        file.write_bytes(bytes(file.stat().st_size))
    assert record.payload.read(0, 7) == b""
    assert desk.records.recalled(assign, RecordRecall(0, 4, "steps")) == []


def test_a_record_is_said_to_be_kept_only_with_what_its_round_began_with(tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path, limit=150_000), lease()
    start = desk.round(assign, 4)
    lost = RoundStart("ab" * 32)
    assert not desk.records.keep(assign, RecordPart(0, 5, "steps"), lost, b"leaves")
    assert not desk.records.keep(assign, RecordPart(0, 5, "steps"), start, b"x" * 200_000)
    assert desk.records.keep(assign, RecordPart(0, 5, "steps"), start, b"leaves")


def test_no_more_than_a_worker_keeps_stays_and_the_states_of_that_stay_with_it(tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    starts = [desk.round(assign, number) for number in range(6)]
    assert desk.files() == ["0-4.steps.sealed", "0-5.steps.sealed", "lease.sealed"]
    owner = f"{assign.job}-0-0"
    for number in range(6, 9):  # The seat goes on, and this lease's records are still needed.
        desk.store.keep(owner, f"state of round {number}".encode() * 100)
    assert KEPT_ROUNDS == 2
    for number, start in enumerate(starts):
        assert start.state is None or (desk.store.whole(start.state) is not None) == (number >= 4)
    desk.records.forget(assign)
    desk.store.keep(owner, b"one more")
    assert all(start.state is None or desk.store.whole(start.state) is None for start in starts)


def test_nothing_of_it_is_readable_on_the_disk(tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 1)
    everything = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    for secret in (b"leaves and payloads", b"state ", b"tiny-llama", JOB.encode()):
        assert secret not in everything
    assert not [path for path in tmp_path.rglob("records*") if path.stat().st_mode & 0o077]


def test_another_key_reads_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 1)
    assert Desk(tmp_path, secret=b"t" * 32).records.found() == []
    assert desk.files() == []


def test_leases_of_another_coordinator_are_none(tmp_path: Path) -> None:
    Desk(tmp_path).round(lease(), 1)
    other = Desk(tmp_path, url="https://another.example")
    assert other.records.found() == []
    assert other.files() == []


def test_what_has_lain_for_a_day_is_thrown_away(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.round(lease(), 1)
    assert len(Desk(tmp_path, now=desk.now + crash_records.KEPT_S - 60).records.found()) == 1
    assert Desk(tmp_path, now=desk.now + crash_records.KEPT_S + 60).records.found() == []
    assert desk.files() == []


Spoil = Callable[[Path], object]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def shorter(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: 3 * crash_records_segment()])


def crash_records_segment() -> int:
    return (16 << 10) + 28


def bent(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("spoil", [cut, shorter, bent, Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_torn_record_counts_as_none_and_the_other_round_stands(spoil: Spoil, tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 4)
    desk.round(assign, 5)
    spoil(next(desk.folder.rglob("0-5.steps.sealed")))
    again = Desk(tmp_path)
    [found] = again.records.found()
    assert found.rounds == (4,)
    assert {number for number, _ in given(again, assign)} == {4}
    spoil(next(again.folder.rglob("0-4.steps.sealed")))
    assert Desk(tmp_path).records.found() == []
    assert desk.files() == []


@pytest.mark.parametrize("spoil", [cut, bent, Path.unlink])
@pytest.mark.parametrize("of", ["state", "moments"])
def test_a_record_whose_state_was_torn_counts_as_none(spoil: Spoil, of: str, tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    start = desk.round(assign, 1)
    spoil(next((tmp_path / "states").glob(f"*{getattr(start, of)}.*.sealed")))
    assert Desk(tmp_path).records.found() == []


@pytest.mark.parametrize("spoil", [cut, bent, Path.unlink])
def test_without_knowing_the_lease_there_is_nothing(spoil: Spoil, tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.round(lease(), 1)
    spoil(next(desk.folder.rglob("lease.sealed")))
    assert Desk(tmp_path).records.found() == []
    assert desk.files() == []


def test_files_that_change_places_are_none(tmp_path: Path) -> None:
    desk, one, other = Desk(tmp_path), lease(), lease()
    for assign in (one, other):
        desk.round(assign, 4)
        desk.round(assign, 5)
    first, second = (desk.folder / f"{assign.lease}-{assign.fence}" for assign in (one, other))
    (first / "0-5.steps.sealed").replace(second / "0-5.steps.sealed")
    (first / "0-4.steps.sealed").replace(first / "0-6.steps.sealed")
    [found] = Desk(tmp_path).records.found()
    assert (found.assign, found.rounds) == (other, (4,))


def test_what_is_not_ours_in_the_folder_is_deleted(tmp_path: Path) -> None:
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 1)
    (desk.folder / "note.txt").write_text("hello")
    (desk.folder / "strange").mkdir()
    (desk.folder / "strange" / "lease.sealed").write_bytes(b"x" * 5000)
    (next(desk.folder.glob("*-3")) / "0-9.steps.part").write_bytes(b"half of one")
    assert len(Desk(tmp_path).records.found()) == 1
    assert desk.files() == ["0-1.steps.sealed", "lease.sealed"]


def test_a_write_that_was_killed_in_the_middle_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 4)

    def killed(_: SealedWriter) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SealedWriter, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        desk.round(assign, 5)
    monkeypatch.undo()
    [found] = Desk(tmp_path).records.found()
    assert found.rounds == (4,)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_costs_the_record_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 4)
    start = desk.round(assign, 5)
    (next(desk.folder.glob("*-3")) / "0-6.steps.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        desk.records.keep(assign, RecordPart(0, 6, "steps"), start, b"x" * 100_000)
    assert [found.rounds for found in Desk(tmp_path).records.found()] == [(5,)], "it had made room for the new one"


def test_the_owners_limit_and_that_of_audits_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, limit=300_000)
    one, other = lease(), lease()
    desk.round(one, 4, b"x" * 100_000)
    desk.round(one, 5, b"x" * 100_000)
    desk.round(other, 4, b"x" * 110_000)
    assert sum(file.stat().st_size for file in desk.folder.rglob("*") if file.is_file()) <= 300_000
    assert sorted(found.rounds for found in desk.records.found()) == [(4, 5)]
    desk.records.limit = PLENTY
    monkeypatch.setattr(crash_records, "MAX_KEPT_RECORD", 50_000)
    desk.round(one, 6, b"x" * 100_000)
    assert [found.rounds for found in desk.records.found()] == [(5,)]


def test_a_disk_is_synced_now_and_then_and_not_for_every_short_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    for module in (crash_records, __import__("desktop.agent.jobs.state_store", fromlist=["x"])):
        monkeypatch.setattr(module, "sync_file", lambda path: synced.append(path.name))
    desk, assign = Desk(tmp_path), lease()
    desk.round(assign, 1)
    assert [name for name in synced if name.startswith("0-1")] == ["0-1.steps.part"]
    assert len([name for name in synced if name.endswith((".sealed", ".manifest"))]) == 4, "state and moments, too"
    synced.clear()
    for number in range(2, 7):
        desk.now += 4.0
        desk.round(assign, number)
    assert synced == []
    desk.now += crash_records.SYNC_S
    desk.round(assign, 7)
    assert any(name.startswith("0-7") for name in synced)


def test_what_a_round_begins_with_is_known_of_the_newest_and_forgotten_where_it_is_replaced() -> None:
    starts = RoundStarts()
    assert starts.of(0) == RoundStart()
    for number in range(1, 9):
        starts.set(number, RoundStart(f"{number:064x}"))
    assert starts.of(1) is None
    assert starts.of(8) == RoundStart(f"{8:064x}")
    starts.set(8, None)
    assert starts.of(8) is None

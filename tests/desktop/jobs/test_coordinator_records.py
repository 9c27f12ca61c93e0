"""What a node keeps for its coordinator: bounded, whole or not there, and there again after a restart."""

from pathlib import Path

import pytest

from desktop.agent.jobs.coordinator_records import CoordinatorRecords
from protocol.node import MAX_ENTRIES, KeepRecords, RecordsEntry

JOB, OTHER = "a" * 32, "b" * 32


def entry(rounds: int, job: str = JOB) -> RecordsEntry:
    return RecordsEntry(job, 1, rounds)


def test_the_newest_are_kept_and_of_earlier_ones_every_fourth(tmp_path: Path) -> None:
    records = CoordinatorRecords(tmp_path)
    for rounds in range(1, 12):
        records.keep(KeepRecords(entry(rounds), b"after %d" % rounds))
    records.keep(KeepRecords(entry(3, OTHER), b"of another job"))
    assert set(records.kept().entries) == {entry(n) for n in (4, 8, 10, 11)} | {entry(3, OTHER)}
    again = CoordinatorRecords(tmp_path)
    assert set(again.kept().entries) == set(records.kept().entries)
    assert again.returned(entry(8)).data == b"after 8"
    again.keep(KeepRecords(entry(8), b"done again"))
    assert again.returned(entry(8)).data == b"done again"
    assert again.returned(entry(5)).data == b""


def test_the_oldest_go_where_there_is_no_room(tmp_path: Path) -> None:
    records = CoordinatorRecords(tmp_path, limit=1_000)
    for rounds in (4, 8, 12, 16):
        records.keep(KeepRecords(entry(rounds), bytes(400)))
    assert set(records.kept().entries) == {entry(12), entry(16)}


def test_no_message_names_more_than_it_may(tmp_path: Path) -> None:
    records = CoordinatorRecords(tmp_path)
    for number in range(MAX_ENTRIES + 40):
        (tmp_path / f"{number:032x}.1.{number}").write_bytes(b"x")
    assert len(records.kept().entries) == MAX_ENTRIES
    records.keep(KeepRecords(entry(9), b"x"))
    assert len(list(tmp_path.iterdir())) == MAX_ENTRIES


def test_a_disk_that_takes_nothing_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = CoordinatorRecords(tmp_path)
    records.keep(KeepRecords(entry(4), b"before"))

    def full(_self: Path, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        records.keep(KeepRecords(entry(4), b"after"))
    assert records.returned(entry(4)).data == b"before"
    assert [file.name for file in tmp_path.iterdir()] == [f"{JOB}.1.4"]


def test_rounds_that_are_done_again_are_newer(tmp_path: Path) -> None:
    records = CoordinatorRecords(tmp_path)
    for epoch, rounds in ((1, 9), (1, 10), (2, 5), (2, 6)):
        records.keep(KeepRecords(RecordsEntry(JOB, epoch, rounds), b"x"))
    assert records.kept().entries == (RecordsEntry(JOB, 2, 6), RecordsEntry(JOB, 2, 5))

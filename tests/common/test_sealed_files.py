"""Files that are read with their key only: any part of them, and whatever was changed is found."""

import itertools
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.encrypted_files import (
    OVERHEAD,
    SEGMENT,
    WHOLE,
    SealedFile,
    SealedMosaic,
    SealedPieces,
    SealedWriter,
    fresh_key,
    seal,
)
from common.errors import SealedFileError

SIZES = (0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT, 3 * SEGMENT + 7)


def some(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize("size", SIZES)
def test_what_was_sealed_is_read_with_its_key_and_with_no_other(tmp_path: Path, size: int) -> None:
    key, path = fresh_key(), tmp_path / "file"
    seal(path, key, some(size))
    with SealedFile(path, key) as file:
        assert (file.size, file.read()) == (size, some(size))
    with pytest.raises(SealedFileError, match="another key"):
        SealedFile(path, fresh_key())


@given(st.integers(0, 3 * SEGMENT + 200), st.integers(0, 3 * SEGMENT + 200), st.sampled_from(SIZES))
@settings(max_examples=60, deadline=None)
def test_any_part_can_be_read(tmp_path_factory: pytest.TempPathFactory, first: int, second: int, size: int) -> None:
    key, path = fresh_key(), tmp_path_factory.mktemp("sealed") / "file"
    seal(path, key, some(size))
    with SealedFile(path, key) as file:
        assert file.read(min(first, second), max(first, second)) == some(size)[min(first, second) : max(first, second)]


def test_a_part_can_be_read_into_memory_that_is_there_already(tmp_path: Path) -> None:
    key, path, data = fresh_key(), tmp_path / "file", some(70 * SEGMENT)
    seal(path, key, data)
    target = bytearray(68 * SEGMENT)
    file = SealedFile(path, key)
    file.read_into(target, SEGMENT + 3)
    assert target == data[SEGMENT + 3 :][: len(target)]
    with pytest.raises(ValueError, match="too many"):
        file.read_into(target, 2 * SEGMENT + 1)


def test_nothing_of_the_content_lies_on_the_disk(tmp_path: Path) -> None:
    marker = b"the secret of a job"
    seal(tmp_path / "file", fresh_key(), marker * 5000)
    assert marker not in (tmp_path / "file").read_bytes()


def test_the_same_content_twice_looks_different(tmp_path: Path) -> None:
    key = fresh_key()
    for name in "ab":
        seal(tmp_path / name, key, some(100))
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("at", [0, 11, 12, 5000, WHOLE - 1, WHOLE, WHOLE + 20, 2 * WHOLE, 2 * WHOLE + 40])
def test_a_byte_that_was_changed_is_found(tmp_path: Path, at: int) -> None:
    key, path = fresh_key(), tmp_path / "file"
    seal(path, key, some(2 * SEGMENT + 100))
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(SealedFileError, match="file was changed"):
        SealedFile(path, key).read()


@pytest.mark.parametrize("left", [0, 1, OVERHEAD, WHOLE - 1, WHOLE, WHOLE + 1, 2 * WHOLE, 2 * WHOLE + 60])
def test_a_file_that_was_cut_anywhere_cannot_be_opened(tmp_path: Path, left: int) -> None:
    key, path = fresh_key(), tmp_path / "file"
    seal(path, key, some(2 * SEGMENT + 100))
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(SealedFileError, match="cut"):
        SealedFile(path, key)


def test_segments_cannot_change_places_or_be_left_out(tmp_path: Path) -> None:
    key, path = fresh_key(), tmp_path / "file"
    seal(path, key, some(3 * SEGMENT))
    whole = path.read_bytes()
    for changed in (
        whole[WHOLE : 2 * WHOLE] + whole[:WHOLE] + whole[2 * WHOLE :],
        whole[WHOLE:],
        whole + whole[:WHOLE],
    ):
        path.write_bytes(changed)
        with pytest.raises(SealedFileError):
            SealedFile(path, key).read()


def test_other_segments_of_a_damaged_file_can_be_read(tmp_path: Path) -> None:
    key, path = fresh_key(), tmp_path / "file"
    seal(path, key, some(3 * SEGMENT))
    data = bytearray(path.read_bytes())
    data[WHOLE + 50] ^= 1
    path.write_bytes(data)
    file = SealedFile(path, key)
    assert file.read(0, SEGMENT) == some(3 * SEGMENT)[:SEGMENT]
    assert file.read(2 * SEGMENT) == some(3 * SEGMENT)[2 * SEGMENT :]
    with pytest.raises(SealedFileError):
        file.read(SEGMENT - 1, SEGMENT + 1)


@given(st.lists(st.one_of(st.integers(0, SEGMENT + 5), st.floats(0, 1)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_what_was_written_in_pieces_and_taken_back_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, acts: list[int | float]
) -> None:
    key, path, expected = fresh_key(), tmp_path_factory.mktemp("sealed") / "file", b""
    writer = SealedWriter(path, key)
    for act in acts:
        if isinstance(act, int):
            writer.write(some(act))
            expected += some(act)
        else:
            expected = expected[: int(len(expected) * act)]
            writer.rewind(len(expected))
        assert writer.size == len(expected)
    writer.finish()
    assert SealedFile(path, key).read() == expected


def test_what_is_there_already_is_not_written_again_and_a_hole_is_refused(tmp_path: Path) -> None:
    key, path, data = fresh_key(), tmp_path / "file", some(SEGMENT + 500)
    writer = SealedWriter(path, key)
    for begin, end in ((0, 300), (0, 400), (100, SEGMENT), (50, 60), (SEGMENT - 1, len(data))):
        writer.write(data[begin:end], begin)
    with pytest.raises(ValueError, match="nothing can be written at"):
        writer.write(b"x", len(data) + 1)
    with pytest.raises(ValueError, match="not 99"):
        writer.rewind(99_999)
    writer.finish()
    assert SealedFile(path, key).read() == data


def test_what_was_changed_while_it_was_written_cannot_be_gone_back_to(tmp_path: Path) -> None:
    writer = SealedWriter(tmp_path / "file", fresh_key())
    writer.write(some(3 * SEGMENT))
    with (tmp_path / "file").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(SealedFileError):
        writer.rewind(5)
    writer.abandon()
    assert not (tmp_path / "file").exists()


def test_a_full_disk_loses_nothing_that_it_did_not_take(tmp_path: Path) -> None:
    class Full(SealedWriter):
        """Has room for two segments at first."""

        room = 2

        def _put(self, data: bytearray, *, is_last: bool) -> None:
            if self._segments >= self.room:
                raise OSError("no space left on device")
            super()._put(data, is_last=is_last)

    key, data = fresh_key(), some(5 * SEGMENT)
    writer = Full(tmp_path / "file", key)
    with pytest.raises(OSError, match="no space"):
        writer.write(data)
    with pytest.raises(OSError, match="no space"):
        writer.finish()
    writer.room = 10
    writer.finish()
    assert SealedFile(tmp_path / "file", key).read() == data


@pytest.mark.parametrize("size", SIZES)
def test_pieces_in_any_order_make_the_file(tmp_path: Path, size: int) -> None:
    key, path, data = fresh_key(), tmp_path / "file", some(size)
    writer = SealedPieces(path, key, size)
    places = list(range(0, size, SEGMENT))
    random.Random(1).shuffle(places)
    for begin in [*places, *places[:1]]:  # One that comes twice does no harm.
        writer.write(data[begin : begin + SEGMENT], begin)
    writer.finish()
    assert SealedFile(path, key).read() == data


@pytest.mark.parametrize(("begin", "length"), [(1, SEGMENT), (0, SEGMENT - 1), (SEGMENT, SEGMENT), (2 * SEGMENT, 1)])
def test_a_piece_that_is_no_segment_of_the_file_is_refused(tmp_path: Path, begin: int, length: int) -> None:
    writer = SealedPieces(tmp_path / "file", fresh_key(), SEGMENT + 10)
    with pytest.raises(ValueError, match="no segments of it"):
        writer.write(bytes(length), begin)
    writer.write(bytes(10), SEGMENT)


def test_a_file_whose_pieces_did_not_all_come_cannot_be_read(tmp_path: Path) -> None:
    key, path = fresh_key(), tmp_path / "file"
    writer = SealedPieces(path, key, 3 * SEGMENT)
    writer.write(some(SEGMENT), 2 * SEGMENT)
    writer.finish()
    with pytest.raises(SealedFileError):
        SealedFile(path, key).read()


def test_pieces_that_nobody_finishes_leave_no_file(tmp_path: Path) -> None:
    for _ in range(2):
        writer = SealedPieces(tmp_path / "file", fresh_key(), SEGMENT)
        writer.write(some(SEGMENT), 0)
        del writer
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("loose", [0, 2, 64])
def test_bytes_in_any_order_make_the_file_and_can_be_read_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, loose: int
) -> None:
    monkeypatch.setattr("common.encrypted_files.LOOSE", loose)
    key, path, data, chance = fresh_key(), tmp_path / "file", some(size), random.Random(size)
    writer = SealedMosaic(path, key, size)
    cuts = sorted({0, size, *(chance.randrange(size + 1) for _ in range(12))})
    places = list(itertools.pairwise(cuts))
    chance.shuffle(places)
    for begin, end in [*places, *places[:2]]:  # What comes twice does no harm.
        writer.write(bytes(end - begin), begin)  # Nor does what was wrong at first.
        writer.write(data[begin:end], begin)
        assert writer.read(begin, end) == data[begin:end]
    assert len(writer._loose) <= loose
    assert writer.read(0, size) == data
    writer.finish()
    assert SealedFile(path, key).read() == data


def test_a_mosaic_refuses_what_lies_outside_and_leaves_no_file_that_nobody_finished(tmp_path: Path) -> None:
    writer = SealedMosaic(tmp_path / "file", fresh_key(), 100)
    for begin, length in ((-1, 5), (90, 11), (101, 0)):
        with pytest.raises(ValueError, match="has 100 bytes"):
            writer.write(bytes(length), begin)
    with pytest.raises(ValueError, match="has 100 bytes"):
        writer.read(90, 101)
    writer.abandon()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="closed"):
        writer.write(bytes(100), 0)


def test_a_mosaic_that_was_changed_while_it_was_written_is_not_gone_on_with(tmp_path: Path) -> None:
    writer = SealedMosaic(tmp_path / "file", fresh_key(), 3 * SEGMENT)
    writer.write(some(3 * SEGMENT), 0)
    with (tmp_path / "file").open("r+b") as file:
        file.write(b"changed")
    with pytest.raises(SealedFileError):
        writer.write(b"a part of it", 5)
    with pytest.raises(SealedFileError):
        writer.read(0, 10)
    assert writer.read(SEGMENT, 3 * SEGMENT) == some(3 * SEGMENT)[SEGMENT:]

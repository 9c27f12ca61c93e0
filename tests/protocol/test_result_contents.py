"""Archives that strangers wrote: only what ``packed`` would have made is read, and nothing else is believed."""

import gzip
import io
import random
import tarfile

import pytest

from protocol.job.results import END, contents, header, packed, padding

FILES = {"a": b"", "b/c.txt": b"x" * 513, "b/ü": b"1", "ü/" + "n" * 110 + "/" + "m" * 100: b"y" * 512}


def read(archive: bytes, most: int = 100) -> dict[str, bytes]:
    found = contents(lambda begin, end: archive[begin:end], len(archive), most)
    return {one.path: archive[one.begin : one.begin + one.size] for one in found}


def foreign(*members: tuple[str, bytes], kind: bytes = tarfile.REGTYPE, form: int = tarfile.PAX_FORMAT) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.type, info.mode = len(data), kind, 0o644
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def test_what_was_packed_is_read_back() -> None:
    assert read(packed(FILES)) == FILES
    assert read(packed({})) == {}


def test_one_changed_bit_is_another_files_byte_or_no_archive_at_all() -> None:
    archive, lot, refused = packed(FILES), random.Random(1), 0
    for _ in range(2_000):
        changed = bytearray(archive)
        changed[lot.randrange(len(changed))] ^= 1 << lot.randrange(8)
        try:
            assert packed(read(bytes(changed))) == changed
        except ValueError:
            refused += 1
    assert refused > 1_000, "most of these archives is headers and padding"


def entry(path: str, data: bytes) -> bytes:
    return header(path, len(data)) + data + padding(len(data))


def words(size: int) -> bytes:
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, size
    return info.tobuf(tarfile.USTAR_FORMAT)


HOSTILE = {
    "nothing": b"",
    "half an end": END[:512],
    "more behind its end": packed({}) + bytes(512),
    "a name that leads out": foreign(("../x", b"1")),
    "a link": foreign(("x", b""), kind=tarfile.SYMTYPE),
    "a device": foreign(("x", b""), kind=tarfile.CHRTYPE),
    "a folder": foreign(("x", b""), kind=tarfile.DIRTYPE),
    "out of order": entry("b", b"1") + entry("a", b"1") + END,
    "twice the same": entry("a", b"1") + entry("a", b"2") + END,
    "a file that is a folder": entry("a", b"1") + entry("a/b", b"2") + END,
    "cut in a file": packed({"a": bytes(2000)})[:1024],
    "gigabytes of words about itself": words(1 << 32) + bytes(4096),
    "words that never end": words(4096) * 20,
    "packed": gzip.compress(packed({"a": b"1"})),
    "bytes": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_everything_else_is_refused(what: str) -> None:
    with pytest.raises(ValueError):
        read(HOSTILE[what])


def test_more_files_than_may_be_are_refused() -> None:
    archive = packed({str(number): b"" for number in range(5)})
    assert len(read(archive, 5)) == 5
    with pytest.raises(ValueError, match="more than 4"):
        read(archive, 4)


def test_what_lies_behind_an_early_end_is_not_read() -> None:
    longest = 0

    def zeros(begin: int, end: int) -> bytes:
        nonlocal longest
        longest = max(longest, end - begin)
        return bytes(min(end - begin, 4096))

    with pytest.raises(ValueError, match="its end"):
        contents(zeros, 1 << 40)
    assert longest <= 4096, "a node may store as much as an element may write"

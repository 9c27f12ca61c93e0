"""Hostile archives, unpacked: whatever they hold, what is refused leaves nothing and what is taken stays in its folder."""

import io
import random
import stat
import struct
import tempfile
import warnings
import zipfile
from collections import Counter
from pathlib import Path

from coordinator.client.archive import MAX_RATIO, unpack
from coordinator.client.errors import ArchiveError

_NAMES = (
    *("config.json", "model.safetensors", "nested/a", "nested", "nested/a/b", "NESTED/A", "a//b", "a/./b", "folder/"),
    *("../up", "/etc/x", "a/../../b", "..", ".", "", "/", "C:x", "..\\up", "~/x", "\u202egpj.exe", "a\nb", "a\0b", "é"),
    *("n" * 300, "m/" * 700 + "x", "k" * 64_000),
)
_KINDS = (0, 0, 0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFDIR)
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_REFUSED = ("damaged", "would grow", "not a plain file", "too long", "encrypted", "of one name", "files: at most")


def _made(chance: random.Random) -> bytes:
    """An archive, sound in form: names and kinds that lead elsewhere, and now and then much out of little."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # Two files of one name are what is wanted here.
        plain = chance.random() < 0.5
        for number in range(chance.randint(0, 4)):
            name = f"{number}.bin" if plain else chance.choice(_NAMES)
            entry = zipfile.ZipInfo(name or "x")
            entry.filename = name
            entry.external_attr = (0 if plain else chance.choice(_KINDS)) << 16 | 0o600 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED if plain else chance.choice(_PACKED)
            size = chance.choice((0, 10, 700, 5000, 400_000 if chance.random() < 0.1 else 1))
            archive.writestr(entry, chance.randbytes(size) if chance.random() < 0.5 else bytes(size))
    return out.getvalue()


def _sharing(chance: random.Random) -> bytes:
    """One packed file, told of many times: each looks harmless, all together are a bomb."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", bytes(190_000))
        first = archive.infolist()[0]
        for number in range(chance.choice((1, 5, 300))):
            copy = zipfile.ZipInfo(f"{number}")
            for field in ("compress_type", "CRC", "compress_size", "file_size", "header_offset"):
                setattr(copy, field, getattr(first, field))
            archive.filelist.append(copy)
        archive._didModify = True  # type: ignore[attr-defined]
    return out.getvalue()


def _bent(data: bytes, chance: random.Random) -> bytes:
    """The same, cut, prolonged, or with bytes and whole numbers changed."""
    bent = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(bent))
        match chance.randrange(5):
            case 0:
                bent[at] = chance.randrange(256)
            case 1:
                bent[at : at + 4] = struct.pack("<I", chance.choice((0, 1, 0xFFFF, 2**31, 2**32 - 1)))
            case 2:
                del bent[at : at + chance.randint(1, 60)]
            case 3:
                bent[at:at] = chance.randbytes(chance.randint(1, 60))
            case _:  # Headers at the end decide most: names, sizes, offsets.
                tail = len(bent) - 1 - chance.randrange(min(len(bent), 120))
                bent[tail] ^= 1 << chance.randrange(8)
        if not bent:
            return b"PK"
    return bytes(bent)


def _archive(chance: random.Random) -> bytes:
    match chance.randrange(10):
        case 0:
            return chance.randbytes(chance.randint(0, 3000))
        case 1:
            return _sharing(chance)
        case 2 | 3 | 4:
            return _made(chance)
        case _:
            return _bent(_made(chance), chance)


def storm(cases: int, seed: int, folder: Path | None = None) -> dict[str, int]:
    """Unpack ``cases`` archives below ``folder`` (the system's for temporary files); returns how many were taken and refused.

    Raises:
        AssertionError: something lies where it must not, or more than was announced.
        Exception: another one than ArchiveError.
    """
    chance, ends = random.Random(seed), Counter[str]()
    with tempfile.TemporaryDirectory(dir=folder) as made:
        root = Path(made)
        source, target = root / "x.zip", root / "home" / "model"
        target.parent.mkdir()
        for _ in range(cases):
            data = _archive(chance)
            source.write_bytes(data)
            try:
                unpack(source, target)
            except ArchiveError as error:
                ends["refused: " + next(words for words in _REFUSED if words in str(error))] += 1
                assert not target.exists(), "a refused archive left something"
            else:
                ends["taken"] += 1
                _check_and_clear(target, len(data))
            assert list(target.parent.iterdir()) == [], "something stands beside the folder"
        assert {path.name for path in root.iterdir()} == {"x.zip", "home"}, "something lies outside"
    return dict(ends)


def _check_and_clear(target: Path, packed: int) -> None:
    size = 0
    for path in sorted(target.rglob("*"), reverse=True):
        assert stat.S_IFMT(path.lstat().st_mode) in (stat.S_IFREG, stat.S_IFDIR), f"{path.name!r} is no plain file"
        if path.is_dir():
            path.rmdir()
        else:
            size += path.stat().st_size
            path.unlink()
    target.rmdir()
    assert size <= MAX_RATIO * max(packed, 1024), f"{size:,} bytes came out of {packed:,}"

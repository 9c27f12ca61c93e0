"""Real text that every user has: the source of the Python library that is running."""

import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path

CORPUS_BYTES = 6_000_000  # Some 2 million tokens: the demo's tokens are then nearly all seen once.
_LEFT_OUT = {
    *(
        "test",
        "tests",
        "testing",
        "site-packages",
        "dist-packages",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "__pycache__",
        "ensurepip",
    ),
    *("encodings", "pydoc_data"),  # Tables: whoever learns from them writes LATIN SMALL LETTER for ever.
}


def write_corpus(path: Path, limit: int = CORPUS_BYTES, packages: Sequence[str] = ()) -> int:
    """Write up to ``limit`` bytes of source to ``path``, the library's, then that of ``packages``; returns the bytes written.

    Files come in the order of a hash of their names: the same on every run, without whole packages at one end.
    """
    library, installed = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    files = _sources(library, library)
    for package in packages:
        files += _sources(installed / package, installed)
    written = 0
    with path.open("wb") as output:
        for file in files:
            data = file.read_bytes().rstrip() + b"\n\n"
            if written + len(data) <= limit and _is_text(data):
                written += output.write(data)
    return written


def _sources(folder: Path, root: Path) -> list[Path]:
    files = (file for file in folder.rglob("*.py") if not _LEFT_OUT.intersection(file.relative_to(root).parts))
    return sorted(files, key=lambda file: _spread(str(file.relative_to(root))))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:  # A few library files are kept in old encodings.
        return False
    return b"\x00" not in data


def _spread(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()

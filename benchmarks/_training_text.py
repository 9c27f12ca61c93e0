"""Real text that every machine with this project has: the sources of the Python library and of the packages that it needs."""

import hashlib
import sysconfig
from pathlib import Path

from trainer.prepare import prepare
from transport.wire.job import TokenizerSpec

CORPUS_BYTES = 24_000_000  # No token of the longest run is seen twice.
HELDOUT = 0.05
_PACKAGES = ("torch", "transformers", "numpy")
_LEFT_OUT = {
    "test",
    "tests",
    "testing",
    "site-packages",
    "dist-packages",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "encodings",
}
_LEFT_OUT |= {
    "__pycache__",
    "ensurepip",
    "pydoc_data",
}  # Tables: whoever learns from them writes LATIN SMALL LETTER for ever.


def prepared(folder: Path, sequence: int) -> Path:
    """A folder with ``train.bin`` and ``heldout.bin`` of bytes as tokens; made once, in a few seconds."""
    out = folder / f"text-{sequence}"
    if not (out / "manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        corpus = folder / "corpus.txt"
        write_sources(corpus, CORPUS_BYTES)
        prepare(corpus, "text", "text", TokenizerSpec(kind="bytes"), None, HELDOUT, sequence, out)
        corpus.unlink()
    return out


def write_sources(path: Path, limit: int) -> int:
    """Write up to ``limit`` bytes of Python source, the library first, then packages; returns the bytes written.

    Files come in the order of a hash of their names, so held-out pieces come from everywhere.
    """
    library, packages = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
    files = _sources(library, library)
    for name in _PACKAGES:
        files += _sources(packages / name, packages)
    written = 0
    with path.open("wb") as output:
        for file in files:
            data = file.read_bytes().rstrip() + b"\n\n"
            if written + len(data) <= limit and _is_text(data):
                written += output.write(data)
    return written


def _sources(folder: Path, root: Path) -> list[Path]:
    found = [file for file in folder.rglob("*.py") if not _LEFT_OUT.intersection(file.relative_to(root).parts)]
    return sorted(found, key=lambda file: hashlib.sha256(str(file.relative_to(root)).encode()).digest())


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:  # A few library files are kept in old encodings.
        return False
    return b"\x00" not in data

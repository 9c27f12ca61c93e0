"""Real text: the sources of the Python library and of packages, which every machine with this project has, or English.

English is the GNU Collaborative International Dictionary of English, Debian's package ``dict-gcide``.
"""

import gzip
import subprocess
from pathlib import Path
from typing import Literal

from cottage.demo.corpus import write_corpus
from protocol.job.job import TokenizerSpec
from trainer.data.prepare import prepare
from trainer.formats.source import Dataset

Corpus = Literal["python", "english"]
CORPUS_BYTES = 24_000_000  # No token of the longest run is seen twice.
HELDOUT = 0.05
_PACKAGES = ("torch", "transformers", "numpy")
_DICTIONARY = "dict-gcide"
_ENTRY = "usr/share/dictd/gcide.dict.dz"


def prepared(folder: Path, sequence: int, corpus: Corpus = "python") -> Path:
    """A folder with ``train.bin`` and ``heldout.bin`` of bytes as tokens; made once, in a few seconds."""
    out = folder / f"text-{corpus}-{sequence}"
    if not (out / "manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        text = folder / "corpus.txt"
        if corpus == "python":
            write_corpus(text, CORPUS_BYTES, _PACKAGES)
        else:
            text.write_bytes(_english(folder)[:CORPUS_BYTES])
        prepare(Dataset.of(text, "text"), TokenizerSpec(kind="bytes"), None, HELDOUT, sequence, out)
        text.unlink()
    return out


def _english(folder: Path) -> bytes:
    """The dictionary's entries, an empty line between two; its package is fetched by apt and only unpacked."""
    package = folder / _DICTIONARY
    if not (package / _ENTRY).exists():
        package.mkdir(exist_ok=True)
        subprocess.run(["apt-get", "-q", "download", _DICTIONARY], cwd=package, check=True)
        subprocess.run(["dpkg", "-x", next(package.glob("*.deb")), package], check=True)
    return gzip.decompress((package / _ENTRY).read_bytes()).decode(errors="replace").encode()

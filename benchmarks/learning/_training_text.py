"""Real text that every machine with this project has: the sources of the Python library and of the packages that it needs."""

from pathlib import Path

from cottage.demo.corpus import write_corpus
from protocol.job.job import TokenizerSpec
from trainer.data.prepare import prepare
from trainer.formats.source import Dataset

CORPUS_BYTES = 24_000_000  # No token of the longest run is seen twice.
HELDOUT = 0.05
_PACKAGES = ("torch", "transformers", "numpy")


def prepared(folder: Path, sequence: int) -> Path:
    """A folder with ``train.bin`` and ``heldout.bin`` of bytes as tokens; made once, in a few seconds."""
    out = folder / f"text-{sequence}"
    if not (out / "manifest.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        corpus = folder / "corpus.txt"
        write_corpus(corpus, CORPUS_BYTES, _PACKAGES)
        prepare(Dataset.of(corpus, "text"), TokenizerSpec(kind="bytes"), None, HELDOUT, sequence, out)
        corpus.unlink()
    return out

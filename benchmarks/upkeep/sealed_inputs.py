"""What it costs that a job's inputs are encrypted on the disk: ``python -m benchmarks.upkeep.sealed_inputs [MEGABYTES]``.

The same token file plain (mapped into memory, as before) and encrypted: read from end to end, and by a worker's samples of 32
windows of 1,024 tokens; the same tensors from safetensors. Files come from the page cache, where the cipher is all that is left
to wait for. Writes build/bench/sealed_inputs.json.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from benchmarks.common import publish
from common.encrypted_files import SealedFile, fresh_key, seal
from trainer.data.data import TokenFile
from trainer.files.inputs import InputFile
from trainer.files.tensors import open_tensors

SEQUENCE, BATCH, STEPS, REPEATS = 1024, 32, 200, 5
VOCABULARY = 50_000
CHUNK = 1 << 20


def main(megabytes: int) -> None:
    size = megabytes * 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder, key = Path(name), fresh_key()
        tokens = np.random.default_rng(1).integers(0, VOCABULARY, size // 4, dtype="<u4")
        tokens.tofile(folder / "train.bin")
        save_file({f"w{n}": torch.randn(size // 40) for n in range(10)}, folder / "weights")
        files: dict[str, tuple[InputFile, InputFile]] = {}
        for kind, names in (("plain", ("train.bin", "weights")), ("sealed", ("train.sealed", "weights.sealed"))):
            if kind == "sealed":
                for source, target in zip(("train.bin", "weights"), names, strict=True):
                    seal(folder / target, key, (folder / source).read_bytes())
            paths = [folder / name for name in names]
            files[kind] = (
                (paths[0], paths[1]) if kind == "plain" else (SealedFile(paths[0], key), SealedFile(paths[1], key))
            )
        figures: dict[str, float] = {}
        for kind, (data, weights) in files.items():
            figures[f"{kind}_read_mb_s"] = megabytes / timed(lambda data=data: read_all(data))  # type: ignore[misc]
            figures[f"{kind}_step_ms"] = 1e3 / STEPS * timed(lambda data=data: sample(data))  # type: ignore[misc]
            figures[f"{kind}_weights_mb_s"] = megabytes / timed(lambda weights=weights: read_tensors(weights))  # type: ignore[misc]
        figures["sealing_mb_s"] = megabytes / timed(lambda: seal(folder / "new", key, tokens.tobytes()))
    publish(
        "sealed_inputs",
        "Inputs that are encrypted on the disk cost a worker less than a millisecond a step.",
        {"megabytes": megabytes, "batch": BATCH, "sequence": SEQUENCE} | {n: round(v, 3) for n, v in figures.items()},
    )


def timed(work: Callable[[], object]) -> float:
    """Seconds, median."""
    found = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def read_all(file: InputFile) -> None:
    if isinstance(file, SealedFile):
        for begin in range(0, file.size, CHUNK):
            file.read(begin, begin + CHUNK)
        return
    with file.open("rb", buffering=0) as plain:
        while plain.read(CHUNK):
            pass


def sample(file: InputFile) -> None:
    tokens = TokenFile(file, SEQUENCE, VOCABULARY)
    for step in range(STEPS):
        tokens.sample(7, step, 0, BATCH)


def read_tensors(file: InputFile) -> None:
    with open_tensors(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118 - the reader of safetensors is no mapping
            tensors.get_tensor(name).sum()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 400)

"""How far honest machines of different environment classes come apart, and lies from both: what the tolerances stand on.

The last of two stages of a small model does a segment of ten steps here, honestly and in each way of lying, early (from the first
step) and later. Each is then run again by processes of other classes: other numbers of threads, other instruction sets of torch,
MKL and oneDNN. Printed is the distance that ``trainer.audit.tolerance`` finds: the largest of an honest segment, and of
each lie how many times the tolerance it is away, where that is least.

    python -m benchmarks.trust.across [--later 20] [--only fp32 bf16]
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import publish
from tests.trainer.segments import LIES, elsewhere, honest, segment, spec_of, write
from tests.trainer.small import job_folder
from trainer.audit.environment import configure
from trainer.audit.tolerance import tolerances

CLAIM = "honest machines of other classes stay within the tolerance, lies that change a step do not"
PLAIN = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}
CLASSES: dict[str, tuple[int, dict[str, str]]] = {
    "two threads": (2, {"OMP_WAIT_POLICY": "PASSIVE"}),
    "torch without vector instructions": (1, {"ATEN_CPU_CAPABILITY": "default"}),
    "nothing beyond SSE 4": (1, PLAIN),
}
JOBS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "fp32, clipped": {"clip_norm": 0.5},
    "fp32, int8": {"activations": "int8"},
    "fp32, int4": {"activations": "int4"},
    "fp32, muon": {"optimizer": "muon"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
}
LIED = ("fp32", "bf16")  # What a lie is away depends little on what else a job is.


def honest_distances(folder: Path, jobs: list[str], later: int) -> dict[str, Any]:
    """By job and class, the greatest distance of each quantity."""
    for job in jobs:
        for first in (0, later):
            write(folder, f"{job}@{first}", segment(folder, spec_of(**JOBS[job]), honest, first))
    found: dict[str, Any] = {job: {} for job in jobs}
    for kind, (threads, how) in CLASSES.items():
        seen = elsewhere(folder, "measure", threads, **how)
        for job in jobs:
            apart = [one["found"] for name, one in seen.items() if name.startswith(f"{job}@")]
            found[job][kind] = {key: max(one[key] for one in apart) for key in apart[0]}
    return found


def lies_told(folder: Path, jobs: list[str], later: int) -> dict[str, Any]:
    """By job and lie, how many times the tolerance its furthest quantity is away, where that is least."""
    for job in jobs:
        for lie, acts in LIES.items():
            for first in (0, later):
                write(folder, f"{job}@{lie}@{first}", segment(folder, spec_of(**JOBS[job]), acts, first))
    seen = elsewhere(folder, "measure", **PLAIN)
    return {
        job: {
            lie: min(
                max(value / tolerances(spec_of(**JOBS[job]))[key] for key, value in one["found"].items())
                for name, one in seen.items()
                if name.startswith(f"{job}@{lie}@")
            )
            for lie in LIES
        }
        for job in jobs
    }


def main() -> None:
    """Measure everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--later", type=int, default=20, help="steps before the later segment")
    parser.add_argument("--only", nargs="*", default=list(JOBS), choices=list(JOBS), help="of the jobs")
    options = parser.parse_args()
    configure(1)
    lied = [job for job in LIED if job in options.only]
    with tempfile.TemporaryDirectory() as name:
        true, false = job_folder(Path(name) / "true"), job_folder(Path(name) / "false")
        figures = {
            "tolerances": {job: dict(tolerances(spec_of(**JOBS[job]))) for job in options.only},
            "honest": honest_distances(true, options.only, options.later),
            "lies": lies_told(false, lied, options.later) if lied else {},
        }
    publish("across", CLAIM, figures)


if __name__ == "__main__":
    main()

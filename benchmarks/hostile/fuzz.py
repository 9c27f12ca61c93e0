"""Coverage-guided bytes at every parser of strangers' bytes: atheris (libFuzzer) keeps what reaches new code and bends it.

    python -m benchmarks.hostile.fuzz                              # a minute of one processor for each of the targets
    python -m benchmarks.hostile.fuzz --seconds 600 --only archive

Targets and their seeds are in ``tests/protocol/targets.py``; atheris comes with ``pip install cottage[bench]``. What
reached new code
stays in build/fuzz/TARGET and is where the next run begins. A fault is kept as build/fuzz/TARGET.fault-*: it belongs
into ``tests/corpus`` with a test. Python code is followed line by line, the insides of C libraries (msgspec, torch) are not.
Writes build/bench/fuzz.json; ends with 1 where a parser did anything else than its one error.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, publish

FOLDER = ROOT / "build" / "fuzz"
MEMORY = Path("/dev/shm")
HANG_S, MAX_MB, MAX_BYTES = 5, 1500, 4096  # Of one case; torch alone takes 400 MB.
FOLLOWED = [
    "common",
    "protocol",
    "transport",
    "coordinator",
    "desktop",
    "trainer.codecs",
    "zipfile",
    "tests.protocol.targets",
]
NEWS = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--only", action="append", metavar="TARGET", help="again for more; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", metavar="TARGET", help=argparse.SUPPRESS)
    options, rest = parser.parse_known_args()
    if options.child:
        fuzz(options.child, rest)
        return
    from tests.protocol.targets import TARGETS

    if unknown := sorted(set(options.only or ()) - TARGETS.keys()):
        parser.error(f"no target {', '.join(unknown)}: choose among {', '.join(TARGETS)}")
    told = {name: run(name, options.seconds, options.seed) for name in options.only or TARGETS}
    faults = [name for name, one in told.items() if one["fault"]]
    publish(
        "fuzz",
        "coverage-guided bytes at the parsers of strangers' bytes: one typed error each",
        {
            "cases": sum(one["cases"] for one in told.values()),
            "seconds_each": options.seconds,
            "seed": options.seed,
            "faults": faults,
            "targets": told,
        },
    )
    if faults:
        sys.exit(f"at fault: {', '.join(faults)}; the bytes are in {FOLDER}")


def run(name: str, seconds: int, seed: int) -> dict[str, Any]:
    """One target in a process of its own; ``edges``: of the code that was reached, ``kept``: cases that each reached some."""
    corpus = FOLDER / name
    corpus.mkdir(parents=True, exist_ok=True)
    arguments = (
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={MAX_MB}",
        f"-max_len={MAX_BYTES}",
        f"-artifact_prefix={FOLDER / name}.fault-",
        "-print_final_stats=1",
        str(corpus),
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as files:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.hostile.fuzz", "--child", name, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            env=os.environ | {"TMPDIR": files},
        )
    found = NEWS.findall(done.stdout)
    if not found:
        sys.exit(f"{name} did not begin:\n{done.stdout[-3000:]}")
    fault = ""
    if done.returncode:
        fault = done.stdout[done.stdout.rfind("Traceback (most") :][-3000:]
        print(f"{name}:\n{fault}", file=sys.stderr)
    cases, edges, features, kept = map(int, found[-1])
    print(f"{name}: {cases:,} cases, {edges} edges, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return {
        "cases": cases,
        "edges_of_seeds": int(found[0][1]),
        "edges": edges,
        "features": features,
        "kept": kept,
        "fault": fault,
    }


def fuzz(name: str, arguments: list[str]) -> None:
    """Never returns: libFuzzer ends the process."""
    import atheris

    with atheris.instrument_imports(include=FOLLOWED):
        from tests.protocol import targets
    target = targets.TARGETS[name]
    corpus = Path(arguments[-1])
    for number, seed in enumerate(target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)

    def parse(data: bytes) -> None:
        try:
            target.parse(data)
        except BaseException:  # noqa: BLE001 - whatever it is: the bytes are kept, which libFuzzer's own alarm may cut short.
            (corpus.parent / f"{name}.fault-{hashlib.sha256(data).hexdigest()[:16]}").write_bytes(data)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    atheris.Setup([sys.argv[0], *arguments], parse)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

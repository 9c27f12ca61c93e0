"""Builds the program: ``python -m ledger.program.build [--out DIR] [--check]``.

Needs the build-time package ``ziglang`` (for its clang). The built files are committed, so that nobody who
only runs Cottage needs a compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from common.terminal import say
from ledger.program.elf import read_object
from ledger.program.errors import BuildError
from ledger.program.link import Version, link

HERE = Path(__file__).parent
SOURCES = (
    "entry.c",
    "escrow.c",
    "payees.c",
    "claim.c",
    "merkle.c",
    "stake.c",
    "dispute.c",
    "state.c",
    "terms.c",
    "token.c",
)
VERSIONS: tuple[Version, ...] = (0, 3)
COMPILER_TIMEOUT_S = 300  # The first call also unpacks zig's own caches, on a slow disk.
# -mcpu=v2: later levels use 32-bit arithmetic, which sBPF computes differently (the linker refuses it).
FLAGS = (
    "-target",
    "bpfel-freestanding-none",
    "-mcpu=v2",
    "-O2",
    "-ffreestanding",
    "-fno-builtin",
    "-fno-jump-tables",
    # sBPF reads and writes at any address; without this every key would be copied byte by byte, twice the code.
    "-Xclang",
    "-target-feature",
    "-Xclang",
    "+allows-misaligned-mem-access",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-mllvm",
    "-bpf-stack-size=4096",
)


def program_path(version: Version) -> Path:
    """Where the committed build for one sBPF version lies."""
    return HERE / f"market.v{version}.so"


def build() -> dict[Version, bytes]:
    """Compile and link the program for every sBPF version.

    Raises:
        BuildError: ``ziglang`` is not installed, or a source does not compile.
    """
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError("the compiler is missing: pip install ziglang==0.17.0")
    with tempfile.TemporaryDirectory() as folder:
        objects = [read_object(name, _compile(HERE / name, Path(folder))) for name in SOURCES]
    return {version: link(objects, version) for version in VERSIONS}


def _compile(source: Path, folder: Path) -> bytes:
    target = folder / f"{source.stem}.o"
    # A relative source and no debug information keep the machine's paths out of the object.
    command = [sys.executable, "-m", "ziglang", "cc", *FLAGS, "-c", source.name, "-o", str(target)]
    done = subprocess.run(
        command, cwd=source.parent, capture_output=True, text=True, timeout=COMPILER_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise BuildError(f"{source.name} does not compile:\n{done.stderr}")
    return target.read_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Build and write both files with their digests; with ``--check`` only compare with what is committed."""
    parser = argparse.ArgumentParser(prog="python -m ledger.program.build", description="Build the market program.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the built files")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where the build differs")
    arguments = parser.parse_args(argv)
    try:
        built = build()
    except BuildError as error:
        say(f"{error}", error=True)
        return 1
    lines: list[str] = []
    for version, blob in built.items():
        name = program_path(version).name
        if not arguments.check:
            (arguments.out / name).write_bytes(blob)
        elif program_path(version).read_bytes() != blob:
            say(f"{name} differs from its sources: run python -m ledger.program.build and commit it", error=True)
            return 1
        lines.append(f"{hashlib.sha256(blob).hexdigest()}  {name}\n")
    if not arguments.check:
        (arguments.out / "market.sha256").write_text("".join(lines))
    say("".join(lines).rstrip("\n"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

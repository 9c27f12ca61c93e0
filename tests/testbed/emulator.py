"""The emulator of the internet: ``netemu`` compiled once, or ``shaper.py`` where there is no compiler."""

import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testbed.link import Link

SOURCES = Path(__file__).parent / "netemu"
CACHE = Path(__file__).parents[2] / "build" / "testbed"
ANSWER_LIMIT_S = 20.0  # The emulator answers between two batches of packets; a busy machine may keep it waiting.


@dataclass(frozen=True)
class Site:
    """A TUN device inside a namespace, to which two prefixes are routed; "-" stands for none."""

    name: str
    namespace: str
    device: str
    ipv4: str = "-"
    ipv6: str = "-"
    mtu: int = 1500

    def __str__(self) -> str:
        return ",".join((self.name, self.namespace, self.device, str(self.mtu), self.ipv4, self.ipv6))


def compiled() -> Path | None:
    """The compiled emulator, made if need be; None without a C compiler.

    Raises:
        RuntimeError: it does not compile.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = CACHE / f"netemu-{digest}"
    CACHE.mkdir(parents=True, exist_ok=True)
    if not program.exists():
        units = [str(path) for path in sources if path.suffix == ".c"]
        # Tests run side by side; whoever is last replaces the same bytes.
        half = program.with_suffix(f".{os.getpid()}")
        command = [compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-o", str(half), *units]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"netemu does not compile: {done.stderr.strip()[:2000]}")
        half.replace(program)
    return program


class Emulator:
    """A running emulator; it ends with this process at the latest."""

    def __init__(self, sites: Sequence[Site], *, seed: int = 1, portable: bool = False) -> None:
        """Start it and wait until every device is there.

        Args:
            sites: what to join.
            seed: of every random fate.
            portable: take the Python shaper even where there is a compiler.
        Raises:
            RuntimeError: it does not start.
        """
        program = None if portable else compiled()
        shaper = [sys.executable, str(Path(__file__).parent / "shaper.py")]
        command = [*([str(program)] if program else shaper), str(seed), *map(str, sites)]
        self._buffer = b""
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        if self._answer() != "ready":
            raise RuntimeError("the emulator did not come up; its complaint stands on standard error")

    def set_link(self, site: str, link: Link) -> None:
        """Change a site's line from now on."""
        for direction, properties in zip(("up", "down"), link.properties(), strict=True):
            assignments = " ".join(f"{name}={value:.9g}" for name, value in properties.items())
            self._tell(f"set {site} {direction} {assignments}")
        self._tell(f"mtu {site} {link.mtu}")

    def cut(self, site: str, is_cut: bool) -> None:
        """Pull a site's cable, or plug it in again; what is on its way meanwhile is lost."""
        self._tell(f"cut {site} {is_cut:d}")

    def stats(self) -> Mapping[str, Any]:
        """CPU seconds, and the counters of every site since the start; ``queue_peak``, in bytes, since the last call."""
        statistics: Mapping[str, Any] = json.loads(self._ask("stats"))
        return statistics

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=ANSWER_LIMIT_S)
        self._process.stdout.close()

    def _tell(self, command: str) -> None:
        answer = self._ask(command)
        if answer != "ok":
            raise RuntimeError(f"the emulator was told {command!r}: {answer}")

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_LIMIT_S
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._process.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                raise RuntimeError(f"the emulator ended or says nothing (status {self._process.poll()})")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line.decode()

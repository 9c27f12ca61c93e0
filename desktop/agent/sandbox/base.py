"""What every sandbox offers."""

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.node import SandboxKind

SOCKET_NAME = "worker.sock"
WORKER = ("worker", "--socket")  # Arguments of ``python -m trainer``; the socket's path follows.
WORKER_BY_STDIO = ("worker", "--stdio")
MAX_LOG_BYTES = 16 * 1024  # The end of what a worker printed, for the reason of its failure.


@dataclass(frozen=True)
class SandboxLimits:
    """What one job may use.

    Attributes:
        memory_mb: of main memory, swap and temporary files together.
        threads: processors' worth of time, and compute threads.
        processes: processes and threads at a time.
        temporary_mb: files in ``/tmp``.
        cpu_seconds: of any one process, for one whose agent died and cannot end it; 0: as many as it takes.
    """

    memory_mb: int
    threads: int
    processes: int = 512  # PyTorch starts a few dozen threads; a fork bomb stops here.
    temporary_mb: int = 256
    cpu_seconds: int = 0


@dataclass(frozen=True)
class Volume:
    """A folder in memory that the engine keeps under ``name`` while a container has it, mounted at ``target``."""

    name: str
    target: str
    writable: bool


@dataclass(frozen=True)
class Exit:
    """How a worker ended; ``reason`` is a sentence for the coordinator and the log. ``tampered``: somebody reached into it.
    ``memory``: the kernel ended it for want of that."""

    code: int | None
    reason: str
    tampered: bool = False
    memory: bool = False


class SandboxWorker(Protocol):
    """One running worker."""

    @property
    def pid(self) -> int | None:
        """Its process on this machine, where it is known."""

    @property
    def connection(self) -> socket.socket | None:
        """Its standard streams, where it speaks over those; otherwise it comes to the socket in its folder."""

    async def ended(self) -> Exit | None:
        """How it ended; ``None`` while it runs."""

    async def freeze(self) -> None:
        """Hold it where it is: it computes nothing until ``thaw``. One that has ended stays so."""

    async def thaw(self) -> None:
        """Let it go on."""

    async def stop(self, grace: float) -> None:
        """End it, by force after ``grace`` seconds; return when nothing of it is left. It may be frozen."""


class Sandbox(Protocol):
    """A way to run workers.

    Attributes:
        kind: its name in ``NodeProfile``.
        stdio: workers speak over their standard streams (``SandboxWorker.connection``) rather than over a socket in their folder.
    """

    kind: SandboxKind
    stdio: bool

    async def check(self) -> str:
        """Make sure that jobs can run; returns what identifies the code that will run (an image digest).

        Raises:
            SandboxError: they cannot; the text says what to do about it.
        """

    async def sweep(self) -> int:
        """Remove what an agent of this home left behind when it died; returns how many."""

    async def measure(self, arguments: Sequence[str], timeout: float, data: Path | None = None) -> bytes:
        """Run ``python -m trainer arguments`` to its end; returns its standard output. ``data``: as of ``start``.

        Raises:
            SandboxError: it failed, or took longer than ``timeout`` seconds.
        """

    async def start(self, lease: str, folder: Path, data: Path | None = None) -> SandboxWorker:
        """Start a worker that sees ``folder`` (read-only) and connects to the socket in it, or with ``stdio`` speaks at once.

        Args:
            data: a file or folder of the owner's own that it may read, and no more; None: it sees nothing of its owner's.

        Raises:
            SandboxError: it cannot be started with every restriction in force.
        """

    def inside(self, folder: Path) -> str:
        """The path of ``folder`` as the worker sees it."""

    def data_inside(self, data: Path) -> str:
        """The path of ``data`` as the worker sees it."""

    async def aclose(self) -> None:
        """Let go of the engine; workers must have been stopped."""

"""Jobs as plain processes: no protection at all, for the demo and for development.

A worker dies with its agent, even when that is killed: a small launcher asks the kernel for it (``PR_SET_PDEATHSIG`` survives
``execve``) and then becomes the worker.
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from common.clock import within
from desktop.agent.errors import SandboxError
from desktop.agent.sandbox.base import MAX_LOG_BYTES, SOCKET_NAME, WORKER, Exit, SandboxLimits
from protocol.node import SandboxKind

assert sys.platform != "win32", "``startup.make_sandbox`` refuses it there: Windows has no groups of processes to end"

_ROOT = Path(__file__).resolve().parents[3]
_LAUNCHER = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit("the agent is gone")
os.execv(command[0], command)
"""
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


class ProcessWorker:
    """One worker process, the first of its own process group."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        """Take a process that was started with ``start_new_session``."""
        self._process = process
        self._log = log

    @property
    def pid(self) -> int | None:
        """The process id."""
        return self._process.pid

    @property
    def connection(self) -> None:
        """It comes to the socket."""

    async def ended(self) -> Exit | None:
        """How it ended; ``None`` while it runs."""
        code = self._process.returncode
        if code is None:
            return None
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Exit(code, f"the worker {how}{_last_lines(self._log)}")

    async def freeze(self) -> None:
        """Stop the whole process group."""
        self._signal(signal.SIGSTOP)

    async def thaw(self) -> None:
        """Continue it."""
        self._signal(signal.SIGCONT)

    async def stop(self, grace: float) -> None:
        """End the whole process group."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # One that is frozen would not hear of it.
        with contextlib.suppress(TimeoutError):
            await within(grace, self._process.wait())
        self._signal(signal.SIGKILL)
        await self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class ProcessSandbox:
    """Runs ``command`` + arguments as a child of the agent, with the agent's own rights."""

    kind: SandboxKind = "process"
    stdio = False

    def __init__(
        self, limits: SandboxLimits, extra: Sequence[str] = (), command: Sequence[str] | None = None, gpu: str = ""
    ) -> None:
        """``extra`` is appended to a worker's arguments; ``command``: this Python's ``-m trainer``; ``gpu``: all it sees."""
        self._limits = limits
        self._extra, self._gpu = tuple(extra), gpu
        self._command = tuple(command or (sys.executable, "-m", "trainer"))

    async def check(self) -> str:
        """Always possible; identified by the trainer's own source, so that an edit is measured anew."""
        return await asyncio.to_thread(_source_digest, self._command)

    async def sweep(self) -> int:
        """Nothing can be left: workers die with their agent."""
        return 0

    async def measure(self, arguments: Sequence[str], timeout: float, data: Path | None = None) -> bytes:
        """Run to the end; it sees ``data`` as it sees everything. Raises SandboxError as the base says."""
        process = await asyncio.create_subprocess_exec(
            *self._launch([*self._command, *arguments]),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout):
                output, errors = await process.communicate()
        except TimeoutError:
            raise SandboxError(f"{' '.join(arguments)} took longer than {timeout:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode:
            text = errors[-MAX_LOG_BYTES:].decode(errors="replace").strip()
            raise SandboxError(f"{' '.join(arguments)} ended with exit code {process.returncode}: {text}")
        return output

    async def start(self, lease: str, folder: Path, data: Path | None = None) -> ProcessWorker:
        """Start a worker, which sees ``data`` as it sees everything; its output goes to ``worker.log`` beside the folder."""
        log = folder.with_suffix(".log")
        command = [*self._command, *WORKER, SOCKET_NAME, *self._extra]
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *self._launch(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=folder,  # A relative name of the socket fits any depth of folders.
                env=self._environment(),
                start_new_session=True,
            )
        return ProcessWorker(process, log)

    def inside(self, folder: Path) -> str:
        """The same path."""
        return str(folder)

    def data_inside(self, data: Path) -> str:
        """The same path."""
        return str(data)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _launch(self, command: Sequence[str]) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]

    def _environment(self) -> dict[str, str]:
        """Nothing of the owner's environment but what a Python process needs."""
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        if self._gpu:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpu
        threads = str(self._limits.threads)
        return environment | {
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }


def _last_lines(log: Path) -> str:
    try:
        text = log.read_bytes()[-MAX_LOG_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""
    return f": {text[-1000:]}" if text else ""


def _source_digest(command: Sequence[str]) -> str:
    digest = hashlib.sha256(" ".join([sys.version, *command]).encode())
    for folder in ("common", "protocol", "trainer", "transport"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(_ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()

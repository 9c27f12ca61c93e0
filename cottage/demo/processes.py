"""Processes that surely end: each role runs in a session of its own, dies with the demo, and writes to a log file."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.clock import within

STOP_S = 15.0  # An agent says goodbye and ends its worker; a worker may be within a step.
LOG_TAIL = 12
_PR_SET_PDEATHSIG = 1
_ENDING_ORDER = ("node", "coordinator", "")  # Everything begins with the last.


class RoleError(RuntimeError):
    """A role ended or did not come up; the text has the end of its log."""


@dataclass
class DemoProcess:
    """One running process of the network. ``may_end``: its end by itself is no fault."""

    name: str
    process: asyncio.subprocess.Process
    log: Path
    may_end: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(f"    {line}" for line in lines[-LOG_TAIL:])


@dataclass
class Household:
    """All roles of one demo. ``close`` ends them all, the newest first, whatever state they are in."""

    logs: Path
    roles: list[DemoProcess] = field(default_factory=list)

    async def start(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> DemoProcess:
        """Start ``python -m ...`` as ``name``; its output goes to ``logs/name.log``."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", **(environment or {})},
            )
        role = DemoProcess(name, process, log)
        self.roles.append(role)
        return role

    async def stop(self, role: DemoProcess) -> None:
        """SIGTERM, then SIGKILL to the whole session of the role."""
        role.may_end = True
        if role.running:
            with contextlib.suppress(ProcessLookupError):
                role.process.terminate()
            with contextlib.suppress(TimeoutError):
                await within(STOP_S, role.process.wait())
        await self.kill(role)

    async def kill(self, role: DemoProcess) -> None:
        """SIGKILL to the role and everything in its session; the system closes its connections."""
        role.may_end = True  # ``check`` may look between its end and its removal.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(role.pid, signal.SIGKILL)
        await role.process.wait()
        if role in self.roles:
            self.roles.remove(role)

    def freeze(self, role: DemoProcess) -> None:
        """SIGSTOP to the role and everything in its session: it falls silent and closes nothing, as in a power cut."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(role.pid, signal.SIGSTOP)

    async def close(self) -> None:
        """End every role: agents first, so that they can still say goodbye to the coordinator; the ledger last."""
        for kind in _ENDING_ORDER:
            await asyncio.gather(*(self.stop(role) for role in list(self.roles) if role.name.startswith(kind)))

    def check(self) -> None:
        """Raise ``RoleError`` where a role has ended by itself."""
        for role in self.roles:
            if not role.running and not role.may_end:
                raise RoleError(
                    f"{role.name} ended with status {role.process.returncode}. Its log ends:\n{role.tail()}"
                )


async def wait_for_file(path: Path, role: DemoProcess, seconds: float) -> str:
    """The content of ``path`` once ``role`` has written it.

    Raises:
        RoleError: the role ended first, or the time is over.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < deadline:
        if path.exists() and (text := path.read_text().strip()):
            return text
        if not role.running:
            break
        await asyncio.sleep(0.05)
    raise RoleError(f"{role.name} did not come up within {seconds:.0f} s. Its log ends:\n{role.tail()}")


async def output_of(arguments: Sequence[str], cwd: Path | None = None) -> str:
    """Standard output of ``python ARGUMENTS``, ended with the demo should that end first.

    Raises:
        RoleError: it failed; the text has the end of what it said.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        preexec_fn=_die_with_parent,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        cwd=cwd,
    )
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode != 0:
        ending = "\n".join(err.decode(errors="replace").splitlines()[-LOG_TAIL:])
        raise RoleError(f"python {' '.join(arguments[:3])} ended with status {process.returncode}:\n{ending}")
    return out.decode()


def _die_with_parent() -> None:  # Between fork and exec: only what is safe there.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

"""``cottage node`` with the scripted worker in place of the trainer: ``python agent_program.py run --home ...``;
``cottage auditor`` in the same way: ``python agent_program.py auditor --data ...``.

In Docker the script is the container's command. With COTTAGE_PROGRAM the program believes that it is a
bundle, whose executable that is, of version COTTAGE_VERSION.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from desktop.agent.app import auditor, service, startup
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import Device
from desktop.agent.cli import auditor_cli, cli
from desktop.agent.sandbox.base import Sandbox, SandboxLimits
from desktop.agent.sandbox.docker import DockerSandbox
from desktop.agent.sandbox.process import ProcessSandbox
from desktop.agent.updates.release import Release

PYTHON, SCRIPT = sys.executable, Path(__file__).with_name("scripted_worker.py")


class _Docker(DockerSandbox):
    """Measured without running anything: the script is in no image."""

    async def measure(self, arguments: Sequence[str], timeout: float, data: Path | None = None) -> bytes:
        return b'{"flops": 1e9, "env_class": "scripted", "device": "cpu", "memory_mb": 100, "threads": 1}'


class _Process(ProcessSandbox):
    """Started by Python though the program believes that it is another one."""

    def _launch(self, command: Sequence[str]) -> list[str]:
        return [PYTHON, *super()._launch(command)[1:]]


def scripted(settings: Settings, home: Home, device: Device, worker_arguments: Sequence[str] = ()) -> Sandbox:
    limits = SandboxLimits(settings.memory_mb, settings.threads)
    if settings.sandbox == "docker":
        entry = ("python3", "-c", SCRIPT.read_text())  # A job's own files are encrypted.
        return _Docker(limits, settings.image, owner=home.path, extra=worker_arguments, entry=entry)
    return _Process(limits, worker_arguments, command=(PYTHON, str(SCRIPT)), gpu=device.gpu)


def believe(program: str, version: str) -> None:
    """Be the bundle ``program``, which looks often for another in its place."""
    sys.frozen, sys.executable = True, program  # type: ignore[attr-defined]
    service.this_release, service.version = lambda: Release(version), lambda: version  # type: ignore[attr-defined]
    service.LOOK_S = 0.2


def stand_still(*_: object) -> None:
    """As an event loop does in which something never returns."""
    sys.stderr.write("the loop stands still\n")
    sys.stderr.flush()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    startup.make_sandbox = scripted
    if "COTTAGE_PROGRAM" in os.environ:
        believe(os.environ["COTTAGE_PROGRAM"], os.environ["COTTAGE_VERSION"])
    if sys.argv[1] == "auditor":
        auditor_cli.LAST_WORDS_S = 2.0  # type: ignore[attr-defined]
        auditor.RETRY_S, auditor.STUCK_S = 0.5, 8.0  # type: ignore[attr-defined]
        signal.signal(signal.SIGUSR1, stand_still)
        sys.exit(auditor_cli.main(sys.argv[2:]))
    sys.exit(cli.main())

"""``cottage node`` with the scripted worker in place of the trainer: ``python agent_program.py run --home ...``.

In Docker the script is among the job's files: ``scripted_worker.py``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from desktop.agent import cli, start
from desktop.agent.config import Home, Settings
from desktop.agent.gpu import Device
from desktop.agent.sandbox.base import Limits, Sandbox
from desktop.agent.sandbox.docker import DockerSandbox
from desktop.agent.sandbox.process import ProcessSandbox

SCRIPT = Path(__file__).with_name("scripted_worker.py")


class _Docker(DockerSandbox):
    """Measured without running anything: the script is in no image."""

    async def measure(self, arguments: Sequence[str], timeout: float) -> bytes:
        return b'{"flops": 1e9, "env_class": "scripted", "device": "cpu", "memory_mb": 100, "threads": 1}'


def scripted(settings: Settings, home: Home, device: Device, worker_arguments: Sequence[str] = ()) -> Sandbox:
    limits = Limits(settings.memory_mb, settings.threads)
    if settings.sandbox == "docker":
        entry = ("python3", "/job/scripted_worker.py")
        return _Docker(limits, settings.image, owner=home.path, extra=worker_arguments, entry=entry)
    return ProcessSandbox(limits, worker_arguments, command=(sys.executable, str(SCRIPT)))


if __name__ == "__main__":
    start.make_sandbox = scripted
    sys.exit(cli.main())

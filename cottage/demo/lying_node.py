"""``cottage node`` on the machine of somebody who cheats: the usual agent, with ``lying_worker.py`` for the trainer.

python -m cottage.demo.lying_node run ... --worker-argument=--lie=gradient
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from desktop.agent.app import startup
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import Device
from desktop.agent.cli import cli
from desktop.agent.sandbox.base import Sandbox, SandboxLimits
from desktop.agent.sandbox.docker import DockerSandbox
from desktop.agent.sandbox.process import ProcessSandbox

WORKER = Path(__file__).with_name("lying_worker.py")
PROCESS = ("-m", "cottage.demo.lying_worker")


def main(process: Sequence[str] = PROCESS) -> int:
    """Run the agent; returns the exit code. ``process``: Python's words where jobs are plain processes."""

    def lying(settings: Settings, home: Home, device: Device, worker_arguments: Sequence[str] = ()) -> Sandbox:
        limits = SandboxLimits(settings.memory_mb, settings.threads)
        if settings.sandbox == "process":
            return ProcessSandbox(limits, worker_arguments, (sys.executable, *process), device.gpu)
        entry = ("python3", "-c", WORKER.read_text())  # The image has no demo.
        return DockerSandbox(
            limits, settings.image, owner=home.path, gpu=device.gpu, extra=worker_arguments, entry=entry
        )

    startup.make_sandbox = lying
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())

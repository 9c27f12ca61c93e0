"""``cottage node`` on the machine of somebody who cheats: the usual agent, with ``_cheating_worker.py`` for the trainer."""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from desktop.agent.app import startup
from desktop.agent.base.config import Home, Settings
from desktop.agent.base.gpu import Device
from desktop.agent.cli import cli
from desktop.agent.sandbox.base import Sandbox, SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox

WORKER = Path(__file__).with_name("_cheating_worker.py")


def cheating(settings: Settings, _home: Home, device: Device, worker_arguments: Sequence[str] = ()) -> Sandbox:
    """A plain process: nobody guards a cheat from its own job."""
    limits = SandboxLimits(settings.memory_mb, settings.threads)
    return ProcessSandbox(limits, worker_arguments, command=(sys.executable, str(WORKER)), gpu=device.gpu)


if __name__ == "__main__":
    startup.make_sandbox = cheating
    sys.exit(cli.main())

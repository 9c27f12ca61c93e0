"""The sensors of this platform."""

import sys
from pathlib import Path

from desktop.agent.sensors.base import Sensors
from desktop.agent.sensors.nvml import NvmlGpu


def sensors(folder: Path, gpu: str) -> Sensors:
    """For the computer that this runs on; ``folder`` is the agent's, ``gpu`` the card that is lent, "" for none."""
    if sys.platform == "win32":
        from desktop.agent.sensors.windows import WindowsMachine, WindowsScreen

        return Sensors(WindowsScreen(), WindowsMachine(), NvmlGpu(gpu), folder)
    from desktop.agent.sensors.linux import LinuxMachine, screen

    return Sensors(screen(), LinuxMachine(), NvmlGpu(gpu), folder)

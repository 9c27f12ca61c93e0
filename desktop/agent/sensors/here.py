"""The sensors of this platform."""

import sys
from pathlib import Path

from desktop.agent.sensors.base import Sensors
from desktop.agent.sensors.nvml import NvmlGpu


def sensors(folder: Path) -> Sensors:
    """For the computer that this runs on; ``folder`` is the agent's."""
    if sys.platform == "win32":
        from desktop.agent.sensors.windows import WindowsMachine, WindowsScreen

        return Sensors(WindowsScreen(), WindowsMachine(), NvmlGpu(), folder)
    from desktop.agent.sensors.linux import LinuxMachine, screen

    return Sensors(screen(), LinuxMachine(), NvmlGpu(), folder)

"""Processes, battery and disk, by psutil on every platform."""

import shutil
from pathlib import Path

import psutil

_WINE = ("wine-preloader", "wine64-preloader")  # Windows games under Proton and Wine: their own name is the first word.
REFRESH = 60  # Readings after which every name is asked anew: a process may have become another program by exec.


class PsutilMachine:
    """``Machine`` but for the network, which each platform tells in its own way."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._names: dict[int, str] = {}
        self._reads = 0

    def programs(self) -> frozenset[str] | None:
        """See Machine. Only processes that are new are looked at: 0.3 ms instead of 20."""
        running = psutil.pids()
        if self._reads % REFRESH == 0:
            self._names = {}
        self._reads += 1
        self._names = {pid: self._names.get(pid) or _name(pid) for pid in running}
        return frozenset(self._names.values()) - {""}

    def on_battery(self) -> bool | None:
        """See Machine."""
        battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        if battery is None:
            return False
        return None if battery.power_plugged is None else not battery.power_plugged

    def free_disk(self, folder: Path) -> int | None:
        """See Machine."""
        return shutil.disk_usage(folder).free


def _name(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        name: str = process.name()
        words: list[str] = process.cmdline() if name.lower() in _WINE else []
        return words[0].replace("\\", "/").rsplit("/", 1)[-1] if words else name
    except psutil.Error:
        return ""

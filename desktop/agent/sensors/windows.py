"""Windows: the last input, the state of the screen as notifications ask for it, the cost of the connection."""

import ctypes
from typing import Any

from desktop.agent.sensors.machine import PsutilMachine

QUNS_BUSY = 2  # A program covers the screen, or presents.
QUNS_RUNNING_D3D_FULL_SCREEN = 3
QUNS_PRESENTATION_MODE = 4

_SYSTEM: Any = vars(ctypes).get("windll")  # Windows only.


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint), ("ticks", ctypes.c_uint))


class WindowsScreen:
    """GetLastInputInfo, SHQueryUserNotificationState and the foreground window's program."""

    def idle_s(self) -> float | None:
        """See Screen. Both counters are of 32 bits and wrap every 49 days together."""
        last = _LastInput(ctypes.sizeof(_LastInput))
        if not _SYSTEM.user32.GetLastInputInfo(ctypes.byref(last)):
            return None
        idle: float = ((_SYSTEM.kernel32.GetTickCount() - last.ticks) & 0xFFFFFFFF) / 1000
        return idle

    def fullscreen(self) -> str | None:
        """See Screen."""
        state = ctypes.c_int()
        if _SYSTEM.shell32.SHQueryUserNotificationState(ctypes.byref(state)):
            return None
        if state.value not in (QUNS_BUSY, QUNS_RUNNING_D3D_FULL_SCREEN, QUNS_PRESENTATION_MODE):
            return ""
        return self._foreground() or "a full-screen program"

    def _foreground(self) -> str:
        title = ctypes.create_unicode_buffer(200)
        user32 = _SYSTEM.user32
        user32.GetWindowTextW(user32.GetForegroundWindow(), title, len(title))
        return title.value


class WindowsMachine(PsutilMachine):
    """psutil knows Windows; the cost of the connection is told by WinRT only, which needs a package of its own."""

    def metered(self) -> bool | None:
        """See Machine: not known here."""
        return None

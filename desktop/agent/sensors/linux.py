"""Linux: X11 or logind for the people, NetworkManager for the network."""

import contextlib
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from Xlib import X
from Xlib.display import Display
from Xlib.error import ConnectionClosedError, DisplayError, XError

from desktop.agent.sensors.machine import PsutilMachine

ASK_S = 2.0
SESSIONS = Path("/run/systemd/sessions")
_METERED = {1: True, 2: False, 3: True, 4: False}  # NM_METERED_*: yes, no, guessed yes, guessed no; 0: unknown.
_BROKEN = (ConnectionClosedError, DisplayError, OSError)
_NOT_PROGRAMS = frozenset({"", "Desktop", "desktop_window"})  # File managers cover the screen with icons.


class LinuxMachine(PsutilMachine):
    """With NetworkManager's word on what the network costs."""

    def metered(self) -> bool | None:
        """See Machine."""
        bus = shutil.which("busctl")
        if bus is None:
            return None
        name, path = "org.freedesktop.NetworkManager", "/org/freedesktop/NetworkManager"
        words = [bus, "--json=short", "get-property", name, path, name, "Metered"]
        done = subprocess.run(words, capture_output=True, timeout=ASK_S, check=False)
        if done.returncode:
            return None  # No bus, or no NetworkManager.
        return _METERED.get(json.loads(done.stdout)["data"])


class X11Screen:
    """The X server's own counter of idle time, and the window that covers the screen."""

    def __init__(self, name: str | None = None) -> None:
        """``name``: the display, as in ``DISPLAY``. It is connected to when it is asked for."""
        self._name = name
        self._display: Display | None = None

    def idle_s(self) -> float | None:
        """See Screen."""
        idle: float = self._ask(lambda display: display.screen().root.screensaver_query_info().idle / 1000)
        return idle

    def fullscreen(self) -> str | None:
        """See Screen."""
        name: str = self._ask(_covering)
        return name

    def _ask(self, question: Callable[[Display], Any]) -> Any:
        try:
            if self._display is None:
                self._display = Display(self._name)
            return question(self._display)
        except _BROKEN:
            self._close()
            raise

    def _close(self) -> None:
        if self._display is not None:
            with contextlib.suppress(*_BROKEN):
                self._display.close()
        self._display = None


class LogindScreen:
    """Where there is no X server to ask (Wayland): what the desktop tells logind. No program may see another's windows there."""

    def idle_s(self) -> float | None:
        """See Screen."""
        sessions = graphical_sessions()
        if not sessions:
            return math.inf
        idle = [_idle_of(session) for session in sessions]
        return None if None in idle else min(seconds for seconds in idle if seconds is not None)

    def fullscreen(self) -> str | None:
        """See Screen."""
        return None if graphical_sessions() else ""


def screen() -> X11Screen | LogindScreen:
    """Whichever can tell here. An X server under Wayland counts only what its own windows see, so it is not believed."""
    wayland = "WAYLAND_DISPLAY" in os.environ or os.environ.get("XDG_SESSION_TYPE") == "wayland"
    return X11Screen() if os.environ.get("DISPLAY") and not wayland else LogindScreen()


def graphical_sessions(folder: Path = SESSIONS) -> list[str]:
    """Sessions of people at this computer's own screen."""
    found = []
    for file in folder.glob("*") if folder.is_dir() else ():
        if file.suffix:
            continue  # Pipes lie there as well.
        lines = dict(line.split("=", 1) for line in file.read_text(errors="replace").splitlines() if "=" in line)
        if (
            lines.get("TYPE") in ("x11", "wayland", "mir")
            and lines.get("CLASS") == "user"
            and lines.get("REMOTE") != "1"
        ):
            found.append(file.name)
    return found


def _idle_of(session: str) -> float | None:
    words = ["loginctl", "show-session", session, "--property=IdleHint", "--property=IdleSinceHint"]
    done = subprocess.run(words, capture_output=True, timeout=ASK_S, check=False, text=True)
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    if done.returncode or "IdleHint" not in lines:
        return None
    return time.time() - int(lines["IdleSinceHint"]) / 1e6 if lines["IdleHint"] == "yes" else 0.0


def _covering(display: Display) -> str:
    atom = display.intern_atom
    active = display.screen().root.get_full_property(atom("_NET_ACTIVE_WINDOW"), X.AnyPropertyType)
    if active is None or not active.value or not active.value[0]:
        return ""
    window = display.create_resource_object("window", active.value[0])
    try:
        states = window.get_full_property(atom("_NET_WM_STATE"), X.AnyPropertyType)
        if states is None or atom("_NET_WM_STATE_FULLSCREEN") not in states.value:
            return ""
        title = window.get_full_property(atom("_NET_WM_NAME"), X.AnyPropertyType)
        kind = window.get_wm_class()
    except XError:
        return ""  # It has just been closed.
    text = title.value.decode(errors="replace") if title is not None and isinstance(title.value, bytes) else ""
    name = text.strip() or (kind[1] if kind else "")
    return "" if name in _NOT_PROGRAMS else name[:200] or "a full-screen program"

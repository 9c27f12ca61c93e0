"""Whether pictures may move: whoever has told the system to keep still sees them at rest."""

import os
import subprocess
import sys
from functools import cache

from PySide6.QtWidgets import QApplication, QStyle

PATIENCE_S = 1.0
_ASKED = {
    "linux": (("gsettings", "get", "org.gnome.desktop.interface", "enable-animations"), "false"),
    "darwin": (("defaults", "read", "com.apple.universalaccess", "reduceMotion"), "1"),
}
"""Where Qt does not know it: what to ask, and the answer of those who want no motion. KDE sets GNOME's value, too."""
_CLIENT_AREA_ANIMATION = 0x1042


def is_wanted() -> bool:
    """Qt's own word first, then the system's."""
    duration = QApplication.style().styleHint(QStyle.StyleHint.SH_Widget_Animation_Duration)
    return duration > 0 and _system_wants_it()


@cache
def _system_wants_it() -> bool:
    if sys.platform == "win32":
        import ctypes

        moves = ctypes.c_int(1)
        ctypes.windll.user32.SystemParametersInfoW(_CLIENT_AREA_ANIMATION, 0, ctypes.byref(moves), 0)
        return bool(moves.value)
    command, still = _ASKED.get(sys.platform, ((), ""))
    if not command:
        return True
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=_plain())
    except (OSError, subprocess.TimeoutExpired):
        return True  # A desktop without such a setting.
    return done.stdout.strip() != still


def _plain() -> dict[str, str]:
    """The built program's own libraries are not for programs of the system."""
    return {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}

"""The installed program is small for what is in it, and its window is there within two seconds of the double click.

Built by PyInstaller, or the folder that COTTAGE_BUNDLE names. The window is started as an owner's desktop would, with nothing of
this machine's Python, on an X display of its own (Xvfb, openbox, tint2). Cold: its files are put out of the page cache.
There is no peer: the measure of other clients is a browser engine, several times its size.
"""

import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.common import publish
from benchmarks.upkeep.gui import until_shown
from installer.desktop.build import bundle, debian, size_of
from tests.desktop.screens import screen

STARTS = 5
GOAL_S = 2.0


def forget(folder: Path) -> None:
    """Put the program out of the page cache."""
    for file in (path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_to_a_window(program: Path, home: Path, display: str) -> float:
    """From the start of the process until the X server shows its window; the agent that it starts ends with it."""
    bare = {
        "DISPLAY": display,
        "HOME": str(home),
        "XDG_RUNTIME_DIR": str(home),
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
    }
    os.environ["DISPLAY"] = display
    began = time.perf_counter()
    with subprocess.Popen((str(program / "cottage"),), env=bare) as started:
        until_shown()
        seconds = time.perf_counter() - began
        started.terminate()
    return seconds


def main() -> None:
    """Sizes, then starts."""
    with tempfile.TemporaryDirectory() as folder, screen("openbox", "tint2") as display:
        ready = os.environ.get("COTTAGE_BUNDLE")
        program = Path(ready) if ready else bundle(Path(folder))
        package = debian(program, Path(folder))
        figures: dict[str, object] = {
            "load_before": os.getloadavg(),
            "on_disk_mb": size_of(program) / 1e6,
            "deb_mb": package.stat().st_size / 1e6,
        }
        for name in ("cold", "warm"):
            times = []
            for _ in range(STARTS):
                if name == "cold":
                    forget(program)
                with tempfile.TemporaryDirectory() as home:
                    times.append(seconds_to_a_window(program, Path(home), display))
            figures[f"start_{name}_s"] = {"median": statistics.median(times), "min": min(times), "max": max(times)}
            figures[f"goal_{name}"] = statistics.median(times) < GOAL_S
    publish("bundle", f"The installed window is there within {GOAL_S:.0f} s, warm and cold", figures)


if __name__ == "__main__":
    main()

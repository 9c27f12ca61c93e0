"""The provider's window opens quickly, stays small and idle, and answers while the agent moves data.

The real program on an X display of its own (Xvfb, openbox, tint2), with an agent's answers from a Unix socket once a second, in
which load, memory, watts and rates are others each time, as with a GPU that works. Shown: from five seconds after the window is
on the screen, so that none of its start is counted. In the tray: started with ``--hidden``.
Cold: the files of Qt and of Cottage are put out of the page cache before the start. Latency: how late a timer of 10 ms fires in
the window's event loop, first in calm and then while `benchmarks/links/peer_link.py` drives a link between two processes.
There is no peer: no other client publishes such figures.
"""

import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import PySide6

from benchmarks.common import ROOT, publish
from tests.desktop.gui.support import METERS, Behaviour, agent, documents, listener, status
from tests.desktop.screens import screen

STARTS = 5
WATCH_S = 20.0
LINK = 'while "$0" "$@"; do :; done'  # For as long as is measured.
SETTLE_S = 5.0
HIDDEN_START_S = 10.0
GOAL_MB, GOAL_CPU = 100, 0.01
_LATENCY = """
import json, sys, time
from pathlib import Path
from PySide6.QtCore import QSettings, QTimer
from desktop.gui.app import Desktop, application
app = application(["cottage"], "en")
home = Path(sys.argv[1])
settings = QSettings(str(home / "latency.ini"), QSettings.Format.IniFormat)
settings.setValue("welcome/done", True)
desktop = Desktop(home, ("false",), settings)
late, last = [], [time.perf_counter()]
def beat():
    now = time.perf_counter()
    late.append((now - last[0] - 0.01) * 1000)
    last[0] = now
timer = QTimer(interval=10)
timer.timeout.connect(beat)
timer.start()
QTimer.singleShot(int(float(sys.argv[2]) * 1000), lambda: app.exit(0))
app.exec()
late = sorted(late[50:])
print(json.dumps({"p50": late[len(late) // 2], "p99": late[int(len(late) * 0.99)], "max": late[-1], "beats": len(late)}))
"""


def forget_files() -> None:
    """Put the program's files out of the page cache."""
    folders = (Path(PySide6.__file__).parent, ROOT / "desktop", ROOT / "ledger")
    for file in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def working() -> Behaviour:
    """An agent whose figures are others in each answer."""
    docs, chance = documents(), random.Random(1)

    def behave(caller: socket.socket) -> None:
        gpu = METERS["gpus"][0] | {
            "percent": chance.randrange(90, 100),
            "watts": chance.uniform(280, 300),
            "used_mb": chance.randrange(14_000, 14_900),
        }
        rates = {"up": chance.uniform(6e5, 7e5), "down": chance.uniform(6e5, 7e5)}
        docs["status"] = status(meters=METERS | rates | {"gpus": [gpu]})
        agent(docs)(caller)

    return behave


def program(home: Path, *options: str) -> subprocess.Popen[bytes]:
    """The window."""
    return subprocess.Popen((sys.executable, "-m", "desktop.gui.app", "--home", str(home), *options), cwd=ROOT)


def until_shown() -> None:
    """The X server shows its window."""
    search = ("xdotool", "search", "--sync", "--onlyvisible", "--class", "cottage")
    subprocess.run(search, check=True, capture_output=True, timeout=60)


def seconds_to_a_window(home: Path, cold: bool) -> float:
    """From the start of the process until the X server shows its window."""
    if cold:
        forget_files()
    began = time.perf_counter()
    with program(home) as started:
        until_shown()
        seconds = time.perf_counter() - began
        started.terminate()
    return seconds


def at_rest(home: Path, *options: str) -> dict[str, float]:
    """Memory, and the share of a core with the window shown, or hidden from the start."""
    with program(home, *options) as started:
        process = psutil.Process(started.pid)
        if options:
            time.sleep(HIDDEN_START_S)
        else:
            until_shown()
        time.sleep(SETTLE_S)
        before = sum(process.cpu_times()[:2])
        time.sleep(WATCH_S)
        used = (sum(process.cpu_times()[:2]) - before) / WATCH_S
        memory = process.memory_full_info()
        started.terminate()
    return {"rss_mb": memory.rss / 2**20, "private_mb": memory.uss / 2**20, "core": used}


def lateness(home: Path) -> dict[str, float]:
    """Milliseconds."""
    words = (sys.executable, "-c", _LATENCY, str(home), str(WATCH_S))
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Everything, on one display."""
    figures: dict[str, Any] = {"load_before": os.getloadavg()}
    with tempfile.TemporaryDirectory() as folder, screen("openbox", "tint2") as display:
        home = Path(folder)
        os.environ |= {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "XDG_CONFIG_HOME": folder, "PYTHONPATH": str(ROOT)}
        os.environ["XDG_RUNTIME_DIR"] = folder
        (home / "cottage").mkdir()
        (home / "cottage" / "window.ini").write_text("[welcome]\ndone=true\n")
        with listener(home / "agent.sock", working()):
            for name, cold in (("cold", True), ("warm", False)):
                times = [seconds_to_a_window(home, cold) for _ in range(STARTS)]
                figures[f"start_{name}_s"] = {"median": statistics.median(times), "min": min(times), "max": max(times)}
            figures["shown"] = at_rest(home)
            figures["in_the_tray"] = at_rest(home, "--hidden")
            figures["late_ms_calm"] = lateness(home)
            link = subprocess.Popen(
                ("sh", "-c", LINK, sys.executable, "-m", "benchmarks.links.peer_link"),
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                start_new_session=True,
            )
            try:
                time.sleep(SETTLE_S)
                figures["late_ms_while_data_moves"] = lateness(home)
                if link.poll() is not None:
                    raise RuntimeError("the link beside the window ended before the measurement did: nothing is shown")
            finally:
                os.killpg(link.pid, signal.SIGKILL)
                link.wait()
    shown = figures["shown"]
    figures["goals"] = {"rss_mb": shown["rss_mb"] < GOAL_MB, "core": shown["core"] < GOAL_CPU}
    publish(
        "gui", f"The window: under {GOAL_MB} MB, under {GOAL_CPU:.0%} of a core, and never late for its owner", figures
    )


if __name__ == "__main__":
    main()

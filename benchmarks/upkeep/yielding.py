"""A job's worker stands still within two seconds of a game's start, and watching for games costs next to nothing.

Real sensors on an X display of their own (Xvfb, openbox), the real policy and keeper, a real worker process that computes. A game
is a window that asks for the whole screen, or a listed program. The clock runs from the start of the game's process to the moment
when the kernel says that the worker is stopped. There is no peer: no other client publishes such a figure.
"""

import asyncio
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import publish
from common.clock import SystemClock
from desktop.agent.lending.keeper import LOOK_S, LendingKeeper
from desktop.agent.lending.policy import Decision
from desktop.agent.sandbox.base import SandboxLimits
from desktop.agent.sandbox.process import ProcessSandbox, ProcessWorker
from desktop.agent.sensors.base import Sensors
from desktop.agent.sensors.linux import LinuxMachine, X11Screen
from desktop.agent.sensors.nvml import NvmlGpu
from tests.desktop.screens import screen
from tests.desktop.sensors.test_linux import WINDOW

TRIALS = 40
POLL_S = 0.002
READS = 200
LIMIT_S = 20.0
BUSY = "while True: pass"


class One:
    """One worker that follows the keeper."""

    def __init__(self, worker: ProcessWorker) -> None:
        self.worker = worker

    def workers(self) -> tuple[bool, tuple[int, ...]]:
        """It holds this computer."""
        assert self.worker.pid is not None
        return True, (self.worker.pid,)

    def cap_used(self) -> bool:
        """There is none."""
        return False

    async def follow(self, decision: Decision, sentence: str) -> None:
        """Freeze it, or let it go on."""
        await (self.worker.thaw() if decision.works else self.worker.freeze())


def is_stopped(pid: int) -> bool:
    """As the kernel says."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


async def trial(folder: Path, display: str, game: tuple[str, ...]) -> float:
    """Seconds from the game's start to the worker's stillness."""
    sandbox = ProcessSandbox(SandboxLimits(512, 1), command=(sys.executable, "-c", BUSY))
    worker = await sandbox.start("yielding", folder)
    sensors = Sensors(X11Screen(display), LinuxMachine(), NvmlGpu(""), folder)
    rules = folder / "lending.json"
    keeper = LendingKeeper(rules, sensors, SystemClock())
    running = asyncio.create_task(keeper.run(One(worker)))
    playing = None
    try:
        assert worker.pid is not None
        await asyncio.sleep(LOOK_S * (1 + time.time() % 1))  # The game begins at any moment between two looks.
        assert not is_stopped(worker.pid), keeper.sentence()
        begun = time.perf_counter()
        playing = await asyncio.create_subprocess_exec(*game)
        while not is_stopped(worker.pid):
            assert time.perf_counter() < begun + LIMIT_S, keeper.sentence()
            await asyncio.sleep(POLL_S)
        return time.perf_counter() - begun
    finally:
        running.cancel()
        if playing is not None:
            playing.kill()
            await playing.wait()
        await worker.stop(0)


async def figures(folder: Path, display: str) -> dict[str, Any]:
    """Both kinds of games, and what a look costs."""
    listed = folder / "doom-eternal"
    shutil.copy("/bin/sleep", listed)
    (folder / "lending.json").write_bytes(
        b'{"rules": {"idle_minutes": 0, "free_disk": 0, "on_battery": true, "programs": ["doom-eternal"]}}'
    )
    found: dict[str, Any] = {}
    for name, game in (
        ("full screen", (sys.executable, "-c", WINDOW, display, "fullscreen")),
        ("listed program", (str(listed), "60")),
    ):
        times = sorted([await trial(folder, display, game) for _ in range(TRIALS)])
        found[name] = {
            "p50_s": round(statistics.median(times), 2),
            "p99_s": round(times[math.ceil(0.99 * len(times)) - 1], 2),
            "trials": len(times),
        }
    sensors = Sensors(X11Screen(display), LinuxMachine(), NvmlGpu(""), folder)
    sensors.read(time.time(), busy=True)
    for probe in vars(sensors).values():
        if hasattr(probe, "every") and probe.every < 1:
            probe.every = 0.0
    begun = time.process_time()
    for _ in range(READS):
        sensors.read(time.time(), busy=True)
    cost = (time.process_time() - begun) / READS
    found["a look"] = {
        "cpu_ms": round(1000 * cost, 2),
        "share_of_a_core": round(cost / LOOK_S, 4),
        "processes": len(os.listdir("/proc")),
    }
    return found


def main() -> None:
    """Run all of it."""
    missing = [name for name in ("Xvfb", "openbox") if shutil.which(name) is None]
    if missing:
        sys.exit(f"yielding: needs {', '.join(missing)}: apt-get install xvfb openbox")
    with tempfile.TemporaryDirectory() as folder, screen("openbox") as display:
        found = asyncio.run(figures(Path(folder), display))
    publish("yielding", "a worker stands still within 2 s of a game's start (p99)", found)


if __name__ == "__main__":
    main()

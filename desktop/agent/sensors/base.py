"""What the sensors of a platform offer, and how often each is asked."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from desktop.agent.base.log import LOG, printable
from desktop.agent.lending.facts import Facts

FAST_S = 0.9  # A game must be seen within a second.
SLOW_S = 10.0  # Temperatures and disks change slowly; asking for the network costs a process.

_T = TypeVar("_T")


class ScreenSensor(Protocol):
    """The people in front of this computer."""

    def idle_s(self) -> float | None:
        """Seconds since keyboard or mouse were touched; infinite where nobody can sit here."""

    def fullscreen(self) -> str | None:
        """The name of the program that covers the whole screen, "" for none."""


class Machine(Protocol):
    """The computer itself."""

    def programs(self) -> frozenset[str] | None:
        """Names of the running executables."""

    def on_battery(self) -> bool | None:
        """Whether it runs without mains; False where there is no battery."""

    def metered(self) -> bool | None:
        """Whether the network says that it costs by the byte."""

    def free_disk(self, folder: Path) -> int | None:
        """Bytes that are free on the disk of ``folder``."""


class GpuSensor(Protocol):
    """The GPU that is lent."""

    def celsius(self) -> float | None:
        """How hot it is."""

    def own_vram(self, jobs: Iterable[int]) -> int | None:
        """Bytes of memory that programs use which do not descend from the processes ``jobs``."""


@dataclass
class _Probe(Generic[_T]):
    """One sensor with its last answer. What fails is asked again later, and named in the log once."""

    name: str
    ask: Callable[[], _T | None]
    every: float
    last: _T | None = None
    asked: float = -1e9
    failing: bool = False

    def read(self, now: float) -> _T | None:
        if now - self.asked < self.every:
            return self.last
        self.asked = now
        try:
            self.last, failing = self.ask(), False
        except Exception as error:  # noqa: BLE001 - the boundary to drivers and desktops of all kinds: none may end the agent.
            self.last, failing = None, True
            if not self.failing:
                LOG.warning("cannot tell %s: %s", self.name, printable(str(error) or type(error).__name__)[:200])
        self.failing = failing
        return self.last


@dataclass
class Sensors:
    """All of them; ``read`` takes a few milliseconds and may block, so call it in a thread."""

    screen: ScreenSensor
    machine: Machine
    gpu: GpuSensor
    folder: Path
    now: Callable[[], float] = time.monotonic
    jobs: frozenset[int] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        """Nothing is asked yet."""
        self._idle = _Probe("whether somebody is here", self.screen.idle_s, FAST_S)
        self._fullscreen = _Probe("what covers the screen", self.screen.fullscreen, FAST_S)
        self._programs = _Probe("which programs run", self.machine.programs, FAST_S)
        self._battery = _Probe("whether it is on battery", self.machine.on_battery, FAST_S)
        self._metered = _Probe("whether the network is metered", self.machine.metered, SLOW_S)
        self._disk = _Probe("how much disk is free", lambda: self.machine.free_disk(self.folder), SLOW_S)
        self._celsius = _Probe("the GPU's temperature", self.gpu.celsius, FAST_S)
        self._vram = _Probe("who uses the GPU's memory", lambda: self.gpu.own_vram(self.jobs), FAST_S)

    def read(self, at: float, busy: bool, jobs: Iterable[int] = ()) -> Facts:
        """The facts of Unix time ``at``. ``jobs``: the workers' processes."""
        now, self.jobs = self.now(), frozenset(jobs)
        return Facts(
            at=at,
            utc_offset=time.localtime(at).tm_gmtoff,
            idle_s=self._idle.read(now),
            on_battery=self._battery.read(now),
            fullscreen=self._fullscreen.read(now),
            programs=self._programs.read(now),
            celsius=self._celsius.read(now),
            metered=self._metered.read(now),
            free_disk=self._disk.read(now),
            own_vram=self._vram.read(now),
            busy=busy,
        )

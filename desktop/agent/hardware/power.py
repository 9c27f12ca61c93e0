"""Holds the lent GPU to its owner's power cap while jobs compute: by the driver, or, where that refuses, by pauses.

Most drivers let only an administrator set a limit. Then jobs are held for a part of every ``PERIOD_S``, so that what the GPU
draws on average stays below the cap; its peaks do not. The part follows from what the driver says that the GPU draws::

    share of the time in which jobs compute  <-  share * cap / average draw

which comes to rest where the average is the cap: a GPU draws what it draws at rest, and more in proportion to the share.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import pynvml

from common.clock import Clock
from desktop.agent.base.gpu import driver, handle_of
from desktop.agent.errors import SandboxError

# Long beside the tenth of a second that an engine takes to hold a container, short beside what warms a card.
PERIOD_S = 2.0
SAMPLE_S = 0.2  # The driver's figure is an average of about that.
# A job that is held for longer is late for its peers; a cap that asks for it cannot be kept by pauses.
LEAST_SHARE = 0.1
GROWTH = 1.25  # Of the share in a period, so that one idle moment of a job does not end the cap.

Held = Literal["", "driver", "pauses", "not"]
"""How a cap is held: by nothing, since there is none or no job may compute; by the driver; by pauses; not at all."""


class PausableJob(Protocol):
    """What computes."""

    async def rest(self, resting: bool) -> None:
        """Hold it for a moment, or let it go on; raises SandboxError."""


class PowerCap:
    """The cap of one GPU; ``run`` it beside the jobs."""

    def __init__(self, gpu: str, jobs: Callable[[], Sequence[PausableJob]], clock: Clock) -> None:
        """``jobs``: those of now."""
        self._gpu, self._jobs, self._clock = gpu, jobs, clock
        self._watts, self._share, self._before = 0, 1.0, 0
        self._pausing = asyncio.Event()
        self.held: Held = ""
        self.why = ""

    def hold(self, watts: int) -> bool:
        """Hold the GPU to ``watts``, or for 0 lift the cap; whether that is new. ``why``: what the driver has against it."""
        if watts == self._watts or not self._gpu:
            return False
        if self.held == "driver":
            set_limit(self._gpu, self._before)
        self._watts, self._share, self.held, self.why = watts, 1.0, "", ""
        self._pausing.clear()
        if watts:
            self._before, self.why = set_limit(self._gpu, watts * 1000)
            self.held = "pauses" if self.why else "driver"
            if self.why:
                self._pausing.set()
        return True

    async def run(self) -> None:
        """Pause where pauses hold the cap; until it is cancelled."""
        while True:
            await self._pausing.wait()
            if not self._jobs():
                await self._clock.sleep(PERIOD_S)
                continue
            watts, share = self._watts, self._share
            try:
                with driver():  # Held for the period: to load it for each sample would cost more than the sample.
                    drawn = await self._held_for(PERIOD_S * (1 - share)) + await self._drawn(PERIOD_S * share)
            except pynvml.NVMLError as error:
                if watts == self._watts:
                    self.held, self.why = "not", f"the driver does not tell what the GPU draws ({error})"
                    self._pausing.clear()
                continue
            if watts == self._watts:  # Else another cap has begun meanwhile, with a share of its own.
                self._share = next_share(share, drawn / PERIOD_S, watts)

    async def _held_for(self, seconds: float) -> float:
        if seconds <= 0:
            return 0.0
        try:
            await self._rest(True)
            return await self._drawn(seconds)
        finally:
            await self._rest(False)

    async def _rest(self, resting: bool) -> None:
        for job in self._jobs():
            with contextlib.suppress(SandboxError):  # Its own loop says what became of it.
                await job.rest(resting)

    async def _drawn(self, seconds: float) -> float:
        """Joules within that time."""
        joules, left = 0.0, seconds
        while left > 0:
            step = min(SAMPLE_S, left)
            await self._clock.sleep(step)
            joules += step * await asyncio.to_thread(draw, self._gpu)
            left -= step
        return joules


def next_share(share: float, watts: float, cap: float) -> float:
    """The share of the next period, after one with ``share`` in which the GPU drew ``watts`` on average."""
    return min(1.0, max(LEAST_SHARE, share * min(GROWTH, cap / max(1.0, watts))))


def draw(gpu: str) -> float:
    """Watts now; raises ``pynvml.NVMLError``."""
    with driver():
        return float(pynvml.nvmlDeviceGetPowerUsage(handle_of(gpu))) / 1000


def set_limit(gpu: str, milliwatts: int) -> tuple[int, str]:
    """Let the driver hold ``gpu`` to that; returns the limit of before, and why it refuses, "" where it does not."""
    try:
        with driver():
            handle = handle_of(gpu)
            least, most = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
            if not least <= milliwatts <= most:
                return 0, f"the driver takes between {least // 1000} and {most // 1000} watts"
            before = int(pynvml.nvmlDeviceGetPowerManagementLimit(handle))
            if before == milliwatts:  # Perhaps by an agent that was killed.
                before = int(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))
            pynvml.nvmlDeviceSetPowerManagementLimit(handle, milliwatts)
    except pynvml.NVMLError_NoPermission:
        return 0, "the driver lets only an administrator set it"
    except pynvml.NVMLError as error:
        return 0, f"the driver refuses ({error})"
    return before, ""

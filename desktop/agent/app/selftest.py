"""Whether this computer can lend, step by step, each with a code that programs can read and a way out for people."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from desktop.agent.base.config import MIN_MEMORY_MB, Home, Settings
from desktop.agent.base.gpu import Device, total_memory_mb
from desktop.agent.base.log import printable
from desktop.agent.earnings.earnings_estimate import Prediction, ask_market, ask_network, predict, spelt
from desktop.agent.errors import AgentError, NoEngineError, NoImageError
from desktop.agent.hardware.meters import gpus
from desktop.answers import SelfTest, SelfTestStep
from transport.nettest.errors import NettestError
from transport.nettest.result import NetTest

Name = Literal["gpu", "sandbox", "speed", "disk", "memory", "coordinator", "line", "earnings"]
State = Literal["waiting", "running", "good", "warning", "bad"]
NAMES: tuple[Name, ...] = ("gpu", "sandbox", "speed", "disk", "memory", "coordinator", "line", "earnings")
NOT_TESTED = tuple(SelfTestStep(name) for name in NAMES)
GB = 10**9


class SelfTestResult(SelfTest, frozen=True):
    """The same with what this computer may earn; ``at``: when it was asked."""

    prediction: Prediction | None = None
    at: float = 0.0


@dataclass(frozen=True)
class Speed:
    """Operations a second; ``busy``: other programs computed meanwhile, so that the machine may be quicker."""

    flops: float
    busy: bool = False


@dataclass
class SelfTestMeans:
    """What the steps ask: replaced in tests where a machine lacks it.

    ``measure``: how quick it is, in the sandbox; raises SandboxError. ``line``: tests the line; raises NettestError.
    """

    device: Callable[[], Device]
    measure: Callable[[Device], Awaitable[Speed]]
    line: Callable[[], Awaitable[NetTest]]


class Steps:
    """One run; ``results`` yields the whole after each change."""

    def __init__(self, home: Home, settings: Settings, means: SelfTestMeans) -> None:
        """Nothing is asked yet."""
        self._home, self._settings, self._means = home, settings, means
        self._checks = {name: SelfTestStep(name) for name in NAMES}
        self._device: Device | None = None
        self._speed_found = Speed(0.0)
        self._prediction: Prediction | None = None

    def _whole(self, running: bool, at: float) -> SelfTestResult:
        needed = (self._checks[name].state for name in ("sandbox", "speed", "disk", "memory", "coordinator"))
        can_lend = not running and all(state in ("good", "warning") for state in needed)
        return SelfTestResult(tuple(self._checks.values()), running, can_lend, self._prediction, at)

    async def results(self, at: float) -> AsyncIterator[SelfTestResult]:
        """Run every step; ``at``: Unix seconds, for the record."""
        steps: dict[Name, Callable[[], Awaitable[SelfTestStep]]] = {
            "gpu": self._gpu,
            "sandbox": self._sandbox,
            "speed": self._speed,
            "disk": self._disk,
            "memory": self._memory,
            "coordinator": self._coordinator,
            "line": self._line,
            "earnings": self._earnings,
        }
        for name, step in steps.items():
            self._checks[name] = SelfTestStep(name, "running")
            yield self._whole(True, at)
            self._checks[name] = await step()
        yield self._whole(False, at)

    async def _gpu(self) -> SelfTestStep:
        device = self._device = await asyncio.to_thread(self._means.device)
        detail = {"name": device.name, "memory_mb": str(device.memory_mb)}
        if device.kind == "cuda":
            return SelfTestStep("gpu", "good", "found", f"{device.name}. {device.note}", detail)
        code = "gone" if device.gone else "other" if device.other else "processor"
        return SelfTestStep("gpu", "warning", code, device.note, detail | {"maker": device.other})

    async def _sandbox(self) -> SelfTestStep:
        """Is done together with the speed, which needs it."""
        assert self._device is not None
        try:
            self._speed_found = await self._means.measure(self._device)
        except NoEngineError as error:
            return SelfTestStep("sandbox", "bad", "no engine", str(error), error.detail)
        except NoImageError as error:
            return SelfTestStep("sandbox", "bad", "no image", str(error), {"image": self._settings.image})
        except AgentError as error:
            return SelfTestStep("sandbox", "bad", "unsafe", printable(str(error)))
        if self._settings.sandbox == "process":
            return SelfTestStep("sandbox", "warning", "unprotected", "jobs run with your rights: for the demo only")
        if self._settings.sandbox == "kubernetes":
            return SelfTestStep("sandbox", "good", "found", "pods hold jobs apart from the cluster's other workloads")
        return SelfTestStep("sandbox", "good", "found", "Docker holds jobs apart from your files and your network")

    async def _speed(self) -> SelfTestStep:
        speed = self._speed_found
        if not speed.flops:
            return SelfTestStep("speed", "bad", "not measured", "it is measured inside the sandbox")
        gigaflops = f"{speed.flops / 1e9:,.{0 if speed.flops >= 1e10 else 1}f}"
        if speed.busy:
            text = f"{gigaflops} GFLOP/s while other programs computed: close them and check again"
            return SelfTestStep("speed", "warning", "busy", text, {"gigaflops": gigaflops})
        return SelfTestStep("speed", "good", "measured", f"{gigaflops} GFLOP/s", {"gigaflops": gigaflops})

    async def _disk(self) -> SelfTestStep:
        free, wanted = shutil.disk_usage(self._home.path).free, self._settings.disk_gb * GB
        detail = {"free_gb": f"{free / GB:.0f}", "wanted_gb": str(self._settings.disk_gb)}
        text = f"{free / GB:.0f} GB free, {self._settings.disk_gb} GB may be used for jobs"
        if free < GB:
            return SelfTestStep("disk", "bad", "full", f"{text}: make room, or move the agent's folder", detail)
        return SelfTestStep(
            "disk", "good" if free >= wanted else "warning", "room" if free >= wanted else "little", text, detail
        )

    async def _memory(self) -> SelfTestStep:
        here, lent = total_memory_mb(), self._settings.memory_mb or max(MIN_MEMORY_MB, total_memory_mb() // 2)
        detail = {"memory_mb": str(here), "lent_mb": str(lent)}
        if here < 2 * MIN_MEMORY_MB:
            return SelfTestStep("memory", "bad", "little", f"{here:,} MB are too little for any job", detail)
        return SelfTestStep("memory", "good", "enough", f"{lent:,} of {here:,} MB for jobs", detail)

    async def _coordinator(self) -> SelfTestStep:
        if not self._settings.coordinator:
            return SelfTestStep(
                "coordinator", "bad", "not set", "no network is set: give its address, or an invitation"
            )
        try:
            network = await ask_network(self._settings.coordinator)
            market = await ask_market(self._settings.coordinator)
        except AgentError as error:
            return SelfTestStep("coordinator", "bad", "no answer", printable(str(error)), error.detail)
        if (key := self._settings.coordinator_key) and network.coordinator != key:
            text = f"another network than that of your invitation answers there (its key is {printable(network.coordinator)})"
            return SelfTestStep("coordinator", "bad", "other key", text)
        lent = self._device.gpu if self._device else ""
        watts = next((card.power_cap for card in await asyncio.to_thread(gpus) if lent and card.uuid == lent), None)
        if self._speed_found.flops:
            self._prediction = predict(self._speed_found.flops, network, market, watts, self._settings)
        detail = {"online": str(network.nodes_online), "busy": str(network.nodes_busy)}
        text = f"{network.nodes_online} computers are connected, {network.nodes_busy} of them work"
        return SelfTestStep("coordinator", "good", "answers", text, detail)

    async def _line(self) -> SelfTestStep:
        if self._checks["coordinator"].state == "bad":
            return SelfTestStep("line", "warning", "waits", "it is tested with the coordinator's relays")
        try:
            test = await self._means.line()
        except NettestError as error:
            return SelfTestStep("line", "warning", "not tested", printable(str(error)))
        detail: dict[str, str] = {"nat": test.nat}
        for way, rate in (("up", test.up), ("down", test.down)):
            if rate is not None:
                detail[f"{way}_mbit"] = f"{rate * 8 / 1e6:.0f}"
        text = f"router: {test.nat}; up {detail.get('up_mbit', '?')}, down {detail.get('down_mbit', '?')} Mbit/s"
        return SelfTestStep(
            "line", "good" if test.reached else "warning", "tested" if test.reached else "no relay", text, detail
        )

    async def _earnings(self) -> SelfTestStep:
        found = self._prediction
        if found is None:
            return SelfTestStep(
                "earnings", "warning", "not known", "it takes a measured speed and a coordinator's price"
            )
        state: State = "good" if found.high > 0 else "warning"
        code = "no rate" if found.power is None else "some" if state == "good" else "below power"
        low, high = (spelt(units, found.worth) for units in (found.low, found.high))
        text = f"between {low} and {high} in a day of 24 hours"
        if found.power is None:
            text += f", before electricity: nobody has said what a token is worth in {self._settings.currency}"
        elif found.power:
            text += f", after up to {spelt(found.power, found.worth)} for electricity"
        detail = {"low": str(found.low), "high": str(found.high), "power": str(found.power or 0)}
        if found.worth is not None:
            detail |= {"currency": found.worth.currency, "worth": str(found.worth.millionths)}
        return SelfTestStep("earnings", state, code, text, detail)

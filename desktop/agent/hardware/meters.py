"""How hard this computer works now: what the windows' gauges show."""

from collections.abc import Iterable
from typing import Any

import psutil
import pynvml

from desktop.agent.base.gpu import driver, handle_of, identity, name_of
from desktop.answers import GpuMeter, Meters

_NO_ANSWER = (pynvml.NVMLError, psutil.Error, OSError)


def read(jobs: Iterable[int], up: float, down: float) -> Meters:
    """Now; ``jobs`` are the workers' processes. Takes a millisecond or two."""
    return Meters(gpus(), psutil.cpu_percent(None), sum(map(_held_mb, jobs)), up, down)


def gpus() -> tuple[GpuMeter, ...]:
    """Every NVIDIA GPU; none where there is no driver."""
    try:
        with driver():
            return tuple(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError:
        return ()


def _gpu(index: int) -> GpuMeter:
    handle = handle_of(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    busy = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    watts = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    cap = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return GpuMeter(
        index,
        name_of(handle),
        int(memory.total) >> 20,
        None if busy is None else int(busy.gpu),
        int(memory.used) >> 20,
        _ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        None if watts is None else watts / 1000,
        None if cap is None else cap / 1000,
        identity(handle),
    )


def _ask(question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None


def _held_mb(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        return sum(int(one.memory_info().rss) for one in (process, *process.children(recursive=True))) >> 20
    except _NO_ANSWER:
        return 0

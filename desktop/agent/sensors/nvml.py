"""The NVIDIA GPU that is lent, through NVML: how hot, and whose memory."""

from collections.abc import Iterable
from typing import Any

import psutil
import pynvml

from desktop.agent.base.gpu import handle_of


class NvmlGpu:
    """The card that is lent, ``uuid``; where that is "", the processor is, and of it this knows nothing."""

    def __init__(self, uuid: str) -> None:
        """The driver is loaded when it is first asked."""
        self._uuid = uuid
        self._handle: Any = None

    def celsius(self) -> float | None:
        """See Gpu."""
        gpu = self._gpu()
        return None if gpu is None else float(pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU))

    def own_vram(self, jobs: Iterable[int]) -> int | None:
        """See Gpu."""
        gpu = self._gpu()
        return None if gpu is None else _used_by_others(gpu, _with_descendants(jobs))

    def _gpu(self) -> Any:
        if self._handle is None and self._uuid:
            pynvml.nvmlInit()
            self._handle = handle_of(self._uuid)
        return self._handle


def _used_by_others(gpu: Any, ours: frozenset[int]) -> int:
    """All that is used, without what the jobs' processes hold; a process whose share is not told counts as the owner's."""
    jobs = sum(
        int(process.usedGpuMemory or 0)
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)
        if process.pid in ours
    )
    return max(0, int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used) - jobs)


def _with_descendants(jobs: Iterable[int]) -> frozenset[int]:
    found = set(jobs)
    for pid in tuple(found):
        try:
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        except psutil.Error:
            continue
    return frozenset(found)

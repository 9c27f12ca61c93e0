"""NVIDIA GPUs through NVML: how hot, and whose memory."""

from collections.abc import Iterable
from typing import Any

import psutil
import pynvml


class NvmlGpu:
    """All GPUs of this computer; without a driver it knows nothing and says so."""

    def __init__(self) -> None:
        """The driver is loaded when it is first asked."""
        self._handles: list[Any] | None = None

    def celsius(self) -> float | None:
        """See Gpu."""
        found = [pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU) for gpu in self._gpus()]
        return float(max(found)) if found else None

    def own_vram(self, jobs: Iterable[int]) -> int | None:
        """See Gpu."""
        gpus = self._gpus()
        if not gpus:
            return None
        ours = _with_descendants(jobs)
        return max(_used_by_others(gpu, ours) for gpu in gpus)

    def _gpus(self) -> list[Any]:
        if self._handles is None:
            try:
                pynvml.nvmlInit()
                count = pynvml.nvmlDeviceGetCount()
                self._handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
            except pynvml.NVMLError:
                self._handles = []
        return self._handles


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

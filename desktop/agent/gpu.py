"""What this machine computes with: an NVIDIA GPU through NVML, or else its processor, and why."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pynvml

from desktop.agent.log import printable

GPU_RESERVE_MB = 512  # Left to the desktop, so that its windows do not stutter.
MAX_NAME = 100


@dataclass(frozen=True)
class Device:
    """A compute device.

    Attributes:
        memory_mb: of its own memory for a GPU, of main memory for a processor.
        note: a sentence for the owner: why the processor is used, or what is known of the GPU.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    memory_mb: int
    note: str


def detect(index: int = 0) -> Device:
    """The GPU number ``index``, or the processor with the reason why."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return processor(_why_no_gpu(error))
    try:
        if pynvml.nvmlDeviceGetCount() <= index:
            return processor(f"The NVIDIA driver is here, but it sees no GPU number {index}.")
        return _gpu(index)
    except pynvml.NVMLError as error:
        return processor(
            f"The NVIDIA driver does not answer ({error}): restart the machine, or install the driver anew."
        )
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name = pynvml.nvmlDeviceGetName(handle)
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    driver = str(pynvml.nvmlSystemGetDriverVersion())
    usable = max(1, total - GPU_RESERVE_MB)
    return Device(
        "cuda", printable(text)[:MAX_NAME], usable, f"Driver {driver}; {GPU_RESERVE_MB} MB stay with the desktop."
    )


def _why_no_gpu(error: pynvml.NVMLError) -> str:
    if isinstance(error, pynvml.NVMLError_LibraryNotFound):
        return "No NVIDIA driver is installed: jobs run on the processor, which earns far less."
    if isinstance(error, pynvml.NVMLError_DriverNotLoaded):
        return (
            "The NVIDIA driver is installed but not loaded: restart the machine. Until then jobs run on the processor."
        )
    return f"The GPU cannot be used ({error}): jobs run on the processor."


def processor(note: str) -> Device:
    """The processor; ``note`` says why it is used."""
    return Device("cpu", _processor_name(), total_memory_mb(), note)


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return printable(line.partition(":")[2].strip())[:MAX_NAME]
    except OSError:
        pass  # Not Linux: the platform module knows a little.
    return platform.processor() or platform.machine() or "processor"


def total_memory_mb() -> int:
    """Main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20

"""What this machine computes with: an NVIDIA GPU through NVML, or else its processor, and why."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
import pynvml
from msgspec import Meta

from desktop.agent.base.log import printable

GPU_RESERVE_MB = 512  # Left to the desktop, so that its windows do not stutter.
MAX_NAME = 100

GpuId = Annotated[str, Meta(pattern=r"^GPU-[0-9a-f-]{8,60}$")]
"""As the driver names a card for ever: a number may mean another one after the next restart."""
Chosen = Annotated[int, Meta(ge=-1, le=63)] | GpuId
"""What an owner lends: one card by its identity, by its number of now, or with -1 the processor."""

_NVIDIA, _MAKERS = "0x10de", {"0x1002": "AMD", "0x8086": "Intel"}  # PCI's numbers of vendors.


@dataclass(frozen=True)
class Device:
    """A compute device.

    Attributes:
        memory_mb: of its own memory for a GPU, of main memory for a processor.
        note: a sentence for the owner: why the processor is used, or what is known of the GPU.
        gpu: which one it is, "" for a processor.
        gone: the card that its owner has chosen is not here.
        other: the maker of a card that cannot be used yet.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    memory_mb: int
    note: str
    gpu: str = ""
    gone: bool = False
    other: str = ""


NOTHING = Device("cpu", "", 0, "")
"""Where it is not known yet."""


@contextmanager
def driver() -> Iterator[None]:
    """Talk to the driver within; raises ``pynvml.NVMLError`` where there is none."""
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def handle_of(chosen: int | str) -> Any:
    """The driver's handle of one card; within ``driver``. Raises ``pynvml.NVMLError``: it is not here."""
    if isinstance(chosen, str):
        return pynvml.nvmlDeviceGetHandleByUUID(chosen)
    return pynvml.nvmlDeviceGetHandleByIndex(chosen)


def identity(handle: Any) -> str:
    """Its ``GpuId``."""
    return _text(pynvml.nvmlDeviceGetUUID(handle))


def name_of(handle: Any) -> str:
    """What it is called, fit to be shown."""
    return printable(_text(pynvml.nvmlDeviceGetName(handle)))[:MAX_NAME]


def _text(value: bytes | str) -> str:
    """Older bindings answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def lasting(chosen: int | str) -> int | str:
    """The identity of card number ``chosen``; what names none, or one that is not here, as it is."""
    if isinstance(chosen, str) or chosen < 0:
        return chosen
    try:
        with driver():
            return identity(handle_of(chosen))
    except pynvml.NVMLError:
        return chosen


def detect(chosen: int | str = 0) -> Device:
    """The chosen GPU, or the processor with the reason why."""
    try:
        with driver():
            return _gpu(chosen)
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as error:
        other = _other_maker()
        if other and isinstance(error, pynvml.NVMLError_LibraryNotFound):
            note = f"Graphics cards of {other} are not supported yet: jobs run on the processor, which earns far less."
            return processor(note, other=other)
        return processor(_why_no_gpu(error))
    except pynvml.NVMLError as error:
        return processor(
            f"The NVIDIA driver does not answer ({error}): restart the machine, or install the driver anew."
        )


def _gpu(chosen: int | str) -> Device:
    try:
        handle = handle_of(chosen)
    except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
        return processor(
            f"The GPU that is to be lent ({chosen if isinstance(chosen, str) else f'number {chosen}'}) is not in this computer: "
            "jobs run on the processor. Choose another under Settings, or `cottage node settings --gpu`.",
            gone=True,
        )
    total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20
    version = _text(pynvml.nvmlSystemGetDriverVersion())
    usable = max(1, total - GPU_RESERVE_MB)
    note = f"Driver {version}; {GPU_RESERVE_MB} MB stay with the desktop."
    return Device("cuda", name_of(handle), usable, note, identity(handle))


def _why_no_gpu(error: pynvml.NVMLError) -> str:
    if isinstance(error, pynvml.NVMLError_LibraryNotFound):
        return "No NVIDIA driver is installed: jobs run on the processor, which earns far less."
    return "The NVIDIA driver is installed but not loaded: restart the machine. Until then jobs run on the processor."


def _other_maker(drm: Path = Path("/sys/class/drm")) -> str:
    """Who made this computer's card, if that is not NVIDIA; "" where it is not known. AMD before Intel, which has both."""
    if platform.system() == "Darwin" and platform.machine() == "arm64":
        return "Apple"
    try:
        vendors = {file.read_text().strip().lower() for file in drm.glob("card*/device/vendor")}
    except OSError:
        return ""
    return "" if _NVIDIA in vendors else next((name for number, name in _MAKERS.items() if number in vendors), "")


def processor(note: str, *, gone: bool = False, other: str = "") -> Device:
    """The processor; ``note`` says why it is used, ``gone`` that a chosen card is missing, ``other`` as in ``Device``."""
    return Device("cpu", _processor_name(), total_memory_mb(), note, gone=gone, other=other)


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
    return int(psutil.virtual_memory().total) >> 20

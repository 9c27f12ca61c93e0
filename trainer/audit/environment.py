"""What must be equal for two machines to compute the same bits, and how quick this one is.

Measured: two processes with the same library, instruction set and number of threads agree bit for bit; another number of
threads or another instruction set does not.
"""

import ctypes
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from protocol.boundary import Position
from protocol.job.job import ModelSpec, TrainingSpec
from protocol.models.model import resolve
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate

BENCH_S, BENCH_STEPS = 1.5, 3
LAYERS, VOCABULARY = 4, 2048
_MEMINFO = Path("/proc/meminfo")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def configure(threads: int, device: str = "cpu") -> None:
    """Make this thread's computations repeatable: a fixed number of threads; on a GPU deterministic kernels and no TF32.

    The kernels used here are deterministic on processors as they are; saying so to torch would import its compiler,
    which takes five seconds and a hundred megabytes.
    """
    torch.set_num_threads(threads)
    # What a library would have compiled here rounds otherwise than where there is no compiler.
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")
    if device.startswith("cuda"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Nothing here reads what it did not write, so no kernel need fill it first.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False


def env_class(threads: int, device: str) -> str:
    """Names everything that exact replay needs equal: device model, instruction set, libraries, threads."""
    if device.startswith("cuda"):
        model = torch.cuda.get_device_name(device)
        detail = f"cuda-{torch.version.cuda}-driver-{_driver()}"
    else:
        model, flags = _processor()
        digest = hashlib.sha256(flags.encode()).hexdigest()[:8]
        detail = f"{torch.backends.cpu.get_cpu_capability().lower()}-{digest}"
    name = f"{model}|{detail}|torch-{torch.__version__}|transformers-{transformers.__version__}|threads-{threads}"
    return re.sub(r"[^ -~]", "?", name)[:200]


def _driver() -> int:
    """The newest CUDA that the driver knows, as 1,000 times its version: each of the driver's branches has its own."""
    number = ctypes.c_int()
    ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    return number.value


def workload(device: str) -> tuple[ModelSpec, TrainingSpec]:
    """What is measured: four layers, as wide as keeps the device busy rather than whoever gives it orders.

    A step is some 500 kernels whatever their size. On a processor they take 7 * 10^9 operations in all; on a card that would
    measure how quickly kernels are launched, so it has 700 * 10^9, and 2 GB of its memory.
    """
    if not device.startswith("cuda"):
        return ModelSpec(preset="tiny-llama"), TrainingSpec(batch=4, micro_batches=1, sequence=128)
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16}
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY}
    config = {"model_type": "llama", "max_position_embeddings": 1024, **sizes, **heads}
    return ModelSpec(config=config), TrainingSpec(batch=4, micro_batches=1, sequence=512)


def bench(threads: int, device: str) -> dict[str, Any]:
    """Measured operations a second on a training step of ``workload``, memory, and the environment class.

    ``share``: of the processor time that the threads could have had during the quickest step, what they got, at most 1; less
    than that where other programs compute. On a GPU it is not known, and 1.
    """
    configure(threads, device)
    model, training = workload(device)
    stage = Stage(resolve(model, VOCABULARY), Cut(0, LAYERS, True, True), training, device=device)
    shape = training.batch, training.sequence + 1
    windows = torch.arange(shape[0] * shape[1]).remainder(VOCABULARY).view(shape).numpy()
    tokens = training.batch * training.sequence
    operations = stage.shape.stage_operations(0, LAYERS, True, training.sequence) * tokens
    accumulate(stage, Position(0, 1), windows, Recorded({}))
    _finish(device)
    quickest, share, steps, end = float("inf"), 1.0, 0, time.perf_counter() + BENCH_S
    while (began := time.perf_counter()) < end or steps < BENCH_STEPS:
        had = time.process_time()
        accumulate(stage, Position(0, 1), windows, Recorded({}))
        _finish(device)
        took, steps = time.perf_counter() - began, steps + 1
        if took < quickest:  # What else the machine does now is not its speed.
            quickest, share = took, min(1.0, (time.process_time() - had) / took / threads)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()[0]
    return {
        "flops": operations / quickest,
        "share": 1.0 if device.startswith("cuda") else share,
        "env_class": env_class(threads, device),
        "device": name,
        "memory_mb": _memory_mb(device),
        "threads": threads,
    }


def _finish(device: str) -> None:
    """Wait until a card has done what it was told."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _processor() -> tuple[str, str]:
    """Model name and instruction set flags."""
    found = {"model name": "unknown processor", "flags": ""}
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() in found and value.strip():
                found[key.strip()] = value.strip()
            elif not line:
                break  # The first processor speaks for all.
    return found["model name"], found["flags"]


def _memory_mb(device: str) -> int:
    """Memory that a job may use here: free on the GPU, or available within the limits of this container."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0] >> 20)
    limits = []
    if _MEMINFO.exists():
        fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
        limits.append(int(fields["MemAvailable"].split()[0]) >> 10)
    texts = [path.read_text().strip() for path in _CGROUP_LIMITS if path.exists()]
    limits += [int(text) >> 20 for text in texts if text.isdigit()]
    return max(1, min(limits, default=1024))

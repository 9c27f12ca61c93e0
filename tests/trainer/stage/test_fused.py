"""The kernel for lean parts, computed on the processor: a warp is 32 threads, and a card's words are functions here.

The same on a card: ``test_on_a_gpu.py``.
"""

import ctypes
import shutil
import subprocess
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest
import torch

from trainer.stage import adamw, fused
from trainer.stage.fused import LeanPart, Numbers

BEFORE = r"""
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>
#define __device__
#define __global__
using std::max, std::min;
struct Place { int x; };
static thread_local Place blockIdx, blockDim, threadIdx;
static std::barrier<> together(32);
static float shared[32];
template <class To, class From> To as(From from) { To to; memcpy(&to, &from, 4); return to; }
static float __int_as_float(int bits) { return as<float>(bits); }
static float __uint_as_float(unsigned bits) { return as<float>(bits); }
static int __float_as_int(float value) { return as<int>(value); }
static float __shfl_xor_sync(unsigned, float value, int far) {
    together.arrive_and_wait();
    shared[threadIdx.x] = value;
    together.arrive_and_wait();
    return shared[threadIdx.x ^ far];
}
"""
AFTER = r"""
extern "C" void run(void** p, int blocks, int start, int second_start, int key, double* d) {
    std::vector<std::thread> warp;
    for (int lane = 0; lane < 32; lane++) warp.emplace_back([=] {
        blockDim.x = 32; threadIdx.x = lane;
        for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) lean_adamw(
            (short*)p[0], (short*)p[1], (unsigned short*)p[2], (unsigned char*)p[3], (float*)p[4], (unsigned char*)p[5],
            (float*)p[6], (float*)p[7], (float*)p[8], blocks, start, second_start, key,
            d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]);
    });
    for (auto& each : warp) each.join();
}
"""


class OnProcessor:
    """As ``Kernel``."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def step(self, part: LeanPart, numbers: Numbers) -> None:
        values = (part.high, part.low, part.gradients, part.first, part.first_scales, part.second, part.second_scales)
        vectors = [tensor.data_ptr() for tensor in (*values, part.signed, part.unsigned)]
        real = astuple(numbers)[1:]
        self._library.run(
            (ctypes.c_void_p * len(vectors))(*vectors),
            part.high.numel() // 64,
            part.start,
            part.second_start,
            numbers.step,
            (ctypes.c_double * len(real))(*real),
        )


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> OnProcessor:
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler is here (g++ or clang++)")
    folder = tmp_path_factory.mktemp("kernel")
    (folder / "kernel.cpp").write_text(BEFORE + fused._SOURCE.decode() + AFTER)
    words = ["-std=c++20", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *words, "-o", folder / "kernel.so", folder / "kernel.cpp"], check=True)
    return OnProcessor(folder / "kernel.so")


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """The root as IEEE 754 and a card have it; torch's on a processor is by a bit off where it has many values to do."""
    return torch.from_numpy(np.sqrt(tensor.numpy()))


def test_it_has_every_bit_of_the_operations(kernel: OnProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "sqrt", rounded)
    monkeypatch.setattr(torch.Tensor, "sqrt_", lambda tensor: tensor.copy_(rounded(tensor)))
    here = torch.device("cpu")
    assert adamw._tried(kernel, here) == adamw._tried(None, here)  # type: ignore[arg-type]


def test_other_bits_would_be_seen(kernel: OnProcessor, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what decides whether a card's kernel is used."""
    here = torch.device("cpu")
    due = adamw._tried(None, here)
    monkeypatch.setattr(adamw, "EPSILON", 1e-7)
    assert adamw._tried(None, here) != due


def test_a_processor_has_none() -> None:
    assert adamw.kernel(torch.device("cpu")) is None

"""AdamW on a lean part of a stage in one kernel of a graphics card: the bits of the operations, and a fortieth of their traffic.

Operation by operation, a step reads and writes some 700 bytes a parameter: more than its passes take on a card where a step has
few tokens. The kernel reads and writes 16. A warp has a block of 64 values, and keeps them in registers from their 16-bit halves
and 8-bit moments to what becomes of them.

Whether the bits are the same is tried once in each process (``trainer.stage.adamw``). Where they are not, or the card's compiler
is not there, operations do the work. A step whose operations are recorded (``trainer.operations``) does without, too.
"""

import ctypes
import os
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.stage.eight_bits import BLOCK

_THREADS = 256
_WARP = 32
_NAME = b"lean_adamw"
# Each operation is rounded by itself: it is compiled without contraction.
_SOURCE = rb"""
__device__ unsigned mixed(unsigned x) {
    x ^= x >> 16; x *= 0x7FEB352Du;
    x ^= x >> 15; x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

__device__ float largest(float x) {
    for (int far = 16; far; far >>= 1) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, far));
    return x;
}

__device__ int code(float scaled, unsigned drawn, int mantissa) {
    int dropped = 23 - mantissa;
    int bits = __float_as_int(fabsf(scaled)) + (int)(drawn & ((1u << dropped) - 1));
    int found = (bits >> dropped) - ((0x3F800000 >> dropped) - (15 << mantissa));
    return min(max(found, 0), 15 << mantissa);
}

extern "C" __global__ void lean_adamw(
    short* high, short* low, const unsigned short* gradients,
    unsigned char* first, float* first_scales, unsigned char* second, float* second_scales,
    const float* signed_table, const float* unsigned_table,
    int blocks, int start, int second_start, int key,
    double keep, double beta_1, double more_1, double beta_2, double more_2, double root, double epsilon, double rate
) {
    int block = (blockIdx.x * blockDim.x + threadIdx.x) >> 5, lane = threadIdx.x & 31;
    if (block >= blocks) return;
    long long begin = (long long)block * 64;
    float first_scale = first_scales[block], second_scale = second_scales[block];
    float moment[2], square[2];
    for (int half = 0; half < 2; half++) {
        long long at = begin + lane + 32 * half;
        int bits = (int)((unsigned)(int)high[at] << 16) + (int)low[at];
        float value = __int_as_float(bits) * (float)keep;
        float gradient = __uint_as_float((unsigned)gradients[at] << 16);
        float m = signed_table[first[at]] * first_scale, s = unsigned_table[second[at]] * second_scale;
        m = m * (float)beta_1 + gradient * (float)more_1;
        s = s * s;
        s = s * (float)beta_2 + gradient * gradient * (float)more_2;
        float below = sqrtf(s) * (float)root + (float)epsilon;
        value = value + m / below * (float)rate;
        bits = __float_as_int(value);
        int upper = (int)((unsigned)bits + 0x8000u) >> 16;
        high[at] = (short)upper;
        low[at] = (short)(bits - (int)((unsigned)upper << 16));
        moment[half] = m;
        square[half] = sqrtf(s);
    }
    float most = largest(fmaxf(fabsf(moment[0]), fabsf(moment[1])));
    float widest = largest(fmaxf(fabsf(square[0]), fabsf(square[1])));
    const float tiny = 1.17549435e-38f;
    for (int half = 0; half < 2; half++) {
        long long at = begin + lane + 32 * half;
        unsigned place = (unsigned)(at * -1640531527LL), salt = (unsigned)key * 0x85EBCA6Bu;
        float scaled = moment[half] / fmaxf(most, tiny);
        int found = code(scaled, mixed((unsigned)start * (unsigned)-1640531527 + place + salt), 3);
        first[at] = (unsigned char)(scaled < 0.0f ? found | 0x80 : found);
        scaled = square[half] / fmaxf(widest, tiny);
        second[at] = (unsigned char)code(scaled, mixed((unsigned)second_start * (unsigned)-1640531527 + place + salt), 4);
    }
    if (lane == 0) { first_scales[block] = most; second_scales[block] = widest; }
}
"""


@dataclass(frozen=True)
class LeanPart:
    """Views of what is kept of a part: values ``[n]``, scales ``[n / BLOCK]``; ``start``: its place in the stage.

    ``second_start``: what the chance of its second moment counts from. ``signed``, ``unsigned``: as ``eight_bits.tables``.
    """

    high: Tensor
    low: Tensor
    gradients: Tensor
    first: Tensor
    first_scales: Tensor
    second: Tensor
    second_scales: Tensor
    signed: Tensor
    unsigned: Tensor
    start: int
    second_start: int


@dataclass(frozen=True)
class Numbers:
    """Of one step and part: what ``trainer.stage.adamw`` multiplies and adds, in its order.

    Attributes:
        step: its number, from 1 on: the key of its chance.
        keep: what weight decay leaves. root: for the second moment's bias. rate: negative, with the first moment's.
    """

    step: int
    keep: float
    beta_1: float
    more_1: float
    beta_2: float
    more_2: float
    root: float
    epsilon: float
    rate: float


class Kernel:
    """The compiled kernel, of one card."""

    def __init__(self, device: torch.device) -> None:
        """Compile it; raises ``ImportError``, ``OSError`` or ``RuntimeError`` where no compiler can."""
        self._driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        self._function, module = ctypes.c_void_p(), ctypes.c_void_p()
        binary = _compiled(torch.cuda.get_device_capability(device))
        torch.cuda.synchronize(device)  # Its context is this thread's.
        _check(self._driver.cuModuleLoadData(ctypes.byref(module), binary))
        _check(self._driver.cuModuleGetFunction(ctypes.byref(self._function), module, _NAME))

    def step(self, part: LeanPart, numbers: Numbers) -> None:
        """One update of a part, in place; the gradients stay."""
        blocks = part.high.numel() // BLOCK
        tensors = (part.high, part.low, part.gradients, part.first, part.first_scales, part.second, part.second_scales)
        whole = (blocks, part.start, part.second_start, numbers.step)
        real = astuple(numbers)[1:]
        arguments: list[Any] = [
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (*tensors, part.signed, part.unsigned)),
            *(ctypes.c_uint32(value % (1 << 32)) for value in whole),
            *(ctypes.c_double(value) for value in real),
        ]
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        stream = ctypes.c_void_p(torch.cuda.current_stream(part.high.device).cuda_stream)
        grid = -(-blocks * _WARP // _THREADS)
        _check(self._driver.cuLaunchKernel(self._function, grid, 1, 1, _THREADS, 1, 1, 0, stream, places, None))


def _compiled(capability: tuple[int, int]) -> bytes:
    """The kernel's program for a card, by NVIDIA's compiler, which comes with torch."""
    from cuda.bindings import nvrtc

    def done(answer: tuple[Any, ...]) -> Any:
        _check(int(answer[0]))
        return answer[-1]

    program = done(nvrtc.nvrtcCreateProgram(_SOURCE, _NAME + b".cu", 0, [], []))
    options = [b"--gpu-architecture=sm_%d%d" % capability, b"--fmad=false"]
    done(nvrtc.nvrtcCompileProgram(program, len(options), options))
    binary: bytes = b" " * done(nvrtc.nvrtcGetCUBINSize(program))
    done(nvrtc.nvrtcGetCUBIN(program, binary))
    return binary


def _check(answer: int) -> None:
    """Raises ``RuntimeError`` where a call of CUDA failed."""
    if answer:
        raise RuntimeError(f"CUDA answers {answer}")

"""The codecs that a job document can name."""

from collections.abc import Mapping
from typing import Literal

import torch

from trainer.codecs.activations import Steps4
from trainer.codecs.coarse import Coarse
from trainer.codecs.dense import Floats, Int2, Int4, Int8, Squares4
from trainer.codecs.framing import Codec

CodecName = Literal[
    "fp32",
    "fp16",
    "int8-token",
    "int8-block",
    "int4-block",
    "int4-gradient",
    "int4-squares",
    "int2-block",
    "coarse",
    "coarser",
    "int4-token",
]

BLOCK = 64
"""Values under one scale; parameters begin at multiples of it, so a block never spans two tensors."""
GRADIENT_BLOCK = 256

CODECS: Mapping[CodecName, Codec] = {
    "fp32": Floats("fp32", 0, torch.float32),
    "int8-token": Int8("int8-token", 1, None),
    "int8-block": Int8("int8-block", 2, BLOCK),
    "fp16": Floats("fp16", 3, torch.float16),
    "int4-block": Int4("int4-block", 4, BLOCK),
    "int4-gradient": Int4("int4-gradient", 5, GRADIENT_BLOCK),
    "int2-block": Int2("int2-block", 6, BLOCK),
    "coarse": Coarse("coarse", 7, 1.8),
    "coarser": Coarse("coarser", 8, 2.7),
    "int4-squares": Squares4("int4-squares", 9, GRADIENT_BLOCK),
    "int4-token": Steps4("int4-token", 33),
}
"""Codes 16 to 31 are those of sparse codecs, which are made with their density; 32 and up those of activations."""

"""The codecs that have a name: those that the files of this folder list as ``NAMED``."""

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from trainer.codecs.dense import BLOCK, GRADIENT_BLOCK
from trainer.codecs.framing import Codec

__all__ = ["BLOCK", "CODECS", "GRADIENT_BLOCK", "CodecName"]

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
"""Those that this code names itself. A job document's are in ``protocol.job.updates``."""


def _named() -> dict[str, Codec]:
    """What the files of this folder offer under ``NAMED``, by name."""
    found: dict[str, Codec] = {}
    for file in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if file.name == "registry":
            continue
        for codec in getattr(importlib.import_module(f"trainer.codecs.{file.name}"), "NAMED", ()):
            if codec.name in found or codec.code in {other.code for other in found.values()}:
                raise ValueError(
                    f"codec {codec.name!r}, code {codec.code}: there is one of that name or code; choose another"
                )
            found[codec.name] = codec
    return found


CODECS: Mapping[str, Codec] = _named()
"""Codes 16 to 31 are those of sparse codecs, which are made with their density; 32 and up those of activations."""

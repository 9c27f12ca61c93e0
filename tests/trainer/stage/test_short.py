"""Lean states in short form: what a segment's end is rounded to, and what an opening then says of it."""

import dataclasses
from pathlib import Path

import pytest
import torch

from protocol.boundary import crossings
from tests.trainer.audit.segments import STEPS, auditor, command, segment, spec_of
from tests.trainer.small import Committed, job_folder
from trainer.audit.opening_file import Due, read_opening
from trainer.errors import OpeningError
from trainer.stage.eight_bits import BLOCK, chance, coarsen, pack, tables, unpack
from trainer.stage.short import LEVELS, ShortValues, shortened, way
from trainer.stage.stage import Stage

CPU = torch.device("cpu")
LEAN = {"memory": "lean", "precision": "bf16"}


def drawn(count: int, key: int = 7) -> torch.Tensor:
    return chance(0, count, key, CPU)

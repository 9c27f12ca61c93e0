"""Worlds of a test: some run each time, the others in ``make test-long``."""

import pytest
from _pytest.mark.structures import ParameterSet


def seeds(quick: int, of: int) -> list[int | ParameterSet]:
    """Seeds ``0..of-1``, of which those from ``quick`` on are long."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(quick, of))]

"""Worlds of a test: some run each time, the others in ``make test-long``."""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

T = TypeVar("T")


def seeds(quick: int, of: int) -> list[int | ParameterSet]:
    """Seeds ``0..of-1``, of which those from ``quick`` on are long."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(quick, of))]


def every(nth: int, cases: Iterable[T]) -> list[T | ParameterSet]:
    """Each ``nth`` of the cases, from the first on; the others are long."""
    return [
        case if not number % nth else pytest.param(case, marks=pytest.mark.long) for number, case in enumerate(cases)
    ]


def thin_out(items: Iterable[pytest.Item]) -> None:
    """Of the cases of a test with the marker ``one_in(n)`` mark all but each ``n``-th long, from the first on."""
    cases: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is None or item.get_closest_marker("long"):
            continue
        (nth,) = marker.args
        name = item.nodeid.partition("[")[0]
        if cases[name] % nth:
            item.add_marker(pytest.mark.long)
        cases[name] += 1


_modules = 0  # That Hypothesis has read.


def first_draw(item: pytest.Item) -> None:
    """Have Hypothesis read new modules for constants before it times a test's own draws: in a new clone that takes a second.

    It does so once it wants one, which is in one draw of twenty.
    """
    global _modules
    if len(sys.modules) == _modules or not getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
        return

    @settings(max_examples=10, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(), min_size=100, max_size=100))
    def draw(_numbers: list[int]) -> None:
        pass

    draw()
    _modules = len(sys.modules)

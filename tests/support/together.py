"""Which end-to-end tests one process of pytest-xdist runs, in order, while others run beside them, and what it tells of each."""

import warnings
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SHARED = frozenset({"docker_engine", "bundle"})
"""One test takes the sandbox image off the engine, as uninstalling does, and the bundle is to be built but once."""
PLACES = (
    "tests/installer/test_clean_system.py",
    "tests/installer/test_first_hours.py",
    "tests/installer/test_portable_package.py",
    "tests/installer/test_program_of_a_provider.py",
    "tests/e2e/test_arrays_under_kills.py",
    "tests/e2e/test_containers_at_homes.py",
    "tests/e2e/test_demo.py::test_a_pipeline_of_docker_sandboxes_trains_and_is_paid",
)

STORIES = ("tests/e2e/", "tests/chaos/", "tests/installer/", "tests/desktop/windows/")
"""Folders that the Makefile names for end-to-end tests."""


def on_the_engine(nodeid: str) -> bool:
    """Whether the test is of those that run one after the other, as its id says."""
    return nodeid.startswith(PLACES)


def refuse_strays(items: list[pytest.Item]) -> None:
    """Raise ``pytest.UsageError`` for an end-to-end test where no run looks for it, or that shares and is not in ``PLACES``."""
    for item in items:
        if item.get_closest_marker("e2e") and not item.nodeid.startswith(STORIES):
            raise pytest.UsageError(
                f"{item.nodeid} is e2e and in none of the folders of STORIES in Makefile and {__file__}"
            )
        asked = SHARED.intersection(getattr(item, "fixturenames", ()))
        if asked and item.get_closest_marker("e2e") and not on_the_engine(item.nodeid):
            raise pytest.UsageError(
                f"{item.nodeid} uses {min(asked)} beside others that do: add it to PLACES in {__file__}"
            )


class EngineInTurn(LoadScopeScheduling):
    """Hands out the tests of the engine as one piece, the first, and every other test by itself."""

    def _split_scope(self, nodeid: str) -> str:
        return "engine" if on_the_engine(nodeid) else nodeid


def printable(told: Any) -> Any:
    """A report as plain data, with lone surrogates, as strangers' bytes become, written as escapes: they would end the run."""
    if isinstance(told, str):
        return told.encode("utf-8", "backslashreplace").decode()
    if isinstance(told, dict):
        return {printable(key): printable(value) for key, value in told.items()}
    if isinstance(told, (list, tuple)):
        return type(told)(printable(value) for value in told)
    return told


def tell_printable(warning: warnings.WarningMessage) -> None:
    """The same, of what a warning says."""
    if isinstance(warning.message, Warning):
        warning.message.args = printable(warning.message.args)

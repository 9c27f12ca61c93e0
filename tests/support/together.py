"""Which end-to-end tests one process of pytest-xdist runs, in order, while others run beside them."""

import pytest
from xdist.scheduler import LoadScopeScheduling

SHARED = frozenset({"docker_engine", "bundle"})
"""One test takes the sandbox image off the engine, as uninstalling does, and the bundle is to be built but once."""
PLACES = (
    "tests/installer/test_clean_system.py",
    "tests/installer/test_portable_package.py",
    "tests/installer/test_program_of_a_provider.py",
    "tests/e2e/test_demo.py::test_the_same_run_in_docker_sandboxes",
)


def on_the_engine(nodeid: str) -> bool:
    """Whether the test is of those that run one after the other, as its id says."""
    return nodeid.startswith(PLACES)


def refuse_strays(items: list[pytest.Item]) -> None:
    """Raise ``pytest.UsageError`` for an end-to-end test that asks for what is shared and is not in ``PLACES``."""
    for item in items:
        asked = SHARED.intersection(getattr(item, "fixturenames", ()))
        if asked and item.get_closest_marker("e2e") and not on_the_engine(item.nodeid):
            raise pytest.UsageError(
                f"{item.nodeid} uses {min(asked)} beside others that do: add it to PLACES in {__file__}"
            )


class EngineInTurn(LoadScopeScheduling):
    """Hands out the tests of the engine as one piece, the first, and every other test by itself."""

    def _split_scope(self, nodeid: str) -> str:
        return "engine" if on_the_engine(nodeid) else nodeid

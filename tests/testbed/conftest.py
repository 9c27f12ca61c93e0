"""Skips by name where no network can be built."""

import pytest

from tests.testbed.homes import missing


@pytest.fixture(autouse=True, scope="session")
def namespaces() -> None:
    why_not = missing()
    if why_not:
        pytest.skip(f"no test-bed: {why_not}")

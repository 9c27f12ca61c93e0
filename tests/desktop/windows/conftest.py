"""A Windows for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.support.windows import Windows


@pytest.fixture(scope="session")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Windows]:
    machine = Windows(tmp_path_factory.mktemp("windows"))
    try:
        machine.set_up()
        yield machine
    finally:
        machine.end()

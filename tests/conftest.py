"""What several folders of tests need."""

import os
from collections.abc import Iterator

import pytest

from tests.support import docker as docker_support


@pytest.fixture(scope="session")
def docker_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real engine with the real sandbox image."""
    reason = docker_support.why_not()
    if reason:
        pytest.skip(f"no Docker engine: {reason}")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with docker_support.shared_engine(shared / "docker") as host:
        yield host

"""The bundle that owners install, built once for all tests of its packages."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from installer.desktop import build
from tests.support.windows import Windows


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both executables: COTTAGE_BUNDLE, or made now; packages of it go beside it."""
    if ready := os.environ.get("COTTAGE_BUNDLE"):
        return Path(ready)
    lacking = [] if shutil.which("dpkg-deb") else ["dpkg-deb"]
    lacking += [] if importlib.util.find_spec("PyInstaller") else ["PyInstaller"]
    if lacking:
        pytest.skip(f"the provider's program is built with {', '.join(lacking)}")
    return build.bundle(tmp_path_factory.mktemp("desktop"))


@pytest.fixture(scope="session")
def package(bundle: Path) -> Path:
    """The Debian package of it."""
    return build.debian(bundle, bundle.parent)


@pytest.fixture
def windows(tmp_path: Path) -> Iterator[Windows]:
    """A Windows of the test's own, with nothing installed."""
    (folder := tmp_path / "machine").mkdir()
    machine = Windows(folder)
    try:
        machine.set_up()
        yield machine
    finally:
        machine.end()

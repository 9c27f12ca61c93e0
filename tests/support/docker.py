"""One Docker engine and one sandbox image for all the tests of a run, whichever process comes first."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from installer.image import build, engine

IMAGE = "cottage-trainer:test"


def why_not() -> str:
    """Why no engine can be had here; empty where one can."""
    if os.environ.get("DOCKER_HOST"):
        return "" if engine.answers(os.environ["DOCKER_HOST"]) else f"no engine answers at {os.environ['DOCKER_HOST']}"
    if os.geteuid() != 0:
        return "DOCKER_HOST is not set, and only root can start an engine"
    return "" if shutil.which(engine.ENGINE) else f"{engine.ENGINE} is not installed"


@contextlib.contextmanager
def shared_engine(folder: Path) -> Iterator[str]:
    """The address of an engine that has ``IMAGE``: the one of DOCKER_HOST, or one in ``folder`` while anybody uses it."""
    folder.mkdir(parents=True, exist_ok=True)
    own = not os.environ.get("DOCKER_HOST")
    users = folder / "users"
    with _locked(folder):
        host = engine.start(folder / "engine") if own else os.environ["DOCKER_HOST"]
        users.write_text(str(_count(users) + 1))
        before = os.environ.get("DOCKER_HOST")
        os.environ["DOCKER_HOST"] = host
        build.build(IMAGE, from_host=True)
    try:
        yield host
    finally:
        if before is None:
            del os.environ["DOCKER_HOST"]
        with _locked(folder):
            left = _count(users) - 1
            users.write_text(str(left))
            if own and left == 0:
                engine.stop(folder / "engine")
                shutil.rmtree(folder / "engine", ignore_errors=True)


def _count(users: Path) -> int:
    return int(users.read_text()) if users.exists() else 0


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""The tests' processes as one neighbour of a job's container, as a login session is."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
NAME = "cottage-tests"


@contextlib.contextmanager
def one_session() -> Iterator[None]:
    """Put this process, and all that it will start, into a group for processor time, where it may and is in none.

    Without a systemd that keeps sessions each of their threads weighs as much as four containers of jobs, and a dozen tests
    beside it leave a container a fiftieth of the processor. On an owner's computer the session is one group.
    """
    root = _root()
    if root is None or not _joined(root):
        yield
        return
    try:
        yield
    finally:
        (root / "cgroup.procs").write_text(str(os.getpid()))
        with contextlib.suppress(OSError):  # Another run of tests is in it, too.
            (root / NAME).rmdir()


def _joined(root: Path) -> bool:
    try:
        (root / NAME).mkdir(exist_ok=True)
        (root / NAME / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:  # As in a container, which may look at groups only.
        return False
    return True


def _root() -> Path | None:
    """The group of all groups, where this process is in it and may make others; cgroups(7)."""
    if sys.platform != "linux" or os.getuid():
        return None
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root = GROUPS / controllers
        if path == "/" and ("cpu" in controllers.split(",") or (not controllers and _shares_processors(root))):
            return root
    return None


def _shares_processors(root: Path) -> bool:
    control = root / "cgroup.subtree_control"
    return control.exists() and "cpu" in control.read_text().split()

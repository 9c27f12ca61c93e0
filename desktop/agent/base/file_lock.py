"""Files that one process holds at a time, on every system. The hold ends with the process, however that ends."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

# Windows lets no other process read the byte that is locked, which is the first.
_HOLDER_AT = 1 if sys.platform == "win32" else 0
_HOLDER_BYTES = 20


class HeldError(Exception):
    """Another process, or this one, holds the file."""


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold ``path``, whose folder must exist, and write there who does.

    Raises:
        HeldError: it is held already.
        OSError: the file cannot be made.
    """
    lock = FileLock(path, timeout=0, mode=0o600, fallback_to_soft=False, preserve_lock_file=True, on_acquired=_sign)
    try:
        lock.acquire()
    except Timeout:
        raise HeldError(str(path)) from None
    try:
        yield
    finally:
        lock.release()


def holder(path: Path) -> int | None:
    """The process that holds ``path``, or did so last; None where nobody has written there yet."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(_HOLDER_AT)
            return int(file.read(_HOLDER_BYTES))
    except (OSError, ValueError):
        return None


def _sign(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    with contextlib.suppress(OSError):  # On a full disk nobody can be named, and the hold is as good.
        os.write(descriptor, b" " * _HOLDER_AT + str(os.getpid()).encode())

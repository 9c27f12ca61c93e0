"""The old floating-point unit, emptied after native code that leaves values in it.

Solana's virtual machine ends its programs with the registers of x87 in use. SQLite compares a whole number with another one
there: its next comparison in the same thread then is with nothing, and rows are missing. The ABI wants them empty whenever a
function returns (System V ABI, AMD64, 3.2.1), and ``emms`` empties them (Intel's manual, volume 2).
"""

import ctypes
import mmap
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

_EMMS_AND_RETURN = b"\x0f\x77\xc3"
_AMD64 = ("x86_64", "AMD64")


def _emptier() -> Callable[[], None]:
    """The instruction as a function; nothing on other processors, and where memory may not hold code."""
    if platform.machine() not in _AMD64 or not hasattr(mmap, "PROT_EXEC"):
        return lambda: None
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError:
        return lambda: None
    page.write(_EMMS_AND_RETURN)
    held = ctypes.c_char.from_buffer(page)
    run = ctypes.CFUNCTYPE(None)(ctypes.addressof(held))
    return partial(_run, run, held)


def _run(code: Callable[[], None], _held: ctypes.c_char) -> None:
    """The page lives as long as somebody holds what is in it."""
    code()


_EMPTY = _emptier()


@contextmanager
def emptied() -> Iterator[None]:
    """Run native code, and leave the unit as every function is to leave it."""
    try:
        yield
    finally:
        _EMPTY()

"""Memory that computing has freed, given back to the system.

The C library keeps what a round's activations took, though outer steps and audits need other memory then: workers of a model with
25 M parameters held 0.3-0.5 GB each for nothing. What is given back costs the next step a page fault each.
"""

import ctypes
import sys
from collections.abc import Callable


def _trimmer() -> Callable[[int], int] | None:
    """glibc's ``malloc_trim``; other C libraries have none."""
    if sys.platform != "linux":
        return None
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


_TRIM = _trimmer()


def trim() -> None:
    """Give it back; does nothing where the C library cannot."""
    if _TRIM is not None:
        _TRIM(0)

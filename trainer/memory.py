"""Memory that is not there."""

import torch

_ALLOCATOR = "DefaultCPUAllocator: can't allocate memory"  # torch says so of main memory, in a RuntimeError.


def lacks_memory(error: BaseException | None) -> bool:
    """Whether a computation ended because a card, or main memory, had no more to give."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or _ALLOCATOR in str(error):
            return True
        error = error.__cause__
    return False

"""How a test tells what it is at."""

from collections.abc import Callable
from dataclasses import dataclass

TOTAL_S = 9.5  # Of a whole test. Promised are ten.


@dataclass(frozen=True)
class NettestPhase:
    """What goes on now, and how many seconds it takes at most."""

    text: str
    seconds: float


OnPhase = Callable[[NettestPhase], None]

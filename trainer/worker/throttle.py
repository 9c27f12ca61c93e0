"""Computing as slow as another machine's: each pass over a micro-batch takes at least a given time.

For benchmarks of lines and schedules on machines that have fewer cores than the network has nodes. The real computation
is done within that time, so results, payloads and messages are the real ones. What the operating system sleeps too long, a
quarter of a millisecond on average, is taken off the next pass, where that begins at once.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

from trainer.stage.stage import Stage

P = ParamSpec("P")
T = TypeVar("T")

AT_ONCE_S = 0.005  # Between two passes: the work of encoding and sending, and no wait for a payload.


def slow_down(stage: Stage, seconds: float) -> None:
    """Make a forward pass of a micro-batch take ``seconds`` or longer, a backward pass twice that, its halves as long each.

    Passes without gradients (validation) stay as quick as they are.
    """
    in_two, late = stage.training.schedule == "zero-bubble", _Late()

    def backward() -> float:
        return seconds if in_two and stage.late_weights.putting_off else 2 * seconds

    stage.forward = _paced(stage.forward, lambda: seconds, late)  # type: ignore[method-assign]
    stage.backward = _paced(stage.backward, backward, late)  # type: ignore[method-assign]
    if in_two:
        stage.late_weights.add = _paced(stage.late_weights.add, lambda: seconds, late)  # type: ignore[method-assign]


@dataclass
class _Late:
    """How much too long the system slept in the last pass, and when that ended: a card of that speed would have been ready."""

    seconds: float = 0.0
    ended: float = -math.inf

    def owed(self, now: float) -> float:
        """What the pass that begins now may be shorter by: nothing where the stage has waited since."""
        return self.seconds if now - self.ended < AT_ONCE_S else 0.0


def _paced(work: Callable[P, T], seconds: Callable[[], float], late: _Late) -> Callable[P, T]:
    def paced(*arguments: P.args, **named: P.kwargs) -> T:
        if not torch.is_grad_enabled():
            return work(*arguments, **named)
        began = time.perf_counter()
        end = began + seconds() - late.owed(began)
        result = work(*arguments, **named)
        left = end - time.perf_counter()
        time.sleep(max(0.0, left))
        late.ended = time.perf_counter()
        late.seconds = late.ended - end if left > 0 else 0.0  # A computation that takes too long is not caught up with.
        return result

    return paced

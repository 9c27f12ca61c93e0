"""Computing as slow as another machine's: each pass over a micro-batch takes at least a given time.

For benchmarks of lines and schedules on machines that have fewer cores than the network has nodes. The real computation
is done within that time, so results, payloads and messages are the real ones.
"""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from trainer.stage import Stage

P = ParamSpec("P")
T = TypeVar("T")


def slow_down(stage: Stage, seconds: float) -> None:
    """Make a forward pass of a micro-batch take at least ``seconds``, a backward pass twice that, its halves as long each.

    Passes without gradients (validation) stay as quick as they are.
    """
    in_two = stage.training.schedule == "zero-bubble"

    def backward() -> float:
        return seconds if in_two and stage.late_weights.putting_off else 2 * seconds

    stage.forward = _paced(stage.forward, lambda: seconds)  # type: ignore[method-assign]
    stage.backward = _paced(stage.backward, backward)  # type: ignore[method-assign]
    if in_two:
        stage.late_weights.add = _paced(stage.late_weights.add, lambda: seconds)  # type: ignore[method-assign]


def _paced(work: Callable[P, T], seconds: Callable[[], float]) -> Callable[P, T]:
    def paced(*arguments: P.args, **named: P.kwargs) -> T:
        if not torch.is_grad_enabled():
            return work(*arguments, **named)
        end = time.perf_counter() + seconds()
        result = work(*arguments, **named)
        time.sleep(max(0.0, end - time.perf_counter()))
        return result

    return paced

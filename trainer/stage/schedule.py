"""Pipeline schedules as plain data: which stage runs which micro-batch forward or backward, in which order.

::

    1F1B, 3 stages, 4 micro-batches
    stage 0  F0 F1 F2 B0 F3 B1 B2 B3
    stage 1  F0 F1 B0 F2 B1 F3 B2 B3
    stage 2  F0 B0 F1 B1 F2 B2 F3 B3

    zero bubble: a backward pass in two, I (gradient of the inputs, which the stage before waits for) and W (of the weights)
    stage 0  F0 F1 F2 I0 W0 I1 F3 I2 W1 W2 I3 W3
    stage 1  F0 F1 I0 F2 I1 W0 I2 F3 W1 W2 I3 W3
    stage 2  F0 I0 F1 I1 F2 I2 W0 W1 F3 I3 W2 W3

Gradients of the weights come in the order of the micro-batches on every stage and in every schedule, so they add up in the
same order and a schedule never changes a bit of the result.

Source: PipeDream-Flush, arXiv 2006.09503, section 2.2; Zero Bubble (ZB-H1), arXiv 2401.10241.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from trainer.errors import ScheduleError

ActionKind = Literal["forward", "backward", "inputs", "weights"]


@dataclass(frozen=True)
class PipelineAction:
    """One pass over one micro-batch; ``inputs`` and ``weights`` are the two halves of ``backward``."""

    kind: ActionKind
    micro: int


class PipelineSchedule(Protocol):
    """Makes the list of actions of one stage."""

    def __call__(self, stage: int, stages: int, micro_batches: int, lookahead: int = 0) -> tuple[PipelineAction, ...]:
        """As ``one_forward_one_backward``."""


def one_forward_one_backward(
    stage: int, stages: int, micro_batches: int, lookahead: int = 0
) -> tuple[PipelineAction, ...]:
    """Actions of ``stage``: it keeps at most ``1 + (stages - stage - 1) * (1 + lookahead)`` micro-batches in memory.

    Args:
        lookahead: further micro-batches sent ahead for each stage that follows, to cover the time on the link. All stages
            of a replica must use the same one, or they wait for each other.
    Raises:
        ScheduleError: no such stage, or no micro-batch.
    """
    _check(stage, stages, micro_batches, lookahead)
    ahead = min((stages - stage - 1) * (1 + lookahead), micro_batches)
    actions = [PipelineAction("forward", micro) for micro in range(ahead)]
    for micro in range(micro_batches - ahead):
        actions += [PipelineAction("forward", micro + ahead), PipelineAction("backward", micro)]
    actions += [PipelineAction("backward", micro) for micro in range(micro_batches - ahead, micro_batches)]
    return tuple(actions)


def zero_bubble(stage: int, stages: int, micro_batches: int, lookahead: int = 0) -> tuple[PipelineAction, ...]:
    """Actions of ``stage``, backward passes in two halves: weights wait for the gaps that 1F1B leaves empty.

    A stage holds at most ``stages + (stages - 1) * lookahead`` micro-batches whose weights wait, which is what the first
    stage of 1F1B holds. One stage alone has no gaps, and gets 1F1B.

    Args:
        lookahead: as for ``one_forward_one_backward``.
    Raises:
        ScheduleError: no such stage, or no micro-batch.
    Source: ZB-H1, arXiv 2401.10241, section 2.2.
    """
    _check(stage, stages, micro_batches, lookahead)
    if stages == 1:
        return one_forward_one_backward(stage, stages, micro_batches)
    return _zero_bubble_lists(stages, micro_batches, lookahead)[stage]


_Counts = dict[ActionKind, list[int]]


@lru_cache(maxsize=64)
def _zero_bubble_lists(stages: int, micro_batches: int, lookahead: int) -> tuple[tuple[PipelineAction, ...], ...]:
    """All stages' lists: at each time unit a stage does what its neighbours wait for first, and weights otherwise.

    A neighbour's result is seen ``lookahead`` time units later, since that is what a schedule that looks ahead expects.
    """
    lists: list[list[PipelineAction]] = [[] for _ in range(stages)]
    done: _Counts = {"forward": [0] * stages, "inputs": [0] * stages, "weights": [0] * stages}
    seen = deque([{kind: list(counts) for kind, counts in done.items()}] * (1 + lookahead), maxlen=1 + lookahead)
    while min(done["weights"]) < micro_batches:
        arrived = seen[0]
        kinds = [_next_kind(stage, stages, micro_batches, lookahead, done, arrived) for stage in range(stages)]
        for stage, kind in enumerate(kinds):
            if kind is not None:
                lists[stage].append(PipelineAction(kind, done[kind][stage]))
                done[kind][stage] += 1
        seen.append({kind: list(counts) for kind, counts in done.items()})
    return tuple(tuple(actions) for actions in lists)


def _next_kind(
    stage: int, stages: int, micro_batches: int, lookahead: int, done: _Counts, arrived: _Counts
) -> ActionKind | None:
    forwards, inputs, weights = done["forward"][stage], done["inputs"][stage], done["weights"][stage]
    ready = forwards if stage == stages - 1 else min(forwards, arrived["inputs"][stage + 1])
    if inputs < ready:
        return "inputs"
    available = micro_batches if stage == 0 else arrived["forward"][stage - 1]
    in_flight = 1 + (stages - stage - 1) * (1 + lookahead)  # More would only wait: the first one is back before.
    held = stages + (stages - 1) * lookahead
    if forwards < available and forwards - inputs < in_flight and forwards - weights < held:
        return "forward"
    return "weights" if weights < inputs else None


def schedule_of(name: Literal["1f1b", "zero-bubble"]) -> PipelineSchedule:
    """The schedule that a job names."""
    return zero_bubble if name == "zero-bubble" else one_forward_one_backward


def _check(stage: int, stages: int, micro_batches: int, lookahead: int) -> None:
    if not 0 <= stage < stages or micro_batches < 1 or lookahead < 0:
        ahead = f", looking {lookahead} ahead" if lookahead else ""
        raise ScheduleError(
            f"stage {stage} of {stages} with {micro_batches} micro-batches{ahead}: there is no such schedule"
        )

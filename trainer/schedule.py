"""Pipeline schedules as plain data: which stage runs which micro-batch forward or backward, in which order.

::

    1F1B, 3 stages, 4 micro-batches                 GPipe
    stage 0  F0 F1 F2 B0 F3 B1 B2 B3                F0 F1 F2 F3 B0 B1 B2 B3
    stage 1  F0 F1 B0 F2 B1 F3 B2 B3                ...
    stage 2  F0 B0 F1 B1 F2 B2 F3 B3

Backward passes come in the order of the micro-batches on every stage and in every schedule, so gradients add up in the
same order and a schedule never changes a bit of the result.

Source: PipeDream-Flush, arXiv 2006.09503, section 2.2; GPipe, arXiv 1811.06965.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from trainer.errors import ScheduleError


@dataclass(frozen=True)
class Action:
    """One pass over one micro-batch."""

    kind: Literal["forward", "backward"]
    micro: int


Schedule = Callable[[int, int, int], tuple[Action, ...]]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """Actions of ``stage``: it keeps at most ``stages - stage`` micro-batches in memory.

    Raises:
        ScheduleError: no such stage, or no micro-batch.
    """
    _check(stage, stages, micro_batches)
    ahead = min(stages - stage - 1, micro_batches)
    actions = [Action("forward", micro) for micro in range(ahead)]
    for micro in range(micro_batches - ahead):
        actions += [Action("forward", micro + ahead), Action("backward", micro)]
    actions += [Action("backward", micro) for micro in range(micro_batches - ahead, micro_batches)]
    return tuple(actions)


def gpipe(stage: int, stages: int, micro_batches: int) -> tuple[Action, ...]:
    """Actions of ``stage``: all forward passes, then all backward ones.

    Raises:
        ScheduleError: no such stage, or no micro-batch.
    """
    _check(stage, stages, micro_batches)
    forwards = tuple(Action("forward", micro) for micro in range(micro_batches))
    return forwards + tuple(Action("backward", micro) for micro in range(micro_batches))


def makespan(schedule: Schedule, stages: int, micro_batches: int, backward_cost: int = 2) -> int:
    """Time units until all stages are done, a forward taking 1 and a backward ``backward_cost``.

    Raises:
        ScheduleError: the stages would wait for each other for ever.
    """
    lists = [schedule(stage, stages, micro_batches) for stage in range(stages)]
    done: dict[tuple[int, Action], int] = {}
    position, clock = [0] * stages, [0] * stages
    while any(position[stage] < len(lists[stage]) for stage in range(stages)):
        moved = False
        for stage in range(stages):
            moved |= _advance(stage, stages, lists[stage], position, clock, done, backward_cost)
        if not moved:
            raise ScheduleError(f"{stages} stages with {micro_batches} micro-batches wait for each other at {position}")
    return max(clock)


def _advance(
    stage: int,
    stages: int,
    actions: Sequence[Action],
    position: list[int],
    clock: list[int],
    done: dict[tuple[int, Action], int],
    backward_cost: int,
) -> bool:
    if position[stage] == len(actions):
        return False
    action = actions[position[stage]]
    forward = action.kind == "forward"
    source = stage - 1 if forward else stage + 1
    needed = [(source, action)] if 0 <= source < stages else []
    if not forward:
        needed.append((stage, Action("forward", action.micro)))
    if any(before not in done for before in needed):
        return False
    ready = max((done[before] for before in needed), default=0)
    clock[stage] = max(clock[stage], ready) + (1 if forward else backward_cost)
    done[stage, action] = clock[stage]
    position[stage] += 1
    return True


def _check(stage: int, stages: int, micro_batches: int) -> None:
    if not 0 <= stage < stages or micro_batches < 1:
        raise ScheduleError(f"stage {stage} of {stages} with {micro_batches} micro-batches: there is no such schedule")

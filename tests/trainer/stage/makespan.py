"""How long all stages of a pipeline take with a schedule, unit by unit; and GPipe's, which every other is better than."""

from collections.abc import Sequence

from trainer.errors import ScheduleError
from trainer.stage.schedule import ActionKind, PipelineAction, PipelineSchedule


def gpipe(stage: int, stages: int, micro_batches: int, lookahead: int = 0) -> tuple[PipelineAction, ...]:
    """All forward passes, then all backward ones (arXiv 1811.06965)."""
    forwards = tuple(PipelineAction("forward", micro) for micro in range(micro_batches))
    return forwards + tuple(PipelineAction("backward", micro) for micro in range(micro_batches))


def makespan(
    schedule: PipelineSchedule,
    stages: int,
    micro_batches: int,
    backward_cost: int = 2,
    transfer: int = 0,
    lookahead: int = 0,
) -> int:
    """Time units until all stages are done.

    Args:
        backward_cost: of a whole backward pass, where a forward takes 1; its halves take half of it each.
        transfer: time units that a payload takes from a stage to its neighbour; ``lookahead`` as the schedule's.
    Raises:
        ScheduleError: the stages would wait for each other for ever.
    """
    lists = [schedule(stage, stages, micro_batches, lookahead) for stage in range(stages)]
    costs: dict[ActionKind, int] = {
        "forward": 1,
        "backward": backward_cost,
        "inputs": backward_cost - backward_cost // 2,
        "weights": backward_cost // 2,
    }
    done: dict[tuple[int, str, int], int] = {}
    position, clock = [0] * stages, [0] * stages
    while any(position[stage] < len(lists[stage]) for stage in range(stages)):
        moved = False
        for stage in range(stages):
            moved |= _advance(stage, stages, lists[stage], position, clock, done, costs, transfer)
        if not moved:
            raise ScheduleError(f"{stages} stages with {micro_batches} micro-batches wait for each other at {position}")
    return max(clock)


def _advance(
    stage: int,
    stages: int,
    actions: Sequence[PipelineAction],
    position: list[int],
    clock: list[int],
    done: dict[tuple[int, str, int], int],
    costs: dict[ActionKind, int],
    transfer: int,
) -> bool:
    if position[stage] == len(actions):
        return False
    action = actions[position[stage]]
    ready = [clock[stage]]
    for place, what in _needed(stage, stages, action):
        end = done.get((place, what, action.micro))
        if end is None:
            return False
        ready.append(end + transfer * (place != stage))
    clock[stage] = max(ready) + costs[action.kind]
    done[stage, _result(action), action.micro] = clock[stage]
    position[stage] += 1
    return True


def _needed(stage: int, stages: int, action: PipelineAction) -> list[tuple[int, str]]:
    """What must be done before: (stage, forward | inputs | weights)."""
    match action.kind:
        case "forward":
            return [(stage - 1, "forward")] if stage > 0 else []
        case "weights":
            return [(stage, "inputs")]
        case _:
            return [(stage, "forward"), *([(stage + 1, "inputs")] if stage < stages - 1 else [])]


def _result(action: PipelineAction) -> str:
    return "inputs" if action.kind == "backward" else action.kind

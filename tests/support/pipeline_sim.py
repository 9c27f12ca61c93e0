"""A pipeline's step, event by event: the trainer's own schedule on machines and lines, to hold the planner's formula against.

A stage does its actions in order. What it sends leaves one after the other over its upload, goes one after the other through the
way to the neighbour, arrives half a round trip later, and comes in one after the other over the receiver's download.
"""

from collections.abc import Sequence

from coordinator.domain.placement.cost import Load
from coordinator.domain.placement.fleet import Fleet
from trainer.stage.schedule import PipelineAction, one_forward_one_backward

FORWARD_SHARE = 1 / 3  # A backward pass costs two forward passes.


class Simulation:
    """One step of one replica."""

    def __init__(self, fleet: Fleet, load: Load, counts: Sequence[int], nodes: Sequence[int]) -> None:
        self._fleet, self._load, self._nodes = fleet, load, nodes
        self._stages = len(nodes)
        self._todo = [
            list(one_forward_one_backward(s, self._stages, load.micro_batches, load.ahead)) for s in range(self._stages)
        ]
        self._clock, self._sent, self._got = ([0.0] * self._stages for _ in range(3))
        self._way: dict[tuple[int, int], float] = {}
        self._ready: dict[tuple[int, PipelineAction], float] = {}
        self._work = [
            count * load.layer_operations / fleet.speed[node] for count, node in zip(counts, nodes, strict=True)
        ]
        self._work[-1] += load.head_operations / fleet.speed[nodes[-1]]
        self.busy = 0.0

    def seconds(self) -> float:
        """Until the last stage has done its last action."""
        while any(self._todo):
            start, stage = min((self._start(stage), stage) for stage in range(self._stages) if self._todo[stage])
            self._do(stage, start)
        return max(self._clock)

    def _start(self, stage: int) -> float:
        action = self._todo[stage][0]
        edge = 0 if action.kind == "forward" else self._stages - 1
        arrived = 0.0 if stage == edge else self._ready.get((stage, action), float("inf"))
        return max(self._clock[stage], arrived)

    def _do(self, stage: int, start: float) -> None:
        action = self._todo[stage].pop(0)
        forward = action.kind == "forward"
        took = self._work[stage] * (FORWARD_SHARE if forward else 1 - FORWARD_SHARE)
        self._clock[stage] = start + took
        self.busy += took
        to = stage + 1 if forward else stage - 1
        if 0 <= to < self._stages:
            size = self._load.forward_bytes if forward else self._load.backward_bytes
            self._ready[to, action] = self._send(stage, to, size)

    def _send(self, stage: int, to: int, size: float) -> float:
        fleet, sender, receiver = self._fleet, self._nodes[stage], self._nodes[to]
        begins = max(self._clock[stage], self._sent[stage])
        self._sent[stage] = begins + size / fleet.up[sender]
        lag = fleet.rtt[sender][receiver] / 2
        through = max(begins, self._way.get((stage, to), 0.0)) + size * fleet.byte[sender][receiver]
        self._way[stage, to] = through
        arrives = max(through + lag, self._got[to] + size / fleet.down[receiver])
        self._got[to] = arrives
        return arrives

"""Which node sits where: the shape of the network a job needs, the cut of its layers, and who fills a seat.

::

    node      who may take a seat, what a plan is        fleet    nodes and ways as numbers
    layers    the cut: memory, then speed                cost     what a step and a round take
    start     near nodes together                        tiers    unequal machines on unequal lines
    flow      the cost as an objective                   repair   seats that became empty
    search    swaps, from a seed of the caller           explain  what bounds a plan, in words
    choose    the plan of a job                          regions  thousands of nodes: regions first
    replan    whether a new plan pays                    crossing what its stages send each other

Memory, measured speed, measured links. Stages are cut in proportion to the speed of the slowest node that will hold them;
replicas of a stage go to distinct owners where that is possible. How the model of cost was checked, and its limits:
docs/explanation/planner.md.
"""

from coordinator.domain.placement.choose import MAX_OPEN_REPLICAS, MIN_ROUNDS, PlanOptions, choose
from coordinator.domain.placement.cost import COMPUTE_SHARE, operations_of
from coordinator.domain.placement.crossing import settle_crossing
from coordinator.domain.placement.layers import cut_layers, needed, stage_memory
from coordinator.domain.placement.node import MEGABYTE, Candidate, MeasuredNetwork, Needed, NoPlacementError, Placement
from coordinator.domain.placement.repair import fill, moves
from coordinator.domain.placement.replan import REST_ROUNDS, Moves, reseat

__all__ = [
    "COMPUTE_SHARE",
    "MAX_OPEN_REPLICAS",
    "MEGABYTE",
    "MIN_ROUNDS",
    "REST_ROUNDS",
    "Candidate",
    "MeasuredNetwork",
    "Moves",
    "Needed",
    "NoPlacementError",
    "Placement",
    "PlanOptions",
    "choose",
    "cut_layers",
    "fill",
    "moves",
    "needed",
    "operations_of",
    "reseat",
    "settle_crossing",
    "stage_memory",
]

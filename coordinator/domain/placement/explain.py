"""What bounds a plan, in words: a line, a round trip, a machine, with its figure and what would help."""

import math
from collections.abc import Sequence

from coordinator.domain.placement.cost import Load, PlannedRound, ReplicaPace, exchange_of, pace
from coordinator.domain.placement.fleet import Fleet
from protocol.job.rounds import EXCHANGE_SHARE, carried
from protocol.job.updates import UPDATES

LONG = 0.5  # Of a step spent in filling the pipeline: then the schedule is what to change, not a machine.


def limit(fleet: Fleet, load: Load, counts: Sequence[int], rows: Sequence[Sequence[int]], timed: PlannedRound) -> str:
    """The one thing whose improvement would help most."""
    if timed.exchange > timed.stepping:
        return _exchange(fleet, load, counts, rows, timed)
    row = max(range(len(rows)), key=timed.steps.__getitem__)
    nodes = rows[row]
    found = pace(fleet, load, counts, nodes)
    if len(nodes) == 1:
        many = f", the slowest of {len(rows)} nodes" if len(rows) > 1 else ""
        return f"the computing speed of {_name(fleet, nodes[0])}, {_speed(fleet, nodes[0])}{many}"
    filling = found.step - load.micro_batches * found.beat
    if filling > LONG * found.step:
        return (
            f"filling the pipeline: {load.micro_batches} micro-batches through {len(nodes)} stages leave every node idle for "
            f"{filling / found.step:.0%} of a step; more training.micro_batches would help"
        )
    return _beat(fleet, load, found, nodes)


def _beat(fleet: Fleet, load: Load, found: ReplicaPace, nodes: Sequence[int]) -> str:
    figures = {
        "compute": found.compute,
        "forward": found.forward,
        "backward": found.backward,
        "up": found.up,
        "down": found.down,
        "loop": found.loop,
    }
    kind = max(figures, key=lambda name: max(figures[name], default=0.0))
    values = figures[kind]
    stage = max(range(len(values)), key=values.__getitem__)
    if kind == "compute":
        return f"the computing speed of stage {stage} on {_name(fleet, nodes[stage])}, {_speed(fleet, nodes[stage])}"
    if kind == "up":
        return _line(fleet, nodes[stage], "upload")
    if kind == "down":
        return _line(fleet, nodes[stage], "download")
    if kind == "forward":
        return _link(fleet, nodes[stage], nodes[stage + 1])
    if kind == "backward":
        return _link(fleet, nodes[stage + 1], nodes[stage])
    far = max(range(stage, len(nodes) - 1), key=lambda s: fleet.rtt[nodes[s]][nodes[s + 1]])
    most = max(max(figures[name], default=0.0) for name in figures if name != "loop")
    deep = 1 + (len(nodes) - 1 - stage) * (1 + load.ahead)  # Micro-batches that are under way now.
    ahead = math.ceil((found.loop[stage] * deep / most - 1) / (len(nodes) - 1 - stage)) - 1
    one, other = nodes[far], nodes[far + 1]
    return (
        f"the way of a micro-batch from stage {stage} to the last and back, {1000 * found.loop[stage]:,.0f} ms for each; its "
        f"longest round trip is {1000 * fleet.rtt[one][other]:,.0f} ms, between {_name(fleet, one)} and {_name(fleet, other)}; "
        f"training.lookahead {ahead} would hide it"
    )


def _exchange(
    fleet: Fleet, load: Load, counts: Sequence[int], rows: Sequence[Sequence[int]], timed: PlannedRound
) -> str:
    seats = [(stage, nodes[stage]) for nodes in rows for stage in range(len(counts))]
    _, node = max(seats, key=lambda seat: exchange_of(fleet, load, counts, seat[0], seat[1], len(rows)))
    side = "upload" if fleet.up[node] <= fleet.down[node] else "download"
    if load.together:
        return (
            f"the exchange of gradients in every step over {_line(fleet, node, side)}: "
            f"{timed.exchange / load.period:,.2g} s of each; training.outer diloco exchanges once in training.inner_steps"
        )
    step = timed.stepping / load.period
    enough, _ = carried(timed.exchange, step)
    smaller = ""
    if load.scalar_bytes > UPDATES["int4"].value_bytes:
        fewer, _ = carried(timed.exchange * UPDATES["int4"].value_bytes / load.scalar_bytes, step)
        smaller = f", with training.pseudo_gradient int4 {fewer:,}"
    return (
        f"the exchange of pseudo-gradients over {_line(fleet, node, side)}: {timed.exchange:,.0f} s after "
        f"{timed.stepping:,.0f} s of steps; training.inner_steps {enough:,} would bring it to {EXCHANGE_SHARE:.0%} of a "
        f"round{smaller}"
    )


def _link(fleet: Fleet, one: int, other: int) -> str:
    if 1 / fleet.up[one] >= 1 / fleet.down[other]:
        return _line(fleet, one, "upload")
    return _line(fleet, other, "download")


def _line(fleet: Fleet, node: int, side: str) -> str:
    rate = fleet.up[node] if side == "upload" else fleet.down[node]
    return f"the {side} of {_name(fleet, node)}, {rate * 8e-6:,.3g} Mbit/s"


def _name(fleet: Fleet, node: int) -> str:
    return f"node {fleet.nodes[node].node}"


def _speed(fleet: Fleet, node: int) -> str:
    return f"{fleet.nodes[node].flops * 1e-9:,.3g} GFLOP/s"

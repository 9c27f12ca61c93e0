"""What the real planner and schedule make of simulated homes: 8 to 10,000 of them, models of 1, 7 and 70 billion parameters.

Homes are drawn from published broadband figures and common graphics cards (``_homes.py``). ``choose`` plans them; the
trainer's own 1F1B schedule is played event by event on the slowest, the middle and the quickest pipeline, and corrects the
planner's formula; homes leave after 8 hours in the mean and stay away for 4. Audits, stored states and joins are on the lines.
Nothing here was measured on real homes: these are sums, and the published figures of others stand beside them.

    python -m benchmarks.planning.cluster_sim [HOMES ...]
"""

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from benchmarks.common import publish
from benchmarks.planning._homes import ACCESS_LATENCY, CITIES, COUNTRIES, MACHINES, UTILISATION, WIDTH, Homes
from coordinator.config import Config
from coordinator.domain.audits.answer_time import SHORT_BYTES
from coordinator.domain.audits.rate import FLOOR
from coordinator.domain.placement import NoPlacementError, Placement, PlanOptions, choose
from coordinator.domain.placement.cost import COMPUTE_SHARE, Load, PlannedRound, estimate, load_of, pace
from coordinator.domain.placement.fleet import Fleet, survey
from coordinator.domain.placement.search import Chance
from protocol.job.job import TrainingSpec
from protocol.models.boundary_bytes import recorded_bytes
from protocol.models.model import ModelShape, inspect_config
from tests.support.dtfm import WORLD
from tests.support.pipeline_sim import Simulation

SIZES = (8, 64, 512, 10_000)
PERIODS = (10, 20, 50, 100, 200, 500, 1000)
# 128 x 64 sequences of 2,048 tokens are 17 million tokens a step: beyond it more replicas hardly help.
MOST_REPLICAS = 128
STAYS_HOURS, AWAY_HOURS = 8.0, 4.0
ROUNDS = 400  # Played with homes that leave.
TRAINING = TrainingSpec(
    tokens=10**12, sequence=2048, batch=64, micro_batches=64, inner_steps=100, memory="lean", precision="bf16"
)
STATE_BYTES = 8  # Of a parameter: anchor and outer momentum, float32.
PRICE = Config.__dataclass_fields__["price_per_petaflop"].default * 1e-6
MODELS = {
    "1B": (2048, 5632, 22, 32, 4),
    "7B": (4096, 11008, 32, 32, 32),
    "70B": (8192, 28672, 80, 64, 8),
}
PUBLISHED = (
    ("INTELLECT-1 (arXiv 2412.01152)", "10B on 14 sites of 8 H100", "H=100, int8: 400x fewer bytes; 83 to 96 % busy"),
    (
        "Covenant-72B (arXiv 2603.08163)",
        "72B on 70 peers",
        "H=30, 1.6 %, 2 bits: 146x; 94.5 % busy, 70 s a round exchanged",
    ),
    ("Node0 (Pluralis)", "8B in 32 stages of 1 layer", "subspace edges 100x: 80 Mbit/s train as fast as 100 Gbit/s"),
)


@dataclass(frozen=True)
class Setup:
    """What a job's document says of lines; all of it is in the trainer.

    Attributes:
        timed: rounds of fixed time (``round_seconds``), as long as the mean replica needs for a period.
    """

    name: str
    settings: dict[str, Any]
    timed: bool = False


FEW_BITS = {"activations": "int4", "lookahead": 2}
HIDDEN = {"outer": "streaming", "fragments": 2, "overlap": 4}
SETUPS = (
    Setup("int8 edges, int8 exchange", {}),
    Setup("4-bit edges, 1.2-bit exchange, timed", FEW_BITS | {"pseudo_gradient": "coarse"}, timed=True),
    Setup("4-bit edges, int4 exchange, hidden", FEW_BITS | {"pseudo_gradient": "int4"} | HIDDEN),
)


def shape_of(model: str) -> ModelShape:
    """A Llama of the given size, as in TinyLlama and Llama 2."""
    hidden, intermediate, layers, heads, kv_heads = MODELS[model]
    return inspect_config(
        {
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "max_position_embeddings": 2048,
            "vocab_size": 32000,
        }
    )


def load_for(shape: ModelShape, training: TrainingSpec, timed: bool = False) -> Load:
    """The job's load. The machines' speeds are already what training reaches."""
    plain = load_of(shape, training)
    return structs.replace(
        plain,
        layer_operations=plain.layer_operations * COMPUTE_SHARE,
        head_operations=plain.head_operations * COMPUTE_SHARE,
        fixed_time=timed,
    )


@dataclass(frozen=True)
class World:
    """A plan as numbers."""

    fleet: Fleet
    load: Load
    counts: tuple[int, ...]
    rows: list[list[int]]

    def round(self, period: int) -> PlannedRound:
        """A round of ``period`` steps."""
        return estimate(self.fleet, with_period(self.load, period), self.counts, self.rows)


def with_period(load: Load, period: int) -> Load:
    """The same load with other rounds."""
    return structs.replace(load, period=period)


def upkeep(shape: ModelShape, training: TrainingSpec, stages: int, replicas: int, round_s: float) -> dict[str, float]:
    """Bytes that a home of the plan uploads in a round beside its training, by what they are for.

    Openings of one round in twenty, as of nodes that have earned trust; a stored state of each stage every few rounds,
    from one of its replicas; and the state that each home which comes is given, by all replicas of its stage together.
    """
    parameters = shape.parameters / stages
    payloads = recorded_bytes(shape, training, training.batch * training.sequence) if stages > 1 else 0
    state, comes = STATE_BYTES * parameters, 1 - math.exp(-round_s / (STAYS_HOURS * 3600))
    return {
        "audits": FLOOR / 1e6 * (SHORT_BYTES * parameters + training.commit_every * payloads),
        "stored": state / replicas / Config.__dataclass_fields__["store_every"].default,
        "joins": state * comes,
    }


def delay(world: World, load: Load, round_: PlannedRound, period: int, further: float) -> float:
    """Seconds that a round is longer by ``further`` bytes from each home, over the slowest upload of all.

    They go while steps are computed, beside what crosses between stages, and nothing while pseudo-gradients do.
    """
    up = min(world.fleet.up)
    crossing = period * load.micro_batches * max(load.forward_bytes, load.backward_bytes) * (len(world.counts) > 1)
    return max(0.0, further - max(0.0, up * round_.stepping - crossing)) / up


def world_of(homes: Homes, load: Load, found: Placement) -> World:
    """The placement's seats as rows of a fleet of only those homes."""
    by_name = {candidate.node: candidate for candidate in homes.candidates}
    seats = sorted(found.seats.items(), key=lambda item: (item[0][1], item[0][0]))
    fleet = survey([by_name[name] for _, name in seats], homes)
    stages = len(found.layers)
    rows = [list(range(i, i + stages)) for i in range(0, len(seats), stages)]
    return World(fleet, load, tuple(part.last - part.first for part in found.layers), rows)


def usable(stages: int, seconds: float) -> float:
    """Mean share of a round after a pipeline's last loss in it, homes leaving at random."""
    losses = stages * seconds / (STAYS_HOURS * 3600)
    return (1 - math.exp(-losses)) / losses


def played(world: World) -> float:
    """Seconds of a step by the schedule over seconds by the formula: the median of three pipelines."""
    steps = sorted((pace(world.fleet, world.load, world.counts, nodes).step, i) for i, nodes in enumerate(world.rows))
    chosen = {steps[0], steps[len(steps) // 2], steps[-1]}
    ratios = sorted(
        Simulation(world.fleet, world.load, world.counts, world.rows[i]).seconds() / step for step, i in chosen
    )
    return ratios[len(ratios) // 2]


def mended(empty: list[int], spares: int, stages: int) -> tuple[int, set[int]]:
    """Spares that are left, and pipelines that have just been filled.

    The least broken first, out of spares, then out of the most broken one, as ``placement.fill`` and ``moves`` do it.
    """
    filled: set[int] = set()
    while broken := sorted(
        (row for row in range(len(empty)) if 0 < empty[row] < stages), key=lambda row: (empty[row], row)
    ):
        row = broken[0]
        if spares >= empty[row]:
            spares, empty[row] = spares - empty[row], 0
            filled.add(row)
        elif len(broken) > 1:
            spares += stages - empty[broken[-1]]
            empty[broken[-1]] = stages
        else:
            break
    while spares >= stages and stages in empty:
        row = empty.index(stages)
        spares, empty[row] = spares - stages, 0
        filled.add(row)
    return spares, filled


def churned(world: World, round_: PlannedRound, spares: int, away: int, state_bytes: float, seed: int) -> float:
    """Share of the calm rate that is left when homes come and go, in a population that is steady in the mean.

    A pipeline that loses a home goes on from the last outer round once a spare has fetched the stage's state; without a spare
    it is out until the next round.
    """
    chance, stages = Chance(seed), len(world.counts)
    leave = 1 - math.exp(-round_.seconds / (STAYS_HOURS * 3600))
    come = 1 - math.exp(-round_.seconds / (AWAY_HOURS * 3600))
    fetch = state_bytes / (sorted(world.fleet.down)[len(world.fleet.down) // 2] * round_.seconds)
    empty, done = [0] * len(world.rows), 0.0
    for _ in range(ROUNDS):
        back = sum(chance.share() < come for _ in range(away))
        gone = sum(chance.share() < leave for _ in range(spares))
        away, spares = away - back + gone, spares + back - gone
        spares, filled = mended(empty, spares, stages)
        for row in (row for row in range(len(empty)) if not empty[row]):
            begins = fetch if row in filled else 0.0
            for moment in sorted(chance.share() for _ in range(stages) if chance.share() < leave):
                away += 1
                if not spares:
                    empty[row] += 1
                else:
                    spares, begins = spares - 1, max(begins, moment) + fetch
            done += 0.0 if empty[row] else max(0.0, 1 - begins)
    return done / (ROUNDS * len(world.rows))


def case(model: str, count: int, setup: Setup) -> dict[str, Any]:
    """One line of the table."""
    homes, shape = Homes(count, seed=count, between=WORLD), shape_of(model)
    training = structs.replace(TRAINING, **setup.settings)
    load = load_for(shape, training, setup.timed)
    row: dict[str, Any] = {"model": model, "homes": count, "setup": setup.name}
    began = time.process_time()
    try:
        options = PlanOptions(1, load=load, most_replicas=MOST_REPLICAS)
        found = choose(shape, training, homes.candidates, None, None, homes, options)
    except NoPlacementError as error:
        return row | {"plan_cpu_s": round(time.process_time() - began, 2), "refused": str(error)}
    world = world_of(homes, load, found)
    plan_seconds = time.process_time() - began
    stages, replicas = len(world.counts), len(world.rows)
    slower, rounds = played(world), {period: world.round(period) for period in PERIODS}

    def lengthened(period: int) -> float:
        """How many times longer a round is by what is sent beside the training."""
        seconds = rounds[period].seconds * slower
        sent = sum(upkeep(shape, training, stages, replicas, seconds).values())
        return 1 + delay(world, load, rounds[period], period, sent) / seconds

    def worth(period: int) -> float:
        return rounds[period].rate / lengthened(period) * usable(stages, rounds[period].seconds)

    period = max(PERIODS, key=worth)
    chosen, longer = rounds[period], lengthened(period)
    beside = upkeep(shape, training, stages, replicas, chosen.seconds * slower)
    rate = chosen.rate / slower / longer
    away = round(count * AWAY_HOURS / STAYS_HOURS)  # Beside the homes that are here: as many come as go.
    left = churned(world, chosen, count - stages * replicas, away, STATE_BYTES * shape.parameters / stages, seed=1)
    flops = 6 * shape.parameters * rate * left
    return row | {
        "stages": stages,
        "replicas": replicas,
        "used": stages * replicas,
        "plan_cpu_s": round(plan_seconds, 2),
        "period": period,
        "round_s": round(chosen.seconds * slower * longer),
        "exchange_share": round(max(0.0, 1 - chosen.stepping / chosen.seconds), 3),
        "upkeep_mb": {name: round(size / 1e6, 1) for name, size in beside.items()},
        "upkeep_share": round(1 - 1 / longer, 4),
        "tokens_per_s": round(rate, 1),
        "busy": round(chosen.busy / slower / longer, 3),
        "schedule_over_formula": round(slower, 3),
        "left_with_churn": round(left, 3),
        "tokens_per_s_with_churn": round(rate * left, 1),
        "pay_per_home_hour": round(flops / 1e15 * PRICE * 3600 / (stages * replicas), 5),
        "pay_per_billion_tokens": round(6 * shape.parameters * 1e9 / 1e15 * PRICE, 2),
        "limit": found.limit,
    }


def show(row: dict[str, Any]) -> str:
    """A row for people."""
    head = f"{row['model']:>4} {row['homes']:>6}  {row['setup'][:24]:24}"
    if "refused" in row:
        return f"{head} {row['refused']}"
    return (
        f"{head} {row['stages']:>2} x {row['replicas']:<4} {row['plan_cpu_s']:>5} s  H={row['period']:<5}{row['round_s']:>7} s "
        f"{row['tokens_per_s']:>10,} tok/s {row['busy']:>6.1%} busy, {row['upkeep_share']:.1%} upkeep, "
        f"{row['left_with_churn']:>4.0%} left with churn, "
        f"¤ {row['pay_per_home_hour']:.4f} a home-hour; {row['limit']}"
    )


def main(sizes: Sequence[int]) -> None:
    """Print the table and write ``build/bench/cluster_sim.json``."""
    rows = []
    for model in MODELS:
        for count in sizes:
            for setup in SETUPS:
                rows.append(case(model, count, setup))
                print(show(rows[-1]), flush=True)
    for name, what, figures in PUBLISHED:
        print(f"{name}: {what}: {figures}")
    lines = [{"country": country, **vars(access)} for country, kinds in COUNTRIES.items() for access in kinds]
    assumed = {
        "lines": lines,
        "line_width": WIDTH,
        "access_round_trip_s": ACCESS_LATENCY,
        "cities": CITIES,
        "distances": "arXiv 2206.01288, worldwide network",
        "machines": [vars(machine) for machine in MACHINES],
        "utilisation": UTILISATION,
        "stays_hours": STAYS_HOURS,
        "away_hours": AWAY_HOURS,
        "memory": "as plans count `memory: lean` on cards; main memory beside them is not limited here",
        "micro_batches": TRAINING.micro_batches,
        "sequence": TRAINING.sequence,
    }
    published = [{"who": who, "what": what, "figures": figures} for who, what, figures in PUBLISHED]
    publish("cluster_sim", str(__doc__).splitlines()[0], {"rows": rows, "assumed": assumed, "published": published})


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or SIZES)

"""How many inner steps each round has: the period H, and why.

Replicas that exchange often stay close and learn as one; replicas that exchange seldom send less. Right after the start, while
the loss falls quickly, seldom exchanges cost most: runs from scratch with few long rounds lagged 22 %, whatever the codec. So a
schedule may begin with short rounds and let them grow as learning slows. No round is shorter than the lines can carry: the
exchange may take only a part of a round's time.

A schedule is a few runs of equal rounds, so the place of any round is arithmetic, however long the job.

Sources: DiLoCo, arXiv 2311.08105 (fixed periods); QSR, arXiv 2310.14423 (periods that grow as the learning rate falls).
"""

import math

import msgspec

from protocol.job.job import MAX_PERIOD, TrainingSpec, total_steps

# Lengths that a growing period goes through; between neighbours it grows by at most a quarter of the last.
GROWTH_RUNS = 8
SHORTEST_SHARE = 4  # A growing period begins with this part of the longest, unless the document says otherwise.
EXCHANGE_SHARE = 0.2  # Of a round's time; more is spent waiting, less learns from the others too seldom.


class Stretch(msgspec.Struct, frozen=True):
    """``steps`` inner steps in rounds of ``period``; a last round of what is left over is shorter."""

    steps: int
    period: int

    @property
    def rounds(self) -> int:
        """How many there are."""
        return -(-self.steps // self.period)


class Schedule(msgspec.Struct, frozen=True):
    """The rounds of a job, in order."""

    stretches: tuple[Stretch, ...]

    @property
    def steps(self) -> int:
        """Inner steps of each replica."""
        return sum(stretch.steps for stretch in self.stretches)

    @property
    def rounds(self) -> int:
        """Rounds that train."""
        return sum(stretch.rounds for stretch in self.stretches)

    def round(self, index: int) -> tuple[int, int]:
        """First step and number of steps of a round; (``steps``, 0) after the last."""
        first = 0
        for stretch in self.stretches:
            if index < stretch.rounds:
                begin = index * stretch.period
                return first + begin, min(stretch.period, stretch.steps - begin)
            index, first = index - stretch.rounds, first + stretch.steps
        return first, 0


def schedule(training: TrainingSpec, replicas: int, floor: int = 1) -> Schedule:
    """The rounds of a job with so many replicas.

    Args:
        floor: steps that a round must have at least, for the lines: ``carried``. Rounds of a fixed period are as the document has
            them: who fixes it means it.
    """
    total, longest = total_steps(training, replicas), training.inner_steps
    if training.period == "fixed":
        return Schedule((Stretch(total, longest),))
    shortest = training.shortest_period or -(-longest // SHORTEST_SHARE)
    longest = min(MAX_PERIOD, max(longest, floor))
    shortest = min(longest, max(shortest, floor))
    runs = min(GROWTH_RUNS, total, longest - shortest + 1)
    stretches, at = list[Stretch](), 0
    for run in range(runs):
        period = shortest + (longest - shortest) * run // max(1, runs - 1)
        wanted = total * (run + 1) // runs - at
        steps = min(total - at, -(-wanted // period) * period)  # Whole rounds: only the job's last one may be shorter.
        if steps > 0:
            stretches.append(Stretch(steps, period))
            at += steps
    return Schedule(tuple(stretches))


def total_rounds(training: TrainingSpec, replicas: int, floor: int = 1) -> int:
    """Outer rounds until the job's tokens are read; the last one may be shorter."""
    return schedule(training, replicas, floor).rounds


def carried(exchange: float, step: float, share: float = EXCHANGE_SHARE) -> tuple[int, str]:
    """The shortest period at which an exchange takes at most ``share`` of a round, and why, in words.

    Args:
        exchange, step: seconds of an exchange, and of an inner step.
    """
    if exchange <= 0 or step <= 0:
        return 1, "nothing has to be exchanged"
    wanted = math.ceil(exchange * (1 - share) / (share * step))
    period = max(1, min(MAX_PERIOD, wanted))
    reason = (
        f"an exchange takes {_seconds(exchange)} and a step {_seconds(step)}: from {period:,} steps a round on, "
        f"exchanges take at most {share:.0%} of the time"
    )
    if wanted > period:
        share = exchange / (exchange + period * step)
        reason = (
            f"an exchange takes {_seconds(exchange)} and a step {_seconds(step)}: even at {period:,} steps a round, "
            f"exchanges take {share:.0%} of the time"
        )
    return period, reason


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"

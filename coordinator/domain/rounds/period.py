"""The rounds of a job on the machines that a plan found for it."""

from coordinator.domain.placement import Placement
from protocol.job.job import TrainingSpec
from protocol.job.rounds import Schedule, carried, schedule


def planned(training: TrainingSpec, replicas: int, found: Placement | None) -> Schedule:
    """The rounds of a job, none shorter than the plan's lines can carry where the document leaves that open."""
    floor = 1 if found is None else carried(exchange(training, found), found.step_seconds)[0]
    return schedule(training, replicas, floor)


def words(training: TrainingSpec, rounds: Schedule, found: Placement) -> str:
    """How long the rounds are, and why."""
    periods = [stretch.period for stretch in rounds.stretches]
    long = f"{periods[0]:,} inner steps" if len(set(periods)) == 1 else f"{periods[0]:,} to {periods[-1]:,} inner steps"
    asked = " as asked for" if training.period == "fixed" else ", growing as learning slows"
    return f"rounds of {long}{asked}: {carried(exchange(training, found), found.step_seconds)[1]}"


def exchange(training: TrainingSpec, found: Placement) -> float:
    """Seconds of a round that its exchange takes."""
    return max(0.0, found.round_seconds - training.inner_steps * found.step_seconds)


def seconds(training: TrainingSpec, rounds: Schedule, found: Placement) -> float:
    """Seconds of training: every step, and the exchange of every round."""
    return rounds.steps * found.step_seconds + rounds.rounds * exchange(training, found)

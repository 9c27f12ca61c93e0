"""A complete round in words."""

from coordinator.domain.rounds.round import Round, Seat


def completed_words(number: int, contributors: int, replicas: int, loss: float | None) -> str:
    """A complete round in a sentence; rounds are counted from 1, as on the pages."""
    text = f"round {number + 1} is complete"
    if contributors < replicas:
        text += f" with {contributors} of {replicas} replicas"
    return text if loss is None else f"{text}: training loss {loss:.3f}"


def left_out_words(over: Round, scale: float) -> str:
    """How many steps of a round changed nothing, and what to do about most of them; empty where none was left out."""
    commits = [seat.commit for seat in last_stage(over) if seat.commit is not None]
    steps, lost = sum(c.leaves for c in commits), sum(min(c.left_out, c.leaves) for c in commits)
    if not lost:
        return ""
    text = f"round {over.number + 1}: {lost} of {steps} steps were left out, since their gradients overflowed in half floats"
    if 2 * lost <= steps:
        return text
    return (
        f"{text}: training.loss_scale {scale:g} is too large; stop the job and choose a smaller one, or precision bf16"
    )


def last_stage(over: Round) -> tuple[Seat, ...]:
    """The members of the contributors' last stages."""
    contributors = set(over.contributors or ())
    return tuple(s for s in over.seats if s.stage == len(over.layers) - 1 and s.replica in contributors)

"""Learning rates over a job's steps: what trainers follow, and what pages draw."""

import math

from protocol.job.job import TrainingSpec, usual_learning_rate


def learning_rate(training: TrainingSpec, step: int, total_steps: int) -> float:
    """Linear warm-up, then the job's decay down to ``final_rate`` of the peak; ``step`` is the global index, from 0.

    ``cosine``: half a cosine. ``wsd``: the peak until the last ``decay_share`` of the steps, then 1 - sqrt, which lost least
    among the shapes that were tried in the paper; a run can be prolonged from before its decay. ``constant``: the peak.

    Source: cosine arXiv 1608.03983; warm-up, stable, decay arXiv 2404.06395, its shape arXiv 2405.18392.
    """
    warmup = min(training.warmup_steps, max(1, total_steps // 2))
    peak = training.learning_rate or usual_learning_rate(training, started=False)
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    floor = training.final_rate
    if training.decay == "cosine":
        left = 0.5 * (1 + math.cos(math.pi * progress))
    elif training.decay == "wsd":
        into = max(0.0, (progress - (1 - training.decay_share)) / training.decay_share)
        left = 1 - math.sqrt(into)
    else:
        left = 1.0
    return peak * (floor + (1 - floor) * left)

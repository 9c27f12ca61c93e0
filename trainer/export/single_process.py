"""The same model, samples and order in one process with plain AdamW: what a network's run is held against."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from protocol.boundary import Position
from protocol.job.job import JobSpec, total_steps
from trainer.audit.environment import configure
from trainer.data.data import heldout_parts
from trainer.data.folder import open_files
from trainer.files.inputs import InputFolder
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss


def train_single(
    spec: JobSpec, folder: Path, replicas: int, threads: int, progress: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Train the whole model, each step on the batches of all replicas; there is no outer step and no compression.

    Args:
        progress: called after each step with step, steps, tokens and loss.
    Returns:
        loss_before, loss_after (held out, nats a token), steps, tokens, parameters, seconds and the curve.
    Raises:
        InputError, ModelConfigError: the folder cannot be used. NonFiniteError: training diverged.
    """
    configure(threads)
    began = time.perf_counter()
    files = open_files(InputFolder(folder), spec)
    dealt = replicas if spec.training.sampling == "epochs" else None
    # No exchange, whatever the method is.
    training = msgspec.structs.replace(spec.training, outer="diloco", shares=dealt)
    layers = int(files.config.get("num_hidden_layers", files.config.get("n_layer", 0)))
    stage = Stage(files.config, Cut(0, layers, True, True), training, files.weights)
    parts, position, nobody = heldout_parts(files.heldout, training), Position(0, 1), Recorded({})
    before = heldout_loss(stage, parts, nobody)
    steps, curve = total_steps(training, replicas), []
    per_step = training.batch * training.sequence * replicas
    for step in range(steps):
        losses = []
        for replica in range(replicas):
            windows, _ = files.train.sample(
                training.seed, step, replica, training.batch, training.sampling, training.shares
            )
            losses.append(accumulate(stage, position, windows, nobody, share=replicas) or 0.0)
        update(stage, position, nobody, step, steps)
        point = {"step": step, "steps": steps, "tokens": (step + 1) * per_step, "loss": sum(losses) / replicas}
        curve.append(point)
        progress(point)
    return {
        "loss_before": before,
        "loss_after": heldout_loss(stage, parts, nobody),
        "steps": steps,
        "tokens": steps * per_step,
        "parameters": stage.parameter_count,
        "seconds": time.perf_counter() - began,
        "curve": curve,
    }

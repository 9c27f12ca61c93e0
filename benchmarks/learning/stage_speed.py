"""A stage trains as quickly as plain torch, and takes the memory that the planner expected.

Speed: a whole Llama as one stage, with the worker's own step (passes, clipping, AdamW on flat vectors), beside the same model
as transformers builds it with torch's AdamW. Both take the same weights and samples in one process, in turns, step by step, so
that whatever else the machine does meets both; the ratio is the median of the pairs. Their losses must agree. The commitments
that a worker makes of its steps are a benchmark of their own (``commitments.py``).

Memory: real workers (2 stages x 2 replicas) do whole rounds, outer steps and an audit of a step; what the planner counts with
when it places a stage (``coordinator.domain.placement.stage_memory``) is divided by the most that each worker ever held (VmHWM).

Claims: at least 95 % of plain torch's tokens a second; what was planned within 10 % of the peak. Speed on a GPU where there is
one, otherwise that column says "not measured".

    python -m benchmarks.learning.stage_speed [--steps 20] [--only speed|memory]
"""

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common import publish
from benchmarks.learning._replica import VOCABULARY, byte_text, llama
from coordinator.domain.placement import MEGABYTE, stage_memory
from protocol.boundary import Position
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TrainingSpec
from protocol.job.learning_rate import learning_rate
from protocol.models.model import inspect_config
from protocol.task import OpenStep, StepOpened
from tests.trainer.router import Place, Process, Router, make_plan
from trainer.audit.environment import configure
from trainer.data.data import Windows, micro_batches
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.stage import BETAS, EPSILON, Stage
from trainer.stage.steps import Recorded, accumulate

SEQUENCE, TOTAL = 256, 1000
SHAPES = {"5 M": (256, 6), "26 M": (512, 8)}  # Width and layers.
PRECISIONS: tuple[Literal["fp32", "bf16"], ...] = ("fp32", "bf16")
AGREE = {"fp32": 1e-3, "bf16": 2e-2}  # Nats a token, after all steps: sums are made in another order.
ROUNDS, STEPS = 3, 4
JOBS: dict[str, dict[str, Any]] = {
    "diloco in 8 bits": {},
    "recomputing": {"recompute": True},
    "coarse": {"pseudo_gradient": "coarse", "outer_momentum": 0.5},
    "sparseloco": {"outer": "sparseloco", "outer_momentum": 0.0},
    "streaming": {"outer": "streaming", "fragments": 2, "mixing": 0.5, "overlap": 1},
    "gradients": {"outer": "gradients", "clip_norm": 1.0},
    "muon in bf16": {"optimizer": "muon", "precision": "bf16"},
    "lean": {"memory": "lean", "precision": "bf16"},
    "lean, muon, coarse": {
        "memory": "lean",
        "precision": "bf16",
        "optimizer": "muon",
        "pseudo_gradient": "coarse",
        "outer_momentum": 0.5,
    },
}


class Plain:
    """What a user would write without Cottage."""

    def __init__(self, stage: Stage, config: dict[str, Any]) -> None:
        """Begin with the stage's weights."""
        known = AutoConfig.for_model(**{key: value for key, value in config.items() if not key.startswith("cottage_")})
        self._training, self._device = stage.training, stage.device
        self._model = AutoModelForCausalLM.from_config(known, dtype=torch.float32).to(stage.device).train()
        state = {s.name: stage.parameters[s.start : s.start + s.count].view(s.shape).clone() for s in stage.slots}
        self._model.load_state_dict(state, strict=False)
        matrices = [p for p in self._model.parameters() if p.dim() > 1]
        others = [p for p in self._model.parameters() if p.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": stage.training.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, betas=BETAS, eps=EPSILON)

    def step(self, windows: Windows, number: int) -> float:
        """One step; its loss."""
        parts = [torch.from_numpy(windows[part]).to(self._device) for part in micro_batches(self._training)]
        total = 0.0
        for rows in parts:
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._training.precision == "bf16"):
                logits = self._model(input_ids=rows[:, :-1], use_cache=False).logits
            loss = functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten()) / len(parts)
            loss.backward()
            total += float(loss.detach())
        assert self._training.clip_norm is not None
        nn.utils.clip_grad_norm_(self._model.parameters(), self._training.clip_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._training, number, TOTAL)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return total


def speed(width: int, layers: int, precision: Literal["fp32", "bf16"], device: str, steps: int) -> dict[str, Any]:
    """Tokens a second of both, and their ratio."""
    spec = TrainingSpec(
        sequence=SEQUENCE, batch=8, micro_batches=4, precision=precision, clip_norm=1.0, tokens=TOTAL * 8 * SEQUENCE
    )
    config = llama(width, layers)
    stage, nobody, position = (
        Stage(config, Cut(0, layers, True, True), spec, device=device),
        Recorded({}),
        Position(0, 1),
    )
    plain = Plain(stage, config)

    def ours(windows: Windows, number: int) -> float:
        loss = accumulate(stage, position, windows, nobody)
        update(stage, position, nobody, number, TOTAL)
        assert loss is not None
        return loss

    def timed(step: Callable[[Windows, int], float], windows: Windows, number: int) -> tuple[float, float]:
        began = time.perf_counter()
        loss = step(windows, number)
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - began, loss

    chance = np.random.default_rng(1)
    pairs, loss = [], (0.0, 0.0)
    for number in range(steps + 1):
        windows = chance.integers(0, VOCABULARY, (spec.batch, SEQUENCE + 1), dtype=np.int64)
        turns = [(ours, 0), (plain.step, 1)][:: 1 if number % 2 else -1]  # Who comes second finds warmer caches.
        found = {which: timed(step, windows, number) for step, which in turns}
        loss = (found[0][1], found[1][1])
        if number:  # The first sets up.
            pairs.append((found[0][0], found[1][0]))
    if abs(loss[0] - loss[1]) > AGREE[precision]:
        raise RuntimeError(
            f"they do not train alike: losses of {loss[0]:.5f} and {loss[1]:.5f} after {steps + 1} steps"
        )
    ratios = sorted(theirs / own for own, theirs in pairs)
    tokens = spec.batch * SEQUENCE
    return {
        "parameters": stage.parameter_count,
        "tokens_s": round(tokens / statistics.median(own for own, _ in pairs), 1),
        "plain_tokens_s": round(tokens / statistics.median(theirs for _, theirs in pairs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(ratios[len(ratios) // 4], 3), round(ratios[3 * len(ratios) // 4], 3)],
        "losses": [round(value, 5) for value in loss],
    }


def speeds(steps: int) -> dict[str, Any]:
    """All rows."""
    rows: dict[str, Any] = {}
    for device in ("cpu", "cuda"):
        for name, (width, layers) in SHAPES.items():
            for precision in PRECISIONS:
                row = f"{name}, {precision}, {device}"
                if device == "cuda" and not torch.cuda.is_available():
                    rows[row] = "not measured"
                else:
                    configure(1, device)
                    rows[row] = speed(width, layers, precision, device, steps)
                print(row, rows[row], flush=True)
    return rows


async def memory(width: int, layers: int, **more: Any) -> list[dict[str, Any]]:
    """Peaks of four workers after rounds and an audit, beside what was planned."""
    plan = make_plan([(0, layers // 2), (layers // 2, layers)], [0, 1])
    training = TrainingSpec(
        sequence=SEQUENCE,
        batch=8,
        micro_batches=4,
        inner_steps=STEPS,
        commit_every=1,
        tokens=TOTAL * 8 * SEQUENCE,
        **more,
    )
    config = llama(width, layers)
    spec = JobSpec("memory", ModelSpec(config=config), DatasetSpec("0" * 64), 2, training=training)
    with tempfile.TemporaryDirectory() as folder:
        job, sockets = Path(folder) / "job", Path(folder) / "s"
        sockets.mkdir()
        shutil.copytree(byte_text(SEQUENCE), job)
        (job / "config.json").write_text(json.dumps(config))
        async with Router(sockets, spec, job, by_command=True) as router:
            places = [(member.stage, member.replica) for member in plan.members]
            await router.start(plan, places)
            for number in range(ROUNDS):
                await router.round(plan, number, STEPS, TOTAL)
                audit = f"{number:032x}"
                for place in places:  # Shown while the next round runs; the last step shows the most.
                    await router.command(place, OpenStep(audit, 0, number, STEPS - 1))
            await router.until(partial(opened, router, places, audit))
            peaks = {place: peak(router.workers[place].process) for place in places}
    shape = inspect_config(config)
    rows = []
    for (stage, replica), most in peaks.items():
        planned = stage_memory(shape, training, plan.layers, stage)
        figures = {"peak_mb": most // MEGABYTE, "planned_mb": planned // MEGABYTE}
        rows.append({"stage": stage, "replica": replica, **figures, "planned_over_peak": round(planned / most, 3)})
    return rows


def opened(router: Router, places: list[Place], audit: str) -> bool:
    """Whether all have shown what was drawn; raises ``RuntimeError`` where one refuses."""
    reports = [report for place in places for report in router.of(place, StepOpened, audit=audit)]
    refused = [report.reason for report in reports if report.opening is None]
    if refused:
        raise RuntimeError(f"a worker does not open its step: {refused[0]}")
    return len(reports) == len(places)


def peak(process: Process) -> int:
    """The most bytes that a worker has held in memory."""
    started = process.spawned or process.child
    assert started is not None
    lines = Path(f"/proc/{started.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def memories() -> dict[str, Any]:
    """All rows."""
    rows: dict[str, Any] = {}
    for name, (width, layers) in SHAPES.items():
        for label, more in JOBS.items():
            rows[f"{name}, {label}"] = found = asyncio.run(memory(width, layers, **more))
            for each in found:
                print(f"{name}, {label}", each, flush=True)
    return rows


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="pairs of steps that are timed")
    parser.add_argument("--only", choices=("speed", "memory"))
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if options.only != "memory":
        figures["speed"] = speeds(options.steps)
    if options.only != "speed":
        figures["memory"] = memories()
    publish("stage_speed", "95 % of plain torch's tokens a second; the planned memory within 10 % of the peak", figures)


if __name__ == "__main__":
    main()

"""A stage trains as quickly as plain torch, and takes the memory that the planner expected.

Speed: a whole Llama as one stage, with the worker's own step (passes, clipping, AdamW on flat vectors), beside the same model
as transformers builds it with torch's AdamW. Both take the same weights and samples in one process, in turns, step by step, so
that whatever else the machine does meets both; the ratio is the median of the pairs. Their losses must agree. The commitments
that a worker makes of its steps are a benchmark of their own (``commitments.py``).

Memory: real workers (2 stages x 2 replicas) do whole rounds, outer steps and an audit of a step; what the planner counts with
when it places a stage (``coordinator.domain.placement.stage_memory``) is divided by the most that each worker ever held (VmHWM).

Claims: at least 95 % of plain torch's tokens a second; what was planned within 10 % of the peak.

With ``--device cuda`` both compute on a graphics card: stages with kernels that replay bit for bit, plain torch with those that
it chooses by itself. Models are larger, and stages are kept lean, too. Of workers the card's memory is read from the driver.

    python -m benchmarks.learning.stage_speed [--steps 20] [--only speed|memory] [--device cuda]
"""

import argparse
import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.common import publish
from benchmarks.learning._replica import VOCABULARY, byte_text, llama, of_card
from coordinator.domain.placement import MEGABYTE, stage_memory
from coordinator.domain.placement.layers import beside_memory
from protocol.boundary import Position
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec, TrainingSpec
from protocol.job.learning_rate import learning_rate
from protocol.models.model import inspect_config
from protocol.task import OpenStep, StepOpened
from tests.trainer.router import Place, Process, Router, make_plan
from trainer.audit.environment import configure
from trainer.data.data import Windows, micro_batches
from trainer.outer.inner_update import update
from trainer.stage.adamw import BETAS, EPSILON
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate

SEQUENCE, TOTAL = 256, 1000
CARD_SEQUENCE = 1024
SHAPES = {"5 M": (256, 6), "26 M": (512, 8)}  # Width and layers.
WORKERS_ON_CARD = {"155 M": (1024, 12)}
CARD_SHAPES = {"26 M": (512, 8), "155 M": (1024, 12), "0.8 B": (2048, 16)}
KEPT: Mapping[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "lean": {"precision": "bf16", "memory": "lean"},
}
AGREE = {"fp32": 1e-3, "bf16": 2e-2, "lean": 5e-2}  # Nats a token, after all steps: sums are made in another order.
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
        torch.use_deterministic_algorithms(False)
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
        torch.use_deterministic_algorithms(self._device.type == "cuda")
        return total


def speed(width: int, layers: int, kept: str, device: str, steps: int) -> dict[str, Any]:
    """Tokens a second of both, and their ratio; ``kept``: of ``KEPT``."""
    sequence = SEQUENCE if device == "cpu" else CARD_SEQUENCE
    tokens = 8 * sequence
    spec = TrainingSpec(sequence=sequence, batch=8, micro_batches=4, clip_norm=1.0, tokens=TOTAL * tokens, **KEPT[kept])
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
        windows = chance.integers(0, VOCABULARY, (spec.batch, sequence + 1), dtype=np.int64)
        turns = [(ours, 0), (plain.step, 1)][:: 1 if number % 2 else -1]  # Who comes second finds warmer caches.
        found = {which: timed(step, windows, number) for step, which in turns}
        loss = (found[0][1], found[1][1])
        if number:  # The first sets up.
            pairs.append((found[0][0], found[1][0]))
    if abs(loss[0] - loss[1]) > AGREE[kept]:
        raise RuntimeError(
            f"they do not train alike: losses of {loss[0]:.5f} and {loss[1]:.5f} after {steps + 1} steps"
        )
    ratios = sorted(theirs / own for own, theirs in pairs)
    return {
        "parameters": stage.parameter_count,
        "tokens_s": round(tokens / statistics.median(own for own, _ in pairs), 1),
        "plain_tokens_s": round(tokens / statistics.median(theirs for _, theirs in pairs), 1),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(ratios[len(ratios) // 4], 3), round(ratios[3 * len(ratios) // 4], 3)],
        "losses": [round(value, 5) for value in loss],
    }


def speeds(steps: int, device: str, some: str) -> dict[str, Any]:
    """All rows with ``some`` in their names."""
    rows: dict[str, Any] = {}
    configure(1 if device == "cpu" else 8, device)
    for name, (width, layers) in (SHAPES if device == "cpu" else CARD_SHAPES).items():
        for kept in KEPT if device == "cuda" else ("fp32", "bf16"):
            row = f"{name}, {kept}, {device}"
            if some not in row:
                continue
            rows[row] = speed(width, layers, kept, device, steps)
            print(row, rows[row], flush=True)
    return rows


async def memory(width: int, layers: int, device: str, **more: Any) -> list[dict[str, Any]]:
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
    spec = JobSpec("memory", ModelSpec(config=config), 2, DatasetSpec("0" * 64), training=training)
    with tempfile.TemporaryDirectory() as folder:
        job, sockets = Path(folder) / "job", Path(folder) / "s"
        sockets.mkdir()
        shutil.copytree(byte_text(SEQUENCE), job)
        (job / "config.json").write_text(json.dumps(config))
        async with Router(sockets, spec, job, by_command=True) as router:
            router.device = device
            router.recording = router.keeping = True
            places = [(member.stage, member.replica) for member in plan.members]
            await router.start(plan, places)
            for number in range(ROUNDS):
                await router.round(plan, number, STEPS, TOTAL)
                audit = f"{number:032x}"
                for place in places:  # Of the round before, which was let go; the last step shows the most.
                    await router.command(place, OpenStep(audit, 0, max(0, number - 1), STEPS - 1))
            await router.until(partial(opened, router, places, audit))
            peaks = {place: peak(router.workers[place].process) for place in places}
            held = {
                place: of_card(number_of(router.workers[place].process)) if device == "cuda" else 0 for place in places
            }
    shape = inspect_config(config)
    rows = []
    for (stage, replica), most in peaks.items():
        row: dict[str, Any] = {"stage": stage, "replica": replica}
        if device == "cuda":
            row |= beside("card", held[stage, replica], stage_memory(shape, training, plan.layers, stage, card=True))
            row |= beside("beside", most, beside_memory(shape, training, plan.layers, stage))
        else:
            row |= beside("peak", most, stage_memory(shape, training, plan.layers, stage))
        rows.append(row)
    return rows


def beside(name: str, most: int, planned: int) -> dict[str, Any]:
    """What was held and what was planned, for a row."""
    return {
        f"{name}_mb": most // MEGABYTE,
        f"{name}_planned_mb": planned // MEGABYTE,
        f"{name}_planned_over_held": round(planned / max(1, most), 3),
    }


def opened(router: Router, places: list[Place], audit: str) -> bool:
    """Whether all have shown what was drawn; raises ``RuntimeError`` where one refuses."""
    reports = [report for place in places for report in router.of(place, StepOpened, audit=audit)]
    refused = [report.reason for report in reports if report.opening is None]
    if refused:
        raise RuntimeError(f"a worker does not open its step: {refused[0]}")
    return len(reports) == len(places)


def peak(process: Process) -> int:
    """The most bytes that a worker has held in main memory."""
    lines = Path(f"/proc/{number_of(process)}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def number_of(process: Process) -> int:
    """A worker's process id."""
    started = process.spawned or process.child
    assert started is not None
    return started.pid


def memories(device: str, some: str) -> dict[str, Any]:
    """All rows with ``some`` in their names."""
    rows: dict[str, Any] = {}
    for name, (width, layers) in (SHAPES if device == "cpu" else WORKERS_ON_CARD).items():
        for label, more in JOBS.items():
            if some not in f"{name}, {label}":
                continue
            rows[f"{name}, {label}"] = found = asyncio.run(memory(width, layers, device, **more))
            for each in found:
                print(f"{name}, {label}", each, flush=True)
    return rows


def main() -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="pairs of steps that are timed")
    parser.add_argument("--rows", default="", help="only rows with this in their names")
    parser.add_argument("--only", choices=("speed", "memory"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: no graphics card that CUDA drives is in this machine")
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name() if options.device == "cuda" else "processor"}
    if options.only != "memory":
        figures["speed"] = speeds(options.steps, options.device, options.rows)
    if options.only != "speed":
        figures["memory"] = memories(options.device, options.rows)
    publish("stage_speed", "95 % of plain torch's tokens a second; the planned memory within 10 % of the peak", figures)


if __name__ == "__main__":
    main()

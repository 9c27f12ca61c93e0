"""Segments of ten steps, honest and not, that a machine of another environment class runs again.

python -m tests.trainer.segments FOLDER judge|measure     in a process of another class: what it finds, as JSON by name
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protocol.codec import decode_json, encode_json
from protocol.job.job import TrainingSpec
from protocol.job.updates import UPDATES
from protocol.task import ReplayAcross, ReplayStep
from tests.trainer.router import make_plan
from tests.trainer.small import ENV, Committed, Pipeline, commit_round, config_of, cuts, pipeline, training
from trainer.audit.environment import configure
from trainer.audit.replay import OpeningReplayer
from trainer.data.data import TokenFile
from trainer.outer import OuterState, local_digest, outer_method
from trainer.stage.stage import Stage, vector_digest

STEPS, TOTAL, STAGE = 10, 200, 1
HONEST = "honest"
ONE = STEPS // 2  # The step of the ten that is done otherwise where only one is.

Step = Callable[[int, int], float]
Lie = Callable[[Pipeline, Stage, Step, int, int], float]
"""Does a step as a liar would: the line, its stage that lies, the honest step, the step's number, and of how many."""


class Shifted:
    """Samples of another place of the data."""

    def __init__(self, tokens: TokenFile) -> None:
        self._tokens = tokens

    def sample(self, seed: int, *rest: Any) -> Any:
        return self._tokens.sample(seed + 1, *rest)


def honest(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    return step(number, total)


def skips(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    before = liar.state()
    loss = step(number, total)
    liar.restore(replace(before, adam_steps=liar.adam_steps))
    return loss


def flips(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    return Pipeline.step(line, number, total, liar)


def other_data(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    true = line.tokens
    line.tokens = Shifted(true)  # type: ignore[assignment]
    try:
        return step(number, total)
    finally:
        line.tokens = true


def half_precision(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    liar.parameters.copy_(liar.parameters.bfloat16().float())
    return step(number, total)


def noise(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    loss = step(number, total)
    liar.parameters.add_(torch.randn(liar.parameters.shape, generator=torch.Generator().manual_seed(3)), alpha=1e-4)
    return loss


def shorter(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
    before = liar.state().parameters
    loss = step(number, total)
    liar.parameters.lerp_(before, 0.01)
    return loss


def once(lie: Lie) -> Lie:
    """The lie in one step of the ten."""

    def act(line: Pipeline, liar: Stage, step: Step, number: int, total: int) -> float:
        return (lie if number % STEPS == ONE else honest)(line, liar, step, number, total)

    return act


LIES: Mapping[str, Lie] = {
    "skips all steps": skips,
    "skips one step of ten": once(skips),
    "flips all gradients": flips,
    "flips one gradient of ten": once(flips),
    "other data": other_data,
    "other data in one step of ten": once(other_data),
    "parameters in half precision": half_precision,
    "noise of 1e-4": noise,
    "steps shorter by 1 %": shorter,
}


def spec_of(**changes: Any) -> TrainingSpec:
    return training(commit_every=STEPS, inner_steps=STEPS, **changes)


def segment(folder: Path, spec: TrainingSpec, lie: Lie = honest, first_step: int = 0) -> Committed:
    """One segment as the liar commits to it, after an honest beginning of ``first_step`` steps."""
    line = pipeline("llama", 2, TokenFile(folder / "train.bin", spec.sequence, 300), spec)
    for number in range(first_step):
        line.step(number, TOTAL)
    liar, step = line.stages[STAGE], line.step

    def act(number: int, total: int, turned: Stage | None = None) -> float:
        return lie(line, liar, step, number, total)

    line.step = act  # type: ignore[method-assign]
    return commit_round(line, STAGE, STEPS, TOTAL, first_step=first_step)


def command(done: Committed, **changes: Any) -> ReplayStep:
    """What an auditor is asked about a segment."""
    last = done.trace.leaves[-1]
    values: dict[str, Any] = {
        "audit": "a" * 32,
        "plan": make_plan([(cut.first, cut.last) for cut in cuts(3, 2)], [0]),
        "stage": STAGE,
        "replica": 0,
        "round": min(1, done.trace.first_step),
        "first_step": done.trace.first_step,
        "step": STEPS - 1,
        "total_steps": TOTAL,
        "root": done.root,
        "leaves": len(done.trace.leaves),
        "pseudo_gradient": last.pseudo_gradient,
        "anchor": vector_digest(done.trace.anchor),
        "opening": "0" * 64,
        "carried": last.carried,
    }
    return ReplayStep(**(values | changes))


def auditor(folder: Path, spec: TrainingSpec, env: str = "another") -> OpeningReplayer:
    return OpeningReplayer(config_of(), spec, folder / "train.bin", None, env, "cpu")


def write(folder: Path, name: str, done: Committed) -> None:
    """Put a segment where ``elsewhere`` finds it."""
    (folder / f"{name}.opening").write_bytes(done.opening(STEPS - 1, ending=True))
    (folder / f"{name}.replay").write_bytes(encode_json(command(done)))
    (folder / f"{name}.training").write_bytes(encode_json(done.spec))


def elsewhere(folder: Path, how: str, threads: int = 1, **environment: str) -> dict[str, dict[str, Any]]:
    """What a process with another ``environment`` finds in everything that lies in the folder."""
    asked = [sys.executable, "-m", "tests.trainer.segments", str(folder), how, str(threads)]
    done = subprocess.run(asked, env=os.environ | environment, stdout=subprocess.PIPE, check=True)
    found: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return found


def contributions() -> dict[str, list[str]]:
    """What every method and codec makes of the same state in two rounds: digests, by what the job asks for."""
    asked: list[dict[str, Any]] = [{"pseudo_gradient": codec} for codec in UPDATES]
    asked += [{"pseudo_gradient": "int4", "error_feedback": 0.9}, {"outer": "averaging"}]
    asked += [{"outer": "sparseloco", "outer_momentum": 0.0}]
    asked += [{"outer": "streaming", "fragments": 2, "mixing": 0.5, "inner_steps": 5}]
    made: dict[str, list[str]] = {}
    for changes in asked:
        stage = Stage(config_of(), cuts(3, 2)[STAGE], training(**changes))
        anchor = stage.state().parameters
        method = outer_method(stage.training, stage.slots, anchor.numel())
        moved = np.random.default_rng(5).standard_normal(anchor.numel(), dtype=np.float32)
        parameters, local = anchor + torch.from_numpy(moved) * 1e-3, method.fresh(OuterState(anchor, anchor))
        digests = made[str(changes)] = []
        for number in range(2):
            given = method.contribution(anchor, parameters, local, number)
            local = given.local
            digests += [hashlib.sha256(given.data).hexdigest(), str(local_digest(local))]
    return made


def main(folder: Path, how: str, threads: int) -> None:
    """Judge or measure what lies in the folder."""
    configure(threads)
    found: dict[str, dict[str, Any]] = {"": {"capability": torch.backends.cpu.get_cpu_capability()}}
    if how == "judge":
        found[""]["contributions"] = contributions()
    for path in sorted(folder.glob("*.opening")):
        replay = decode_json(path.with_suffix(".replay").read_bytes(), ReplayStep)
        spec = decode_json(path.with_suffix(".training").read_bytes(), TrainingSpec)
        own = auditor(folder, spec)
        if how == "judge":
            report = own.judge_across(ReplayAcross(replay, ENV), path.read_bytes())
            found[path.stem] = {"verdict": report.verdict, "detail": report.detail}
            if path.stem == HONEST:
                found[path.stem]["exact"] = auditor(folder, spec, ENV).judge(replay, path.read_bytes()).verdict
            continue
        stage = own.stage_of(replay)
        opened, _ = own.open(replay, path.read_bytes(), stage, ending=True)
        found[path.stem] = asdict(own.measure(replay, opened, stage))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))

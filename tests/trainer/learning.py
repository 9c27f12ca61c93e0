"""Replicas of a small model that learn by a method, one after the other in this process: the same numbers as in a network."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from protocol.boundary import Position
from protocol.job.job import TrainingSpec
from protocol.job.learning_rate import learning_rate
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of
from trainer.data.data import TokenFile, heldout_parts
from trainer.outer import Local, OuterState, outer_method, step_method
from trainer.outer.every_step import Moment
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate, heldout_loss

ALONE = Position(0, 1)
NOBODY = Recorded({})


@dataclass
class Learned:
    """What came of a run: held-out loss (nats a token) and bytes that one replica sent to one other."""

    loss: float
    sent: int
    losses: list[float] = field(default_factory=list)


def make_stages(spec: TrainingSpec, count: int) -> list[Stage]:
    return [Stage(config_of(), Cut(0, 3, True, True), spec) for _ in range(count)]


def gradients(stage: Stage, tokens: TokenFile, step: int, replica: int) -> float:
    windows, _ = tokens.sample(stage.training.seed, step, replica, stage.training.batch)
    return accumulate(stage, ALONE, windows, NOBODY) or 0.0


def heldout(stage: Stage, folder: Path) -> float:
    parts = heldout_parts(TokenFile(folder / "heldout.bin", SEQUENCE, VOCABULARY), stage.training)
    return heldout_loss(stage, parts, NOBODY) or 0.0


def learn(folder: Path, spec: TrainingSpec, steps: int, replicas: int, late: bool = False) -> Learned:
    """Train by rounds. ``late``: the outer step of a round is applied only when the next one has been stepped."""
    tokens = TokenFile(folder / "train.bin", SEQUENCE, VOCABULARY)
    stages = make_stages(spec, replicas)
    anchor = stages[0].state().parameters
    method = outer_method(spec, stages[0].slots, anchor.numel())
    outer = OuterState(anchor, torch.zeros_like(anchor))
    local: list[Local] = [method.fresh(outer) for _ in stages]
    sent, waiting = 0, dict[int, bytes]()
    for index, first in enumerate(range(0, steps, spec.inner_steps)):
        given = {}
        for replica, stage in enumerate(stages):
            stage.parameters.copy_(method.start(outer, local[replica], index))
            for step in range(first, min(steps, first + spec.inner_steps)):
                gradients(stage, tokens, step, replica)
                stage.adam_step(learning_rate(spec, step, steps))
            made = method.contribution(outer.anchor, stage.parameters, local[replica], index)
            given[replica], local[replica] = made.data, made.local
        sent += len(given[0])
        if late:
            given, waiting = waiting, given
        outer = method.apply(outer, given, index) if given else outer
    stages[0].parameters.copy_(outer.anchor)
    return Learned(heldout(stages[0], folder), sent)


def learn_together(folder: Path, spec: TrainingSpec, steps: int, replicas: int) -> Learned:
    """Train with an exchange at every step; with a method that exchanges at rounds only, plain data-parallel AdamW in float32."""
    tokens = TokenFile(folder / "train.bin", SEQUENCE, VOCABULARY)
    stages, method, sent = make_stages(spec, replicas), step_method(spec), 0
    for step in range(steps):
        at = Moment(learning_rate(spec, step, steps), step, steps)
        for replica, stage in enumerate(stages):
            gradients(stage, tokens, step, replica)
        if method is None:
            mean = torch.stack([stage.gradients for stage in stages]).mean(0)
            for stage in stages:
                stage.gradients.copy_(mean)
        else:
            messages = {replica: method.message(stage, at) for replica, stage in enumerate(stages)}
            sent += len(messages[0])
            for stage in stages:
                method.reduce(stage, messages, at)
        if method is None or not method.optimizes:
            sent += 4 * stages[0].parameter_count if method is None else 0
            for stage in stages:
                stage.adam_step(at.rate)
        assert all(torch.equal(stage.parameters, stages[0].parameters) for stage in stages[1:])
    return Learned(heldout(stages[0], folder), sent)


def learn_alone(folder: Path, spec: TrainingSpec, steps: int) -> Learned:
    """One replica of the several, without the others' tokens."""
    return learn_together(folder, spec, steps, 1)

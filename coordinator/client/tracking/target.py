"""Which tracker somebody means, and what one is told: a run, then a row a round. Plain data that crosses to its process."""

import importlib.util
import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from coordinator.client.compare import settings
from protocol.job.job import without_settings
from protocol.rest import api

MAX_VALUE = 500  # Characters of a setting: MLflow takes 6,000, and a table shows fewer.
INSTALL = 'pip install "cottage[track]"'
State = Literal["running", "settled", "failed", "cancelled"]


class TrackerError(Exception):
    """A tracker that is none, is not installed, or does not take what it is told."""


class TrackerTarget(msgspec.Struct, frozen=True):
    """A tracker. ``place``: MLflow's address, or the project at Weights & Biases; empty for what the environment says."""

    kind: Literal["mlflow", "wandb"]
    place: str = ""


class RunBegin(msgspec.Struct, frozen=True):
    """The run of a job. ``address``: the job's page."""

    target: TrackerTarget
    job: str
    name: str
    address: str
    settings: dict[str, str]


class RunRow(msgspec.Struct, frozen=True, tag="row"):
    """One round. ``round``: how many are done with it; ``tokens``: of all those; ``time``: its end, in Unix seconds."""

    round: int
    tokens: int
    time: float
    values: dict[str, float]


class RunEnd(msgspec.Struct, frozen=True, tag="end"):
    """Nothing more comes from here; ``state``: what became of the job."""

    state: State


class TrackerAnswer(msgspec.Struct, frozen=True):
    """What the tracker's process says: the newest round that the run has, or why it ends."""

    round: int = 0
    problem: str = ""


def target_of(text: str) -> TrackerTarget:
    """The tracker that ``mlflow``, ``mlflow:URI``, ``wandb`` or ``wandb:PROJECT`` names.

    Raises:
        TrackerError: there is none of this name, or its library is not here.
    """
    kind, _, place = text.partition(":")
    if kind not in ("mlflow", "wandb"):
        raise TrackerError(f"no tracker is called {kind[:40]!r}: give mlflow, mlflow:URI, wandb or wandb:PROJECT")
    if importlib.util.find_spec(kind) is None:
        raise TrackerError(f"{kind} is not installed here: {INSTALL}")
    return TrackerTarget("mlflow" if kind == "mlflow" else "wandb", place)


def begin_of(target: TrackerTarget, view: api.JobView, server: str) -> RunBegin:
    """What a run is begun with, of a job at a coordinator."""
    whole = settings(msgspec.structs.replace(view, spec=without_settings(view.spec)))
    short = {name: value if len(value) <= MAX_VALUE else f"{value[: MAX_VALUE - 1]}…" for name, value in whole}
    return RunBegin(target, view.id, str(view.name), f"{server.rstrip('/')}/jobs/{view.id}", short)


def rows_of(view: api.JobView, rounds: Sequence[api.RoundView]) -> list[RunRow]:
    """A row for each round that is complete, named as in the TensorBoard file of the finished folder."""
    answers = view.spec.training.preference is not None  # Of such losses no perplexity can be told.
    rows, tokens = [], 0
    for one in sorted(rounds, key=lambda each: (each.round, each.epoch)):
        if one.state != "complete" or one.ended is None:
            break  # In order: what comes behind it waits for it.
        tokens += one.tokens
        seconds, replicas = one.ended - one.started, float(len(one.contributors))
        values = {"round": float(one.round + 1), "tokens": float(tokens), "seconds": seconds, "replicas": replicas}
        if one.train_loss is not None:
            values["loss/train"] = one.train_loss
        if one.validation_loss is not None:
            values["loss/validation"] = one.validation_loss
            if not answers and -700 < one.validation_loss < 700:
                values["perplexity/validation"] = math.exp(one.validation_loss)
        if one.preference is not None:
            values["accuracy/validation"] = one.preference.accuracy
            values["margin/validation"] = one.preference.margin
        rows.append(RunRow(one.round + 1, tokens, one.ended, values))
    return rows

"""Runs of MLflow and of Weights & Biases, of which a job has one in each. Only the tracker's own process imports this."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from coordinator.client.tracking.target import RunBegin, RunRow, State, TrackerError

PROJECT = "cottage"  # Or MLFLOW_EXPERIMENT_NAME, or WANDB_PROJECT.
JOB_TAG, ADDRESS_TAG = "cottage.job", "cottage.address"
_MOST_PARAMETERS = 100  # That MLflow takes at once.
_MLFLOW_ENDS: dict[State, str] = {"settled": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}


class TrackerRun(Protocol):
    """A job's run in a tracker. ``known``: the newest round that it has."""

    known: int

    def add(self, row: RunRow) -> None:
        """Add a round behind the last one."""
        ...

    def end(self, state: State) -> None:
        """Close it, and wait until everything has arrived."""
        ...


def open_run(begin: RunBegin) -> TrackerRun:
    """The run of this job, which is made where there is none."""
    return MlflowRun(begin) if begin.target.kind == "mlflow" else WandbRun(begin)


class MlflowRun:
    """A run of MLflow, found by the tag with the job's id; a step is a token."""

    def __init__(self, begin: RunBegin) -> None:
        # A server that is not there is told of within a minute; MLflow itself tries for four.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
        from mlflow import MlflowClient

        self._client = MlflowClient(begin.target.place or None)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        place = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        found = self._client.search_runs([place], f"tags.`{JOB_TAG}` = '{begin.job}'", max_results=1)
        if found:
            self._id, self.known = found[0].info.run_id, int(found[0].data.metrics.get("round", 0))
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id, self.known = self._made(place, begin), 0

    def _made(self, experiment: str, begin: RunBegin) -> str:
        from mlflow.entities import Param

        tags = {JOB_TAG: begin.job, ADDRESS_TAG: begin.address}
        made = str(self._client.create_run(experiment, tags=tags, run_name=begin.name).info.run_id)
        names = {re.sub(r"[^\w\-. :/]", "_", name)[:250]: value for name, value in begin.settings.items()}
        parameters = [Param(name, value) for name, value in names.items()]
        for first in range(0, len(parameters), _MOST_PARAMETERS):
            self._client.log_batch(made, params=parameters[first : first + _MOST_PARAMETERS])
        return made

    def add(self, row: RunRow) -> None:
        """All values of a round in one request: the run has it, or has nothing of it."""
        from mlflow.entities import Metric

        when = round(row.time * 1000)
        self._client.log_batch(
            self._id, metrics=[Metric(key, value, when, row.tokens) for key, value in row.values.items()]
        )

    def end(self, state: State) -> None:
        """Say what became of the job; a run whose job goes on stays open."""
        if state in _MLFLOW_ENDS:
            self._client.set_terminated(self._id, status=_MLFLOW_ENDS[state])


class WandbRun:
    """A run of Weights & Biases with the job's id; a step is a round, and curves are drawn over tokens."""

    def __init__(self, begin: RunBegin) -> None:
        import wandb

        # Of this computer nothing goes there: neither its command line, on which a key may stand, nor code, packages and load.
        quiet = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=30,
        )
        offline = wandb.setup().settings.mode in ("offline", "dryrun")
        if not offline and not wandb.login(prompt=False, verify=False):
            raise TrackerError("Weights & Biases has no key here: `wandb login`, or set WANDB_API_KEY")
        project = begin.target.place or os.environ.get("WANDB_PROJECT", PROJECT)
        entity, _, project = project.rpartition("/")
        self._run: Any = wandb.init(
            entity=entity or None,
            project=project,
            id=begin.job,
            name=begin.name,
            resume="allow",
            config={**begin.settings, JOB_TAG: begin.job, ADDRESS_TAG: begin.address},
            tags=[begin.job],
            notes=begin.address,
            settings=quiet,
        )
        self._run.define_metric("tokens")
        self._run.define_metric("*", step_metric="tokens")
        self.known = max(_newest(dict(self._run.summary)), _newest_offline(Path(self._run.dir).parent, begin.job))

    def add(self, row: RunRow) -> None:
        """A whole row; the library sends it from its own process, and keeps it where it cannot."""
        self._run.log(row.values, step=row.round, commit=True)

    def end(self, state: State) -> None:
        """Wait until everything is sent; the next one goes on in the same run."""
        self._run.finish(exit_code=1 if state == "failed" else 0)


def _newest(summary: dict[str, Any]) -> int:
    found = summary.get("round", 0)
    return int(found) if isinstance(found, int | float) else 0


def _newest_offline(mine: Path, job: str) -> int:
    """The newest round that earlier runs of this job have which were not sent: they are in folders beside ``mine``."""
    newest = 0
    for file in mine.parent.glob(f"offline-run-*-{job}/run-{job}.wandb"):
        if file.parent != mine:
            newest = max(newest, _newest(stored(file)["summary"]))
    return newest


def stored(file: Path) -> dict[str, Any]:
    """What a run's file has, in the words of the library's own reader.

    Raises:
        TrackerError: the library cannot read it.
    """
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--summary", "--json", str(file)]
    read = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    try:
        found: dict[str, Any] = json.loads(read.stdout)
        return found
    except ValueError as error:
        raise TrackerError(f"wandb cannot read {file}: {read.stderr.strip()[-200:] or 'it says nothing'}") from error

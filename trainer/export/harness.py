"""Tasks of lm-evaluation-harness (``lm_eval``) on a model folder, for whoever wants to know what a training has changed.

A line of JSON for each task, as it ends: ``{"task": "...", "results": [...]}`` (``protocol.evaluation.TaskResult``), or
``{"task": "...", "problem": "..."}``. Tasks are the library's own and those of folders that the operator names: a task's file can
run code, so a submitter brings none. Time and memory are bounded by whoever starts the process.

Source: https://github.com/EleutherAI/lm-evaluation-harness, ``lm_eval.simple_evaluate``.
"""

import logging
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from protocol.evaluation import MAX_NAME, MAX_RESULTS, EvaluationSpec, TaskResult
from trainer.errors import DataError

BATCH = 8  # Rows of a pass: a processor is hardly quicker with more.
BOOTSTRAPS = 1_000  # For the errors of metrics that are no means; the library's 100,000 take minutes.
_STDERR = "_stderr"

LOG = logging.getLogger(__name__)
Say = Callable[[dict[str, Any]], None]


def run_tasks(model: Path, asked: EvaluationSpec, folders: Sequence[Path], threads: int, say: Say) -> None:
    """Try a whole model's folder with each task.

    Raises:
        DataError: the folder cannot be opened as a causal language model.
    """
    torch.set_num_threads(threads)
    try:
        opened = HFLM(pretrained=str(model), device="cpu", dtype="auto", batch_size=BATCH)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        LOG.exception("the model cannot be opened")
        raise DataError("model", f"lm-evaluation-harness cannot open the model: {type(error).__name__}") from error
    tasks = manager(asked.tasks, folders)
    for name in asked.tasks:
        try:
            results = _run(opened, name, asked, tasks)
        except Exception as error:  # A task is a stranger's program: whatever it raises is this task's end alone.
            LOG.exception("task %s ended", name)
            say({"task": name, "problem": f"task {name} could not be run: {type(error).__name__}"})
        else:
            say({"task": name, "results": msgspec.to_builtins(results)})


def manager(names: Sequence[str], folders: Sequence[Path]) -> TaskManager:
    """What finds tasks: in the folders alone, where all are there."""
    paths = [str(folder) for folder in folders]
    own = TaskManager(include_path=paths, include_defaults=False) if paths else None
    if own is not None and set(names) <= set(own.all_tasks):
        return own
    return TaskManager(include_path=paths or None, include_defaults=True)


def end_with_input() -> None:
    """End this process as soon as its standard input does: whoever started it has gone."""

    def wait() -> None:
        while os.read(0, 1):  # Not through sys.stdin, whose lock this process's own end would wait for.
            pass
        os._exit(1)

    threading.Thread(target=wait, name="input", daemon=True).start()


def _run(model: HFLM, name: str, asked: EvaluationSpec, tasks: TaskManager) -> list[TaskResult]:
    found = simple_evaluate(
        model=model,
        tasks=[name],
        limit=asked.limit,
        task_manager=tasks,
        log_samples=False,
        bootstrap_iters=BOOTSTRAPS,
        apply_chat_template=asked.chat,
    )
    return results_of(found or {})


def results_of(found: Mapping[str, Any]) -> list[TaskResult]:
    """The numbers of what ``simple_evaluate`` returns; raises ValueError where there are none."""
    made: list[TaskResult] = []
    counted: Mapping[str, Mapping[str, int]] = found.get("n-samples", {})
    for task, values in found.get("results", {}).items():
        for key, value in values.items():
            metric, _, filtered = key.partition(",")
            if not filtered or metric.endswith(_STDERR) or not _is_number(value):
                continue
            said = values.get(f"{metric}{_STDERR},{filtered}")
            error = float(said) if _is_number(said) else None
            name = metric if filtered == "none" else key
            examples = counted.get(task, {}).get("effective")
            made.append(TaskResult(task[:MAX_NAME], name[:MAX_NAME], float(value), error, examples))
    if not made:
        raise ValueError("no metric of it came out as a number")
    return made[:MAX_RESULTS]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

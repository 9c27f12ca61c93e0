"""Tasks of lm-evaluation-harness that a model is tried with, before and after its training: what is asked, what came of it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from common.untrusted_text import Untrusted, View, untrusted

MAX_TASKS = 16
MAX_RESULTS = 1_000  # A group such as mmlu has results of each of its 57 tasks.
TaskName = Annotated[str, Meta(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:+-]*$")]
MAX_NAME = 120
ResultName = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
Finite = Annotated[float, Meta(ge=-1e300, le=1e300)]


class EvaluationSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks to try the model with. ``limit``: of each, the first so many examples.

    ``chat``: examples are put as the user's turns of the model's own chat template.
    """

    tasks: Annotated[tuple[TaskName, ...], Meta(min_length=1, max_length=MAX_TASKS)]
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 200
    chat: bool = False

    def __post_init__(self) -> None:
        """Refuse a task that is named twice."""
        twice = next((name for name in self.tasks if self.tasks.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"evaluation.tasks has {twice} twice: name each task once")


class TaskResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one model came to in one metric. ``error``: the standard error; ``examples``: that were counted, where it is told."""

    task: ResultName
    metric: ResultName
    value: Finite
    error: Finite | None = None
    examples: Annotated[int, Meta(ge=0)] | None = None


class EvaluationRow(View, frozen=True):
    """A metric of a task before and after the training, with its standard errors; ``None`` where there is none.

    ``examples``: that the finished model was tried with.
    """

    task: Untrusted
    metric: Untrusted
    before: float | None
    before_error: float | None
    after: float | None
    after_error: float | None
    examples: int | None


class EvaluationView(View, frozen=True):
    """What a job's tasks came to. ``note``: why there is nothing, or nothing of before."""

    state: Literal["waiting", "running", "done", "failed"]
    rows: tuple[EvaluationRow, ...] = ()
    note: Untrusted = Untrusted("")


def rows_of(before: tuple[TaskResult, ...], after: tuple[TaskResult, ...]) -> tuple[EvaluationRow, ...]:
    """Both models' results side by side, in the order of the second, then what only the first has."""
    first = {(one.task, one.metric): one for one in before}
    second = {(one.task, one.metric): one for one in after}
    found = []
    for key in dict.fromkeys((*second, *first)):
        old, new = first.get(key), second.get(key)
        examples = new.examples if new is not None else old.examples if old is not None else None
        found.append(EvaluationRow(untrusted(key[0]), untrusted(key[1]), *_numbers(old), *_numbers(new), examples))
    return tuple(found)


def _numbers(one: TaskResult | None) -> tuple[float | None, float | None]:
    return (None, None) if one is None else (one.value, one.error)

"""``cottage compare``: several jobs side by side, each a column; the page for it shares the settings."""

import bisect
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from coordinator.client.text import SIGN, amount, count, duration, ratio, size
from protocol.rest import api

MARKS = 8  # Rows of a curve: enough to see where one run overtakes another.


class Comparison(msgspec.Struct, frozen=True):
    """What ``--json`` prints. ``settings``: where the jobs differ, a value a job, empty where it has none."""

    runs: Sequence[api.RunCurve]
    settings: dict[str, list[str]]


def comparison(runs: Sequence[api.RunCurve]) -> Comparison:
    """Runs with the settings in which they differ."""
    return Comparison(runs, dict(differences([run.job for run in runs])))


def settings(view: api.JobView) -> list[tuple[str, str]]:
    """The job document as pairs, flat, in the words of the interface."""
    flat: list[tuple[str, str]] = []
    queue: list[tuple[str, Any]] = [("", msgspec.to_builtins(view.spec))]
    while queue:
        name, value = queue.pop(0)
        if isinstance(value, dict) and value:
            queue[0:0] = [(f"{name}.{key}" if name else str(key), part) for key, part in value.items()]
        elif value not in (None, ""):
            flat.append((name, str(value)))
    return flat


def differences(views: Sequence[api.JobView]) -> list[tuple[str, list[str]]]:
    """Settings in which the jobs differ: name, and each job's value."""
    tables = [dict(settings(view)) for view in views]
    names = list(dict.fromkeys(name for table in tables for name in table if name != "name"))
    rows = [(name, [table.get(name, "") for table in tables]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def marks_of(runs: Sequence[api.RunCurve]) -> list[int]:
    """Numbers of tokens at which the curves are read: evenly, up to the longest run's last one."""
    most = max((point.tokens for run in runs for point in (*run.train, *run.validation)), default=0)
    return sorted({-(-most * place // MARKS) for place in range(1, MARKS + 1)}) if most else []


def loss_at(points: Sequence[api.Metric], tokens: int) -> float | None:
    """The newest loss of a curve at ``tokens``; None: it has not begun there, or was over before."""
    place = bisect.bisect_right([point.tokens for point in points], tokens)
    if place == 0 or (place == len(points) and points[-1].tokens < tokens):
        return None
    return points[place - 1].loss


def compare_table(found: Comparison) -> RenderableType:
    """Figures, loss curves by tokens, and the settings that differ; a column a job."""
    views = [run.job for run in found.runs]
    table = Table(box=None, pad_edge=False)
    table.add_column("", style="dim", no_wrap=True)
    for view in views:
        table.add_column(Text(view.name), justify="right", overflow="fold")
    for name, values in _figures(views):
        table.add_row(name, *map(Text, values))
    for kind in ("validation", "train"):
        _curves(table, found.runs, kind)
    _section(table, "settings that differ")
    for name, values in found.settings.items():
        table.add_row(Text(name), *(Text(_shown(value)) for value in values))
    return table if found.settings else Group(table, Text("none: they were asked for with the same settings"))


def _figures(views: Sequence[api.JobView]) -> list[tuple[str, list[str]]]:
    return [
        ("job", [view.id[:8] for view in views]),
        ("state", [view.state for view in views]),
        ("tokens", [f"{count(view.tokens_done)} of {count(view.tokens_total)}" for view in views]),
        ("training loss", [_loss(view.train_loss) for view in views]),
        ("validation loss", [_loss(view.validation_loss) for view in views]),
        ("tokens/s", [count(view.tokens_per_second) for view in views]),
        ("took", ["not over" if view.ended is None else duration(view.ended - view.created) for view in views]),
        ("sent", [size(view.bytes_sent) for view in views]),
        ("beside the naive amount", [ratio(view.bytes_sent, view.bytes_naive) for view in views]),
        (f"price {SIGN}", [amount(view.quote.price) for view in views]),
        (f"paid {SIGN}", [amount(view.paid) for view in views]),
    ]


def _curves(table: Table, runs: Sequence[api.RunCurve], kind: str) -> None:
    _section(table, f"{'validation' if kind == 'validation' else 'training'} loss after tokens")
    for mark in marks_of(runs):
        values = [loss_at(getattr(run, kind), mark) for run in runs]
        if any(value is not None for value in values):
            table.add_row(count(mark), *map(_loss, values))


def _section(table: Table, title: str) -> None:
    table.add_section()
    table.add_row()
    table.add_row(Text(title, style="bold"))


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _shown(value: str) -> str:
    """A digest by its beginning; ``--json`` has it whole."""
    return f"{value[:12]}…" if re.fullmatch(r"[0-9a-f]{64}", value) else value

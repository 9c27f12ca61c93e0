"""What is seen while the demo runs: a live display on a terminal, plain lines elsewhere, nothing but errors with ``--json``."""

import time
from collections.abc import Sequence
from typing import Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from common.console import Terminal
from common.terminal import say
from coordinator.client.text import amount, size
from protocol.rest import api

_BARS = "▁▂▃▄▅▆▇█"
_STATE_MARKS = {
    "starting": "… starting",
    "ready": "○ ready",
    "training": "● training",
    "waiting": "◌ waiting",
    "spare": "◇ spare",
    "auditor": "◇ auditor",
    "lost": "✗ lost",
    "rejected": "✗ rejected",
    "done": "✓ done",
}
SPARKLINE_POINTS = 40


class DemoScreen(Protocol):
    """Where the course of events is told."""

    def say(self, text: str) -> None:
        """One thing that happened."""

    def show(self, job: api.JobView, nodes: Sequence[api.JobNode], losses: Sequence[float]) -> None:
        """The job as it is now."""

    def close(self) -> None: ...


class LineScreen:
    """One line an event, one a round: for logs and pipes. ``--json`` keeps standard output for the document."""

    def __init__(self) -> None:
        self._last = ("", -1)
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        say(f"[{time.monotonic() - self._started:6.1f} s] {text}", error=True)

    def show(self, job: api.JobView, nodes: Sequence[api.JobNode], losses: Sequence[float]) -> None:
        now = (job.state, job.rounds_done)
        if now == self._last:
            return
        self._last = now
        loss = "" if job.validation_loss is None else f", held-out loss {job.validation_loss:.3f}"
        self.say(
            f"{job.state}: {job.rounds_done} of {job.rounds_total} rounds, {job.tokens_done:,} tokens{loss}, "
            f"{job.tokens_per_second:,.0f} tokens/s"
        )

    def close(self) -> None:
        """Nothing is held."""


class LiveScreen:
    """The rich display."""

    def __init__(self, console: Terminal) -> None:
        self._view: RenderableType = Text("")
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._render)
        self._live.start()

    def say(self, text: str) -> None:
        self._live.console.print(Text.assemble((time.strftime("%H:%M:%S"), "dim"), f" {text}"))

    def show(self, job: api.JobView, nodes: Sequence[api.JobNode], losses: Sequence[float]) -> None:
        self._view = Panel(Group(_facts(job, losses), _nodes(nodes)), title=f"{job.name} · {job.state}", padding=(0, 1))

    def close(self) -> None:
        self._view = Text("")
        self._live.stop()

    def _render(self) -> RenderableType:
        return self._view


def _facts(job: api.JobView, losses: Sequence[float]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column()
    done = min(job.tokens_done, job.tokens_total)
    grid.add_row("progress", ProgressBar(total=max(job.tokens_total, 1), completed=done, width=40))
    eta = "" if job.eta_seconds is None else f", about {max(0.0, job.eta_seconds):.0f} s to go"
    grid.add_row("", f"{done:,} of {job.tokens_total:,} tokens, {job.rounds_done} of {job.rounds_total} rounds{eta}")
    grid.add_row("speed", f"{job.tokens_per_second:,.0f} tokens/s")
    grid.add_row("loss", f"{sparkline(losses)}  {_loss(job)}")
    grid.add_row("on the wire", wire_text(job.bytes_sent, job.bytes_naive))
    return grid


def _loss(job: api.JobView) -> str:
    parts = []
    if job.train_loss is not None:
        parts.append(f"training {job.train_loss:.3f}")
    if job.validation_loss is not None:
        parts.append(f"held-out {job.validation_loss:.3f}")
    return ", ".join(parts) or "not measured yet"


def _nodes(nodes: Sequence[api.JobNode]) -> Table:
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("node", "place", "state", "steps", "tokens", "sent", "verified"):
        table.add_column(column, justify="right" if column in ("steps", "tokens", "sent", "verified") else "left")
    for node in nodes:
        table.add_row(
            node.name,
            place(node),
            _STATE_MARKS[node.state],
            f"{node.steps:,}",
            f"{node.tokens:,}",
            size(node.bytes_sent),
            amount(node.verified),
        )
    return table


def place(node: api.JobNode) -> str:
    """Where a node stands in the job, in the words of the pages."""
    if node.state == "auditor":
        return "looks at work"
    return "spare" if node.stage is None or node.replica is None else f"stage {node.stage}, replica {node.replica}"


def sparkline(values: Sequence[float]) -> str:
    """The newest values as a row of bars, scaled between their least and greatest."""
    recent = values[-SPARKLINE_POINTS:]
    if len(recent) < 2:
        return ""
    low, high = min(recent), max(recent)
    span = (high - low) or 1.0
    return "".join(_BARS[round((value - low) / span * (len(_BARS) - 1))] for value in recent)


def wire_text(sent: int, naive: int) -> str:
    """Bytes between nodes beside those of plain float32 exchange."""
    share = "" if naive == 0 else f", {100 * sent / naive:.1f} % of the naive {size(naive)}"
    return f"{size(sent)}{share}"

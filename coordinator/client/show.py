"""Jobs on a terminal."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coordinator.client.deployments import (
    SERVING_SENTENCES,
    answered,
    bits_words,
    draft_words,
    drawn_again,
    held_by,
    hours,
    memory_words,
    nodes_sentence,
    prices,
    seconds_left,
    under_way,
    usual_words,
)
from coordinator.client.federation_words import federation_lines
from coordinator.client.text import (
    JOB_SENTENCES,
    SIGN,
    agreement,
    amount,
    count,
    duration,
    evaluation_sentence,
    measured,
    money,
    ratio,
    shape,
    size,
    takes,
    told_apart,
    work,
)
from protocol.evaluation import EvaluationView
from protocol.rest import api
from protocol.rest.account import KeyView
from protocol.rest.arrays import ArrayView

STYLES: dict[str, str] = {
    "settled": "green",
    "failed": "red",
    "cancelled": "yellow",
    "running": "cyan",
    "paused": "yellow",
    "passed": "green",
}

_RESULTS = ("task", "metric", "before", "after", "examples")


def jobs_table(views: Sequence[api.JobView]) -> RenderableType:
    """One row a job."""
    if not views:
        return Text("No jobs yet: `cottage submit job.yaml --data FILE` submits one.")
    table = Table(box=None, pad_edge=False)
    table.add_column("job", no_wrap=True, min_width=32)  # Whole, to be copied into the next command.
    for title in ("name", "state", "progress", "loss", f"paid {SIGN}"):
        table.add_column(title)
    for view in views:
        loss = "" if view.validation_loss is None else f"{view.validation_loss:.3f}"
        table.add_row(view.id, Text(view.name), _state(view.state), _progress(view), loss, amount(view.paid))
    return table


def _progress(view: api.JobView) -> str:
    if view.array is not None:
        return f"{view.array.done + view.array.failed} of {view.array.count}"
    if view.spec.serve is None:
        return f"{view.rounds_done} of {view.rounds_total}"
    return "serves" if view.serving is None else f"{count(view.serving.answers)} answers"


def keys_table(keys: Sequence[KeyView]) -> RenderableType:
    """One row an API key."""
    if not keys:
        return Text("No keys yet: `cottage keys --new NAME` makes one.")
    table = Table(box=None, pad_edge=False)
    for title in ("id", "name", "may", "expires", "last used"):
        table.add_column(title, no_wrap=title == "id")
    for key in keys:
        table.add_row(key.id, Text(key.name), ", ".join(key.scopes), _day(key.expires), _day(key.used))
    return table


def _day(moment: float | None) -> str:
    return "never" if moment is None else datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")


def quote_table(quote: api.Quote) -> RenderableType:
    """A quote as a list of figures, its problems last; of a job that cannot be priced these alone."""
    problems = [Text(f"✗ {problem}", style="red") for problem in quote.problems]
    if problems and not quote.parameters:
        return Group(*problems)
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [
        ("price", f"{money(quote.price)}{_range(quote)}"),
        ("takes about", takes(quote)),
        ("work", f"{work(quote.operations)}, {count(quote.parameters)} parameters, {count(quote.tokens)} tokens"),
        ("shape", f"{shape(quote.stages, quote.replicas)}, {quote.rounds} rounds"),
        ("memory", " + ".join(f"{part:,} MB" for part in quote.memory_mb_per_stage) or "not planned"),
        ("limited by", quote.limit),
        *([("for 10^15 operations", money(quote.rate))] if quote.rate else []),
        *([("fee of the ledger", f"{quote.fee_lamports:,} lamports")] if quote.fee_lamports else []),
        *[("" if place else "because", reason) for place, reason in enumerate(quote.reasons)],
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return Group(table, *problems)


def deployment_quote_table(quote: api.Quote, budget: int | None = None, proposed: bool = False) -> RenderableType:
    """What it costs that a model answers.

    Args:
        budget: that was asked for; of one that is too small the quote has the least that there may be.
        proposed: nobody has named the budget.
    """
    problems = [Text(f"✗ {problem}", style="red") for problem in quote.problems]
    if problems and not quote.parameters:
        return Group(*problems)
    table = Table(show_header=False, box=None, pad_edge=False)
    budget = quote.price if budget is None else budget
    most = f", {usual_words(quote, budget)}, since none was named" if proposed else ""
    rows = [
        (
            "being ready",
            f"{money(quote.price_low)} for {held_by(quote.stages, quote.replicas)} and {hours(quote.hours)}",
        ),
        ("budget", f"{money(budget)}, the most that is paid{most}"),
        *[("prices" if not place else "", reason) for place, reason in enumerate(quote.reasons)],
        ("model", f"{count(quote.parameters)} parameters, {memory_words(quote)}"),
        *([("limited by", quote.limit)] if quote.limit else []),
        *([("for 10^15 operations", money(quote.rate))] if quote.rate else []),
        *([("fee of the ledger", f"{quote.fee_lamports:,} lamports")] if quote.fee_lamports else []),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return Group(table, *problems)


def array_quote_table(quote: api.Quote, budget: int | None = None, proposed: bool = False) -> RenderableType:
    """What it costs that a container runs for each element. ``proposed``: nobody has named the budget."""
    problems = [Text(f"✗ {problem}", style="red") for problem in quote.problems]
    if problems and not quote.operations:
        return Group(*problems)
    table = Table(show_header=False, box=None, pad_edge=False)
    budget = quote.price if budget is None else budget
    most = ", since none was named" if proposed else ""
    rows = [
        ("likely", money(quote.price_likely)),
        ("budget", f"{money(budget)}, the most that is paid{most}"),
        ("takes about", takes(quote)),
        *[("because" if not place else "", reason) for place, reason in enumerate(quote.reasons)],
        *([("limited by", quote.limit)] if quote.limit else []),
        *([("for 10^15 operations", money(quote.rate))] if quote.rate else []),
        *([("fee of the ledger", f"{quote.fee_lamports:,} lamports")] if quote.fee_lamports else []),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return Group(table, *problems)


def job_panel(view: api.JobView, events: Sequence[api.JobEvent] = ()) -> RenderableType:
    """The job as it is now: state, progress, figures, the last events."""
    lines = _training(view) if view.spec.trains else _serving(view) if view.array is None else _mapped(view, view.array)
    if view.federation is not None:
        lines += [Text(line) for line in federation_lines(view.federation)]
    if view.reason:
        lines.append(Text(view.reason, style="red" if view.state == "failed" else ""))
    if view.evaluation is not None:
        lines += [Text(evaluation_sentence(view.evaluation)), *_results(view.evaluation)]
    lines += [Text(f"  {event.text}", style="dim") for event in events]
    return Group(*lines)


def _serving(view: api.JobView) -> list[RenderableType]:
    """A deployment: who answers, what was answered and checked, what it costs."""
    said = view.sentence or SERVING_SENTENCES[view.state]
    lines: list[RenderableType] = [
        Text.assemble((view.name, "bold"), "  ", _state(view.state), "  ", said),
        _bar(view.cost, max(1, view.cap or view.spec.budget)),
    ]
    if (serving := view.serving) is not None:
        if view.ended is None:
            lines.append(Text(f"{nodes_sentence(serving)} · {under_way(serving)}"))
        if view.spec.serve is not None and (bits := bits_words(view.spec.serve)):
            lines.append(Text(f"nodes hold the model{bits}", style="dim"))
        if view.spec.serve is not None and (draft := draft_words(view.spec.serve)):
            lines.append(Text(draft, style="dim"))
        lines += [Text(answered(serving)), Text(drawn_again(serving)), Text(prices(serving), style="dim")]
    lines.append(Text(f"cost so far {money(view.cost)} of {amount(view.cap or view.spec.budget)}, never more"))
    left = "" if view.ended is not None else f" · ends in {duration(seconds_left(view, time.time()))} at the latest"
    lines.append(Text(f"paid {money(view.paid)} of {amount(view.escrow)}{left}"))
    return lines


def made_sure(array: ArrayView) -> str:
    """How many runs were compared, or looked at, in words."""
    if not array.looked:
        return f"{array.checked:,} of them beside another owner's"
    refused = f", which refused {array.refused:,} and took another owner's" if array.refused else ""
    return f"{array.looked:,} of them the checker's{refused}"


def _mapped(view: api.JobView, array: ArrayView) -> list[RenderableType]:
    """An array job: how many elements have ended, what was compared, what it costs."""
    were = "result was" if array.wrong == 1 else "results were"
    wrong = f", {array.wrong:,} {were} wrong" if array.wrong else ""
    left = "" if view.ended is not None else f" · ends in {duration(seconds_left(view, time.time()))} at the latest"
    return [
        Text.assemble((view.name, "bold"), "  ", _state(view.state), "  ", view.sentence),
        _bar(array.done + array.failed, max(1, array.count)),
        Text(f"{array.runs:,} runs hold, {made_sure(array)}{wrong}"),
        Text(f"cost so far {money(view.cost)} of {amount(view.cap or view.spec.budget)}, never more"),
        Text(f"paid {money(view.paid)} of {amount(view.escrow)}{left}"),
    ]


def _training(view: api.JobView) -> list[RenderableType]:
    loss = "" if view.validation_loss is None else f"validation loss {view.validation_loss:.3f}"
    if view.first_validation_loss is not None:
        loss += f" (from {view.first_validation_loss:.3f})"
    if view.preference is not None:
        loss += f", {told_apart(view.preference)}"
    if view.agreement is not None:
        loss += f", {agreement(view.agreement)}"
    lines: list[RenderableType] = [
        Text.assemble((view.name, "bold"), "  ", _state(view.state), "  ", view.sentence or JOB_SENTENCES[view.state]),
        _bar(view.rounds_done, max(1, view.rounds_total)),
        Text(f"round {view.rounds_done} of {view.rounds_total} · {count(view.tokens_per_second)} tokens/s · {loss}"),
        Text(f"sent {size(view.bytes_sent)}, {ratio(view.bytes_sent, view.bytes_naive)} than the naive amount"),
        Text(f"cost so far {money(view.cost)}, at most {amount(view.cost_projected)} in all; cap {amount(view.cap)}"),
        Text(f"paid {money(view.paid)} of {amount(view.escrow)} · time left {time_left(view)}"),
    ]
    if view.quote.limit and view.state in ("planned", "running"):
        lines.append(Text(f"limited by {view.quote.limit}", style="dim"))
    return lines


def _results(found: EvaluationView) -> list[RenderableType]:
    if not found.rows:
        return []
    table = Table(box=None, pad_edge=False)
    for title in _RESULTS:
        table.add_column(title)
    for cells in _cells(found):
        table.add_row(*map(Text, cells))
    return [table]


def _cells(found: EvaluationView) -> list[tuple[str, ...]]:
    """A row of ``_RESULTS`` each."""
    return [
        (
            row.task,
            row.metric,
            measured(row.before, row.before_error),
            measured(row.after, row.after_error),
            "" if row.examples is None else str(row.examples),
        )
        for row in found.rows
    ]


def evaluation_section(found: EvaluationView) -> str:
    """A part of a model's README, in Markdown; empty without results."""
    if not found.rows:
        return ""
    rows = [_RESULTS, ("---",) * len(_RESULTS), *_cells(found)]
    lines = [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in rows]
    said = "By lm-evaluation-harness, on the coordinator: the model that it started from, and this one."
    return "\n".join(["", "## Evaluation", "", said, "", *lines, ""])


def _bar(done: int, total: int) -> RenderableType:
    """A bar on a line of its own: rich ends none after a bare one, and what follows a full one is cut off."""
    line = Table.grid(expand=True)
    line.add_row(ProgressBar(total=total, completed=done))
    return line


def time_left(view: api.JobView) -> str:
    """The time that is left, with its uncertainty; never negative."""
    if view.ready_likely is None or view.ready_low is None or view.ready_high is None:
        return duration(None)
    now = time.time()
    low, likely, high = (duration(max(0.0, at - now)) for at in (view.ready_low, view.ready_likely, view.ready_high))
    return likely if low == high else f"about {likely} ({low} to {high})"


def output_text(output: api.OutputView) -> str:
    """A line or two of where a model goes, and how far that is."""
    where = f"{output.url} at {output.endpoint or f'AWS, {output.region}'}"
    said = f"\nThe server said: {output.answer}" if output.answer else ""
    match output.state:
        case "sent":
            return f"{where}: everything has arrived, {len(output.sent)} objects"
        case "failed":
            return f"{where}: given up after {output.attempts} attempts. Name it again once that is mended.{said}"
        case "waiting":
            return f"{where}: {len(output.sent)} objects have arrived, and more come as the job goes on{said}"


def log_text(lines: Sequence[api.LogLine], end: str = "\n") -> RenderableType:
    """A job's log, oldest first. ``end``: what follows a line."""
    shown = Text()
    for line in lines:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.time))
        who = f" {line.node}" if line.node else ""
        shown.append(f"{when} {line.level:<7}{who}  ", style="red" if line.level == "error" else "dim")
        shown.append(f"{line.text}{end}")
    return shown if lines else Text("No such lines.")


def checkpoints_table(views: Sequence[api.CheckpointView]) -> RenderableType:
    """One row a checkpoint."""
    if not views:
        return Text("No checkpoint is stored yet.")
    table = Table(box=None, pad_edge=False)
    for title in ("rounds", "tokens", "loss", "validation", "verified", "size", "SHA-256 of its stages"):
        table.add_column(title)
    for view in views:
        losses = ("" if loss is None else f"{loss:.3f}" for loss in (view.train_loss, view.validation_loss))
        digests = "\n".join(part.sha256 for part in view.parts)
        checked = "yes" if view.verified else "not yet"
        table.add_row(str(view.round), count(view.tokens), *losses, checked, size(view.bytes), digests)
    return table


def funding_table(funding: api.Funding) -> RenderableType:
    """What a wallet must do, parameter by parameter."""
    table = Table(show_header=False, box=None, pad_edge=False)
    rows = [
        ("amount", f"{amount(funding.amount)}  ({funding.amount} millionths)"),
        ("for the coordinator", funding.coordinator),
        ("job key", funding.job_key),
        ("until (Unix seconds)", str(funding.deadline)),
        ("room for payees", str(funding.max_payees)),
        ("ledger", funding.ledger_url),
        ("program", funding.program),
        ("mint", funding.mint),
    ]
    for name, value in rows:
        table.add_row(Text(name, style="dim"), Text(value))
    return table


def _range(quote: api.Quote) -> str:
    if quote.price_low == quote.price_high:
        return ""
    likely = f", likely {amount(quote.price_likely)}" if quote.price_likely else ""
    return f"  (between {amount(quote.price_low)} and {amount(quote.price_high)}{likely})"


def _state(state: str) -> Text:
    return Text(state, style=STYLES.get(state, "bold"))

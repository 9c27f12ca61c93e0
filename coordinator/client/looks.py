"""Commands that look at the account and the books: ``trail``, ``notices``, ``check``, and the lists of ``cottage ledger``."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from common.console import Terminal
from coordinator.client.client import Client
from coordinator.client.show import STYLES
from coordinator.client.text import amount, count, money, short
from protocol.datasets.file_formats import WORDS
from protocol.rest import api, ledger
from protocol.rest.account import TrailView
from protocol.rest.dataset import Check, DatasetReport, Finding, RenderedPart

_BYTES = 259  # The vocabulary of a tokenizer of bytes, see ``TokenizerSpec``.
_CONTENT = {
    "conversations": "conversations",
    "pairs": "prompts with completions",
    "preferences": "prompts with two answers",
}
_LOUD = {"error": "red", "warning": "yellow", "notice": ""}


async def check(
    client: Client, artifact: str, options: argparse.Namespace, kind: str, out: Terminal, tokenizer: Mapping[str, Any]
) -> Check:
    """Have a dataset looked through, with a bar where somebody watches."""
    given = {name: getattr(options, name) for name in ("text_field", "encoding", "learn")}
    dataset = {"artifact": artifact, "format": kind, **given}
    wanted: dict[str, Any] = {"dataset": dataset, "tokenizer": tokenizer, "sequence": options.sequence}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
    with Progress(*columns, console=out, disable=options.json) as bar:
        task = bar.add_task("checking", total=None)
        return await client.checked(wanted, lambda now: bar.update(task, completed=now.read, total=now.size))


def check_table(found: Check) -> RenderableType:
    """What a check found, the worst last."""
    if found.report is None:
        return Text(found.problem, style="red")
    report = found.report
    shown = _titled("what is dim is not learnt:", report.rendered) + _titled(
        "and the rejected answer:", report.rejected
    )
    return Group(_figures(report), *shown, _findings(report), Text(report.problem, style="red"))


def trail_table(trail: Sequence[TrailView]) -> RenderableType:
    """One row a thing that was done."""
    if not trail:
        return Text("Nothing was done yet.")
    table = _table("when", "what", "which", "by", "from")
    for one in trail:
        table.add_row(moment(one.time), one.action, Text(one.subject), one.via, one.address)
    return table


def notices_table(now: api.NoticesView, sent: Sequence[api.Delivery]) -> RenderableType:
    """Where the account is told what, and what became of the last notices. The webhook's secret stays unsaid."""
    table = Table(show_header=False, box=None, pad_edge=False)
    mail = f"{now.mail or 'none'}{'' if now.confirmed or not now.mail else ', not confirmed yet'}"
    for name, value, kinds in (("webhook", now.webhook or "none", now.webhook_kinds), ("mail", mail, now.mail_kinds)):
        table.add_row(Text(name, style="dim"), Text(value), "" if value == "none" else "when " + ", ".join(kinds))
    if not now.mails:
        table.add_row("", Text("This coordinator sends no mail.", style="dim"), "")
    if not sent:
        return table
    log = _table("when", "what", "job", "to", "state", "answer")
    for one in sent:
        log.add_row(moment(one.created), one.kind, one.job, Text(one.target), one.state, Text(one.answer))
    return Group(table, Text(), log)


def entries_table(entries: Sequence[ledger.LedgerEntry]) -> RenderableType:
    """One row a transaction."""
    if not entries:
        return Text("No such transactions.")
    table = _table("when", "kind", "state", "amount", "job", "transaction")
    for one in entries:
        paid = amount(one.amount) if one.amount else ""
        table.add_row(moment(one.time), one.kind, one.state, paid, one.job, short(one.signature))
    return table


def audits_table(audits: Sequence[ledger.NodeAudit]) -> RenderableType:
    """One row an audit."""
    if not audits:
        return Text("No such audits.")
    table = _table("job", "round", "step", "node", "auditor", "state")
    for one in audits:
        a = one.audit
        state = Text(a.state, style=STYLES.get(a.state, ""))
        table.add_row(one.job, str(a.round), str(a.step), short(a.node), short(a.auditor or ""), state)
    return table


def totals_table(totals: ledger.LedgerTotals) -> RenderableType:
    """Where all the money is."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name in ("deposited", "paid", "refunded", "held", "slashed"):
        table.add_row(Text(name, style="dim"), money(getattr(totals, name)))
    wrong = "" if totals.difference == 0 else f"{money(totals.difference)} are not accounted for"
    return Group(table, Text(wrong, style="red")) if wrong else table


def moment(seconds: float) -> str:
    """A time, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _figures(report: DatasetReport) -> RenderableType:
    tokens = count(report.tokens) if report.exact else f"about {count(report.tokens)}"
    what = "" if report.content == "texts" else f" ({_CONTENT[report.content]})"
    learnt = "" if report.learnt is None or not report.learnt else f", {count(report.learnt)} of them learnt"
    rows = f"{report.rows:,} rows{what}, {report.usable:,} of them usable"
    read = "" if report.format == "auto" else f"read as {WORDS[report.format]}: "
    kind = " (bytes)" if report.vocabulary == _BYTES else ""
    return Text(f"{read}{rows}; {tokens} tokens{kind}{learnt}; the longest row has {report.longest:,} characters")


def _titled(title: str, parts: Sequence[RenderedPart]) -> list[Text]:
    """The first conversation as the model meets it, if there is one."""
    said = Text.assemble(*((part.text, "" if part.learnt else "dim") for part in parts))
    return [Text("\n").join([Text(title), said])] if parts else []


def _findings(report: DatasetReport) -> RenderableType:
    lines: list[RenderableType] = []
    for one in sorted(report.findings, key=lambda finding: -list(_LOUD).index(finding.severity)):
        lines.append(Text(f"{one.severity}: {one.text}", style=_LOUD[one.severity]))
        lines += [Text(f"  {line}", style="dim") for line in _places(one)]
    return Group(*lines)


def _places(finding: Finding) -> list[str]:
    """A line for each row of which something is to be shown, which may name the row itself, and one with all the others."""
    shown = []
    for place in finding.places:
        row = f"row {place.row:,}"
        if place.shown:
            shown.append(place.shown if place.shown.startswith((f"{row} ", f"{row},")) else f"{row}  {place.shown}")
    if bare := [f"{place.row:,}" for place in finding.places if not place.shown]:
        more = finding.rows - len(finding.places)
        shown.append(f"rows {', '.join(bare)}" + (f" and {more:,} more" if more > 0 else ""))
    return shown


def _table(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, no_wrap=title in ("when", "job"), justify="right" if title == "amount" else "left")
    return table

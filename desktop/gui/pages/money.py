"""Earnings: the card of the first page, and the page of all jobs."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QDate, QLocale, Qt, Signal
from PySide6.QtGui import QGuiApplication, QResizeEvent, QShowEvent
from PySide6.QtWidgets import (
    QAbstractItemView,
    QFileDialog,
    QHBoxLayout,
    QHeaderView,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from common.token_worth import TokenWorth
from common.untrusted_text import untrusted
from desktop.answers import EarningsDay, EarningsSummary, JobEarnings, PayReason
from desktop.gui.charts import Bar, Bars
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.model import Status, plain, read
from desktop.gui.pages.no_earnings import NoEarningsCard
from desktop.gui.paywords import PayWords
from desktop.gui.proof import ProofCheck
from desktop.gui.sentences import in_currency, moment, money
from desktop.gui.widgets import Card, ChoiceButtons, FlowBox, Text, button
from ledger.money import show

UNKNOWN = "–"
COLUMNS = 6
TODAY_SIZE = 18  # Points more than usual: the number that an owner looks for.
NUMBERS = (2, 3, 4)  # Stand right, and so do their headers.


class EarningsCard(Card):
    """Today in large, seven days, all time, and a bar a day."""

    withdraw_asked = Signal()
    more_asked = Signal()

    def __init__(self) -> None:
        super().__init__(self.tr("Earnings"))
        self._numbers, pairs = dict[str, Text](), list[QWidget]()
        for key, caption in (
            ("today", self.tr("Today")),
            ("week", self.tr("Last 7 days")),
            ("verified", self.tr("All time")),
            ("open", self.tr("To be paid")),
        ):
            size = TODAY_SIZE if key == "today" else 6
            holder, number, label = QWidget(), Text(size=size, bold=True), Text(dim=True)
            pair = QVBoxLayout(holder)
            pair.addStretch()  # All captions of a row stand on one line.
            label.say(caption)
            number.setProperty("caption", caption)
            pair.setSpacing(0)
            pair.setContentsMargins(0, 0, 0, 0)
            for text in (number, label):
                text.setWordWrap(False)  # In a narrow window the pairs go into a second row instead.
                pair.addWidget(text)
            pairs.append(holder)
            self._numbers[key] = number
        self.bars = Bars(self.tr("What was verified on each of the last seven days"))
        self.bars.picked.connect(lambda _: self.more_asked.emit())
        self.nothing = Text(dim=True)
        self.nothing.say(self.tr("Nothing yet. Jobs come by themselves; what was checked of them is counted here."))
        self.nothing.hide()
        self.unit = Text(dim=True)
        self.withdraw = button(self.tr("&Withdraw…"), self.withdraw_asked.emit)
        more = button(self.tr("All &jobs"), self.more_asked.emit, "link")
        last = QHBoxLayout()
        last.addWidget(more)
        last.addWidget(self.unit, 1)
        last.addWidget(self.withdraw)
        self.body.addWidget(FlowBox(pairs, 16))
        self.body.addWidget(self.nothing)
        self.body.addWidget(self.bars)
        self.body.addLayout(last)
        self.show_status(None)

    def number(self, key: str) -> Text:
        """The number under ``key``: today, week, verified or open."""
        return self._numbers[key]

    def show_status(self, status: Status | None) -> None:
        """The sums."""
        values = dict.fromkeys(self._numbers, UNKNOWN)
        if status is not None:
            values = {
                "today": money(status.today),
                "week": money(status.week),
                "verified": money(status.verified),
                "open": money(status.verified - status.paid) if status.verified > status.paid else money(0),
            }
        for key, label in self._numbers.items():
            label.say(values[key], str(label.property("caption")))
        self.unit.say(self.tr("In tokens."))
        if status is not None and (worth := status.worth) is not None:
            text = self.tr("In tokens: today about {0}, all time about {1}.")
            self.unit.say(text.format(in_currency(status.today, worth), in_currency(status.verified, worth)))
        self.withdraw.setEnabled(status is not None)

    def show_days(self, days: Sequence[EarningsDay]) -> None:
        """The bars; without any, what will be here."""
        self.bars.show_bars(bars_of(days[-7:]))
        some = any(day.verified for day in days)
        self.bars.setVisible(some)
        self.nothing.setVisible(not some)


def bars_of(days: Sequence[EarningsDay]) -> list[Bar]:
    """A bar for each day, the last one called today."""
    found = []
    for day in days:
        date = QDate.fromString(day.day, Qt.DateFormat.ISODate)
        label = QLocale().toString(date, "ddd" if len(days) <= 7 else "d.M.")
        found.append(Bar(label, day.verified, money(day.verified)))
    return found


class JobsTable(QTableWidget):
    """The first column has what the others leave, and never less than a name takes; ``Stretch`` would not give room back."""

    MIN_NAME = 110

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(rows, columns)
        header = self.horizontalHeader()
        header.setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.Fixed)
        header.setHighlightSections(False)
        header.sectionResized.connect(lambda column, *_: self._fit() if column else None)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Share the new width."""
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        others = sum(self.columnWidth(column) for column in range(1, self.columnCount()))
        self.setColumnWidth(0, max(self.MIN_NAME, self.viewport().width() - others))


class EarningsPage(QWidget):
    """All jobs: what each brought, and whether it is paid, with the proof."""

    withdraw_asked = Signal()
    toggle_asked = Signal()

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls, self._summary = calls, EarningsSummary(0, 0, None, ())
        self._words = PayWords()
        self._proof, self._proofs = ProofCheck(parent=self), dict[str, str]()
        self._proof.said.connect(self._checked)
        self._rows: list[tuple[JobEarnings, PayReason | None]] = []
        self._worth: TokenWorth | None = None
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(12)
        self.empty, self.chart, self.jobs = NoEarningsCard(), self._chart_card(), self._jobs_card()
        self.empty.start.clicked.connect(lambda _: self.toggle_asked.emit())
        self.empty.hide()  # Until the agent says that there is nothing.
        column.addWidget(self.empty)
        column.addWidget(self.chart)
        column.addWidget(self.jobs, 1)
        column.addStretch()

    def _chart_card(self) -> Card:
        card, row = Card(), QHBoxLayout()
        self.total = Text(size=4, bold=True)
        self.span = ChoiceButtons(
            self.tr("Days that are shown"), ((self.tr("7 days"), "7"), (self.tr("30 days"), "30"))
        )
        self.span.picked.connect(lambda _: self._show_chart())
        self.bars = Bars(self.tr("What was verified each day"))
        self.power = Text(dim=True)
        row.addWidget(self.total, 1)
        row.addWidget(self.span)
        card.body.addLayout(row)
        card.body.addWidget(self.bars)
        card.body.addWidget(self.power)
        return card

    def _jobs_card(self) -> Card:
        card = Card(self.tr("Jobs"))
        self.table = JobsTable(0, COLUMNS)
        self.table.setAccessibleName(self.tr("Jobs and what they brought"))
        self.table.setHorizontalHeaderLabels(
            [self.tr("Job"), self.tr("When"), self.tr("Hours"), self.tr("Verified"), self.tr("Paid"), self.tr("State")]
        )
        for column in range(COLUMNS):
            side = Qt.AlignmentFlag.AlignRight if column in NUMBERS else Qt.AlignmentFlag.AlignLeft
            if (header := self.table.horizontalHeaderItem(column)) is not None:
                header.setTextAlignment(side | Qt.AlignmentFlag.AlignVCenter)
        self.table.verticalHeader().hide()
        self.table.setShowGrid(False)
        self.table.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.table.setSelectionMode(QAbstractItemView.SelectionMode.SingleSelection)
        self.table.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.table.setTabKeyNavigation(False)
        self.table.setMinimumHeight(150)
        self.table.itemSelectionChanged.connect(self._selected)
        self.trouble = Text(dim=True)
        self.trouble.hide()
        self.why, self.proven = Text(dim=True), Text()
        self.proven.hide()
        self.check = button(self.tr("Chec&k the proof"), self._check)
        self.check.setEnabled(False)
        self.copy = button(self.tr("Copy the &proof's command"), self._copy)
        self.copy.setEnabled(False)
        self.export = button(self.tr("Save as CS&V…"), self._save)
        buttons = FlowBox(
            [self.check, self.copy, self.export, button(self.tr("&Withdraw…"), self.withdraw_asked.emit)], 8
        )
        for part in (self.trouble, self.table, self.why, self.proven, buttons):
            card.body.addWidget(part)
        return card

    def showEvent(self, event: QShowEvent) -> None:
        self.refresh()

    def refresh(self) -> None:
        """Ask the agent anew."""
        self._calls.get("earnings", self._take)

    def _take(self, body: bytes) -> None:
        try:
            self.show_summary(read(body, EarningsSummary))
        except AnswerError as error:
            self.trouble.say(str(error))
            self.trouble.show()

    def show_power(self, status: Status) -> None:
        """What a kWh costs, and what a token is worth."""
        if status.worth != self._worth:
            self._worth = status.worth
            self._show_chart()
        if status.electricity:
            cost = f"{money(status.electricity)}\u00a0{status.currency or self.tr('tokens')}"
            text = self.tr("Before electricity, which costs you {0} a kWh (Settings, Money).").format(cost)
        else:
            text = self.tr("Before electricity. Settings, Money: what a kWh costs you.")
        self.power.say(text)

    def show_summary(self, summary: EarningsSummary) -> None:
        """Everything anew; the picked job stays picked."""
        picked = self._job()
        self._summary = summary
        self._show_chart()
        is_empty = not summary.jobs and not summary.verified
        self.trouble.hide()
        self.empty.setVisible(is_empty)
        for part in (self.chart, self.jobs):
            part.setVisible(not is_empty)
        self.table.setRowCount(0)  # Spans of the rows of before would stay.
        self._rows = rows_of(summary.jobs)
        self.table.setRowCount(len(self._rows))
        for number, (job, reason) in enumerate(self._rows):
            if reason is not None:
                self._show_reason(number, reason)
                continue
            self._show_job(number, job)
            if picked is not None and job.job == picked.job:
                self.table.selectRow(number)
        self.export.setEnabled(bool(summary.jobs))
        self._selected()

    def _show_chart(self) -> None:
        days = self._summary.days[-int(self.span.value) :]
        self.bars.show_bars(bars_of(days))
        text = self.tr("{0} in {1} days, {2} in all")
        said = text.format(money(sum(day.verified for day in days)), len(days), money(self._summary.verified))
        if self._worth is not None:
            said += self.tr(" (about {0})").format(in_currency(self._summary.verified, self._worth))
        self.total.say(said)

    def _show_job(self, number: int, job: JobEarnings) -> None:
        cells = (
            plain(job.name, 60) or job.job[:8],
            moment(job.first),
            QLocale().toString(job.seconds / 3600, "f", 2),
            money(job.verified),
            money(job.paid),
            self.standing(job),
        )
        why = " ".join(self._words.said(reason) for reason in job.reasons)
        for column, text in enumerate(cells):
            item = QTableWidgetItem(text)
            item.setToolTip("")
            item.setData(
                Qt.ItemDataRole.AccessibleTextRole, f"{text}. {why}" if why and column == COLUMNS - 1 else text
            )
            if column in NUMBERS:
                item.setTextAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
            self.table.setItem(number, column, item)

    def _show_reason(self, number: int, reason: PayReason) -> None:
        """A row under a job's: why it stands so, across the table."""
        item = QTableWidgetItem(self._words.said(reason))
        item.setForeground(self.palette().placeholderText())
        item.setToolTip("")
        item.setFlags(Qt.ItemFlag.ItemIsEnabled)
        self.table.setSpan(number, 0, 1, COLUMNS)
        self.table.setItem(number, 0, item)

    def standing(self, job: JobEarnings) -> str:
        """In a word, which begins with a sign."""
        match job.standing:
            case "working":
                return self.tr("▶ Working")
            case "paid":
                return self.tr("✓ Paid")
            case "pending":
                return self.tr("… Pending")
            case "not paid":
                return self.tr("✕ Not paid")

    def reason(self, job: JobEarnings) -> str:
        """Why it stands so, in whole sentences."""
        said = [self._words.said(reason) for reason in job.reasons]
        return " ".join(said) or self.tr("The command checks the coordinator's word against the ledger.")

    def _job(self) -> JobEarnings | None:
        rows = self.table.selectionModel().selectedRows()
        return self._rows[rows[0].row()][0] if rows and rows[0].row() < len(self._rows) else None

    def _selected(self) -> None:
        job = self._job()
        self.copy.setEnabled(job is not None and bool(job.proof))
        self._show_proof(job)
        self.why.say(self.reason(job) if job is not None else self.tr("Choose a job to read why it stands so."))

    def _check(self) -> None:
        if (job := self._job()) is not None:
            self._proofs[job.job] = self.tr("Comparing the coordinator's word with the ledger…")
            self._proof.begin(job.job, job.proof)
            self._show_proof(job)

    def _checked(self, job: str, text: str) -> None:
        self._proofs[job] = text
        self._selected()

    def _show_proof(self, job: JobEarnings | None) -> None:
        text = "" if job is None else self._proofs.get(job.job, "")
        self.proven.say(text)
        self.proven.setVisible(bool(text))
        self.check.setEnabled(job is not None and bool(job.proof) and not self._proof.is_running)

    def _copy(self) -> None:
        if (job := self._job()) is not None:
            QGuiApplication.clipboard().setText(plain(job.proof, 1000))

    def _save(self) -> None:
        name, _ = QFileDialog.getSaveFileName(self, self.tr("Save earnings"), "cottage-earnings.csv", "CSV (*.csv)")
        if name:
            try:
                Path(name).write_text(table_of(self._summary), encoding="utf-8")
            except OSError as error:
                self.why.say(self.tr("{0} cannot be written: {1}.").format(name, error.strerror))


def rows_of(jobs: Sequence[JobEarnings]) -> list[tuple[JobEarnings, PayReason | None]]:
    """The rows of the table: each job, and under it each reason why it stands so."""
    return [(job, reason) for job in jobs for reason in (None, *job.reasons)]


def table_of(summary: EarningsSummary) -> str:
    """Every job as CSV, amounts as exact decimals of the token."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("job", "name", "began", "seconds", "verified", "paid", "standing", "why"))
    for job in summary.jobs:
        plain_name = untrusted(job.name)
        # A spreadsheet would run it.
        name = f"'{plain_name}" if plain_name.startswith(("=", "+", "-", "@")) else plain_name
        writer.writerow(
            (
                job.job,
                name,
                int(job.first),
                int(job.seconds),
                show(job.verified),
                show(job.paid),
                job.standing,
                "; ".join(reason.why for reason in job.reasons),
            )
        )
    return text.getvalue()

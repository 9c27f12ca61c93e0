"""What has happened here, in plain words, newest first; and a report for somebody who helps."""

from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication, QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QListWidget, QListWidgetItem, QPlainTextEdit, QVBoxLayout, QWidget

from common.untrusted_text import untrusted_lines
from desktop.answers import ActivityEvent, ActivityEvents, SupportReport
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.model import plain, read
from desktop.gui.sentences import Sentences, moment, money
from desktop.gui.widgets import Card, ChoiceButtons, Text, button

SIGNS = {"info": "·", "warning": "!", "error": "✕"}
JOBS = frozenset({"job began", "job ended", "job failed", "jobs failed", "returned"})
MONEY = frozenset({"earned", "paid"})


class ActivityPage(QWidget):
    """The timeline with its filter."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls, self._events, self._sentences = calls, ActivityEvents(()), Sentences(self)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        card, row, last = Card(), QHBoxLayout(), QHBoxLayout()
        self.filter = ChoiceButtons(
            self.tr("What is shown"),
            (
                (self.tr("Everything"), "all"),
                (self.tr("Problems"), "problems"),
                (self.tr("Jobs"), "jobs"),
                (self.tr("Money"), "money"),
            ),
        )
        self.filter.picked.connect(lambda _: self._show())
        row.addWidget(self.filter)
        row.addStretch()
        self.list = QListWidget()
        self.list.setAccessibleName(self.tr("What has happened"))
        self.list.setFrameShape(QListWidget.Shape.NoFrame)
        self.list.setWordWrap(True)
        self.list.setSpacing(2)
        self.none = Text(dim=True)
        self.copy = button(self.tr("&Copy for support"), self._support)
        self.look = button(self.tr("Sho&w the report"), self._look, "link")
        self.look.setCheckable(True)
        self.said = Text(dim=True)
        self.said.say(self.tr("Without addresses, keys, folders and names."))
        self.report = QPlainTextEdit()
        self.report.setReadOnly(True)
        self.report.setAccessibleName(self.tr("The report for support"))
        self.report.setTabChangesFocus(True)
        self.report.setVisible(False)
        last.addWidget(self.copy)
        last.addWidget(self.look)
        last.addWidget(self.said, 1)
        card.body.addLayout(row)
        card.body.addWidget(self.none, 2, Qt.AlignmentFlag.AlignTop)
        card.body.addWidget(self.list, 2)
        card.body.addLayout(last)
        card.body.addWidget(self.report, 1)
        column.addWidget(card)
        self._show()

    def showEvent(self, event: QShowEvent) -> None:  # noqa: N802 - Qt's name
        self.refresh()

    def refresh(self) -> None:
        """Ask the agent anew."""
        self._calls.get("activity", self._take)

    def _take(self, body: bytes) -> None:
        try:
            self.show_events(read(body, ActivityEvents))
        except AnswerError as error:
            self.none.say(str(error))

    def show_events(self, events: ActivityEvents) -> None:
        """The newest first."""
        if events != self._events:
            self._events = events
            self._show()

    def _show(self) -> None:
        self.list.clear()
        for event in self._events.events:
            if self._fits(event):
                text = f"{moment(event.at)}   {SIGNS[event.severity]}  {self.words(event)}"
                item = QListWidgetItem(text)
                item.setData(Qt.ItemDataRole.AccessibleTextRole, f"{event.severity}: {text}")
                self.list.addItem(item)
        empty = self.list.count() == 0
        self.list.setVisible(not empty)
        self.none.setVisible(empty)
        self.none.say(self.tr("Nothing of that kind has happened yet."))

    def _fits(self, event: ActivityEvent) -> bool:
        match self.filter.value:
            case "problems":
                return event.severity != "info"
            case "jobs":
                return event.kind in JOBS
            case "money":
                return event.kind in MONEY
            case _:
                return True

    def words(self, event: ActivityEvent) -> str:
        """One event as a sentence; of a kind that this window does not know, the agent's own."""
        detail = {name: plain(text, 200) for name, text in event.detail.items()}
        match event.kind:
            case "started" | "ended" | "update":
                return self._program(event.kind, detail)
            case "job began" | "job ended" | "job failed" | "jobs failed" | "returned":
                return self._job(event.kind, detail)
            case "earned":
                return self.tr("{0} verified.").format(_amount(detail))
            case "paid" if detail.get("target"):
                return self.tr("{0} sent to {1}.").format(_amount(detail), detail["target"])
            case "paid":
                return self.tr("{0} paid.").format(_amount(detail))
            case "settings" if detail.get("names"):
                return self.tr("Settings were changed: {0}.").format(detail["names"])
            case "test" if not detail.get("failed"):
                return self.tr("Self-test: this computer can lend.")
            case "unanswered":
                return self.tr(
                    "This computer did not show a piece of its work when it was asked to, and was not paid for that round. "
                    "Another time before {0} costs {1} % of its stake."
                ).format(_day(detail), detail.get("percent", ""))
            case "lending":
                return self._lending(detail) or plain(event.text)
            case "stopped":
                return self._sentences.trouble(detail.get("cause", ""), detail, plain(event.text))
            case _:
                return plain(event.text)

    def _job(self, kind: str, detail: Mapping[str, str]) -> str:
        name = detail.get("name", "")
        match kind:
            case "job began":
                return self.tr("Began work on “{0}”.").format(name)
            case "job ended":
                return self.tr("Work on “{0}” ended.").format(name)
            case "job failed":
                return self.tr("Work on “{0}” failed: {1}").format(name, detail.get("why", ""))
            case "returned":
                back = self.tr("Back after a crash: shows the work of round {0} of “{1}”, so that it is paid.")
                return back.format(detail.get("round", ""), name)
            case _:
                return self.tr(
                    "{0} jobs in a row failed before their first step. This computer's own test passed, so it goes on lending."
                ).format(detail.get("jobs", ""))

    def _program(self, kind: str, detail: Mapping[str, str]) -> str:
        if kind == "update":
            return self.tr("Version {0} is there.").format(detail.get("version", ""))
        return self.tr("Cottage's agent started.") if kind == "started" else self.tr("Cottage's agent ended.")

    def _lending(self, detail: Mapping[str, str]) -> str:
        what = detail.get("what", "")
        match detail.get("state"), detail.get("cause"):
            case "lending", _:
                return self.tr("Ready to lend.")
            case "finishing", _:
                return self.tr("Finishing what runs, then off.")
            case "off", _:
                return self.tr("Lending went off.")
            case _, "owner":
                return self.tr("Paused: you asked for it.")
            case _, "game":
                return self.tr("Paused: {0} was started.").format(what)
            case _, "in use":
                return self.tr("Paused: somebody is at the computer.")
            case _, "battery":
                return self.tr("Paused: on battery.")
            case _, "hours":
                return self.tr("Paused: outside your hours.")
            case _, "temperature":
                return self.tr("Paused: the GPU was at {0} °C.").format(what)
            case _, "vram":
                return self.tr("Paused: your programs used {0} GB of the GPU's memory.").format(what)
            case _:
                return ""

    def _support(self) -> None:
        self._calls.get("support", self._copied, self.said.say)

    def _copied(self, body: bytes) -> None:
        if (text := self._report(body)) is not None:
            QGuiApplication.clipboard().setText(text)
            self.said.say(self.tr("Copied. Look through it before you send it."))

    def _look(self) -> None:
        self.report.setVisible(self.look.isChecked())
        if self.look.isChecked():
            self._calls.get("support", self._looked, self.said.say)

    def _looked(self, body: bytes) -> None:
        if (text := self._report(body)) is not None:
            self.report.setPlainText(text)

    def _report(self, body: bytes) -> str | None:
        try:
            return untrusted_lines(read(body, SupportReport).text)
        except AnswerError as error:
            self.said.say(str(error))
            return None


def _day(detail: Mapping[str, str]) -> str:
    digits = detail.get("until", "")
    return moment(float(digits)) if digits.isdecimal() and len(digits) < 12 else digits


def _amount(detail: Mapping[str, str]) -> str:
    digits = detail.get("amount", "")
    return money(int(digits)) if digits.isdecimal() and len(digits) < 20 else digits

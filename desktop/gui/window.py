"""The one window: the switch, the status sentence, this computer, its task, its earnings."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from collections.abc import Callable

from PySide6.QtCore import QByteArray, QEvent, QSettings, Qt, QTimer, Signal
from PySide6.QtGui import (
    QAccessible,
    QAccessibleAnnouncementEvent,
    QCloseEvent,
    QGuiApplication,
    QHideEvent,
    QKeySequence,
    QMoveEvent,
    QResizeEvent,
    QShortcut,
    QShowEvent,
)
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QScrollArea, QVBoxLayout, QWidget

from desktop.gui.model import Snapshot, Status
from desktop.gui.pausing import PauseMenu
from desktop.gui.sentences import Sentences
from desktop.gui.widgets import Card, MoodMark, Rows, Switch, Text
from ledger.money import show

MIN_WIDTH, MIN_HEIGHT = 420, 360
SAVE_DELAY_MS = 500  # A drag moves the window sixty times a second.
GEOMETRY = "window/geometry"
UNKNOWN = "–"


class MainWindow(QWidget):
    """Shows snapshots. Closing it hides it where ``stays_in_tray`` says that it can be brought back."""

    toggle_asked = Signal()
    quit_asked = Signal()
    went_to_tray = Signal()
    seen = Signal(bool)

    def __init__(self, settings: QSettings, stays_in_tray: Callable[[], bool]) -> None:
        super().__init__()
        self._settings, self._stays_in_tray = settings, stays_in_tray
        self._words = Sentences(self)
        self._status: Status | None = None
        self._saving = QTimer(self, singleShot=True, interval=SAVE_DELAY_MS)
        self._saving.timeout.connect(self._save)
        self.setWindowTitle(self.tr("Cottage"))
        self.setMinimumSize(MIN_WIDTH, MIN_HEIGHT)
        self._build()
        self._restore()

    # --- parts ----------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.content = QWidget()
        column = QVBoxLayout(self.content)
        column.setContentsMargins(16, 16, 16, 16)
        column.setSpacing(12)
        for card in (self._switch_card(), self._task_card(), self._earnings_card(), self._computer_card()):
            column.addWidget(card)
        column.addStretch()
        scroll = QScrollArea()
        scroll.setWidgetResizable(True)
        scroll.setFrameShape(QFrame.Shape.NoFrame)
        scroll.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        scroll.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        self.content.setMinimumSize(1, 1)  # Or the scroll area takes wrapped texts for as tall as they are when narrow.
        scroll.setWidget(self.content)
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.addWidget(scroll)
        QShortcut(QKeySequence.StandardKey.Close, self, self.close)
        QShortcut(QKeySequence("Ctrl+Q"), self, self.quit_asked.emit)
        self.switch.setFocus()

    def _switch_card(self) -> Card:
        card, row, texts = Card(), QHBoxLayout(), QVBoxLayout()
        self.switch = Switch(self.tr("Lend this computer"))
        self.switch.clicked.connect(lambda _: self.toggle_asked.emit())
        self.mark, self.headline, self.reason = MoodMark(), Text(size=5, bold=True), Text(dim=True)
        self.pauses = PauseMenu(self)
        self.pause = QPushButton(self.tr("&Pause"))
        self.pause.setMenu(self.pauses)
        self.pause.setAccessibleName(self.tr("Pause lending, or finish and stop"))
        row.setSpacing(16)
        texts.setSpacing(4)
        texts.addWidget(self.headline)
        texts.addWidget(self.reason)
        texts.addWidget(self.pause, 0, Qt.AlignmentFlag.AlignLeft)
        row.addWidget(self.switch)
        row.addLayout(texts, 1)
        row.addWidget(self.mark, 0, Qt.AlignmentFlag.AlignTop)
        card.body.addLayout(row)
        return card

    def _task_card(self) -> Card:
        card = Card(self.tr("Current task"))
        self.task = Rows()
        for key, caption in (
            ("job", self.tr("Job")),
            ("place", self.tr("Place")),
            ("state", self.tr("State")),
            ("progress", self.tr("Progress")),
        ):
            self.task.add(key, caption)
        self.no_task = Text(dim=True)
        self.no_task.say(self.tr("No task."))
        self._task_rows = QWidget()
        self._task_rows.setLayout(self.task)
        self.task.setContentsMargins(0, 0, 0, 0)
        card.body.addWidget(self.no_task)
        card.body.addWidget(self._task_rows)
        return card

    def _earnings_card(self) -> Card:
        card, row = Card(self.tr("Earnings")), QHBoxLayout()
        self.verified, self.paid = Text(size=8, bold=True), Text(size=8, bold=True)
        for number, caption in (
            (self.verified, self.tr("Verified, to be paid")),
            (self.paid, self.tr("Paid out")),
        ):
            pair, label = QVBoxLayout(), Text(dim=True)
            label.say(caption)
            pair.setSpacing(0)
            pair.addWidget(number)
            pair.addWidget(label)
            pair.addStretch()
            row.addLayout(pair, 1)
        card.body.addLayout(row)
        return card

    def _computer_card(self) -> Card:
        card = Card(self.tr("This computer"))
        self.computer = Rows()
        for key, caption in (
            ("name", self.tr("Name")),
            ("device", self.tr("Device")),
            ("address", self.tr("Address")),
            ("payout", self.tr("Paid into")),
            ("coordinator", self.tr("Works for")),
        ):
            self.computer.add(key, caption)
        card.body.addLayout(self.computer)
        self.copy = QPushButton(self.tr("&Copy address"))
        self.copy.setAccessibleName(self.tr("Copy this computer's address"))
        self.copy.clicked.connect(self._copy_address)
        row = QHBoxLayout()
        row.addStretch()
        row.addWidget(self.copy)
        card.body.addLayout(row)
        return card

    # --- what is shown --------------------------------------------------------------------------------------------------

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show all of ``snapshot``."""
        sentence = self._words.describe(snapshot)
        self.mark.set_mood(sentence.mood)
        self._announce(sentence.headline)
        self.headline.say(sentence.headline)
        self.reason.say(sentence.reason)
        self.switch.setChecked(snapshot.is_on)
        self.switch.setAccessibleDescription(f"{sentence.headline} {sentence.reason}")
        self.pauses.show_snapshot(snapshot)
        self.pause.setVisible(self.pauses.isEnabled())
        self._status = snapshot.status or self._status
        self._show_task(snapshot.status)
        self._show_known(self._status)

    def _announce(self, headline: str) -> None:
        """Have a screen reader say a new state at once, wherever its user is."""
        if QAccessible.isActive() and headline != self.headline.text():
            QAccessible.updateAccessibility(QAccessibleAnnouncementEvent(self.headline, headline))

    def _show_task(self, status: Status | None) -> None:
        tasks = (status.live or status.tasks[-1:]) if status else ()
        self.no_task.setVisible(not tasks)
        self._task_rows.setVisible(bool(tasks))
        if tasks:
            task, words = tasks[0], self._words
            self.task.set_values(
                job=f"{task.job_name} ({task.job[:8]})",
                place=words.place(task),
                state=words.state_of(task),
                progress=words.progress(task),
            )

    def _show_known(self, status: Status | None) -> None:
        """Name, address and earnings stay where the agent has ended: they are still true."""
        self.copy.setEnabled(status is not None)
        self.verified.say(show(status.verified) if status else UNKNOWN, self.tr("Verified"))
        self.paid.say(show(status.paid) if status else UNKNOWN, self.tr("Paid out"))
        if status is None:
            self.computer.set_values(**dict.fromkeys(("name", "device", "address", "payout", "coordinator"), UNKNOWN))
            return
        memory = self.tr("{0:,} MB").format(status.profile.memory_mb)
        self.computer.set_values(
            name=status.name,
            device=f"{status.profile.device} · {memory}",
            address=status.node,
            payout=self.tr("its own address") if status.payout == status.node else status.payout,
            coordinator=status.coordinator,
        )

    def _copy_address(self) -> None:
        if self._status is not None:
            QGuiApplication.clipboard().setText(self._status.node)

    # --- its life -------------------------------------------------------------------------------------------------------

    def bring_forward(self) -> None:
        """Show the window above the others."""
        self.setWindowState(self.windowState() & ~Qt.WindowState.WindowMinimized)
        self.show()
        self.raise_()
        self.activateWindow()

    def closeEvent(self, event: QCloseEvent) -> None:
        self._save()
        if self._stays_in_tray():
            event.ignore()
            self.hide()
            self.went_to_tray.emit()
        else:
            event.accept()
            self.quit_asked.emit()

    def showEvent(self, event: QShowEvent) -> None:
        self.seen.emit(True)

    def hideEvent(self, event: QHideEvent) -> None:
        self.seen.emit(False)

    def changeEvent(self, event: QEvent) -> None:
        if event.type() is QEvent.Type.WindowStateChange:
            self.seen.emit(not self.isMinimized())
        super().changeEvent(event)

    def moveEvent(self, event: QMoveEvent) -> None:
        self._saving.start()

    def resizeEvent(self, event: QResizeEvent) -> None:
        self._saving.start()

    def _save(self) -> None:
        if self.isVisible():
            self._settings.setValue(GEOMETRY, self.saveGeometry())

    def _restore(self) -> None:
        kept = self._settings.value(GEOMETRY)
        if not (isinstance(kept, QByteArray) and self.restoreGeometry(kept)):
            self.resize(560, 640)

"""Pause for a while, go on, finish and stop: the same rows in the tray and in the window."""

from PySide6.QtCore import QDateTime, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from desktop.gui.model import AgentPhase, Snapshot

HOUR_S = 3600
PRESENCE = frozenset({"in use", "idle unknown"})  # Causes that an owner who is there may set aside.
MORNING = 6  # When a pause until tomorrow ends, local time.


class PauseMenu(QMenu):
    """What the owner may ask of an agent that runs; there is no such row while none does."""

    pause_asked = Signal(int)
    """Seconds."""
    here_asked = Signal(int)
    """Seconds for which to lend although somebody is here."""
    resume_asked = Signal()
    finish_asked = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setTitle(self.tr("&Pause"))
        self.now = self._row(self.tr("&Lend now, for 1 hour"), lambda: self.here_asked.emit(HOUR_S))
        self._pauses = [
            self._row(self.tr("For 1&5 minutes"), lambda: self.pause_asked.emit(HOUR_S // 4)),
            self._row(self.tr("For &30 minutes"), lambda: self.pause_asked.emit(HOUR_S // 2)),
            self._row(self.tr("For &1 hour"), lambda: self.pause_asked.emit(HOUR_S)),
            self._row(self.tr("For &4 hours"), lambda: self.pause_asked.emit(4 * HOUR_S)),
            self._row(self.tr("Until &tomorrow"), lambda: self.pause_asked.emit(until_tomorrow())),
        ]
        self.resume = self._row(self.tr("&Go on"), self.resume_asked.emit)
        self.addSeparator()
        self.finish = self._row(self.tr("&Finish the current job, then stop"), self.finish_asked.emit)
        self.show_snapshot(Snapshot(AgentPhase.OFF))

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Offer what makes sense now."""
        status = snapshot.status
        runs = snapshot.phase is AgentPhase.RUNNING and status is not None and status.on
        self.setEnabled(runs)
        self.menuAction().setVisible(runs)
        finishing = status is not None and status.lending_state == "finishing"
        self.resume.setVisible(status is not None and (status.paused or finishing))
        self.finish.setEnabled(not finishing)
        held = status is not None and not status.paused and bool(status.reasons)
        self.now.setVisible(held and status is not None and {r.cause for r in status.reasons} <= PRESENCE)

    def _row(self, text: str, act: object) -> QAction:
        action = self.addAction(text)
        action.triggered.connect(act)
        return action


def until_tomorrow(now: QDateTime | None = None) -> int:
    """Seconds until tomorrow morning."""
    now = now or QDateTime.currentDateTime()
    morning = now.date().addDays(1).startOfDay(now.timeZone()).addSecs(MORNING * HOUR_S)
    return now.secsTo(morning)

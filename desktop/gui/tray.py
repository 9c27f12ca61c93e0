"""The tray icon: the state as a shape, and a menu of at most eight rows."""

from PySide6.QtCore import QObject, QSettings, Signal, SignalInstance
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QMenu, QSystemTrayIcon

from desktop.gui.cards_menu import CardsMenu
from desktop.gui.model import AgentPhase, Snapshot, Status
from desktop.gui.pause_menu import PauseMenu
from desktop.gui.sentences import Mood, Sentences, money
from desktop.gui.theme import mood_icon, theme_of

HINT_SHOWN = "tray/hint-shown"


class Tray(QObject):
    """Is there where the desktop has a tray; Qt waits for one that comes late."""

    toggle_asked = Signal()
    open_asked = Signal()
    settings_asked = Signal()
    quit_asked = Signal()

    def __init__(self, settings: QSettings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._settings, self._words, self._mood = settings, Sentences(self), Mood.OFF
        self.menu = QMenu()
        self.state, self.earned = self._line(), self._line()
        self.menu.addSeparator()
        self.toggle = self._row("", self.toggle_asked)
        self.pauses = PauseMenu()
        self.menu.addMenu(self.pauses)
        self.cards = CardsMenu()
        self.menu.addMenu(self.cards)
        self._row(self.tr("&Open Cottage"), self.open_asked)
        self._row(self.tr("S&ettings…"), self.settings_asked)
        self.menu.addSeparator()
        self.quit = self._row("", self.quit_asked)
        self.icon = QSystemTrayIcon(self)
        self.icon.setContextMenu(self.menu)
        self.icon.activated.connect(self._activated)
        self.recolour()
        self.show_snapshot(Snapshot(AgentPhase.OFF))
        self.icon.show()

    def is_there(self) -> bool:
        """The icon can be seen, so that a hidden window can be brought back."""
        return QSystemTrayIcon.isSystemTrayAvailable() and self.icon.isVisible()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the state and what was earned."""
        sentence = self._words.describe(snapshot)
        if sentence.mood is not self._mood:
            self._mood = sentence.mood
            self.recolour()
        self.state.setText(_literal(sentence.headline))
        status = snapshot.status
        self.earned.setVisible(status is not None)
        if status is not None:
            text = self.tr("Earned today {0}, in all {1}").format(money(status.today), money(status.verified))
            self.earned.setText(text)
        self.icon.setToolTip(self._tip(sentence.mood, status))
        self.toggle.setText(self.tr("&Stop lending") if snapshot.is_on else self.tr("&Start lending"))
        self.toggle.setEnabled(snapshot.phase is not AgentPhase.STOPPING)
        self.pauses.show_snapshot(snapshot)
        self.cards.show_snapshot(snapshot)
        runs = snapshot.is_on
        self.quit.setText(self.tr("&Quit (lending goes on)") if runs else self.tr("&Quit"))

    def _tip(self, mood: Mood, status: Status | None) -> str:
        """Nothing from elsewhere: some trays read markup in it."""
        parts = [self.tr("Cottage: {0}").format(self._words.glance(mood))]
        gpus = status.meters.gpus if status is not None and status.meters is not None else ()
        warmth = next((gpu.celsius for gpu in gpus if status is not None and gpu.uuid == status.gpu), None)
        if warmth is not None:
            parts.append(self.tr("{0} °C").format(warmth))
        if status is not None and status.today:
            parts.append(self.tr("{0} today").format(money(status.today)))
        return ", ".join(parts)

    def tell(self, text: str, is_warning: bool) -> None:
        """A notification, where there is a tray to show it."""
        if self.is_there():
            kind = QSystemTrayIcon.MessageIcon.Warning if is_warning else QSystemTrayIcon.MessageIcon.Information
            self.icon.showMessage(self.tr("Cottage"), text, kind)

    def recolour(self) -> None:
        """Draw the icon in the colours of now."""
        self.icon.setIcon(mood_icon(self._mood, theme_of(QGuiApplication.palette())))

    def explain_once(self) -> None:
        """Say, the first time only, where the window has gone."""
        if self._settings.value(HINT_SHOWN, False, bool):
            return
        self._settings.setValue(HINT_SHOWN, True)
        text = self.tr("Cottage stays here in the tray. Click the icon to see the window again.")
        self.icon.showMessage(self.tr("Cottage"), text, self.icon.icon())

    def _line(self) -> QAction:
        action = self.menu.addAction("")
        action.setEnabled(False)
        return action

    def _row(self, text: str, signal: SignalInstance) -> QAction:
        action = self.menu.addAction(text)
        action.triggered.connect(lambda _: signal.emit())
        return action

    def _activated(self, reason: QSystemTrayIcon.ActivationReason) -> None:
        if reason is QSystemTrayIcon.ActivationReason.Trigger:
            self.open_asked.emit()


def _literal(text: str) -> str:
    """``text`` for a menu, where ``&`` underlines what follows."""
    return text.replace("&", "&&")

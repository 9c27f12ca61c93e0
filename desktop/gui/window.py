"""The one window: its four pages, and the first run in their place."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from collections.abc import Callable

from PySide6.QtCore import QByteArray, QEvent, QMargins, QSettings, Qt, QTimer, Signal
from PySide6.QtGui import QCloseEvent, QHideEvent, QKeySequence, QMoveEvent, QResizeEvent, QShortcut, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QStackedWidget, QVBoxLayout, QWidget

from desktop.answers import EarningsSummary
from desktop.gui.client import Calls
from desktop.gui.engine.equipping import Equipping
from desktop.gui.errors import AnswerError
from desktop.gui.model import Snapshot, read
from desktop.gui.pages.activity import ActivityPage
from desktop.gui.pages.federation import FederationSheet
from desktop.gui.pages.home import HomePage
from desktop.gui.pages.invitation import JoinSheet, names_federation
from desktop.gui.pages.money import EarningsPage
from desktop.gui.pages.settings import SettingsPages
from desktop.gui.pages.welcome import WelcomePage
from desktop.gui.pages.withdraw import WithdrawSheet
from desktop.gui.widgets import ChoiceButtons, Text

MIN_WIDTH, MIN_HEIGHT = 420, 360
USUAL_WIDTH, USUAL_HEIGHT = 780, 820
FRAME = QMargins(8, 40, 8, 8)  # More than any desktop draws around a window.
SAVE_DELAY_MS = 500  # A drag moves the window sixty times a second.
GEOMETRY = "window/geometry"
HOME, EARNINGS, ACTIVITY, SETTINGS, WELCOME = range(5)


class MainWindow(QWidget):
    """Shows snapshots. Closing it hides it where ``stays_in_tray`` says that it can be brought back."""

    toggle_asked = Signal()
    restart_asked = Signal()
    quit_asked = Signal()
    went_to_tray = Signal()
    seen = Signal(bool)

    def __init__(self, settings: QSettings, stays_in_tray: Callable[[], bool], calls: Calls) -> None:
        super().__init__()
        self._settings, self._stays_in_tray, self._calls = settings, stays_in_tray, calls
        self._last_event = self._earned = -1
        self._snapshot: Snapshot | None = None
        self.joining: JoinSheet | FederationSheet | None = None
        self._saving = QTimer(self, singleShot=True, interval=SAVE_DELAY_MS)
        self._saving.timeout.connect(self._save)
        self.setWindowTitle(self.tr("Cottage"))
        self.setMinimumSize(MIN_WIDTH, MIN_HEIGHT)
        self._build()
        self._restore()
        self.go(HOME if self.welcome.is_done else WELCOME)

    # --- parts ----------------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        self.home, self.earnings, self.activity = HomePage(), EarningsPage(self._calls), ActivityPage(self._calls)
        self.equipping = Equipping(self._calls, self)
        self.settings, self.welcome = (
            SettingsPages(self._calls, self._settings),
            WelcomePage(self._calls, self._settings, self.equipping.plan),
        )
        self.stack, self.areas = QStackedWidget(), dict[int, QScrollArea]()
        for number, page in enumerate((self.home, self.earnings, self.activity, self.settings, self.welcome)):
            if number in (HOME, EARNINGS, WELCOME):
                self.areas[number] = _scrolled(page)
            self.stack.addWidget(self.areas.get(number, page))
        names = (self.tr("Overview"), self.tr("Earnings"), self.tr("Activity"), self.tr("Settings"))
        self.pages = ChoiceButtons(self.tr("Page"), [(name, str(number)) for number, name in enumerate(names)])
        self.pages.picked.connect(lambda value: self.go(int(value)))
        self.title = Text(size=3, bold=True)
        self.title.say(self.tr("Cottage"))
        self.title.setWordWrap(False)
        top, column = QHBoxLayout(), QVBoxLayout(self)
        self._column = column
        top.addWidget(self.title, 1)
        top.addWidget(self.pages)
        column.setContentsMargins(16, 12, 16, 16)
        column.setSpacing(10)
        column.addLayout(top)
        column.addWidget(self.stack, 1)
        self.home.toggle_asked.connect(self.toggle_asked)
        self.home.restart_asked.connect(self.restart_asked)
        self.home.update_asked.connect(self._update)
        self.home.cards.asked.connect(self.switch_card)
        for part in (self.home, self.welcome):
            part.mend_asked.connect(self.equipping.ask)
        self.welcome.mend_agreed.connect(self.equipping.begin)
        self.welcome.lacks.connect(self.equipping.follow)
        self.equipping.mended.connect(self._mended)
        for page in (self.earnings, self.welcome):
            page.toggle_asked.connect(self.toggle_asked)
        self.welcome.restart_asked.connect(self.restart_asked)
        self.welcome.done.connect(lambda: self.go(HOME))
        self.home.earnings.more_asked.connect(lambda: self.go(EARNINGS))
        for page in (self.home.earnings, self.earnings):
            page.withdraw_asked.connect(self._withdraw)
        QShortcut(QKeySequence.StandardKey.Close, self, self.close)
        QShortcut(QKeySequence("Ctrl+Q"), self, self.quit_asked.emit)
        for number in (HOME, EARNINGS, ACTIVITY, SETTINGS):
            QShortcut(QKeySequence(f"Ctrl+{number + 1}"), self, lambda number=number: self.go(number))

    def go(self, page: int) -> None:
        """Show HOME, EARNINGS, ACTIVITY, SETTINGS or WELCOME."""
        self.pages.setVisible(page != WELCOME)
        self._name_if_room()
        self.stack.setCurrentIndex(page)
        if page != WELCOME:
            self.pages.pick(str(page))
        if page == HOME:
            self.home.switch.setFocus()

    def _update(self) -> None:
        self._calls.post("update", {"restart": True}, lambda _: None, self.home.say)

    def switch_card(self, card: str, on: bool) -> None:
        """Lend one of several cards, or not any more."""
        self._calls.post("cards", {"card": card, "on": on}, lambda _: None, self.home.say)

    def _mended(self) -> None:
        if not self.welcome.is_done:
            self.welcome.begin_test()
        elif self._snapshot is not None and self._snapshot.is_on:
            self._calls.post("lending", {"on": True}, lambda _: None)  # It looks again at once.

    def _withdraw(self) -> None:
        WithdrawSheet(self._calls, self).open()

    # --- what is shown --------------------------------------------------------------------------------------------------

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show all of ``snapshot``; pages that are in sight ask for what is new."""
        self._snapshot = snapshot
        if self.joining is not None:
            self.joining.show_snapshot(snapshot)
        self.home.show_snapshot(snapshot)
        self.earnings.empty.show_snapshot(snapshot)
        self.welcome.show_snapshot(snapshot)
        status = snapshot.status
        if status is None:
            return
        self.equipping.follow(status.trouble_cause)
        self.earnings.show_power(status)
        if status.verified + status.paid != self._earned:
            self._earned = status.verified + status.paid
            self._calls.get("earnings", self._take_earnings)
        if status.last_event != self._last_event:
            self._last_event = status.last_event
            if self.activity.isVisible():
                self.activity.refresh()

    def _take_earnings(self, body: bytes) -> None:
        try:
            summary = read(body, EarningsSummary)
        except AnswerError:
            return  # The page of earnings says so where somebody looks.
        self.home.earnings.show_days(summary.days)
        self.earnings.show_summary(summary)

    def show_refusal(self, text: str) -> None:
        """Why the agent cannot do what was asked for."""
        self.home.say(text)

    # --- its life -------------------------------------------------------------------------------------------------------

    def called(self, link: str) -> None:
        """Somebody opened the program once more, with an invitation or without."""
        self.bring_forward()
        if not link:
            return
        if self.joining is not None:
            self.joining.reject()  # One question at a time, the newest.
        sheet: JoinSheet | FederationSheet
        if names_federation(link):
            self.joining = sheet = FederationSheet(self._calls, self, link)
        else:
            self.joining = sheet = JoinSheet(self._calls, self, link)
            sheet.joined.connect(self._joined)
        sheet.finished.connect(lambda _: self._answered(sheet))
        if self._snapshot is not None:
            sheet.show_snapshot(self._snapshot)
        sheet.open()

    def _answered(self, sheet: JoinSheet | FederationSheet) -> None:
        if self.joining is sheet:
            self.joining = None
        sheet.deleteLater()

    def _joined(self) -> None:
        if self.welcome.is_done:
            self.settings.refresh()
        else:
            self.welcome.begin_test()

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
        self._name_if_room()
        self._saving.start()

    def _name_if_room(self) -> None:
        """The pages' names come before the program's own, which the window's frame has too."""
        margins, apart = self._column.contentsMargins(), 2 * self._column.spacing()
        room = self.width() - margins.left() - margins.right() - self.pages.sizeHint().width() - apart
        self.title.setVisible(self.pages.isHidden() or room >= self.title.sizeHint().width())

    def _save(self) -> None:
        if self.isVisible():
            self._settings.setValue(GEOMETRY, self.saveGeometry())

    def _restore(self) -> None:
        kept = self._settings.value(GEOMETRY)
        if not (isinstance(kept, QByteArray) and self.restoreGeometry(kept)):
            self.resize(USUAL_WIDTH, USUAL_HEIGHT)
        self._fit()

    def _fit(self) -> None:
        """No larger than its screen has room for, with its frame: what lies below the edge cannot be scrolled to."""
        room = self.screen().availableGeometry().marginsRemoved(FRAME)
        self.resize(self.size().boundedTo(room.size()))
        if self.screen().availableGeometry().contains(self.frameGeometry()):
            return
        corner = self.pos()
        corner.setX(max(room.left(), min(corner.x(), room.right() - self.width())))
        corner.setY(max(room.top(), min(corner.y(), room.bottom() - self.height())))
        self.move(corner)


def _scrolled(page: QWidget) -> QScrollArea:
    area = QScrollArea()
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setWidget(page)
    return area

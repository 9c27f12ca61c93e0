"""Which network is lent to: a field that takes an address or an invitation, and the question that a link asks."""
# ruff: noqa: N802 (Qt's own names of what is overridden)

from collections.abc import Sequence

from PySide6.QtCore import QCoreApplication, QObject, QPointF, QSignalBlocker, Signal
from PySide6.QtGui import QPainter, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import QComboBox, QLineEdit, QWidget

from common.errors import InvitationError
from common.invitations import Invitation, read
from common.urls import is_loopback
from desktop.gui.client import Calls
from desktop.gui.fields import SettingRow, Value
from desktop.gui.model import Snapshot, plain
from desktop.gui.pages.sheet import Sheet
from desktop.gui.theme import draw_chevron
from desktop.gui.widgets import Text, button

PATIENCE_MS = 15_000  # What runs is handed over first.


def names_federation(link: str) -> bool:
    """Whether an invitation is to a federation, and so to more than a network."""
    try:
        return bool(read(link).job)
    except InvitationError:
        return False


class InvitationWords(QObject):
    """What is wrong with an invitation, for its owner."""

    def said(self, fault: str) -> str:
        """One sentence for each of ``common.invitations.Fault``."""
        said = {
            "empty": self.tr("Write an address, or paste an invitation."),
            "address": self.tr("That is no address. One looks like https://cottage.example."),
            "word": self.tr("That link is no invitation. One begins with cottage://join."),
            "part": self.tr("The invitation is for a newer version of Cottage. Update it first."),
            "twice": self.tr("The invitation contradicts itself. Ask for another one."),
            "missing": self.tr("The invitation names no address: a part of it is missing. Copy the whole of it."),
            "key": self.tr("The key in the invitation is damaged. Copy the whole of it."),
        }
        return said.get(fault) or self.tr("That is far too long for an invitation. Copy it once more.")


class NetworkField(QComboBox):
    """A line to type or paste into, and the networks that are known. What is no address asks for nothing."""

    wanted = Signal(str)
    """An address or an invitation that can be used."""
    faulty = Signal(str)
    """What was typed is neither; a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self._words = InvitationWords(self)
        self._shown = ""
        self.setEditable(True)
        self.setInsertPolicy(QComboBox.InsertPolicy.NoInsert)
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(20)
        line = self.lineEdit()
        assert line is not None
        self.line: QLineEdit = line
        self.line.setPlaceholderText(self.tr("https://… or cottage://join?…"))
        self.line.setMaxLength(6000)
        self.line.editingFinished.connect(self._typed)
        self.activated.connect(lambda number: self.wanted.emit(self.itemData(number)))
        self.setCompleter(None)  # type: ignore[arg-type]  # Nothing completes itself to a network that nobody meant.

    def setAccessibleName(self, name: str) -> None:
        super().setAccessibleName(name)
        self.line.setAccessibleName(name)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def paintEvent(self, event: QPaintEvent) -> None:
        super().paintEvent(event)
        if not self.count():
            return
        tip = QPointF(self.width() - 16, self.height() / 2 + 2)
        draw_chevron(QPainter(self), tip, self.palette().color(self.foregroundRole()))

    def offer(self, links: Sequence[str]) -> None:
        """The networks that are known, as invitations."""
        typed = self.line.text()
        with QSignalBlocker(self):
            self.clear()
            for link in links:
                try:
                    self.addItem(plain(read(link).url, 100), link)
                except InvitationError:
                    continue  # Of another version of the agent.
            self.line.setText(typed)

    def show_address(self, url: str) -> None:
        """What the agent says, unless the owner is just typing."""
        if not (self.line.hasFocus() and self.line.isModified()):
            self._shown = url
            self.line.setText(url)

    def _typed(self) -> None:
        text = self.line.text().strip()
        self.line.setModified(False)
        if not text or text == self._shown:
            return
        try:
            read(text)
        except InvitationError as error:
            self.faulty.emit(self._words.said(error.fault))
            return
        self._shown = text
        self.wanted.emit(text)


class NetworkRow(SettingRow):
    """The network as a setting."""

    faulty = Signal(str)

    def __init__(self, key: str, caption: str, help_text: str) -> None:
        self.field = NetworkField()
        super().__init__(key, caption, help_text, self.field, wide=True)
        self.field.wanted.connect(self._ask)
        self.field.faulty.connect(self.faulty)

    def _put(self, value: Value) -> None:
        self.field.show_address(str(value))


class JoinSheet(Sheet):
    """A link was opened: nothing changes before its owner says so."""

    joined = Signal()

    def __init__(self, calls: Calls, parent: QWidget | None, text: str) -> None:
        super().__init__(parent, QCoreApplication.translate("JoinSheet", "An invitation"), 460)
        self._calls, self._invitation = calls, Invitation("")
        self.head, self.about, self.now, self.said = Text(size=3, bold=True), Text(dim=True), Text(dim=True), Text()
        for part in (self.head, self.about, self.now, self.said):
            self._column.addWidget(part)
        self.close_it = button(self.tr("&Not now"), self.reject)
        self.join = button(self.tr("&Lend to it"), self._ask, "main")
        self.join.setEnabled(False)
        self.close_it.setDefault(True)  # Whoever types on while a page opens this has agreed to nothing.
        self._column.addStretch()
        self._end(self.close_it, self.join)
        try:
            self._invitation = read(text)
        except InvitationError as error:
            self.head.say(self.tr("This invitation cannot be used."))
            self.about.say(InvitationWords(self).said(error.fault))
            self.join.hide()
            self.close_it.setText(self.tr("&Close"))
            return
        self.head.say(self.tr("Lend to {0}?").format(plain(self._invitation.url, 200)))
        self.about.say(self._of_key())
        self.said.say(self.tr("Cottage's agent is starting."))

    def _of_key(self) -> str:
        key = self._invitation.key
        if not key:
            return self.tr("The invitation names no key: whoever answers at this address is believed.")
        return self.tr("At each connection the network has to show that it holds the key {0}.").format(
            f"{key[:6]}…{key[-6:]}"
        )

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """What would change."""
        status = snapshot.status
        if not self._invitation.url or self.join.isEnabled():
            return
        if status is None:
            if snapshot.detail:
                no_agent = self.tr("Cottage's agent does not run, so nothing can be changed: {0}")
                self.said.say(no_agent.format(plain(snapshot.detail)))
            return
        self.join.setEnabled(True)
        self.said.say("")
        said = []
        if status.coordinator == self._invitation.url:
            said.append(self.tr("This computer works for it already."))
        elif status.coordinator:
            said.append(
                self.tr("Now it works for {0}. What runs there is handed over first.").format(
                    plain(status.coordinator, 100)
                )
            )
        scheme, _, place = self._invitation.url.partition("://")
        if scheme == "http" and not is_loopback(place):
            said.append(self.tr("The way there is not encrypted: others can read and change what is said."))
        self.now.say(" ".join(said))

    def _ask(self) -> None:
        self.join.setEnabled(False)
        order = {"coordinator": self._invitation.link}
        self._calls.post("settings", order, lambda _: self._done(), self._refused, PATIENCE_MS)

    def _refused(self, why: str) -> None:
        self.join.setEnabled(True)
        self.said.say(why)

    def _done(self) -> None:
        self.joined.emit()
        self.accept()

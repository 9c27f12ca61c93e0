"""A federation that somebody invites to: what is asked, which folder, and the word. The data never leaves this computer."""

from collections.abc import Callable, Sequence
from pathlib import Path

from PySide6.QtCore import QCoreApplication, Signal
from PySide6.QtWidgets import QFileDialog, QVBoxLayout, QWidget

from common.untrusted_text import View
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.model import Snapshot, plain, read
from desktop.gui.pages.sheet import Sheet
from desktop.gui.widgets import Text, button

LOOK_MS = 60_000  # The coordinator is asked.
CHECK_MS = 50 * 60_000  # All of the data is read.
MAX_LINES = 12  # Of a check that found much; `cottage node join` shows all.


class _Spec(View, frozen=True):
    name: str


class _Told(View, frozen=True):
    job: str
    spec: _Spec


class FederationAnswer(View, frozen=True):
    """The agent's view of a federation, as far as this sheet shows it."""

    told: _Told
    terms: str
    asks: tuple[str, ...]
    found: tuple[str, ...] = ()


class FederationSheet(Sheet):
    """Three clicks: the link that opens it, the folder, and Join."""

    joined = Signal()

    def __init__(
        self,
        calls: Calls,
        parent: QWidget | None,
        link: str,
        choose: Callable[[QWidget], str] | None = None,
    ) -> None:
        """``calls``: of the pages, which do not wait for what this asks. ``choose``: has its owner name a folder; empty: none."""
        super().__init__(parent, QCoreApplication.translate("FederationSheet", "A federation"), 560)
        self._pages, self._calls, self._link, self._choose = calls, calls.apart(self), link, choose or self._ask_folder
        self.finished.connect(self._closed)
        self._seen: FederationAnswer | None = None
        self._asked, self._joins, self._folder = False, False, ""
        self.head, self.chosen, self.said = Text(size=3, bold=True), Text(dim=True), Text()
        self._lines = QVBoxLayout()
        self._lines.setSpacing(8)
        self._column.addWidget(self.head)
        self._column.addLayout(self._lines)
        for part in (self.chosen, self.said):
            self._column.addWidget(part)
        self.close_it = button(self.tr("&Not now"), self.reject)
        self.pick = button(self.tr("Choose a &folder…"), self._pick)
        self.join = button(self.tr("&Join with it"), self._join, "main")
        self.pick.setEnabled(False)
        self.join.setEnabled(False)
        self.close_it.setDefault(True)  # Whoever types on while a page opens this has agreed to nothing.
        self._column.addStretch()
        self._end(self.close_it, self.pick, self.join)
        self.head.say(self.tr("Train together, and keep your data?"))
        self.said.say(self.tr("Cottage's agent is starting."))

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Ask what the federation wants as soon as somebody can be asked."""
        status = snapshot.status
        if status is None:
            if snapshot.detail:
                no_agent = self.tr("Cottage's agent does not run, so nothing can be joined: {0}")
                self.said.say(no_agent.format(plain(snapshot.detail)))
            return
        if self._asked:
            return
        if status.state != "online":
            self.said.say(
                self.tr("This computer is not connected to its network. Switch lending on; this goes on by itself.")
            )
            return
        self._asked = True
        self.said.say(self.tr("Asking what the federation wants."))
        self._calls.post("federation", {"invitation": self._link}, self._show, self._refused, LOOK_MS)

    def _show(self, body: bytes) -> None:
        try:
            self._seen = read(body, FederationAnswer)
        except AnswerError as error:
            self._refused(self.tr("The agent's answer cannot be understood: {0}").format(plain(str(error))))
            return
        self.head.say(self.tr("Join “{0}”?").format(plain(self._seen.told.spec.name, 100)))
        self._tell(self._seen.asks)
        self.said.say("")
        self.pick.setEnabled(True)
        self.pick.setFocus()

    @property
    def lines(self) -> list[str]:
        """What is told, a sentence or two each."""
        items = [self._lines.itemAt(number) for number in range(self._lines.count())]
        parts = [item.widget() for item in items if item is not None]
        return [part.text() for part in parts if isinstance(part, Text)]

    def _tell(self, lines: Sequence[str]) -> None:
        while (old := self._lines.takeAt(0)) is not None:
            if (part := old.widget()) is not None:
                part.deleteLater()
        for line in lines[:MAX_LINES]:
            text = Text()
            text.say(line)
            self._lines.addWidget(text)
            text.show()  # Qt itself would do so later, and the sheet is as high as what is shown.
        self._fit()

    def _fit(self) -> None:
        """As high as its texts are at this width."""
        self._column.activate()
        needed = self._column.heightForWidth(self.width())
        self.setMinimumHeight(needed)
        self.resize(self.width(), needed)

    def _pick(self) -> None:
        folder = self._choose(self)
        if not folder:
            return
        self._folder = str(Path(folder))
        self.chosen.say(self.tr("It reads {0}, and writes nothing there.").format(plain(self._folder, 300)))
        self.join.setEnabled(True)
        self.join.setFocus()
        self._fit()

    def _ask_folder(self, parent: QWidget) -> str:
        return QFileDialog.getExistingDirectory(parent, self.tr("The folder with your data"))

    def _closed(self) -> None:
        """A check may take an hour; whoever closes this meanwhile has taken it back, and the agent would go on."""
        self._calls.stop()
        if self._joins and self._seen is not None:
            self._pages.post("federation/leave", {"job": self._seen.told.job}, lambda _answer: None)

    def _join(self) -> None:
        assert self._seen is not None
        self._joins = True
        for part in (self.join, self.pick):
            part.setEnabled(False)
        self.said.say(self.tr("Your data is checked on this computer. That takes a while for much of it."))
        order = {"job": self._seen.told.job, "terms": self._seen.terms, "data": self._folder}
        self._calls.post("federation/join", order, self._done, self._refused, CHECK_MS)

    def _refused(self, why: str) -> None:
        self._joins = False
        self.said.say(why)
        self.pick.setEnabled(self._seen is not None)
        self.join.setEnabled(bool(self._folder))
        self._asked = self._seen is not None  # Else it is asked once more, at the next look.

    def _done(self, body: bytes) -> None:
        self._joins = False
        try:
            found = read(body, FederationAnswer).found
        except AnswerError:
            found = ()
        self.head.say(self.tr("You take part."))
        self._tell(found)
        self.chosen.hide()
        self.said.say(self.tr("This computer trains with it whenever it lends. `cottage node leave` ends that."))
        self.pick.hide()
        self.join.hide()
        self.close_it.setText(self.tr("&Close"))
        self.joined.emit()

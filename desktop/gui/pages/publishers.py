"""Whose programs run on this computer: publishers of images by their keys, what jobs have asked for, and how one is added."""

import re
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QCoreApplication, QLocale, Qt, Signal
from PySide6.QtWidgets import QFileDialog, QFrame, QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from desktop.answers import AskedImage, PublishersView, PublisherView
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.model import plain, read
from desktop.gui.pages.sheet import Sheet
from desktop.gui.widgets import Card, Text, button

MAX_FILE = 4096  # Of a key: 44 letters, and words around them.
MAX_IMAGES = 12  # That are shown; `cottage node images list` shows all.
_KEY = re.compile(r"\b[1-9A-HJ-NP-Za-km-z]{43,44}\b")


class PublishersCard(Card):
    """Who is accepted, with a way out for each, and a way in."""

    said = Signal(str)
    """What came of a change."""
    changed = Signal(object)
    """The view after it."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(self.tr("Programs of others"))
        self._calls = calls
        self.view = PublishersView(())
        text = Text(dim=True)
        text.say(
            self.tr(
                "Some jobs bring a program as an image. It computes in a container, without network and without your files. It "
                "runs here only if you accept whoever has signed it."
            )
        )
        self.rows: list[PublisherRow] = []
        self._list = QVBoxLayout()
        self._list.setSpacing(10)
        self.none = Text()
        self.add = button(self.tr("&Accept a publisher…"), self._add, "main")
        self.body.addWidget(text)
        self.body.addWidget(self.none)
        self.body.addLayout(self._list)
        self.body.addWidget(self.add, 0, Qt.AlignmentFlag.AlignLeft)

    def show_view(self, view: PublishersView) -> None:
        """Show these."""
        if view == self.view and (self.rows or not view.publishers):
            self.none.setVisible(not view.publishers)
            self.none.say(self.tr("Nobody is accepted, so no such job comes here."))
            return
        held = self.window().focusWidget()
        focus = next((row.one.key for row in self.rows if row.remove is held), None)
        self.view = view
        for row in self.rows:
            self._list.removeWidget(row)
            row.hide()
            row.deleteLater()
        self.rows = [PublisherRow(one, self._remove) for one in view.publishers]
        for row in self.rows:
            self._list.addWidget(row)
        self.none.setVisible(not view.publishers)
        self.none.say(self.tr("Nobody is accepted, so no such job comes here."))
        if focus is not None:  # Whoever goes by keys goes on from here.
            next((row.remove for row in self.rows if row.one.key == focus), self.add).setFocus()

    def _remove(self, one: PublisherView) -> None:
        def gone(body: bytes) -> None:
            self._take(body, self.tr("Images of {0} run here no more; what has begun goes on.").format(plain(one.name)))

        self._calls.post("publishers/remove", {"key": one.key}, gone, self.said.emit)

    def _add(self, key: str = "") -> None:
        sheet = AcceptSheet(self._calls, self, key)
        sheet.accepted_one.connect(
            lambda body, name: self._take(body, self.tr("Images of {0} run here now.").format(name))
        )
        sheet.open()

    def ask(self, key: str) -> None:
        """Have its owner name the publisher of this key."""
        self._add(key)

    def _take(self, body: bytes, said: str) -> None:
        try:
            view = read(body, PublishersView)
        except AnswerError as error:
            self.said.emit(str(error))
            return
        self.changed.emit(view)
        self.said.emit(said)


class PublisherRow(QWidget):
    """One of them."""

    def __init__(self, one: PublisherView, act: Callable[[PublisherView], None]) -> None:
        super().__init__()
        self.one = one
        row, texts = QHBoxLayout(self), QVBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(12)
        texts.setSpacing(2)
        self.name, self.detail = Text(bold=True), Text(dim=True)
        name = plain(one.name, 60)
        self.name.say(name)
        self.detail.say(one.key, self.tr("Key"))
        texts.addWidget(self.name)
        texts.addWidget(self.detail)
        row.addLayout(texts, 1)
        self.remove = button(self.tr("Remove"), lambda: act(one))
        self.remove.setAccessibleName(self.tr("Remove {0}").format(name))
        row.addWidget(self.remove, 0, Qt.AlignmentFlag.AlignTop)
        self.remove.setVisible(not one.own)
        if one.own:
            self.detail.say(self.tr("Cottage's own programs are always accepted."))


class ImagesCard(Card):
    """What jobs have asked this computer to run."""

    wanted = Signal(str)
    """A key that is to be accepted."""

    def __init__(self) -> None:
        super().__init__(self.tr("What jobs have asked for"))
        self.rows: list[ImageRow] = []
        self._list = QVBoxLayout()
        self._list.setSpacing(10)
        self.none = Text(dim=True)
        self.none.say(self.tr("No job has asked for a program yet."))
        self.body.addWidget(self.none)
        self.body.addLayout(self._list)

    def show_view(self, view: PublishersView) -> None:
        """Show the latest of these."""
        names: dict[str, str] = {one.key: plain(one.name, 60) for one in view.publishers}
        images = view.images[:MAX_IMAGES]
        if [row.one for row in self.rows] == list(images) and [row.names for row in self.rows] == [names] * len(images):
            return
        for row in self.rows:
            self._list.removeWidget(row)
            row.hide()
            row.deleteLater()
        self.rows = [ImageRow(one, names) for one in images]
        for row in self.rows:
            row.wanted.connect(self.wanted)
            self._list.addWidget(row)
        self.none.setVisible(not images)


class ImageRow(QFrame):
    """One of them."""

    wanted = Signal(str)

    def __init__(self, one: AskedImage, names: dict[str, str]) -> None:
        super().__init__()
        self.one, self.names = one, names
        row, texts = QHBoxLayout(self), QVBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(12)
        texts.setSpacing(2)
        self.name, self.asks = Text(bold=True), Text(dim=True)
        self.name.say(plain(one.name, 80))
        self.asks.say(self._sentence())
        texts.addWidget(self.name)
        texts.addWidget(self.asks)
        row.addLayout(texts, 1)
        self.accept = button(self.tr("Accept…"), lambda: self.wanted.emit(one.publisher))
        self.accept.setAccessibleName(self.tr("Accept the publisher of {0}").format(plain(one.name, 80)))
        row.addWidget(self.accept, 0, Qt.AlignmentFlag.AlignTop)
        # Before it stands in a row it would be a window of its own, which takes the keys.
        self.accept.setVisible(not one.accepted)

    def _sentence(self) -> str:
        one, locale = self.one, QLocale()
        size = locale.toString(one.size / 1e6, "f", 0 if one.size >= 10**7 else 1)
        memory = locale.toString(one.memory_mb)
        asks = (
            self.tr("{0} MB on the disk; it asks for {1} MB of memory and the graphics card.")
            if one.gpu
            else self.tr("{0} MB on the disk; it asks for {1} MB of memory.")
        )
        who = self.tr("By {0}.").format(self.names.get(one.publisher) or one.publisher)
        if not one.accepted:
            state = self.tr("It did not run: you have not accepted its publisher.")
        else:
            state = self.tr("It is here.") if one.here else self.tr("It is fetched when a job needs it.")
        return " ".join((who, asks.format(size, memory), state))


class AcceptSheet(Sheet):
    """A key, pasted or from a file, and what its publisher is called here."""

    accepted_one = Signal(bytes, str)

    def __init__(
        self,
        calls: Calls,
        parent: QWidget | None = None,
        key: str = "",
        choose: Callable[[QWidget], str] | None = None,
    ) -> None:
        """``key``: that is filled in. ``choose``: has its owner name a file; empty: none."""
        super().__init__(parent, QCoreApplication.translate("AcceptSheet", "Accept a publisher"), 520)
        self._calls, self._choose = calls, choose or self._ask_file
        self._explain(
            self.tr(
                "Take the key from somebody whom you trust. Whatever is signed with it may run here, without network and without "
                "your files."
            )
        )
        self.key, self.name = QLineEdit(key), QLineEdit()
        for line, name in (
            (self.key, self.tr("The publisher's key")),
            (self.name, self.tr("What you call the publisher")),
        ):
            line.setPlaceholderText(name)
            line.setAccessibleName(name)
            line.setMaxLength(200)
            line.textChanged.connect(lambda _: self._judge())
            self._column.addWidget(line)
        self.said = Text(dim=True)
        self._column.addWidget(self.said)
        self._column.addStretch()
        self.file = button(self.tr("Key from a &file…"), self._read)
        self.accept_it = button(self.tr("&Accept"), self._accept, "main")
        self._end(button(self.tr("&Close"), self.reject), self.file, self.accept_it)
        self.accept_it.setDefault(True)
        self._judge()
        (self.name if key else self.key).setFocus()

    def _judge(self) -> None:
        key, name = self.key.text().strip(), self.name.text().strip()
        is_key = _KEY.fullmatch(key) is not None
        self.accept_it.setEnabled(is_key and bool(name))
        if key and not is_key:
            self.said.say(
                self.tr("That is no key. One has 43 or 44 letters and digits, as `cottage image push` shows it.")
            )
        else:
            self.said.say("" if name or not key else self.tr("Give the publisher a name."))

    def _ask_file(self, parent: QWidget) -> str:
        name, _ = QFileDialog.getOpenFileName(parent, self.tr("A file with the publisher's key"))
        return name

    def _read(self) -> None:
        name = self._choose(self)
        if not name:
            return
        try:
            with Path(name).open("rb") as file:
                found = set(_KEY.findall(file.read(MAX_FILE).decode("ascii", "replace")))
        except OSError as error:
            self.said.say(self.tr("The file cannot be read: {0}").format(plain(error.strerror or str(error))))
            return
        if len(found) != 1:
            self.said.say(
                self.tr("There is no key in that file.")
                if not found
                else self.tr("There are several keys in that file.")
            )
            return
        self.key.setText(found.pop())
        self.name.setFocus()

    def _accept(self) -> None:
        order = {"key": self.key.text().strip(), "name": self.name.text().strip()}
        self.accept_it.setEnabled(False)
        self._calls.post("publishers/accept", order, self._done, self._refused)

    def _done(self, body: bytes) -> None:
        self.accepted_one.emit(body, plain(self.name.text().strip(), 60))
        self.accept()

    def _refused(self, why: str) -> None:
        self._judge()
        self.said.say(why)

"""The key of this computer, which is its name, its trust and its wallet: a backup of it, and its words."""

from pathlib import Path

from PySide6.QtCore import QCoreApplication, QSettings
from PySide6.QtWidgets import QFileDialog, QLineEdit, QPlainTextEdit, QWidget

from desktop.answers import BackupDone, KeyWords
from desktop.gui.client import Calls
from desktop.gui.errors import AnswerError
from desktop.gui.model import read
from desktop.gui.pages.sheet import Sheet
from desktop.gui.widgets import Card, FlowBox, Text, button

PATIENCE_MS = 20_000  # scrypt takes a third of a second, on a crowded machine some.
MIN_PASSPHRASE = 8
SAVED = "backup/saved"


class IdentityCard(Card):
    """Both ways to keep the key."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(self.tr("This computer's key"))
        self._calls = calls
        text = Text(dim=True)
        text.say(
            self.tr(
                "The key is the wallet on this computer and its good name. Without a backup, a broken disk loses both."
            )
        )
        ways = (
            button(self.tr("Save a &backup…"), lambda: BackupSheet(calls, self).open()),
            button(self.tr("Show the 24 &words…"), lambda: WordsSheet(calls, self).open()),
            button(self.tr("Br&ing one back…"), lambda: RestoreSheet(calls, self).open()),
        )
        self.body.addWidget(text)
        self.body.addWidget(FlowBox(ways, 8))


class BackupSheet(Sheet):
    """A passphrase, twice, and a file."""

    def __init__(self, calls: Calls, parent: QWidget | None = None, settings: QSettings | None = None) -> None:
        super().__init__(parent, QCoreApplication.translate("BackupSheet", "Save a backup"))
        self._calls = calls
        self._settings = settings
        self._explain(
            self.tr("One encrypted file with key, settings and rules. Without the passphrase nobody can open it.")
        )
        self.first, self.second = QLineEdit(), QLineEdit()
        for line, name in ((self.first, self.tr("Passphrase")), (self.second, self.tr("Once more"))):
            line.setEchoMode(QLineEdit.EchoMode.Password)
            line.setPlaceholderText(name)
            line.setAccessibleName(name)
            line.textEdited.connect(lambda _: self._judge())
            self._column.addWidget(line)
        self.said = Text(dim=True)
        self.save = button(self.tr("&Save as…"), self._choose, "main")
        self._column.addWidget(self.said)
        self._end(button(self.tr("&Close"), self.reject), self.save)
        self._judge()

    def _judge(self) -> None:
        short, same = len(self.first.text()) < MIN_PASSPHRASE, self.first.text() == self.second.text()
        self.save.setEnabled(not short and same)
        if short:
            self.said.say(self.tr("At least {0} characters.").format(MIN_PASSPHRASE))
        else:
            self.said.say("" if same else self.tr("The two differ."))

    def _choose(self) -> None:
        kind = self.tr("Cottage backup (*.cottage)")
        name, _ = QFileDialog.getSaveFileName(
            self,
            self.tr("Save a backup"),
            str(Path.home() / "cottage-key.cottage"),
            kind,
            options=QFileDialog.Option.DontConfirmOverwrite,
        )
        if name:
            self.write(name)

    def write(self, name: str) -> None:
        """Have the agent write the file ``name``."""
        order = {"file": name, "passphrase": self.first.text()}
        self._calls.post("backup", order, self._done, self.said.say, PATIENCE_MS)

    def _done(self, body: bytes) -> None:
        try:
            done = read(body, BackupDone)
        except AnswerError as error:
            self.said.say(str(error))
            return
        if self._settings is not None:
            self._settings.setValue(SAVED, True)
        self.first.clear()
        self.second.clear()
        self.save.setEnabled(False)
        self.said.say(self.tr("Saved in {0}. Keep it on another disk.").format(done.file))


class RestoreSheet(Sheet):
    """A backup with its passphrase, or the 24 words, whose node this computer becomes."""

    def __init__(self, calls: Calls, parent: QWidget | None = None) -> None:
        super().__init__(parent, QCoreApplication.translate("RestoreSheet", "Bring a key back"))
        self._calls = calls
        self._explain(
            self.tr("This computer becomes the one of the backup: its wallet and its good name. Lending must be off.")
        )
        self.passphrase = QLineEdit()
        self.passphrase.setEchoMode(QLineEdit.EchoMode.Password)
        self.words = QPlainTextEdit()
        self.words.setTabChangesFocus(True)
        self.words.setFixedHeight(72)
        self.file = button(self.tr("Choose the &file…"), self._choose, "main")
        self.by_words = button(self.tr("Use the &words"), lambda: self._ask({"words": self.words.toPlainText()}))
        for line, name in (
            (self.passphrase, self.tr("Passphrase of the backup")),
            (self.words, self.tr("Or the 24 words that Cottage has shown")),
        ):
            line.setPlaceholderText(name)
            line.setAccessibleName(name)
            self._column.addWidget(line)
        self._explain(
            self.tr("Never the words of another wallet: Cottage has no use for them, whoever asks wants to rob you.")
        )
        self.said = Text(dim=True)
        self._column.addWidget(self.said)
        self._end(button(self.tr("&Close"), self.reject), self.by_words, self.file)
        self.passphrase.textChanged.connect(self._judge)
        self.words.textChanged.connect(self._judge)
        self._judge()

    def _judge(self) -> None:
        self.file.setEnabled(len(self.passphrase.text()) >= MIN_PASSPHRASE)
        self.by_words.setEnabled(bool(self.words.toPlainText().strip()))

    def _choose(self) -> None:
        kind = self.tr("Cottage backup (*.cottage)")
        name, _ = QFileDialog.getOpenFileName(self, self.tr("Bring a key back"), str(Path.home()), kind)
        if name:
            self.bring(name)

    def bring(self, name: str) -> None:
        """Have the agent open the file ``name``."""
        self._ask({"file": name, "passphrase": self.passphrase.text()})

    def _ask(self, order: dict[str, str]) -> None:
        for asking in (self.file, self.by_words):
            asking.setEnabled(False)  # Once is enough: the agent takes its time, and begins anew.
        self._calls.post("restore", order, self._done, self._refused, PATIENCE_MS)

    def _refused(self, why: str) -> None:
        self.said.say(why)
        self._judge()

    def _done(self, body: bytes) -> None:
        try:
            done = read(body, BackupDone)
        except AnswerError as error:
            self._refused(str(error))
            return
        self.passphrase.clear()
        self.words.clear()
        self.said.say(self.tr("This computer is {0} now.").format(done.address))


class WordsSheet(Sheet):
    """The key as words, once somebody has said that nobody looks over their shoulder."""

    def __init__(self, calls: Calls, parent: QWidget | None = None) -> None:
        super().__init__(parent, QCoreApplication.translate("WordsSheet", "The 24 words"), 460)
        self._calls = calls
        self._explain(
            self.tr("Whoever has these words has this computer's wallet. Write them on paper, and on nothing else.")
        )
        self._explain(self.tr("Nobody of Cottage will ever ask for them, nor for those of another wallet."))
        self.words = Text(bold=True)
        self.look = button(self.tr("&Show them"), self._ask)
        self._column.addWidget(self.words)
        self._end(button(self.tr("&Close"), self.reject), self.look)

    def _ask(self) -> None:
        self.look.setEnabled(False)
        self._calls.post("words", {}, self._show, self.words.say)

    def _show(self, body: bytes) -> None:
        try:
            words = read(body, KeyWords).words.split()
        except AnswerError as error:
            self.words.say(str(error))
            return
        self.words.say("   ".join(f"{number} {word}" for number, word in enumerate(words, 1)))

"""What the owner presses where jobs cannot run yet: the engine is installed, or the image fetched, behind a progress bar."""

from PySide6.QtCore import QCoreApplication, QLocale, Qt, QTimer, QUrl, Signal
from PySide6.QtGui import QDesktopServices, QGuiApplication, QTextOption
from PySide6.QtWidgets import QHBoxLayout, QPlainTextEdit, QProgressBar, QWidget

from desktop.answers import ImageView
from desktop.gui.client import Calls
from desktop.gui.engine.install import EngineInstall, authoriser, here
from desktop.gui.engine.mend import WAYS
from desktop.gui.engine.systems import DESKTOP_PAGE, PAGE, commands
from desktop.gui.engine.words import EngineWords
from desktop.gui.errors import AnswerError
from desktop.gui.model import plain, read
from desktop.gui.pages.sheet import Sheet
from desktop.gui.widgets import Text, button

WIDTH = 520
LINES = 3  # The longest command takes as many.
LOOK_MS = 500
MAX_LINES = 2000
BUILD = "python -m installer.image.build"


class CommandLine(QWidget):
    """A command that can be read, selected and copied."""

    def __init__(self) -> None:
        super().__init__()
        row = QHBoxLayout(self)
        row.setContentsMargins(0, 0, 0, 0)
        self.line = QPlainTextEdit()
        self.line.setReadOnly(True)
        self.line.setWordWrapMode(QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere)
        self.line.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.line.setTabChangesFocus(True)
        self.line.setAccessibleName(self.tr("Command for a terminal"))
        self.line.setFixedHeight(LINES * self.line.fontMetrics().lineSpacing() + 24)
        self.copy = button(self.tr("C&opy"), self._copy)
        row.addWidget(self.line, 1, Qt.AlignmentFlag.AlignTop)
        row.addWidget(self.copy, 0, Qt.AlignmentFlag.AlignTop)

    def show_command(self, text: str) -> None:
        """Nothing is shown where there is none."""
        self.line.setPlainText(text)
        self.setVisible(bool(text))

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(self.line.toPlainText())


class _WorkSheet(Sheet):
    """A sentence, a bar while something is done, what became of it, and the log for those who want it."""

    mended = Signal()

    def __init__(self, parent: QWidget | None, title: str) -> None:
        super().__init__(parent, title, WIDTH)
        self.head, self.about, self.said = Text(size=2, bold=True), Text(dim=True), Text()
        self.command, self.bar, self.log = CommandLine(), QProgressBar(), QPlainTextEdit()
        self.bar.setAccessibleName(title)
        self.bar.setTextVisible(False)
        self.log.setReadOnly(True)
        self.log.setMaximumBlockCount(MAX_LINES)
        self.log.setFixedHeight(140)
        self.log.setTabChangesFocus(True)
        self.log.setAccessibleName(self.tr("What the system says"))
        self.details = button(self.tr("&Details"), lambda: self.log.setVisible(not self.log.isVisible()), "link")
        for part in (self.head, self.about, self.bar, self.said, self.command):
            self._column.addWidget(part)
        self._column.addWidget(self.details, 0, Qt.AlignmentFlag.AlignLeft)
        self._column.addWidget(self.log)
        self.act = button(self.tr("&Install"), self._act, "main")
        self.close_it = button(self.tr("&Close"), self.reject)
        self._column.addStretch()
        self._end(self.close_it, self.act)
        for hidden in (self.bar, self.details, self.log, self.said):
            hidden.hide()

    def _act(self) -> None:
        raise NotImplementedError

    def _tell(self, text: str) -> None:
        self.said.say(text)
        self.said.setVisible(bool(text))

    def _busy(self, busy: bool) -> None:
        self.bar.setVisible(busy)
        self.act.setEnabled(not busy)


class EngineSheet(_WorkSheet):
    """Docker is missing, does not run, or is not for this user. Closed while it works, the work goes on."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent, QCoreApplication.translate("EngineSheet", "The engine that jobs run in"))
        self._words, self._source, self._why = EngineWords(self), here(), ""
        self.work = EngineInstall(self)
        self.work.step.connect(lambda step: self._tell(self._words.step(step)))
        self.work.said.connect(self._log_line)
        self.work.ended.connect(self._ended)

    @property
    def can_install(self) -> bool:
        """There is somebody to ask for leave, and a package that is known."""
        return self._source is not None and bool(authoriser())

    def ask(self, why: str) -> None:
        """Open it; ``why``: what is missing (absent, stopped, denied), as the agent says."""
        if not self.work.is_running:
            self._show(why)
        self.open()

    def begin(self, why: str) -> None:
        """Open it at work: the plan was read elsewhere."""
        self.ask(why)
        if self.can_install and not self.work.is_running:
            self._act()

    def plan(self, why: str) -> str:
        """What is going to happen; empty where it is the owner's own affair."""
        if why not in WAYS:
            return ""
        if self.can_install and self._source is not None:
            return f"{self._words.plan(why, self._source)} {self._words.then_image()}"
        return self._words.by_hand_later()

    def _show(self, why: str) -> None:
        self._why = why
        self.head.say(self._words.missing(why))
        self.act.setText(self._words.button(why) if self.can_install else self._words.open_page())
        self.act.setVisible(self.can_install or not self._typed)
        self.act.setEnabled(True)
        self._tell("")
        self.command.show_command("")
        if self.can_install and self._source is not None:
            self.about.say(self._words.plan(why, self._source))
            return
        self._show_command()

    @property
    def _typed(self) -> str:
        """What people type instead; empty where only a page says it."""
        return commands(self._why, self._source) if self._words.has_packages else ""

    @property
    def _page(self) -> str:
        return PAGE if self._words.has_packages else DESKTOP_PAGE

    def _show_command(self) -> None:
        self.about.say(self._words.by_hand() if self._typed else self._words.elsewhere())
        self.command.show_command(self._typed or self._page)

    def _act(self) -> None:
        if not self.can_install or self._source is None:
            QDesktopServices.openUrl(QUrl(self._page))
            return
        self.log.clear()
        self.bar.setRange(0, 0)
        self._busy(True)
        self.details.show()
        self._tell(self._words.step("leave"))
        self.work.start(self._source.manager)

    def _log_line(self, line: str) -> None:
        self.log.appendPlainText(plain(line))

    def _ended(self, fault: str) -> None:
        self._busy(False)
        self._tell(self._words.fault(fault))
        if fault:
            if fault not in ("cancelled", "network", "login"):
                self.command.show_command(commands(self._why, self._source))
            return
        self.act.setVisible(False)
        self.mended.emit()
        self.accept()  # What follows is said by who looks again.


class ImageSheet(_WorkSheet):
    """The agent fetches the signed image and has the engine take it; the bar counts bytes."""

    def __init__(self, calls: Calls, parent: QWidget | None = None) -> None:
        super().__init__(parent, QCoreApplication.translate("ImageSheet", "The image that jobs run in"))
        self._calls = calls
        self.head.say(self.tr("The image that jobs run in is not here yet."))
        self.about.say(
            self.tr(
                "It holds the training program and nothing of yours. It is fetched once, and its signature is checked."
            )
        )
        self.act.setText(self.tr("&Fetch it"))
        self.command.show_command("")
        self._look = QTimer(self, interval=LOOK_MS)
        self._look.timeout.connect(lambda: self._calls.get("image", self._take, self._tell))

    def ask(self) -> None:
        """Open it."""
        self._calls.get("image", self._take, self._tell)
        self.open()

    def begin(self) -> None:
        """Open it at work."""
        self.open()
        self._act()

    def _act(self) -> None:
        self._busy(True)
        self._calls.post("image", {}, self._take, self._refused)

    def _refused(self, why: str) -> None:
        self._busy(False)
        self._tell(why)

    def _take(self, body: bytes) -> None:
        try:
            view = read(body, ImageView)
        except AnswerError as error:
            self._refused(str(error))
            return
        working = view.stage in ("fetching", "loading")
        self._busy(working)
        if working:
            self._look.start()
            self._show_progress(view)
            return
        was_working = self._look.isActive()
        self._look.stop()
        self._show_end(view)
        if view.stage == "here" and was_working:
            self.mended.emit()
            self.accept()

    def _show_progress(self, view: ImageView) -> None:
        self.bar.setRange(0, 1000 if view.size else 0)
        self.bar.setValue(min(1000, view.done * 1000 // view.size) if view.size else 0)
        done, size = (QLocale().toString(number / 1e6, "f", 0) for number in (view.done, view.size))
        if not view.size:
            self._tell(self.tr("Looking for the newest one."))
        elif view.stage == "fetching":
            self._tell(self.tr("Fetching: {0} of {1} MB.").format(done, size))
        else:
            self._tell(self.tr("The engine takes it: {0} of {1} MB.").format(done, size))

    def _show_end(self, view: ImageView) -> None:
        self.act.setVisible(view.stage in ("missing", "failed"))
        self.command.show_command(BUILD if view.stage == "own" else "")
        ends = {
            "here": self.tr("It is here. Jobs can run."),
            "failed": self.tr("That did not work: {0}").format(plain(view.text)),
            "own": self.tr(
                "This build names nobody whose image it takes. Make one of your own, in the folder of the source:"
            ),
        }
        self._tell(ends.get(view.stage, ""))

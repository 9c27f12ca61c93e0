"""``cottage desktop``: the provider's window. The agent runs as a process of its own and is not needed to open the window.

Exit codes: 0 closed; 2 an argument or the folder is unusable; 3 there is no screen.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QObject, QSettings, Qt, QTimer
from PySide6.QtGui import QGuiApplication, QIcon
from PySide6.QtWidgets import QApplication, QMessageBox

from common.invitations import is_link
from common.own_folders import data_folder, settings_folder
from common.terminal import say
from desktop.gui.client import Calls
from desktop.gui.language import speak
from desktop.gui.lending import Lending
from desktop.gui.looks.first_payment import FirstPayment
from desktop.gui.model import Snapshot
from desktop.gui.notices import DesktopNotices
from desktop.gui.pages.settings import LANGUAGE, THEME
from desktop.gui.single import OnlyOne
from desktop.gui.theme import DARK, LIGHT, Theme, palette_of, style_of
from desktop.gui.tray import Tray
from desktop.gui.window import SETTINGS, MainWindow
from desktop.layout import NOTE, VERSIONS

EXIT_UNUSABLE, EXIT_NO_SCREEN = 2, 3


class Desktop(QObject):
    """All parts of one running program, joined."""

    def __init__(self, home: Path, command: Sequence[str], settings: QSettings, hidden: bool = False) -> None:
        """``home``: the agent's folder; ``command`` starts it; ``hidden``: begin in the tray, where there is one."""
        super().__init__()
        self.lending = Lending(home / "agent.sock", command, home / "agent.log", self)
        self.settings = settings
        self.is_outdated, self._running = False, ""
        calls = Calls(home / "agent.sock", self)
        self.tray = Tray(settings, self)
        self.window = MainWindow(settings, self.tray.is_there, calls)
        self.first_payment = FirstPayment(settings, self)
        self.notices = DesktopNotices(calls, settings, self.window.activity, self.first_payment, self.tray.tell, self)
        card = self.window.home.first_payment
        self.first_payment.changed.connect(card.show_amount)
        card.closed.connect(self.first_payment.close)
        for follower in (self.window, self.tray, self.first_payment, self.notices):
            self.lending.changed.connect(follower.show_snapshot)
        self.lending.changed.connect(self._follow_version)
        self.lending.refused.connect(self.window.show_refusal)
        self.window.settings.look_changed.connect(self._restyle)
        self.window.seen.connect(self.lending.be_seen)
        self.window.restart_asked.connect(self.lending.restart)
        self.window.went_to_tray.connect(self.tray.explain_once)
        self.tray.open_asked.connect(self.window.bring_forward)
        self.tray.settings_asked.connect(self._open_settings)
        self.tray.cards.asked.connect(self.window.switch_card)
        for part in (self.window, self.tray):
            part.toggle_asked.connect(self.lending.toggle)
            part.quit_asked.connect(end)
        for pauses in (self.window.home.pauses, self.tray.pauses):
            pauses.pause_asked.connect(self.lending.pause)
            pauses.here_asked.connect(self.lending.lend_now)
            pauses.resume_asked.connect(lambda: self.lending.pause(0))
            pauses.finish_asked.connect(self.lending.finish)
        QGuiApplication.styleHints().colorSchemeChanged.connect(lambda _: self._restyle())
        self._restyle()
        self.window.show_snapshot(self.lending.snapshot)
        if not (hidden and self.tray.is_there()):
            self.window.show()
        self.lending.begin()

    def _follow_version(self, snapshot: Snapshot) -> None:
        """Where the agent has become another version, this window does, too."""
        if snapshot.status is None or not (running := snapshot.status.update.running):
            return
        self.is_outdated = bool(self._running) and running != self._running and next_window() is not None
        self._running = running
        if self.is_outdated:
            end()

    def leave(self) -> None:
        """The window ends; the agent stays where the next window takes its place at once."""
        if not self.is_outdated:
            self.lending.leave()

    def _restyle(self) -> None:
        """The owner's colours, or those of the desktop."""
        chosen = {"light": Qt.ColorScheme.Light, "dark": Qt.ColorScheme.Dark}
        self.recolour(chosen.get(str(self.settings.value(THEME, "system")), QGuiApplication.styleHints().colorScheme()))

    def recolour(self, scheme: Qt.ColorScheme) -> None:
        """Wear the colours of ``scheme``; light where the system does not say."""
        wear(DARK if scheme is Qt.ColorScheme.Dark else LIGHT)
        self.tray.recolour()

    def _open_settings(self) -> None:
        self.window.go(SETTINGS)
        self.window.bring_forward()


def wear(theme: Theme) -> None:
    """Show every widget in the colours of ``theme``. Costly: every widget is styled anew."""
    app = QApplication.instance()
    assert isinstance(app, QApplication)
    if app.styleSheet() != (style := style_of(theme)):
        QApplication.setPalette(palette_of(theme))
        app.setStyleSheet(style)


def main(argv: Sequence[str] | None = None) -> int:
    """Show the window until it is quit; returns the exit code. Words after ``--`` go to ``cottage node run``.

    An invitation goes to the window that is open, where one is, which asks before it changes anything.
    """
    options = _parser().parse_args(argv)
    link = options.agent[0] if options.agent and is_link(options.agent[0]) else ""
    if link:
        options.agent = []  # A link stands alone: whoever made it says nothing else to this program.
    if not _has_screen():
        say("cottage desktop: there is no screen here; without one, lend with `cottage node run`", error=True)
        return EXIT_NO_SCREEN
    home = (options.home or data_folder() / "node").absolute()
    settings = user_settings()
    app = application(sys.argv[:1], str(settings.value(LANGUAGE, "system")))
    try:
        only = OnlyOne(home, link)
    except OSError as error:
        return _tell_unusable(home, error)
    if not only.is_first:
        return 0  # The window that is open has come forward.
    command = (*agent_program(), "run", "--stay", "--home", str(home), *options.agent)
    for number in (signal.SIGINT, signal.SIGTERM):
        # Python looks for signals whenever a timer of ours fires.
        signal.signal(number, lambda *_: QTimer.singleShot(0, end))
    desktop = Desktop(home, command, settings, options.hidden)
    app.aboutToQuit.connect(desktop.leave)
    only.called.connect(desktop.window.called)
    if link:
        desktop.window.called(link)
    code = app.exec()
    if desktop.is_outdated and (program := next_window()) is not None:
        hidden = [] if desktop.window.isVisible() else ["--hidden"]
        given = [word for word in sys.argv[1:] if word != "--hidden" and not is_link(word)]
        only.let_go()
        os.execv(program, [str(program), *hidden, *given])  # noqa: S606 - a program of ours, without a shell
    return code


def _tell_unusable(home: Path, error: OSError) -> int:
    """Nobody sees what a program says that was started by a double click; the exit code."""
    why = QApplication.translate("Desktop", "Cottage keeps its key and settings in {0}, which cannot be used: {1}.")
    what = QApplication.translate(
        "Desktop", "Give yourself the right to write there, or make room; then open Cottage again."
    )
    said = why.format(home, error.strerror or error)
    say(f"cottage desktop: {said}", error=True)
    QMessageBox(QMessageBox.Icon.Critical, "Cottage", f"{said}\n\n{what}").exec()
    return EXIT_UNUSABLE


def end() -> None:
    """Leave the event loop. ``quit`` would ask the window first, which only hides itself while there is a tray."""
    QApplication.exit(0)


def next_window() -> Path | None:
    """This program in the version in use, where versions lie side by side or a package replaces it."""
    program = Path(sys.executable)
    versions = program.parent.parent
    if not getattr(sys, "frozen", False):
        return None
    if versions.name == VERSIONS:
        return versions.with_name("cottage") / "cottage"
    return program if program.with_name(NOTE).exists() else None


def agent_program() -> tuple[str, ...]:
    """The agent: the other executable of a bundle, or a module of this Python."""
    if getattr(sys, "frozen", False):
        program = Path(sys.executable)
        return (str(program.with_name("cottage-agent" + program.suffix)),)
    return (sys.executable, "-m", "desktop.agent")


def application(arguments: Sequence[str], language: str = "system") -> QApplication:
    """The one QApplication, with its name, style, icon and words in ``language``."""
    app = QApplication(list(arguments))
    speak(app, language)
    app.setApplicationName("cottage")
    app.setApplicationDisplayName("Cottage")
    app.setDesktopFileName("cottage")
    app.setStyle("Fusion")  # The one style that follows a palette everywhere.
    app.setQuitOnLastWindowClosed(False)
    icons = Path(__file__).parents[2] / "assets" / "icons"
    icon = QIcon()
    for file in sorted(icons.glob("cottage-*.png")):
        icon.addFile(str(file))
    app.setWindowIcon(icon)
    return app


def user_settings() -> QSettings:
    """What the window remembers of itself, in the user's configuration folder."""
    file = settings_folder() / "window.ini"
    return QSettings(str(file), QSettings.Format.IniFormat)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cottage desktop", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--home", type=Path, help="the agent's folder (the user's data folder)")
    parser.add_argument("--hidden", action="store_true", help="begin in the tray, where there is one")
    parser.add_argument(
        "agent",
        nargs="*",
        metavar="cottage://LINK | -- SETTING",
        help="an invitation to a network; or settings for `cottage node run`, as after --",
    )
    return parser


def _has_screen() -> bool:
    if sys.platform != "linux" or os.environ.get("QT_QPA_PLATFORM"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


if __name__ == "__main__":
    sys.exit(main())

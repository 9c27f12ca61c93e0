"""The first run on a real X screen: the window, a real agent, and a pointer that clicks where a person would.

``python -m tests.desktop.gui.first_run_on_a_screen HOME SHOTS AGENT...``: ``AGENT`` starts the agent. Prints one JSON object.
"""

import json
import subprocess
import sys
from pathlib import Path

from PySide6.QtCore import QSettings, Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from desktop.gui.app import Desktop, application
from desktop.gui.pages.welcome import SWITCH, WALLET
from desktop.gui.window import HOME, WELCOME
from tests.desktop.gui.support import wait_for


def click(part: QWidget) -> None:
    """By the pointer of the display, as the window manager and Qt see it."""
    wait_for(lambda: part.isVisible() and part.isEnabled(), f"{part.accessibleName()} to click")
    spot = part.mapToGlobal(part.rect().center())
    subprocess.run(("xdotool", "mousemove", str(spot.x()), str(spot.y()), "click", "1"), check=True)


def main(home: Path, shots: Path, command: list[str]) -> None:
    application(["cottage"], "en")
    shots.mkdir(parents=True, exist_ok=True)
    seen: dict[str, object] = {}
    desktop = Desktop(home, command, QSettings(str(home / "w.ini"), QSettings.Format.IniFormat))
    window, tray = desktop.window, desktop.tray
    welcome = window.welcome

    def shoot(name: str) -> None:
        for scheme in (Qt.ColorScheme.Dark, Qt.ColorScheme.Light):
            desktop.recolour(scheme)
            QTest.qWait(150)
            picture = QGuiApplication.primaryScreen().grabWindow(0)
            assert picture.save(str(shots / f"{name}_{scheme.name.lower()}.png"))

    wait_for(lambda: window.windowHandle().isExposed() and tray.is_there(), "the window and the tray")
    assert window.stack.currentIndex() == WELCOME
    wait_for(welcome.first.isEnabled, "the self-test", 60)
    seen["checks"] = {name: line.text.text() for name, line in welcome.lines.items()}
    steps = (
        (welcome.first, "first_run_1_checks", SWITCH),
        (welcome.wallet, "first_run_2_before_wallet", WALLET),
        (welcome.take, "first_run_2_wallet", SWITCH),
        (welcome.switch, "first_run_3_switch", None),
    )
    for part, name, number in steps:
        shoot(name)
        click(part)
        wait_for(
            lambda number=number: welcome.steps.currentIndex() == number or window.stack.currentIndex() == HOME,
            "the step",
        )
    try:
        wait_for(lambda: window.home.headline.text() == "Waiting for a job.", "lending", 60)
    except AssertionError:
        sys.stderr.write(f"it says: {window.home.headline.text()} {window.home.reason.text()}\n")
        raise
    shoot("first_run_4_lending")
    tray.menu.popup(tray.icon.geometry().center())
    wait_for(lambda: tray.menu.windowHandle().isExposed(), "the menu")
    shoot("first_run_5_tray")
    seen["rows"] = [row.text() for row in tray.menu.actions() if row.isVisible() and not row.isSeparator()]
    tray.menu.close()
    click(window.home.switch)
    wait_for(lambda: window.home.headline.text() == "Lending is off.", "the end", 60)
    desktop.lending.leave()
    wait_for(lambda: not desktop.lending._process.pid, "the agent's end", 60)
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

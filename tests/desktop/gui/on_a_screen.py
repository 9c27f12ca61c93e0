"""Runs on a real X screen with a tray: opens the window, closes it to the tray, opens it again from the icon's menu.

``python on_a_screen.py HOME SCREENSHOTS``; prints one JSON object of what was seen.
"""

import json
import sys
from pathlib import Path

from PySide6.QtCore import QPoint, QRect, QSettings, QSize, Qt
from PySide6.QtGui import QColor, QGuiApplication, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget

from desktop.gui.app import Desktop, application
from desktop.gui.model import AgentPhase
from desktop.gui.pages.welcome import DONE
from desktop.gui.theme import DARK, LIGHT
from tests.desktop.gui.support import http, listener, status, task, wait_for


def screen(box: QRect | None = None) -> QImage:
    """What is on the screen, or on a part of it."""
    seen = QGuiApplication.primaryScreen()
    part = box or seen.geometry()
    return seen.grabWindow(0, part.x(), part.y(), part.width(), part.height()).toImage()


def green(picture: QImage) -> int:
    """How many pixels of ``picture`` have the colour of lending."""
    near = (picture.pixelColor(x, y) for x in range(picture.width()) for y in range(picture.height()))
    return sum(pixel.green() > pixel.red() + 60 for pixel in near)


def corner(window: QWidget) -> QRect:
    return QRect(window.mapToGlobal(QPoint(4, 4)), QSize(1, 1))


def main(home: Path, shots: Path) -> None:
    application(["cottage"], "en")
    seen: dict[str, object] = {}
    shots.mkdir(parents=True, exist_ok=True)
    with listener(home / "agent.sock", http(status(tasks=[task()]))):
        settings = QSettings(str(home / "w.ini"), QSettings.Format.IniFormat)
        settings.setValue(DONE, True)
        desktop = Desktop(home, ("false",), settings)
        tray, window = desktop.tray, desktop.window
        wait_for(lambda: desktop.lending.snapshot.phase is AgentPhase.RUNNING, "an answer")
        wait_for(lambda: tray.is_there() and not tray.icon.geometry().isEmpty(), "the tray")
        wait_for(lambda: green(screen(tray.icon.geometry())) > 20, "the icon")
        place = tray.icon.geometry().center()
        for name, scheme, theme in (("light", Qt.ColorScheme.Light, LIGHT), ("dark", Qt.ColorScheme.Dark, DARK)):
            desktop.recolour(scheme)
            ground = QColor(theme.ground)
            wait_for(lambda ground=ground: screen(corner(window)).pixelColor(0, 0) == ground, f"{name} window")
            screen().save(str(shots / f"desktop_tray_{name}.png"))
        window.close()
        seen["hidden"] = not window.isVisible()
        tray.menu.popup(place)
        wait_for(lambda: tray.menu.windowHandle().isExposed(), "the menu")
        screen().save(str(shots / "desktop_tray_menu.png"))
        seen["rows"] = [row.text() for row in tray.menu.actions() if row.isVisible() and not row.isSeparator()]
        for key in (*3 * [Qt.Key.Key_Down], Qt.Key.Key_Return):  # Past "Stop lending" and "Pause" to "Open Cottage".
            QTest.keyClick(tray.menu, key)
        wait_for(window.isVisible, "the window again")
        seen["icon"] = [place.x(), place.y()]
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

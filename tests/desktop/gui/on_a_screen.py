"""Runs on a real X screen with a tray: opens the window, closes it to the tray, opens it again from the icon's menu.

``python on_a_screen.py HOME SCREENSHOTS``; prints one JSON object of what was seen.
"""

import json
import sys
from pathlib import Path

from PySide6.QtCore import QPoint, QSettings, Qt
from PySide6.QtGui import QGuiApplication, QImage
from PySide6.QtTest import QTest

from desktop.gui.app import Desktop, application
from desktop.gui.model import Phase
from tests.desktop.gui.support import http, listener, status, task, wait_for


def screen() -> QImage:
    return QGuiApplication.primaryScreen().grabWindow(0).toImage()


def green(picture: QImage, at: QPoint) -> int:
    """How many pixels around ``at`` have the colour of lending."""
    points = (at + QPoint(x, y) for x in range(-14, 15) for y in range(-14, 15))
    near = (picture.pixelColor(point) for point in points if picture.valid(point))
    return sum(pixel.green() > pixel.red() + 60 for pixel in near)


def main(home: Path, shots: Path) -> None:
    application(["cottage"])
    seen: dict[str, object] = {}
    shots.mkdir(parents=True, exist_ok=True)
    with listener(home / "agent.sock", http(status(tasks=[task()]))):
        desktop = Desktop(home, ("false",), QSettings(str(home / "w.ini"), QSettings.Format.IniFormat))
        tray, window = desktop.tray, desktop.window
        wait_for(lambda: desktop.lending.snapshot.phase is Phase.RUNNING, "an answer")
        wait_for(lambda: tray.is_there() and not tray.icon.geometry().isEmpty(), "the tray")
        wait_for(lambda: green(screen(), tray.icon.geometry().center()) > 20, "the icon")
        place = tray.icon.geometry().center()
        QTest.qWaitForWindowExposed(window)
        for name, scheme in (("light", Qt.ColorScheme.Light), ("dark", Qt.ColorScheme.Dark)):
            desktop.recolour(scheme)
            ground = window.palette().window().color()
            wait_for(
                lambda ground=ground: screen().pixelColor(window.mapToGlobal(QPoint(4, 4))) == ground, f"{name} window"
            )
            screen().save(str(shots / f"desktop_tray_{name}.png"))
        window.close()
        seen["hidden"] = not window.isVisible()
        tray.menu.popup(place)
        wait_for(tray.menu.isVisible, "the menu")
        QTest.qWaitForWindowExposed(tray.menu)
        screen().save(str(shots / "desktop_tray_menu.png"))
        seen["rows"] = [row.text() for row in tray.menu.actions() if row.isVisible() and not row.isSeparator()]
        for key in (Qt.Key.Key_Down, Qt.Key.Key_Down, Qt.Key.Key_Return):  # Past "Stop lending" to "Open Cottage".
            QTest.keyClick(tray.menu, key)
        wait_for(window.isVisible, "the window again")
        seen["icon"] = [place.x(), place.y()]
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

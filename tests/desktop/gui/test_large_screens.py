"""Screens of every size, in two languages and two sets of colours: nothing is cut, and all of it is reached by Tab."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
_PROGRAM = """
import json, sys
from pathlib import Path

import pytest
from PySide6.QtCore import QSettings
from PySide6.QtTest import QTest
from desktop.gui.app import Desktop, application
from desktop.gui.pages.welcome import DONE
from desktop.gui.window import ACTIVITY, EARNINGS, HOME, MIN_WIDTH, SETTINGS, WELCOME
from tests.desktop.gui.support import agent, documents, listener, wait_for
home = Path(sys.argv[1])
application(["cottage"], "de")
settings = QSettings(str(home / "w.ini"), QSettings.Format.IniFormat)
settings.setValue(DONE, True)
seen = {}
with listener(home / "agent.sock", agent(documents())):
    desktop = Desktop(home, ("false",), settings)
    window = desktop.window
    window.resize(MIN_WIDTH, 800)
    wait_for(lambda: desktop.lending.snapshot.status is not None, "an answer")
    for page in (HOME, EARNINGS, ACTIVITY, SETTINGS, WELCOME):
        window.go(page)
        QTest.qWait(100)
        picture, needed = window.grab(), window.stack.currentWidget().minimumSizeHint().width()
        seen[page] = [window.width(), picture.devicePixelRatio(), picture.width(), needed]
    desktop.lending._timer.stop()
    wait_for(lambda: not desktop.notices._calls._now, "the last answer")
print(json.dumps(seen))
"""


def test_at_twice_the_size_no_page_is_wider_than_the_smallest_window(tmp_path: Path) -> None:
    given = {"QT_SCALE_FACTOR": "2", "QT_QPA_PLATFORM": "offscreen", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        (sys.executable, "-c", _PROGRAM, str(tmp_path)),
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert len(seen) == 5
    for page, (width, ratio, points, needed) in seen.items():
        assert (ratio, points) == (2.0, 2 * width), page
        assert width == 420, f"page {page} has widened the window to {width}"
        assert needed <= width, page


_SIZES = """
import json, sys
from pathlib import Path

import pytest
from PySide6.QtCore import QPoint, QSettings, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QLabel, QLineEdit
from desktop.gui.app import Desktop, application
from desktop.gui.pages.welcome import DONE
from desktop.gui.window import ACTIVITY, EARNINGS, HOME, SETTINGS, WELCOME
from tests.desktop.gui.support import agent, documents, listener, wait_for
home, name, language = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
app = application(["cottage"], language)
settings = QSettings(str(home / "w.ini"), QSettings.Format.IniFormat)
settings.setValue(DONE, True)

def cut(page):
    for label in page.findChildren(QLabel):
        if label.isVisible() and label.text():
            needed = label.heightForWidth(label.width()) if label.wordWrap() else label.sizeHint().height()
            if label.height() < needed or (not label.wordWrap() and label.width() < label.sizeHint().width()):
                yield label.text()
    for button in page.findChildren(QAbstractButton):
        if button.isVisible() and button.text() and button.width() < button.sizeHint().width():
            yield button.text()
    for line in page.findChildren(QLineEdit):
        shown = line.text() or line.placeholderText()
        if line.isVisible() and not line.isModified() and line.fontMetrics().horizontalAdvance(shown) > line.width() - 10:
            yield shown

def missed(page):
    wanted = {part for part in page.findChildren(QAbstractButton) if part.isVisible() and part.isEnabled()}
    reached = set()
    while (part := app.focusWidget()) not in reached:
        reached.add(part)
        QTest.keyClick(part, Qt.Key.Key_Tab)
    for part in tuple(reached):  # Tab finds one of those of which one is chosen, and arrow keys the others.
        if isinstance(part, QAbstractButton) and part.group() is not None:
            reached.update(part.group().buttons())
    return sorted(part.accessibleName() for part in wanted - reached)

with listener(home / "agent.sock", agent(documents())):
    desktop = Desktop(home, ("false",), settings)
    window, room = desktop.window, desktop.window.screen().availableGeometry()
    wait_for(lambda: desktop.lending.snapshot.status is not None, "an answer")
    seen = {"screen": [room.width(), room.height()], "window": [window.width(), window.height()]}
    seen |= {"hidden": [], "cut": [], "missed": []}
    window.activateWindow()
    stack = window.settings.stack
    parts = [(page, 0) for page in (HOME, EARNINGS, ACTIVITY, WELCOME)] + [(SETTINGS, n) for n in range(stack.count())]
    for scheme in (Qt.ColorScheme.Light, Qt.ColorScheme.Dark):
        desktop.recolour(scheme)
        for page, part in parts:
            window.go(page)
            stack.setCurrentIndex(part)
            QTest.qWait(60)
            area = window.areas.get(page)
            if area is not None and area.widget().height() > area.viewport().height():
                seen["hidden"] += [] if area.verticalScrollBar().isVisible() else [page]
            if scheme is Qt.ColorScheme.Light:
                seen["cut"] += cut(window)
                seen["missed"] += missed(window)
            shot = f"size_{name}_{language}_{scheme.name.lower()}_{page}.{part}.png"
            window.grab().save(str(Path("build/shots") / shot), None, 90)  # Packed little, and written quickly.
    desktop.lending._timer.stop()
    wait_for(lambda: not desktop.notices._calls._now, "the last answer")
print(json.dumps(seen))
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("language", "width", "height", "scale"),
    [
        ("de", 800, 600, 1),
        ("en", 1366, 768, 1),
        ("de", 1920, 1080, 1),
        ("en", 1920, 1080, 1.5),
        ("de", 1920, 1080, 2),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("en", 800, 600, 1),
                ("de", 1366, 768, 1),
                ("en", 1920, 1080, 1),
                ("de", 1920, 1080, 1.5),
                ("en", 1920, 1080, 2),
            )
        ),
    ],
)
def test_a_new_window_fits_its_screen_and_everything_in_it_is_reached(
    tmp_path: Path, width: int, height: int, scale: float, language: str
) -> None:
    screens = {"screens": [{"name": "one", "x": 0, "y": 0, "width": width, "height": height, "dpr": 1}]}
    (tmp_path / "screens.json").write_text(json.dumps(screens))
    (ROOT / "build" / "shots").mkdir(parents=True, exist_ok=True)
    given = {
        "QT_SCALE_FACTOR": str(scale),
        "QT_QPA_PLATFORM": f"offscreen:configfile={tmp_path / 'screens.json'}",
        "PYTHONPATH": str(ROOT),
    }
    words = (sys.executable, "-c", _SIZES, str(tmp_path), f"{width}x{height}x{scale:g}", language)
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | given, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert seen["screen"] == [int(width / scale), int(height / scale)], "the screen that was asked for"
    assert seen["hidden"] == []
    assert seen["cut"] == []
    assert seen["missed"] == [], "by Tab"
    assert seen["window"][0] <= seen["screen"][0]
    assert seen["window"][1] <= seen["screen"][1] - 40, "with its frame"
    assert seen["window"][1] >= min(820, seen["screen"][1] - 60), "and not smaller than it must be"

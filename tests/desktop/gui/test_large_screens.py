"""A screen of 200 %: every page in a window of the smallest width, drawn with twice the points and not cut."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
_PROGRAM = """
import json, sys
from pathlib import Path
from PySide6.QtCore import QSettings
from PySide6.QtTest import QTest
from desktop.gui.app import Desktop, application
from desktop.gui.welcome import DONE
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
        (sys.executable, "-c", _PROGRAM, str(tmp_path)), env=os.environ | given, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert len(seen) == 5
    for page, (width, ratio, points, needed) in seen.items():
        assert (ratio, points) == (2.0, 2 * width), page
        assert width == 420, f"page {page} has widened the window to {width}"
        assert needed <= width, page

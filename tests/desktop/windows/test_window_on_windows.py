"""The window by Windows' own Python under Wine: it starts the agent, follows it, comes forward, and ends what it started."""

import json
from pathlib import Path

import pytest

from tests.support.windows import LACKING, PYTHON, ROOT, Windows, seen

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(LACKING), reason=f"the window on Windows is tried with {', '.join(LACKING)}"),
]

SHOT = ROOT / "build" / "shots" / "window_on_windows.png"
# What an owner does who opens the window twice, flips the switch, flips it back, and quits.
OWNER = r"""
import json, subprocess, sys, time
from pathlib import Path
from PySide6.QtCore import QSettings
from PySide6.QtTest import QTest
from desktop.gui.app import Desktop, agent_program, application
from desktop.gui.single import OnlyOne
from desktop.gui.pages.welcome import DONE
home, shot = Path(sys.argv[1]), sys.argv[2]
application(["cottage"], "en")
only, called, ended, found = OnlyOne(home), [], [], {}
only.called.connect(lambda: called.append(1))
settings = QSettings(str(home / "window.ini"), QSettings.Format.IniFormat)
settings.setValue(DONE, True)
command = (*agent_program(), "run", "--stay", "--home", str(home), "--coordinator", "http://127.0.0.1:9")
desktop = Desktop(home, command, settings)
def until(what):
    end = time.monotonic() + 60
    while not what():
        QTest.qWait(20)
        if time.monotonic() > end:
            sys.exit(ascii((found, desktop.lending.snapshot)))
page = desktop.window.home
until(lambda: page.headline.text() == "Lending is off.")
process = desktop.lending._process
found |= {"first": only.is_first, "pid": process.pid, "ours": process.is_ours, "reason": page.reason.text()}
second = (sys.executable, "-m", "desktop.gui.app", "--home", str(home))
second = subprocess.Popen(second, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
until(lambda: second.poll() is not None)
found |= {"second": second.returncode, "called": len(called), "said": second.stderr.read().decode()}
page.switch.click()
until(lambda: desktop.lending.snapshot.is_on)
until(lambda: page.headline.text() == "Jobs cannot run here yet.")  # There is no Docker Desktop in Wine.
found |= {"why": page.reason.text(), "checked": page.switch.isChecked()}
desktop.window.grab().save(shot)
page.switch.click()
until(lambda: page.headline.text() == "Lending is off.")
process.ended.connect(lambda: ended.append(1))
desktop.leave()
until(lambda: ended)
print(json.dumps(found))
"""


def test_it_starts_an_agent_lends_comes_forward_when_called_and_ends_what_it_started(
    windows: Windows, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    SHOT.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads(windows.run(str(PYTHON), "-c", OWNER, seen(home), seen(SHOT)))
    assert found["first"]
    assert found["ours"]
    assert found["pid"] > 0
    assert found["reason"] == "This computer is all yours."
    assert (found["second"], found["called"], found["said"]) == (0, 1, "")
    assert "Docker Desktop" in found["why"]
    assert found["checked"]
    assert (home / "switch").read_text() == "off\n"
    log = (home / "agent.log").read_text()
    assert "Traceback" not in log
    with windows.start(str(PYTHON), "-m", "desktop.agent", "status", "--home", seen(home)) as asked:
        _, said = asked.communicate(timeout=60)
    assert "no agent answers in" in said.decode()

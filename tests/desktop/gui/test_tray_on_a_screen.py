"""The tray icon on a real X screen: Xvfb, with openbox for the windows and tint2 for the tray."""

import ctypes.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.desktop.gui.conftest import PROGRAM, ROOT
from tests.desktop.gui.support import SHOTS
from tests.desktop.screens import screen
from tests.support.wait import until_true

PROGRAMS = ("Xvfb", "openbox", "tint2", "xdotool")
LIBRARIES = ("xcb-cursor", "xcb-icccm", "xcb-keysyms", "xkbcommon-x11")


def why_not() -> str:
    """What a test on a screen lacks here."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    missing += [f"lib{name}" for name in LIBRARIES if ctypes.util.find_library(name) is None]
    return f"the tray's test needs {', '.join(missing)}" if missing else ""


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_the_icon_is_drawn_in_the_tray_and_its_menu_brings_the_window_back(home: Path) -> None:
    with screen("openbox", "tint2") as display:
        words = (sys.executable, "-m", "tests.desktop.gui.on_a_screen", str(home), str(SHOTS))
        surroundings = os.environ | {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "XDG_RUNTIME_DIR": str(home)}
        done = subprocess.run(
            words, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["hidden"]
    assert seen["rows"][0] == "Lending to “tiny-llama”."
    assert [line for line in done.stderr.splitlines() if line.startswith("qt.")] == []


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_computer_lends_three_clicks_after_the_first_start(home: Path, coordinator_thread: Any) -> None:
    agent = (sys.executable, str(PROGRAM), "run", "--stay", "--always", "--home", str(home), "--threads", "1")
    there = ("--coordinator", coordinator_thread.double.url, "--sandbox", "process", "--loopback", "--name", "attic")
    with screen("openbox", "tint2") as display:
        words = (sys.executable, "-m", "tests.desktop.gui.first_run_on_a_screen", str(home), str(SHOTS), *agent, *there)
        surroundings = os.environ | {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "XDG_RUNTIME_DIR": str(home)}
        done = subprocess.run(
            words, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=170, check=False
        )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["checks"]["coordinator"] == "10 computers are connected, 4 of them work"
    assert seen["rows"][:3] == ["Waiting for a job.", "Earned today 0.00, in all 0.00", "&Stop lending"]
    [hello] = coordinator_thread.double.hellos
    assert (hello.profile.name, hello.payout) == ("attic", hello.node)
    assert [line for line in done.stderr.splitlines() if line.startswith("qt.")] == []


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_whoever_ends_the_program_ends_it_although_the_window_would_only_hide(home: Path) -> None:
    with screen("openbox", "tint2") as display:
        surroundings = os.environ | {"DISPLAY": display, "QT_QPA_PLATFORM": "xcb", "XDG_RUNTIME_DIR": str(home)}
        surroundings["XDG_CONFIG_HOME"] = str(home)
        words = (sys.executable, "-m", "desktop.gui.app", "--home", str(home))

        def found() -> bool:
            """Both the window and the icon."""
            search = ("xdotool", "search", "--onlyvisible", "--class", "cottage")
            return len(subprocess.run(search, env=surroundings, capture_output=True, check=False).stdout.split()) == 2

        with subprocess.Popen(words, cwd=ROOT, env=surroundings) as program:
            try:
                until_true(found)
                program.terminate()
                assert program.wait(20) == 0
            finally:
                program.kill()

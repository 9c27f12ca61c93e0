"""Sensors against a real X server, real processes and logind's own files."""

import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from desktop.agent.sensors.linux import LinuxMachine, LogindScreen, X11Screen, graphical_sessions, screen
from tests.desktop import screens
from tests.support.wait import until_true

LACKING = [name for name in ("Xvfb", "openbox", "xdotool") if shutil.which(name) is None]
on_x = pytest.mark.skipif(bool(LACKING), reason=f"the sensors' tests need {', '.join(LACKING)}")

WINDOW = """
import sys
from Xlib import X, Xatom
from Xlib.display import Display
display = Display(sys.argv[1])
root = display.screen().root
window = root.create_window(0, 0, 200, 100, 0, X.CopyFromParent)
text = display.intern_atom("UTF8_STRING")
window.change_property(display.intern_atom("_NET_WM_NAME"), text, 8, "Böse Katzen 3".encode())
window.set_wm_class("cats", "Cats")
if "fullscreen" in sys.argv:
    window.change_property(
        display.intern_atom("_NET_WM_STATE"), Xatom.ATOM, 32, [display.intern_atom("_NET_WM_STATE_FULLSCREEN")])
window.map()
display.sync()
while display.next_event():
    pass
"""


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    with screens.screen("openbox") as name:
        yield name


def show(display: str, *words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen((sys.executable, "-c", WINDOW, display, *words))


@on_x
def test_a_touch_of_the_mouse_is_seen(display: str) -> None:
    sensor = X11Screen(display)
    until_true(lambda: (sensor.idle_s() or 0) > 0.3)
    subprocess.run(("xdotool", "mousemove_relative", "1", "1"), env=os.environ | {"DISPLAY": display}, check=True)
    idle = sensor.idle_s()
    assert idle is not None
    assert idle < 0.3


@on_x
def test_a_program_that_covers_the_screen_is_named_until_it_ends(display: str) -> None:
    sensor = X11Screen(display)
    assert sensor.fullscreen() == ""
    game = show(display, "fullscreen")
    try:
        until_true(lambda: sensor.fullscreen() == "Böse Katzen 3")
    finally:
        game.kill()
        game.wait()
    until_true(lambda: sensor.fullscreen() == "")


@on_x
def test_an_ordinary_window_covers_nothing(display: str) -> None:
    sensor = X11Screen(display)
    window = show(display)
    try:
        until_true(
            lambda: (
                b"Katzen"
                in subprocess.run(
                    ("xdotool", "getactivewindow", "getwindowname"),
                    env=os.environ | {"DISPLAY": display},
                    capture_output=True,
                    check=False,
                ).stdout
            )
        )
        assert sensor.fullscreen() == ""
    finally:
        window.kill()
        window.wait()


@on_x
def test_a_display_that_ends_is_an_error_and_the_next_one_is_found() -> None:
    with screens.screen() as first:
        sensor = X11Screen(first)
        assert sensor.idle_s() is not None
    with pytest.raises(Exception, match=r".+"):
        sensor.idle_s()
    with pytest.raises(Exception, match=r".+"):
        sensor.idle_s()


def test_programs_come_and_go(tmp_path: Path) -> None:
    machine = LinuxMachine()
    game = tmp_path / "doom-eternal"
    shutil.copy("/bin/sleep", game)
    before = machine.programs()
    assert before is not None
    assert "doom-eternal" not in before
    with subprocess.Popen((str(game), "60")) as process:
        until_true(lambda: "doom-eternal" in (machine.programs() or ()))
        process.kill()
        process.wait()
    assert "doom-eternal" not in (machine.programs() or ())


def test_the_disk_is_that_of_the_folder(tmp_path: Path) -> None:
    free = LinuxMachine().free_disk(tmp_path)
    assert free is not None
    assert abs(free - shutil.disk_usage(tmp_path).free) < 10**9


def test_only_people_at_this_computers_own_screen_are_counted(tmp_path: Path) -> None:
    for name, text in {
        "1": "TYPE=x11\nCLASS=user\nREMOTE=0\n",
        "2": "TYPE=tty\nCLASS=user\n",
        "c1": "TYPE=wayland\nCLASS=greeter\n",
        "4": "TYPE=x11\nCLASS=user\nREMOTE=1\n",
        "5": "TYPE=wayland\nCLASS=user\n",
        "5.ref": "TYPE=wayland\nCLASS=user\n",
    }.items():
        (tmp_path / name).write_text(text)
    assert sorted(graphical_sessions(tmp_path)) == ["1", "5"]
    assert graphical_sessions(tmp_path / "none") == []


def test_where_nobody_can_sit_it_is_idle_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("desktop.agent.sensors.linux.graphical_sessions", list)
    assert (LogindScreen().idle_s(), LogindScreen().fullscreen()) == (math.inf, "")


@pytest.mark.parametrize(
    ("surroundings", "kind"),
    [
        ({"DISPLAY": ":0"}, X11Screen),
        ({"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}, LogindScreen),
        ({"DISPLAY": ":0", "XDG_SESSION_TYPE": "wayland"}, LogindScreen),
        ({}, LogindScreen),
    ],
)
def test_an_x_server_under_wayland_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, surroundings: dict[str, str], kind: type
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_SESSION_TYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    assert isinstance(screen(), kind)

"""The bundle that owners install: built here, unpacked from its Debian package, run with nothing of this Python in reach."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from desktop.gui.theme import LIGHT
from installer.desktop import build
from tests.desktop.coordinator_double import Double
from tests.desktop.screens import screen
from tests.installer.hand import picture, solid
from tests.support.docker import IMAGE
from tests.support.wait import until_true

BELOW_THE_TITLE = (0, 60, 1024, 700)  # Without the icons of the window and of the task bar, which have the same colour.
LACKING = [name for name in ("Xvfb", "openbox", "tint2", "xdotool") if shutil.which(name) is None]

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(LACKING), reason=f"the provider's program is run with {', '.join(LACKING)}"),
]


@pytest.fixture(scope="module")
def installed(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package's files lie."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(("dpkg-deb", "-x", str(package), str(folder)), check=True)
    return folder


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """An environment without this Python."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}


def programs(installed: Path) -> tuple[Path, Path]:
    folder = installed / "opt" / "cottage"
    return folder / "cottage", folder / "cottage-agent"


@contextlib.asynccontextmanager
async def running(program: Path, *words: str, env: dict[str, str]) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(str(program), *words, env=env)
    try:
        yield
        process.terminate()
        async with asyncio.timeout(30):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def asked(agent: Path, *words: str, env: dict[str, str]) -> str:
    process = await asyncio.create_subprocess_exec(str(agent), *words, env=env, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


def test_the_package_names_what_it_needs_and_leaves_out_what_nobody_needs(installed: Path) -> None:
    folder = installed / "opt" / "cottage"
    names = {path.name for path in folder.rglob("*")}
    assert not {"numpy", "torch", "transformers", "sqlalchemy"} & names
    assert not [name for name in names if name.startswith(("libQt6Quick", "libQt6Qml", "libavcodec", "libstdc++"))]
    assert build.size_of(folder) < 250e6
    assert (installed / "usr/bin/cottage").readlink() == Path("/opt/cottage/cottage")
    assert (installed / "usr/share/icons/hicolor/scalable/apps/cottage.svg").is_file()


def test_the_agent_runs_without_python(installed: Path, bare: dict[str, str]) -> None:
    _, agent = programs(installed)
    shown = subprocess.run(
        (str(agent), "rules", "--json"), env=bare, capture_output=True, text=True, timeout=60, check=True
    )
    assert json.loads(shown.stdout)["rules"]["idle_minutes"] == 5
    words = subprocess.run((str(agent), "words"), env=bare, capture_output=True, text=True, timeout=60, check=True)
    assert len([word for word in words.stdout.split() if word.isalpha()]) == 24
    refused = subprocess.run(
        (str(agent), "selftest", "--sandbox", "process"),
        env=bare,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 3
    assert "needs Cottage installed with pip" in refused.stdout


async def test_its_switch_is_flipped_and_the_computer_joins_a_coordinator(
    installed: Path, bare: dict[str, str], docker_engine: str, tmp_path: Path
) -> None:
    window, agent = programs(installed)
    double = Double()
    await double.start()
    try:
        with screen("openbox", "tint2") as display:
            there = bare | {"DISPLAY": display, "DOCKER_HOST": docker_engine, "XDG_RUNTIME_DIR": str(tmp_path)}
            settings = ["--coordinator", double.url, "--image", IMAGE, "--loopback", "--always", "--threads", "1"]
            async with running(window, "--", *settings, "--name", "attic", env=there):
                await asyncio.to_thread(flip, display)
                await double.until(lambda: double.hellos, patience=180)
                assert double.hellos[0].profile.name == "attic"
                assert double.hellos[0].profile.sandbox == "docker"
                picture(display, "bundle_joined")
            # The window is closed; the agent goes on, finishes when it is asked to, and ends when it is ended.
            status = json.loads(await asked(agent, "status", "--json", env=bare))
            assert status["state"] == "online"
            await asked(agent, "finish", env=bare)
            await double.until(lambda: double.goodbyes)
            os.kill(status["pid"], signal.SIGTERM)
            await asyncio.to_thread(until_true, lambda: not os.path.exists(f"/proc/{status['pid']}/exe"))
    finally:
        await double.stop()


def flip(display: str) -> None:
    """As an owner does with the keyboard who has never seen it: Continue, and the switch; each has the focus."""
    env = os.environ | {"DISPLAY": display}

    def found() -> list[str]:
        words = ("xdotool", "search", "--onlyvisible", "--name", "^Cottage$")
        return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout.split()

    def press(name: str) -> None:
        picture(display, name)
        subprocess.run(("xdotool", "windowfocus", "--sync", found()[0], "key", "space"), env=env, check=True)

    until_true(found, 120)
    until_true(lambda: button(display), 180)  # The self-test is over.
    press("bundle_first_run_1")
    until_true(lambda: button(display) is None)
    press("bundle_first_run_2")


def button(display: str) -> tuple[int, ...] | None:
    """Where the button in the colour of the house is; None while there is none that can be pressed."""
    return solid(display, LIGHT.brand, BELOW_THE_TITLE)

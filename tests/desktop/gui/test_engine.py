"""Docker is missing: whose package it is, what the script does as root, and the button, with a pkexec of the test."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QGuiApplication
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication

from desktop.gui.app import Desktop
from desktop.gui.engine import install, sheets
from desktop.gui.engine.install import SCRIPT
from desktop.gui.engine.systems import DESKTOP_PAGE, SOURCES, commands, fault_of, os_release, source_of
from desktop.gui.engine.words import EngineWords
from tests.desktop.gui.support import Orders, agent, documents, listener, save_picture, status, wait_for

DISTRIBUTIONS = {
    "Debian 12": ("ID=debian\n", {"apt-get"}, "apt"),
    "Ubuntu 24.04": ("ID=ubuntu\nID_LIKE=debian\n", {"apt-get", "snap"}, "apt"),
    "Linux Mint": ('ID=linuxmint\nID_LIKE="ubuntu debian"\n', {"apt-get"}, "apt"),
    "Fedora 43": ("ID=fedora\n", {"dnf"}, "dnf"),
    "Nobara": ('ID="nobara"\nID_LIKE="fedora"\n', {"dnf"}, "dnf"),
    "Arch": ("ID=arch\n", {"pacman"}, "pacman"),
    "Manjaro": ("ID=manjaro\nID_LIKE=arch\n", {"pacman"}, "pacman"),
    "openSUSE Tumbleweed": ('ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n', {"zypper"}, "zypper"),
    "SLE": ("ID=sled\nID_LIKE=suse\n", {"zypper"}, "zypper"),
    "Rocky, whose repositories lack it": ('ID="rocky"\nID_LIKE="rhel centos fedora"\n', {"dnf"}, None),
    "Silverblue, an image": ("ID=fedora\nVARIANT_ID=silverblue\n", {"dnf", "rpm-ostree"}, None),
    "SteamOS, read only": ("ID=steamos\nID_LIKE=arch\n", {"pacman"}, None),
    "NixOS": ("ID=nixos\n", {"nix-env"}, None),
    "Debian without apt": ("ID=debian\n", set(), None),
    "nothing at all": ("", {"apt-get", "dnf"}, None),
    "damaged": ('ID="debian\n=x\n#ID=arch\n\x00', {"apt-get", "pacman"}, None),
}


@pytest.mark.parametrize(("release", "programs", "manager"), DISTRIBUTIONS.values(), ids=list(DISTRIBUTIONS))
def test_each_distribution_has_its_package_or_none(release: str, programs: set[str], manager: str | None) -> None:
    found = source_of(os_release(release), programs.__contains__)
    assert found == (SOURCES[manager] if manager else None)


@pytest.mark.parametrize(
    ("code", "log", "fault"),
    [
        (0, "", ""),
        (126, "Error executing command as another user: Request dismissed", "cancelled"),
        (127, "Error executing command as another user: Not authorized", "refused"),
        (
            10,
            "Err:1 http://mirror.test bookworm InRelease\n  Temporary failure resolving 'mirror.test'",
            "network",
        ),
        (10, "Curl error (6): Could not resolve hostname", "network"),
        (10, "error: failed retrieving file 'core.db' from mirror", "network"),
        (10, "E: Unable to locate package docker.io", "packages"),
        (11, "", "service"),
        (12, "", "user"),
        (20, "", "login"),
        (2, "", "failed"),
        (-1, "", "failed"),
    ],
)
def test_what_became_of_it_is_one_word_with_a_sentence_of_its_own(
    app: QApplication, code: int, log: str, fault: str
) -> None:
    assert fault_of(code, log) == fault
    words = EngineWords()
    assert (words.fault(fault) == words.fault("nobody knows")) == (fault == "failed")


# --- the script -------------------------------------------------------------------------------------------------------


class Root:
    """A folder of programs that write down how they were called, as root would find them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        folder.mkdir()
        self.calls.touch()
        for name in ("cut",):
            (folder / name).symlink_to(str(shutil.which(name)))
        for name in ("apt-get", "dnf", "pacman", "zypper", "systemctl", "usermod", "setfacl", "groupadd"):
            self.program(name)
        self.program("id", "echo 0")
        self.program("getent", f'[ "$1" = group ] || echo "ada:x:{os.getuid()}:1000::/home/ada:/bin/sh"')

    def program(self, name: str, body: str = "") -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/sh\necho "{name} $*" >>"{self.calls}"\n{body}\n')
        file.chmod(0o755)

    def run(self, *words: str, uid: str | None = str(os.getuid())) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.folder)} | ({} if uid is None else {"PKEXEC_UID": uid})
        return subprocess.run(["/bin/sh", str(SCRIPT), *words], env=environment, capture_output=True, text=True)

    @property
    def called(self) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if line.split()[0] not in ("id", "getent")]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "bin")


@pytest.mark.parametrize("manager", SOURCES)
def test_the_script_installs_the_package_that_the_window_names_and_lets_the_user_in(root: Root, manager: str) -> None:
    done = root.run(manager)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("@")] == [
        "@packages",
        "@service",
        "@user",
        "@done",
    ]
    tool = {"apt": "apt-get"}.get(manager, manager)
    *packages, enable, start, member, door = root.called
    assert all(call.split()[0] == tool for call in packages)
    assert SOURCES[manager].package in packages[-1].split()
    assert SOURCES[manager].package in SOURCES[manager].command.split()
    assert (enable, start) == ("systemctl enable docker.service", "systemctl start docker.service")
    assert member == "usermod -aG docker ada"
    assert door == "setfacl -m u:ada:rw /run/docker.sock"


def test_an_engine_that_is_here_is_not_replaced(root: Root) -> None:
    root.program("dockerd")
    assert root.run("apt").returncode == 0
    assert not any("apt-get" in call for call in root.called)


@pytest.mark.parametrize(("failing", "code"), [("apt-get", 10), ("systemctl", 11), ("usermod", 12), ("setfacl", 20)])
def test_the_script_says_where_it_failed(root: Root, failing: str, code: int) -> None:
    root.program(failing, "exit 7")
    assert root.run("apt").returncode == code


@pytest.mark.parametrize(
    ("words", "uid"),
    [
        ((), "1000"),
        (("apt", "more"), "1000"),
        (("apt;reboot",), "1000"),
        (("--help",), "1000"),
        (("apt",), None),
        (("apt",), ""),
        (("apt",), "0;reboot"),
        (("apt",), "-1"),
    ],
)
def test_the_script_takes_one_word_and_a_user_by_number(root: Root, words: tuple[str, ...], uid: str | None) -> None:
    assert root.run(*words, uid=uid).returncode == 2
    assert root.called == []


def test_the_script_does_nothing_without_being_root(root: Root) -> None:
    root.program("id", "echo 1000")
    assert root.run("apt").returncode == 2
    assert root.called == []


# --- the window -------------------------------------------------------------------------------------------------------


@pytest.fixture
def pkexec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A pkexec on PATH that does what a test says; its words are kept in a file."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def make(body: str) -> Path:
        program = folder / "pkexec"
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{folder}/words"\n{body}\n')
        program.chmod(0o755)
        return folder / "words"

    return make


@pytest.fixture
def docs(debian: None) -> dict[str, bytes]:
    trouble = {"trouble": "x", "trouble_cause": "no engine", "trouble_detail": {"why": "absent"}}
    return documents(status=status(**trouble), image=b'{"stage": "missing"}')


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system whose engine comes by apt, looked at without waiting."""
    monkeypatch.setattr(sheets, "here", lambda: SOURCES["apt"])
    monkeypatch.setattr(sheets, "LOOK_MS", 20)


def opened(desktop: Desktop) -> Any:
    """Press the button of the first page."""
    home = desktop.window.home
    assert home.mend.press.text() == "&Install the engine…"
    assert "Docker is not installed." in home.reason.text()
    QTest.mouseClick(home.mend.press, Qt.MouseButton.LeftButton)
    assert desktop.window.equipping.engine.isVisible()
    return desktop.window.equipping.engine


def test_one_button_installs_the_engine_behind_a_bar(
    pkexec: Callable[[str], Path], desktop: Desktop, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    words = pkexec(
        f'echo @packages; echo "Setting up docker.io"; while [ ! -e "{go}" ]; do sleep 0.05; done; echo @done'
    )
    sheet = opened(desktop)
    assert "“docker.io”" in sheet.about.text()
    assert "whatever an administrator may" in sheet.about.text(), "what the owner agrees to"
    save_picture(sheet, "engine_before")
    QTest.mouseClick(sheet.act, Qt.MouseButton.LeftButton)
    wait_for(lambda: sheet.said.text() == "Installing. It takes some minutes.", "the step")
    assert sheet.bar.isVisible()
    assert not sheet.act.isEnabled()
    QTest.mouseClick(sheet.details, Qt.MouseButton.LeftButton)
    wait_for(lambda: "Setting up docker.io" in sheet.log.toPlainText(), "the log")
    save_picture(sheet, "engine_installing")
    sheet.reject()
    desktop.window.equipping.engine.ask("absent")
    assert sheet.bar.isVisible(), "closed and opened again, it goes on"
    go.touch()
    wait_for(lambda: sheet.said.text() == "The engine runs, and you may use it.", "the end")
    assert not sheet.bar.isVisible()
    assert not sheet.act.isVisible()
    assert words.read_text().splitlines()[-1] == "apt"
    assert str(SCRIPT) in words.read_text()
    wait_for(lambda: not sheet.isVisible(), "its place for what follows")


def lacking(code: str, **detail: str) -> bytes:
    checks = [{"name": "sandbox", "state": "bad", "code": code, "detail": detail}]
    return json.dumps({"checks": checks, "running": False}).encode()


@pytest.fixture
def first(
    first_run: Callable[..., Desktop], home: Path, docs: dict[str, bytes], orders: Orders, debian: None
) -> Iterator[Desktop]:
    """A first run on a computer without an engine."""
    docs["status"], docs["selftest"] = status(on=False, state="off"), lacking("no engine", why="absent")
    with listener(home / "agent.sock", lambda caller: agent(docs, orders)(caller)):
        yield first_run()


def test_the_switch_of_the_first_run_brings_engine_and_image_and_then_lends(
    pkexec: Callable[[str], Path], first: Desktop, docs: dict[str, bytes], orders: Orders, tmp_path: Path
) -> None:
    words = pkexec(f'echo @packages; while [ ! -e "{tmp_path}/go" ]; do sleep 0.05; done; echo @done')
    window, welcome = first.window, first.window.welcome
    engine, image = window.equipping.engine, window.equipping.image
    wait_for(welcome.first.isEnabled, "the self-test")
    QTest.mouseClick(welcome.first, Qt.MouseButton.LeftButton)
    assert "“docker.io”" in welcome.plan.text()
    assert "whatever an administrator may" in welcome.plan.text(), "what the owner agrees to"
    assert "fetched after it" in welcome.plan.text()
    save_picture(window, "first_run_without_engine")
    assert not words.exists(), "nothing before the switch"
    QTest.mouseClick(welcome.switch, Qt.MouseButton.LeftButton)
    wait_for(lambda: engine.isVisible() and engine.said.text() == "Installing. It takes some minutes.", "the engine")
    wait_for(lambda: ("lending", {"on": True}) in orders, "the switch")
    docs["status"] = status(trouble="x", trouble_cause="no engine", trouble_detail={"why": "absent"})
    docs["image"] = docs["POST image"] = json.dumps({"stage": "fetching", "done": 6, "size": 24}).encode()
    first.lending._client.ask()
    wait_for(lambda: bool(window.home.mend.isVisible()), "the agent's word")
    (tmp_path / "go").touch()
    wait_for(lambda: orders.count(("lending", {"on": True})) == 2, "the agent is told to look again")
    assert not engine.isVisible()
    docs["status"] = status(trouble="x", trouble_cause="no image")
    first.lending._client.ask()
    wait_for(lambda: image.isVisible() and ("image", {}) in orders, "the image follows without a click")
    wait_for(lambda: image.bar.maximum() == 1000, "bytes")
    docs["image"] = b'{"stage": "here"}'
    wait_for(lambda: orders.count(("lending", {"on": True})) == 3, "it looks again")
    assert not image.isVisible()


def test_leave_that_is_not_given_leaves_a_sentence_and_the_button_and_a_second_try_goes_on(
    pkexec: Callable[[str], Path], first: Desktop, docs: dict[str, bytes], orders: Orders
) -> None:
    pkexec("exit 126")
    window = first.window
    engine, image = window.equipping.engine, window.equipping.image
    wait_for(window.welcome.mend.press.isVisible, "the button of the first step")
    QTest.mouseClick(window.welcome.mend.press, Qt.MouseButton.LeftButton)
    QTest.mouseClick(engine.act, Qt.MouseButton.LeftButton)
    wait_for(lambda: "leave was not given" in engine.said.text(), "what became of it")
    assert engine.isVisible()
    pkexec("echo @done")
    docs["selftest"] = lacking("no image")
    docs["POST image"] = docs["image"] = b'{"stage": "failed", "text": "the server is away"}'
    QTest.mouseClick(engine.act, Qt.MouseButton.LeftButton)
    wait_for(lambda: image.isVisible() and "the server is away" in image.said.text(), "the image is tried by itself")
    assert image.act.isEnabled()
    image.reject()
    before = orders.count(("image", {}))
    window.welcome.begin_test()
    wait_for(window.welcome.first.isEnabled, "another test")
    assert orders.count(("image", {})) == before, "who closed it is left alone"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("body", "says", "helps"),
    [
        ("exit 126", "Nothing was changed: leave was not given.", False),
        ("exit 127", "Nothing was changed: this system gives nobody leave to do that from here.", True),
        ('echo "Could not resolve host"; exit 10', "look whether this computer is online", False),
        ('echo "E: broken packages"; exit 10', "could not be installed. The details say why.", True),
        ("exit 11", "does not start. The details say why.", True),
        ("exit 12", "could not be opened to you.", True),
        ("exit 20", "Log out and in again", False),
        ("kill -9 $$", "That did not work.", True),
        ("exit 2", "That did not work.", True),
    ],
)
def test_each_end_has_its_sentence_and_the_button_is_there_again(
    pkexec: Callable[[str], Path], desktop: Desktop, body: str, says: str, helps: bool
) -> None:
    pkexec(body)
    sheet = opened(desktop)
    QTest.mouseClick(sheet.act, Qt.MouseButton.LeftButton)
    wait_for(lambda: says in sheet.said.text(), "what became of it")
    assert not sheet.bar.isVisible()
    assert sheet.command.isVisible() == helps
    assert sheet.act.isEnabled()


@pytest.mark.parametrize("why", ["absent", "stopped", "denied"])
def test_without_pkexec_there_is_a_command_to_copy(monkeypatch: pytest.MonkeyPatch, desktop: Desktop, why: str) -> None:
    monkeypatch.setattr(sheets, "authoriser", lambda: "")
    sheet = desktop.window.equipping.engine
    sheet.ask(why)
    assert not sheet.act.isVisible()
    QTest.mouseClick(sheet.command.copy, Qt.MouseButton.LeftButton)
    copied = QGuiApplication.clipboard().text()
    assert copied == commands(why, SOURCES["apt"]) == sheet.command.line.toPlainText()
    assert copied.startswith("sudo ")
    assert ("install" in copied) == (why == "absent")
    assert sheet.command.line.verticalScrollBar().maximum() == 0, "all of it is seen"
    assert not sheet.command.line.horizontalScrollBar().isVisible()
    if why == "absent":
        save_picture(sheet, "engine_by_hand")


@pytest.mark.parametrize("packages", [True, False], ids=["an unknown Linux", "Windows and macOS"])
def test_where_no_package_is_known_a_button_opens_the_page_that_says_how(
    monkeypatch: pytest.MonkeyPatch, desktop: Desktop, packages: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(sheets.QDesktopServices, "openUrl", lambda url: opened.append(url.toString()))
    monkeypatch.setattr(EngineWords, "has_packages", packages)
    sheet = desktop.window.equipping.engine
    sheet._source = None
    sheet.ask("absent" if packages else "stopped")
    assert sheet.act.text() == "&Open the page"
    QTest.mouseClick(sheet.act, Qt.MouseButton.LeftButton)
    assert opened == [sheet.command.line.toPlainText()]
    assert opened == ["https://docs.docker.com/engine/install/" if packages else DESKTOP_PAGE]
    save_picture(sheet, f"engine_elsewhere_{packages}")


def test_an_engine_of_docker_host_is_its_owners_affair(desktop: Desktop, docs: dict[str, bytes]) -> None:
    detail = {"why": "elsewhere", "address": "tcp://10.0.0.7:2375"}
    docs["status"] = status(trouble="x", trouble_cause="no engine", trouble_detail=detail)
    home = desktop.window.home
    wait_for(lambda: "DOCKER_HOST names does not answer: tcp://10.0.0.7:2375." in home.reason.text(), "the sentence")
    assert not home.mend.isVisible()


def test_this_computer_is_looked_at_once_and_never_refused() -> None:
    source = install.here()
    assert source is None or source in SOURCES.values()


# --- the image --------------------------------------------------------------------------------------------------------


def test_the_image_is_fetched_behind_a_bar_that_counts_bytes(
    desktop: Desktop, docs: dict[str, bytes], orders: Orders
) -> None:
    docs["status"] = status(trouble="x", trouble_cause="no image")
    home, sheet = desktop.window.home, desktop.window.equipping.image
    wait_for(lambda: home.mend.press.text() == "&Fetch the image…" and home.mend.isVisible(), "the button")
    docs["POST image"] = b'{"stage": "fetching"}'
    QTest.mouseClick(home.mend.press, Qt.MouseButton.LeftButton)
    wait_for(lambda: sheet.act.isVisible(), "what there is to do")
    docs["image"] = json.dumps({"stage": "fetching", "done": 600_000_000, "size": 2_400_000_000}).encode()
    QTest.mouseClick(sheet.act, Qt.MouseButton.LeftButton)
    wait_for(lambda: sheet.said.text() == "Fetching: 600 of 2,400 MB.", "bytes")
    assert (sheet.bar.value(), sheet.bar.maximum()) == (250, 1000)
    wait_for(lambda: ("image", {}) in orders, "the order")
    save_picture(sheet, "image_fetching")
    docs["image"] = json.dumps({"stage": "loading", "done": 2_000_000_000, "size": 2_400_000_000}).encode()
    wait_for(lambda: sheet.said.text() == "The engine takes it: 2,000 of 2,400 MB.", "the engine's part")
    ended: list[bool] = []
    sheet.mended.connect(lambda: ended.append(True))
    docs["image"] = b'{"stage": "here"}'
    wait_for(lambda: ended, "the end")
    assert not sheet.act.isVisible()


def test_an_image_that_nobody_signs_is_made_by_hand_and_a_failure_is_told(
    desktop: Desktop, docs: dict[str, bytes]
) -> None:
    sheet = desktop.window.equipping.image
    docs["image"] = b'{"stage": "own"}'
    sheet.ask()
    wait_for(lambda: "names nobody" in sheet.said.text(), "the sentence")
    assert sheet.command.line.toPlainText() == "python -m installer.image.build"
    assert not sheet.act.isVisible()
    sheet.reject()
    docs["image"] = b'{"stage": "failed", "text": "the disk is full"}'
    sheet.ask()
    wait_for(lambda: sheet.said.text() == "That did not work: the disk is full", "why")
    assert sheet.act.isVisible()

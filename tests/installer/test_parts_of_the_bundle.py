"""What goes into the bundle on each system: names as the wheels of PySide6 6.11.3 and PyInstaller have them."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from installer.desktop import parts as module
from installer.desktop.parts import NOT_IN_AGENT, PARTS, kept

ROOT = Path(__file__).parents[2]

NAMES = {
    "linux": (
        "PySide6/Qt/plugins/platforms/libqxcb.so",
        "PySide6/Qt/lib/libQt6Widgets.so.6",
        "PySide6/QtWidgets.abi3.so",
        "PySide6/Qt/translations/qtbase_de.qm",
        "libcrypto.so.3",
    ),
    "win32": (
        "PySide6\\plugins\\platforms\\qwindows.dll",
        "PySide6\\plugins\\styles\\qmodernwindowsstyle.dll",
        "PySide6\\Qt6Widgets.dll",
        "PySide6\\plugins\\iconengines\\qsvgicon.dll",
        "PySide6\\translations\\qtbase_de.qm",
        "libcrypto-3.dll",
    ),
    "darwin": (
        "PySide6/Qt/plugins/platforms/libqcocoa.dylib",
        "PySide6/Qt/plugins/styles/libqmacstyle.dylib",
        "libcrypto.3.dylib",
        "PySide6/Qt/lib/QtWidgets.framework/Versions/A/QtWidgets",
        "PySide6/Qt/translations/qtbase_en.qm",
    ),
}
UNUSED = {
    "linux": (
        "PySide6/Qt/plugins/imageformats/libqtiff.so",
        "PySide6/Qt/lib/libQt6Quick.so.6",
        "libgtk-3.so.0",
        "libstdc++.so.6",
        "PySide6/Qt/translations/qtbase_fr.qm",
    ),
    "win32": (
        "PySide6\\plugins\\platforms\\qdirect2d.dll",
        "PySide6\\plugins\\tls\\qopensslbackend.dll",
        "PySide6\\Qt6Quick.dll",
        "PySide6\\Qt6Pdf.dll",
        "PySide6\\opengl32sw.dll",
        "PySide6\\translations\\qtbase_fr.qm",
    ),
    "darwin": (
        "PySide6/Qt/plugins/tls/libqopensslbackend.dylib",
        "PySide6/Qt/lib/QtQuick.framework/Versions/A/QtQuick",
        "PySide6/Qt/lib/QtPdf.framework/Versions/A/QtPdf",
        "PySide6/Qt/translations/qtdeclarative_de.qm",
    ),
}


@pytest.mark.parametrize("system", sorted(PARTS))
def test_what_a_program_of_widgets_needs_is_kept_and_the_rest_is_not(system: str) -> None:
    assert kept((*NAMES[system], *UNUSED[system]), PARTS[system]) == set(NAMES[system])


def test_every_system_has_a_screen_and_none_for_tests() -> None:
    for parts in PARTS.values():
        platforms = [plugin for plugin in parts.plugins if plugin.startswith("platforms/")]
        assert len(platforms) >= 2
        assert any("offscreen" in plugin for plugin in platforms)


def test_a_signed_binary_of_macos_is_left_whole_and_windows_opens_no_console_beside_the_window() -> None:
    assert not PARTS["darwin"].strip
    assert PARTS["darwin"].app
    assert not PARTS["win32"].console


@pytest.mark.parametrize("system", sorted(PARTS))
def test_the_specification_asks_for_what_each_system_has(
    system: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """PyInstaller's words stand in: it builds for the system that it runs on only."""
    made: dict[str, list[tuple[Any, dict[str, Any]]]] = {"EXE": [], "COLLECT": [], "BUNDLE": []}
    entries = [(name, name, "BINARY") for name in (*NAMES[system], *UNUSED[system])]

    def analysed(scripts: list[str], **asked: Any) -> SimpleNamespace:
        assert all(Path(script).is_file() for script in scripts)
        assert all(Path(source).exists() for source, _ in asked["datas"])
        return SimpleNamespace(pure=[], scripts=scripts, binaries=entries, datas=[])

    def word(name: str) -> Any:
        return lambda *given, **asked: made[name].append((given, asked))

    for file in ("release.json", "image.json", "network.txt"):
        (tmp_path / file).touch()
    monkeypatch.setenv("COTTAGE_RELEASE", str(tmp_path))
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = Path(module.__file__).with_name("cottage.spec")
    words = {name: word(name) for name in made} | {"Analysis": analysed, "PYZ": list, "SPECPATH": str(spec.parent)}
    exec(compile(spec.read_text(), str(spec), "exec"), words)
    consoles = {asked["name"]: asked["console"] for _, asked in made["EXE"]}
    assert consoles == {"cottage": system == "linux", "cottage-agent": True}
    ((collected, asked),) = made["COLLECT"]
    assert {name for name, *_ in collected[2]} == set(NAMES[system])
    assert asked["strip"] == (system == "linux")
    assert [asked["name"] for _, asked in made["BUNDLE"]] == (["Cottage.app"] if system == "darwin" else [])


def test_each_file_that_the_agent_reads_beside_its_code_is_in_the_bundle() -> None:
    spec = (ROOT / "installer" / "desktop" / "cottage.spec").read_text()
    read = [
        (source.name, name)
        for source in sorted((ROOT / "desktop" / "agent").rglob("*.py"))
        for name in re.findall(r'files\("[a-z_.]+"\)\.joinpath\("([^"]+)"\)', source.read_text())
    ]
    left_out = {"first_program.py", "door_program.py"} if "desktop.agent.cluster" in NOT_IN_AGENT else set()
    assert {name for _, name in read} - left_out == {"seccomp.json", "porter.py"}, "or this looks for nothing"
    assert [one for one in read if one[1] not in left_out and f'"{one[1]}"' not in spec] == []

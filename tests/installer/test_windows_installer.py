"""The installer for Windows, compiled by NSIS and run by Wine over a payload of three files."""

import shutil
from pathlib import Path

import pytest

from installer.desktop import build
from tests.support.windows import WINE, Windows

LACKING = [] if shutil.which("makensis") else ["makensis"]
LACKING += [] if WINE else ["wine64"]
RUN = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Run"
LINKS = r"HKCU\Software\Classes\cottage"
LISTED = r"HKCU\Software\Microsoft\Windows\CurrentVersion\Uninstall\Cottage"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(LACKING), reason=f"the installer for Windows is tried with {', '.join(LACKING)}"),
]


def files(windows: Windows) -> set[str]:
    """Files of Cottage, wherever they lie."""
    roaming = windows.user / "AppData" / "Roaming" / "Microsoft" / "Windows"
    places = windows.user / "AppData" / "Local" / "Programs", roaming
    return {path.name for place in places for path in place.rglob("*") if path.is_file()}


def setup(folder: Path, version: str, *names: str) -> str:
    """An installer whose payload has these files."""
    payload = folder / f"payload-{version}"
    for name in names:
        (payload / name).parent.mkdir(parents=True, exist_ok=True)
        (payload / name).write_text(version)
    return str(build.windows(payload, folder, version))


def test_it_installs_upgrades_and_leaves_without_a_trace_or_a_question(windows: Windows, tmp_path: Path) -> None:
    first = setup(tmp_path, "0.1.0", "cottage.exe", "cottage-agent.exe", "old/gone.dll")
    second = setup(tmp_path, "0.2.0", "cottage.exe", "cottage-agent.exe", "new/come.dll")

    windows.run(first, "/S")
    assert files(windows) == {"cottage.exe", "cottage-agent.exe", "gone.dll", "uninstall.exe", "Cottage.lnk"}
    assert windows.value(LISTED, "DisplayVersion") == "0.1.0"
    started = windows.value(RUN, "Cottage")
    assert started is not None
    assert started.endswith(r'\AppData\Local\Programs\Cottage\cottage.exe" --hidden')
    assert windows.value(LINKS, "URL Protocol") is not None, "invitations open the window"

    windows.run("reg", "delete", RUN, "/v", "Cottage", "/f")  # The owner does not want it to start by itself.
    windows.run(second, "/S")
    assert files(windows) == {"cottage.exe", "cottage-agent.exe", "come.dll", "uninstall.exe", "Cottage.lnk"}
    assert windows.value(LISTED, "DisplayVersion") == "0.2.0"
    assert windows.value(RUN, "Cottage") is None

    uninstall = windows.value(LISTED, "UninstallString")
    assert uninstall is not None
    folder = uninstall.strip('"').rpartition("\\")[0]
    # Otherwise it goes on from a copy, and nobody knows how long.
    windows.run(uninstall.strip('"'), "/S", f"_?={folder}")
    assert files(windows) <= {"uninstall.exe"}  # It cannot remove itself where it has to stay.
    assert windows.value(LISTED, "DisplayVersion") is None
    assert windows.value(r"HKCU\Software\Cottage", "Installed") is None
    assert windows.value(LINKS, "URL Protocol") is None


def test_it_refuses_an_old_windows_without_a_click_and_never_empties_a_folder_that_it_is_given(
    windows: Windows, tmp_path: Path
) -> None:
    package = setup(tmp_path, "0.1.0", "cottage.exe")
    documents = windows.drive / "documents"
    documents.mkdir()
    (documents / "letter.txt").write_text("dear")
    windows.run(package, "/S", r"/D=C:\documents")
    assert [path.name for path in documents.iterdir()] == ["letter.txt"]
    assert "cottage.exe" in files(windows)
    windows.version("win7")
    windows.run(package, "/S", expect=2)

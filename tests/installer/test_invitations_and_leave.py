"""What packages tell the system: which links open the window, which script may ask for leave, and the network of a build."""

import configparser
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from common.errors import InvitationError
from common.invitations import Invitation
from desktop.agent.base import networks
from desktop.agent.base.config import Home, Settings
from desktop.gui.engine.install import SCRIPT
from installer.desktop import build
from installer.desktop.build import HERE, POLICY, ROOT, TEMPLATES

KEY = "7Kq9dT3mVxXbq5rQ2nWgYh8sLpZcJfRtAeUvBnMkDiEo"
OWN = Invitation("https://cottage.example", KEY)


def test_the_desktops_entry_opens_invitations() -> None:
    entry = configparser.ConfigParser(interpolation=None, strict=True)
    entry.optionxform = str  # type: ignore[method-assign,assignment]
    entry.read(TEMPLATES / "cottage.desktop")
    section = entry["Desktop Entry"]
    assert section["Exec"].split() == ["/opt/cottage/cottage", "%u"]
    assert section["MimeType"] == "x-scheme-handler/cottage;"


@pytest.mark.skipif(not shutil.which("desktop-file-validate"), reason="desktop-file-utils is not installed")
def test_the_desktops_entry_is_valid() -> None:
    done = subprocess.run(["desktop-file-validate", str(TEMPLATES / "cottage.desktop")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_leave_is_asked_of_an_administrator_for_the_one_script_that_is_shipped() -> None:
    action = ElementTree.parse(TEMPLATES / POLICY).getroot().find("action")
    assert action is not None
    assert f"{action.get('id')}.policy" == POLICY
    annotated = {note.get("key"): note.text for note in action.iter("annotate")}
    inside = SCRIPT.relative_to(ROOT)
    assert annotated == {"org.freedesktop.policykit.exec.path": f"/opt/cottage/_internal/{inside}"}
    assert {one.tag: one.text for one in action.find("defaults") or ()} == {
        "allow_any": "no",
        "allow_inactive": "no",
        "allow_active": "auth_admin",
    }
    assert f'"{inside.name}"' in (HERE / "cottage.spec").read_text()


def test_windows_hands_a_link_over_where_it_can_name_no_option() -> None:
    script = (HERE / "windows" / "cottage.nsi").read_text()
    (command,) = re.findall(r'shell\\open\\command" "" \'(.*)\'', script)
    assert command == '"$INSTDIR\\cottage.exe" -- "%1"'


@pytest.mark.skipif(not shutil.which("makensis"), reason="makensis is not installed")
def test_the_installer_for_windows_compiles(tmp_path: Path) -> None:
    (tmp_path / "payload").mkdir()
    (tmp_path / "payload" / "cottage.exe").write_text("")
    assert build.windows(tmp_path / "payload", tmp_path, small=False).stat().st_size > 10_000


def test_the_source_tree_names_no_network() -> None:
    assert networks.built_in() is None


def test_a_build_takes_only_what_can_be_joined() -> None:
    assert build.network_of("") == ""
    assert build.network_of(OWN.page) == OWN.link
    with pytest.raises(InvitationError):
        build.network_of("cottage.example")


def test_the_network_of_a_build_is_lent_to_unless_its_owner_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "built_in", lambda: OWN)
    home = Home.at(tmp_path)
    assert home.settings().network == OWN
    home.remember(Settings(coordinator="https://other.example"))
    assert home.settings().network == Invitation("https://other.example")
    assert networks.known(home.networks) == (Invitation("https://other.example"), OWN)

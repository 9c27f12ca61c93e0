"""The button that installs Docker, on a system that boots: its script as root, by systemd, for a user who is logged in.

``COTTAGE_TREES="bookworm trixie jammy"`` tries several; Debian 12 alone by default.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from desktop.gui.engine import install
from tests.installer.machine import NEEDED, booted
from tests.installer.tree import Tree

RELEASES = os.environ.get("COTTAGE_TREES", "bookworm").split()
SCRIPT = Path(install.__file__).with_name("install-engine.sh")
INSTALL = f"PKEXEC_UID={Tree.USER} sh /install-engine.sh apt"
INSTALL_S = 600
ASK = (
    """perl -MIO::Socket::UNIX -e '$e = IO::Socket::UNIX->new("/run/docker.sock") or exit 1; """
    """print $e "GET /version HTTP/1.0\\r\\n\\r\\n"; print <$e>'"""
)
"""Ask the engine at its socket: Debian 13 has the command ``docker`` in a package of its own, which nobody here needs."""
AS_BEFORE = f"setpriv --reuid={Tree.USER} --regid={Tree.USER} --clear-groups"
"""As the owner's programs run that were started before: without the group that is new."""
AS_STRANGER = "setpriv --reuid=65534 --regid=65534 --clear-groups"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.skipif(bool(NEEDED), reason=f"a system that boots is made with {', '.join(NEEDED)}"),
]


@pytest.fixture(params=RELEASES)
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tree]:
    system = Tree(tmp_path, request.param)
    system.install("systemd-sysv", "dbus")
    shutil.copy(SCRIPT, system.file("/install-engine.sh"))
    yield system
    shutil.rmtree(tmp_path / request.param)


def test_one_word_installs_an_engine_that_its_owner_may_use_at_once(tree: Tree) -> None:
    with booted(tree) as machine:
        first = machine.run("sh", "-c", INSTALL, limit=INSTALL_S)
        owner = machine.run("sh", "-c", f"{AS_BEFORE} {ASK}")
        groups = machine.run("id", "-nG", "owner").split()
        enabled = machine.run("systemctl", "is-enabled", "docker").split()
        again = machine.run("sh", "-c", INSTALL)
        stranger = machine.run("sh", "-c", f"{AS_STRANGER} {ASK}; echo ended $?")
    for said in (first, again):
        steps = [line for line in said.splitlines() if line.startswith("@")]
        assert steps == ["@packages", "@service", "@user", "@done"], said[-2000:]
    assert '"ApiVersion"' in owner, "the engine answers its owner"
    assert groups == ["owner", "docker"]
    assert enabled == ["enabled"]
    assert stranger == "ended 1\n", "and nobody else"
    assert "An engine is installed" not in first
    assert "An engine is installed" in again, "one that is there is left as it is"

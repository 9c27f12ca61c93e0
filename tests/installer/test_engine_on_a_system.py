"""The button that installs Docker, on a system that boots: its script as root, by systemd, for a user who is logged in.

``COTTAGE_TREES="bookworm trixie jammy"`` tries several; Debian 12 alone by default.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from desktop.gui.engine import install
from tests.installer.tree import Tree, missing

RELEASES = os.environ.get("COTTAGE_TREES", "bookworm").split()
NEEDED = missing() + ([] if shutil.which("systemd-nspawn") else ["systemd-nspawn"])
SCRIPT = Path(install.__file__).with_name("install-engine.sh")
BOOT_S = 600
# What a container of the tests may not do: this machine's network is not the engine's to arrange.
RULES = '{"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false, "storage-driver": "vfs"}'
TRY = """
exec > /said 2>&1
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
{words}
systemctl poweroff
"""
UNIT = """
[Unit]
After=network.target dbus.service
[Service]
Type=oneshot
ExecStart=/bin/sh /try.sh
[Install]
WantedBy=multi-user.target
"""
ASK = (
    """perl -MIO::Socket::UNIX -e '$e = IO::Socket::UNIX->new("/run/docker.sock") or exit 1; """
    """print $e "GET /version HTTP/1.0\\r\\n\\r\\n"; print <$e>'"""
)
"""Ask the engine at its socket: Debian 13 has the command ``docker`` in a package of its own, which nobody here needs."""
AS_BEFORE = f"setpriv --reuid={Tree.USER} --regid={Tree.USER} --clear-groups"
"""As the owner's programs run that were started before: without the group that is new."""

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
    rules = system.file("/etc/docker/daemon.json")
    rules.parent.mkdir()
    rules.write_text(RULES)
    unit = system.file("/etc/systemd/system/try.service")
    unit.write_text(UNIT)
    system.run("systemctl", "enable", "try.service")
    yield system
    shutil.rmtree(tmp_path / request.param)


def booted(tree: Tree, *words: str) -> list[str]:
    """Boot the system, have its root run lines of a shell, and end it; what they said."""
    tree.file("/try.sh").write_text(TRY.format(words="\n".join(words)))
    command = (
        "systemd-nspawn",
        "-D",
        str(tree.file("/")),
        "--register=no",
        "--keep-unit",
        "--capability=all",
        "--boot",
    )
    command += ("--capability=all", "--resolv-conf=replace-host", "--boot")
    subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BOOT_S, check=False)
    return tree.file("/said").read_text().splitlines()


def test_one_word_installs_an_engine_that_its_owner_may_use_at_once(tree: Tree) -> None:
    told = booted(
        tree,
        f"PKEXEC_UID={Tree.USER} sh /install-engine.sh apt; echo ended $?",
        f"{AS_BEFORE} {ASK}; rc=$?; echo; echo owner $rc",
        "id -nG owner; systemctl is-enabled docker",
        f"PKEXEC_UID={Tree.USER} sh /install-engine.sh apt; echo again $?",
        f"setpriv --reuid=65534 --regid=65534 --clear-groups {ASK}; echo stranger $?",
    )
    assert [line for line in told if line.startswith("@")] == ["@packages", "@service", "@user", "@done"] * 2, (
        "\n".join(told[-25:])
    )
    assert {"ended 0", "owner 0", "again 0", "owner docker", "enabled"} <= set(told), "\n".join(told[-25:])
    assert sum('"ApiVersion"' in line for line in told) == 1, "the engine answers its owner"
    assert "stranger 1" in told, "and nobody else"
    assert sum(line.startswith("An engine is installed") for line in told) == 1, "one that is there is left as it is"

"""A system in a folder that boots: systemd as its first process, in a container of systemd-nspawn's."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.installer.tree import COMMAND_S, Tree, missing
from tests.support.wait import until_true

NEEDED = missing() + ([] if shutil.which("systemd-nspawn") else ["systemd-nspawn"])
BOOT_S, END_S = 120, 60
# A container that boots may do what a computer may: its engine makes keyrings and loads programs of control groups.
RIGHTS = ("--capability=all", "--system-call-filter=@keyring bpf")
# This machine's network is not the engine's to arrange.
RULES = '{"bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false}'
# Where groups are of version 1, systemd-nspawn gives them to be read only, and an engine could start no container.
GROUPS = 'for place in /sys/fs/cgroup/*/; do mountpoint -q "$place" && mount -o remount,bind,rw "$place"; done; true'


class Machine:
    """A system that runs. Its network is this machine's; its processes, users and folders are its own."""

    def __init__(self, leader: int) -> None:
        """``leader``: its first process, as this machine numbers it."""
        self._leader = leader

    def words(self, *words: str, user: str = "root", env: Mapping[str, str] | None = None) -> list[str]:
        """The command line that runs ``words`` in it."""
        inside = ("nsenter", "-t", str(self._leader), "-m", "-u", "-i", "-p", "-n", "-C")
        found = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **(env or {})}
        return [*inside, "runuser", "-u", user, "--", "env", "-i", *(f"{k}={v}" for k, v in found.items()), *words]

    def run(self, *words: str, user: str = "root", limit: int = COMMAND_S) -> str:
        """Run a command to its end; what it says, and what it complains of."""
        command = self.words(*words, user=user)
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}"
        return done.stdout


@contextlib.contextmanager
def booted(tree: Tree, *options: str) -> Iterator[Machine]:
    """Boot ``tree``; it is ended with the context. ``options``: of systemd-nspawn."""
    rules = tree.file("/etc/docker/daemon.json")
    rules.parent.mkdir(exist_ok=True)
    rules.write_text(RULES)
    place = ("-D", str(tree.file("/")), "--register=no", "--keep-unit", "--resolv-conf=replace-host")
    command = ("systemd-nspawn", *place, *RIGHTS, *options, "--boot")
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    machine = None
    try:
        until_true(lambda: _first(process.pid) is not None, BOOT_S)
        machine = Machine(_first(process.pid) or 0)
        until_true(lambda: _is_up(machine), BOOT_S)
        machine.run("sh", "-c", GROUPS)
        yield machine
    finally:
        if machine is not None:
            subprocess.run(machine.words("systemctl", "poweroff"), capture_output=True, timeout=END_S, check=False)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)  # Its first process goes with it.
            process.wait()


def _first(outside: int) -> int | None:
    children = Path(f"/proc/{outside}/task/{outside}/children").read_text().split()
    systemd = [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == "systemd"]
    return systemd[0] if systemd else None


def _is_up(machine: Machine) -> bool:
    words = machine.words("systemctl", "is-system-running")
    done = subprocess.run(words, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    return done.stdout.strip() in ("running", "degraded")

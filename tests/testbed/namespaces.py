"""Network namespaces of one test-bed: made, entered and removed, also those that a killed process left behind."""

import contextlib
import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

TOOLS = {"ip": "iproute2", "nft": "nftables", "conntrack": "conntrack", "nsenter": "util-linux"}
COMMAND_LIMIT_S = 30.0

_ROOT = Path("/run/netns")
_NAME = re.compile(r"ct(?P<pid>\d+)-\d+-\w+")
_numbers = itertools.count()


def run(*command: str, stdin: str = "") -> str:
    """Run a command and return what it prints.

    Raises:
        RuntimeError: it failed; its complaint is the message.
    """
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=COMMAND_LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def missing(tools: Sequence[str] = ()) -> str:
    """Why namespaces with such further tools cannot be had here; empty if they can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in (*TOOLS, *tools) if shutil.which(tool) is None]
    if absent:
        return f"missing: {', '.join(absent)} (apt install {' '.join(TOOLS.values())} coturn)"
    if not Path("/dev/net/tun").exists():
        return "the kernel has no TUN devices (/dev/net/tun)"
    probe = f"ct{os.getpid()}-0-probe"
    done = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"network namespaces do not work here: {done.stderr.strip()}"
    run("ip", "netns", "del", probe)
    return ""


class Namespaces:
    """The namespaces of one network; their names begin with this process's id and a number of their own."""

    def __init__(self) -> None:
        """Choose a prefix; nothing is made yet."""
        self._prefix = f"ct{os.getpid()}-{next(_numbers)}-"
        self._made: list[str] = []

    def full(self, name: str) -> str:
        """The system's name of a namespace."""
        return self._prefix + name

    def add(self, *names: str) -> None:
        """Make namespaces with their loopback device up."""
        self._made += names
        run("ip", "-batch", "-", stdin="".join(f"netns add {self.full(name)}\n" for name in names))
        for name in names:
            self.ip(name, "link set lo up")

    def enter(self, name: str, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` inside."""
        return ["nsenter", f"--net={_ROOT / self.full(name)}", *command]

    def ip(self, name: str, *commands: str) -> None:
        """Run commands of ``ip``, each without the word ``ip``, inside."""
        run("ip", "-n", self.full(name), "-batch", "-", stdin="".join(f"{command}\n" for command in commands))

    def inside(self, name: str, *command: str, stdin: str = "") -> str:
        """Run a command inside and return what it prints."""
        return run(*self.enter(name, command), stdin=stdin)

    def processes(self) -> list[int]:
        """What still runs inside any of them."""
        return [pid for name in self._made for pid in _processes(self.full(name))]

    def remove(self) -> None:
        """Kill what still runs inside and delete them all."""
        for name in self._made:
            _remove(self.full(name))
        self._made.clear()


def sweep() -> None:
    """Remove the namespaces of processes that are no more."""
    names = [path.name for path in _ROOT.iterdir()] if _ROOT.is_dir() else []
    stale = [name for name in names if (match := _NAME.fullmatch(name)) and not Path(f"/proc/{match['pid']}").exists()]
    for name in stale:
        _remove(name)


def _processes(name: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def _remove(name: str) -> None:
    for pid in _processes(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

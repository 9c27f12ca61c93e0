"""Two homes behind NAT routers, and a relay on the public segment, in network namespaces of their own.

::

    h1 192.168.1.10 -- r1 203.0.113.21 --+
                                         +-- pub (bridge 203.0.113.1) -- turn 203.0.113.10 (coturn)
    h2 192.168.2.10 -- r2 203.0.113.22 --+

Nothing touches the machine's own interfaces; every name begins with a prefix of this process. Needs root.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

TOOLS = ("ip", "iptables", "nsenter", "turnserver", "sysctl")
RELAY = "203.0.113.10"
RELAY_PORT = 3478
START_LIMIT_S = 10.0
NAMESPACES = ("pub", "turn", "r1", "h1", "r2", "h2")


class Nat(StrEnum):
    """How a home's router treats UDP."""

    CONE = "cone"  # keeps the port, lets in only whom the host has written to: a plain Linux router
    SYMMETRIC = "symmetric"  # a fresh port for every destination: hole punching fails
    NO_UDP = "no udp"  # a company's firewall


def missing() -> str:
    """Why the test-bed cannot be built here; empty if it can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"missing: {', '.join(absent)} (apt install iproute2 iptables coturn procps)"
    probe = subprocess.run(["ip", "netns", "add", f"ct{os.getpid()}probe"], capture_output=True, text=True, check=False)
    if probe.returncode:
        return f"network namespaces do not work here: {probe.stderr.strip()}"
    run("ip", "netns", "del", f"ct{os.getpid()}probe")
    return ""


def run(*command: str) -> str:
    """Run a command; its complaint is the error."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


class Homes:
    """The built network."""

    def __init__(self, folder: Path, secret: str) -> None:
        """``folder`` takes the relay's files; ``secret`` is what it shares with who hands out credentials."""
        self._prefix = f"ct{os.getpid()}"
        self._folder = folder
        self._secret = secret
        self._relay: subprocess.Popen[bytes] | None = None

    def enter(self, home: int, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` in home 1 or 2."""
        return self._inside(f"h{home}", *command)

    def build(self, first: Nat, second: Nat) -> None:
        """Make everything."""
        for name in NAMESPACES:
            run("ip", "netns", "add", self._prefix + name)
            self._ip(name, "link", "set", "lo", "up")
        self._ip("pub", "link", "add", "br0", "type", "bridge")
        self._ip("pub", "link", "set", "br0", "up")
        self._ip("pub", "addr", "add", "203.0.113.1/24", "dev", "br0")
        self._join_public("turn", f"{RELAY}/24")
        for number, nat in ((1, first), (2, second)):
            self._build_home(number, nat)
        self._start_relay()

    def remove(self) -> None:
        """End everything that was started and delete every namespace."""
        if self._relay is not None:
            self._relay.terminate()
            self._relay.wait(timeout=10)
        for name in NAMESPACES:
            subprocess.run(["ip", "netns", "del", self._prefix + name], capture_output=True, check=False)

    def _inside(self, name: str, *command: str) -> list[str]:
        return ["nsenter", f"--net=/run/netns/{self._prefix}{name}", *command]

    def _ip(self, name: str, *arguments: str) -> None:
        run("ip", "-n", self._prefix + name, *arguments)

    def _iptables(self, name: str, *arguments: str) -> None:
        run(*self._inside(name, "iptables", "-w", *arguments))

    def _join_public(self, name: str, address: str) -> None:
        """A cable to the public segment. The default route matters: without one coturn closes an allocation at the first private
        candidate (ENETUNREACH)."""
        self._cable(name, "wan", "pub", f"p{name}")
        self._ip("pub", "link", "set", f"p{name}", "master", "br0")
        self._ip(name, "addr", "add", address, "dev", "wan")
        self._ip(name, "route", "add", "default", "via", "203.0.113.1")

    def _cable(self, left: str, left_device: str, right: str, right_device: str) -> None:
        peer = ("peer", "name", right_device, "netns", self._prefix + right)
        self._ip(left, "link", "add", left_device, "type", "veth", *peer)
        self._ip(left, "link", "set", left_device, "up")
        self._ip(right, "link", "set", right_device, "up")

    def _build_home(self, number: int, nat: Nat) -> None:
        router, host = f"r{number}", f"h{number}"
        self._cable(router, "lan", host, "eth0")
        self._ip(router, "addr", "add", f"192.168.{number}.1/24", "dev", "lan")
        self._ip(host, "addr", "add", f"192.168.{number}.10/24", "dev", "eth0")
        self._ip(host, "route", "add", "default", "via", f"192.168.{number}.1")
        # The rules stand before the cable: a flow that begins without them would keep its private address.
        spread = ("--random-fully",) if nat is Nat.SYMMETRIC else ()
        self._iptables(router, "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE", *spread)
        if nat is Nat.NO_UDP:
            self._iptables(router, "-A", "FORWARD", "-p", "udp", "-j", "DROP")
        for chain in ("FORWARD", "INPUT"):
            known = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
            self._iptables(router, "-A", chain, "-i", "wan", *known, "-j", "ACCEPT")
            self._iptables(router, "-A", chain, "-i", "wan", "-j", "DROP")
        self._join_public(router, f"203.0.113.2{number}/24")
        run(*self._inside(router, "sysctl", "-qw", "net.ipv4.ip_forward=1"))

    def _start_relay(self) -> None:
        settings = {
            "listening-ip": RELAY,
            "relay-ip": RELAY,
            "listening-port": str(RELAY_PORT),
            "min-port": "50000",
            "max-port": "50999",
            "realm": "cottage.test",
            "static-auth-secret": self._secret,
            "log-file": str(self._folder / "turn.log"),
            "pidfile": str(self._folder / "turn.pid"),
            "userdb": str(self._folder / "turn.db"),
        }
        flags = ("use-auth-secret", "fingerprint", "no-tls", "no-dtls", "no-cli", "simple-log")
        lines = [f"{name}={value}" for name, value in settings.items()] + list(flags)
        config = self._folder / "turn.conf"
        config.write_text("\n".join(lines) + "\n")
        with (self._folder / "turn.out").open("wb") as out:
            command = self._inside("turn", "turnserver", "-c", str(config))
            self._relay = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_LIMIT_S
        while f"{RELAY}:{RELAY_PORT}" not in run(*self._inside("turn", "ss", "-lun")):
            if time.monotonic() > deadline or self._relay.poll() is not None:
                raise RuntimeError(f"the relay did not start: {(self._folder / 'turn.out').read_text()[-800:]}")
            time.sleep(0.02)


@contextmanager
def homes(folder: Path, first: Nat, second: Nat, secret: str) -> Iterator[Homes]:
    """Two homes behind such NATs, removed at the end whatever happens."""
    network = Homes(folder, secret)
    try:
        network.build(first, second)
        yield network
    finally:
        network.remove()

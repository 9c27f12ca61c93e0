"""A home of the bed: its router with a NAT, its hosts, and what is started in them."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.testbed.emulator import Site
from tests.testbed.namespaces import Namespaces
from tests.testbed.nat import Nat, apart, rules

ROOT = Path(__file__).parents[2]


class Host:
    """A machine of the bed: its own namespace, and the programs started in it."""

    def __init__(self, spaces: Namespaces, name: str) -> None:
        """Refer to the namespace ``name``, which exists."""
        self._spaces = spaces
        self.name = name

    def enter(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` here."""
        return self._spaces.enter(self.name, command)

    def run(self, *command: str) -> str:
        """Run a command here to its end and return what it prints."""
        return self._spaces.inside(self.name, *command)

    async def start(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> asyncio.subprocess.Process:
        """Start a program here, in the root of the repository, with pipes for its input and output.

        Args:
            env: added to this process's environment.
            options: of ``asyncio.create_subprocess_exec``.
        """
        settings: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT, "limit": 1 << 20}
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
        return await asyncio.create_subprocess_exec(*self.enter(command), env=environment, **(settings | options))

    async def python(
        self, module: str, *arguments: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> asyncio.subprocess.Process:
        """Start a Python module here."""
        return await self.start([sys.executable, "-m", module, *arguments], env, **options)


class Home(Host):
    """A home: its first host, which is ``self``, and the router."""

    def __init__(self, spaces: Namespaces, number: int, *, ipv4: bool, ipv6: bool) -> None:
        """Refer to home ``number``, from 1; ``build`` makes it."""
        super().__init__(spaces, f"h{number}")
        self.number = number
        self.router = f"r{number}"
        self.nat = Nat.NONE
        self._ipv4, self._ipv6 = ipv4, ipv6
        self._moves = {"wan": 0, "lan": 0}
        self._hosts = [self.name]
        self._hairpin = False

    @property
    def wan(self) -> str:
        """The router's present public IPv4 address."""
        return f"25.0.{self.number}.{1 + self._moves['wan']}"

    @property
    def address(self) -> str:
        """The first host's present IPv4 address: private behind NAT, public without."""
        return self._host_ipv4(0)

    @property
    def ipv6(self) -> str:
        """The first host's present IPv6 address."""
        return self._host_ipv6(0)

    @property
    def second_address(self) -> str:
        """The second host's present IPv4 address."""
        return self._host_ipv4(1)

    def site(self) -> Site:
        """Its place on the internet."""
        ipv4 = f"25.0.{self.number}.0/24" if self._ipv4 else "-"
        ipv6 = f"2a7f:0:{self.number}::/48" if self._ipv6 else "-"
        return Site(self.name, self._spaces.full(self.router), "wan", ipv4, ipv6)

    def build(self) -> None:
        """Make the router's own network; its device ``wan`` is there already."""
        n, router = self.number, self.router
        commands = ["link add lan type bridge", "link set lan up", "link set wan txqueuelen 10000 up"]
        if self._ipv4:
            commands += [f"addr add 192.168.{n}.1/24 dev lan", f"addr add 25.0.{n}.129/25 dev lan"]
            commands += [f"addr add {self.wan}/32 dev wan", "route add default dev wan"]
        if self._ipv6:
            commands += [f"addr add 2a7f:0:{n}:1::1/64 dev lan nodad", f"addr add 2a7f:0:{n}::1/128 dev wan nodad"]
            commands += ["route add ::/0 dev wan"]
        self._spaces.ip(router, *commands)
        forwarding = ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]
        self._spaces.inside(router, "sysctl", "-qw", *forwarding)
        self._plug_in(self.name)

    def set_nat(self, nat: Nat, *, hairpin: bool) -> None:
        """Change how the router treats UDP; every present connection is forgotten."""
        self.nat, self._hairpin = nat, hairpin
        self._load_rules()
        for index in range(len(self._hosts)):
            self._configure(index)

    def second(self) -> Host:
        """Another host in this home, made when first asked for."""
        name = f"s{self.number}"
        if name not in self._hosts:
            self._spaces.add(name)
            self._plug_in(name)
            self._hosts.append(name)
            self._configure(1)
        return Host(self._spaces, name)

    def change_address(self, which: str) -> None:
        """``wan``: the provider gives the router another address. ``lan``: the first host gets one, as on another network."""
        self._moves[which] += 1
        if which == "lan":
            self._configure(0)
            return
        commands = [
            "addr flush dev wan scope global",
            f"addr add {self.wan}/32 dev wan",
            "route replace default dev wan",
        ]
        if self._ipv6:
            commands += [f"addr add 2a7f:0:{self.number}::1/128 dev wan nodad", "route replace ::/0 dev wan"]
        self._spaces.ip(self.router, *commands)
        self._load_rules()

    def part(self, other: "Home") -> None:
        """Have the router drop all between this home and another one; what they send by way of relays goes on."""
        self._spaces.inside(self.router, "nft", "-f", "-", stdin=apart(f"25.0.{other.number}.0/24"))

    def rejoin(self) -> None:
        """Undo ``part``."""
        self._spaces.inside(self.router, "nft", "delete", "table", "inet", "apart")

    def _load_rules(self) -> None:
        self._spaces.inside(self.router, "nft", "-f", "-", stdin=rules(self.nat, self.wan, hairpin=self._hairpin))
        self._spaces.inside(self.router, "conntrack", "-F")

    def _plug_in(self, name: str) -> None:
        port = f"to_{name}"
        peer = f"peer name eth0 netns {self._spaces.full(name)}"
        self._spaces.ip(self.router, f"link add {port} type veth {peer}", f"link set {port} master lan up")
        self._spaces.ip(name, "link set eth0 up")

    def _host_ipv4(self, index: int) -> str:
        last = 10 + index + (10 * self._moves["lan"] if index == 0 else 0)
        return f"25.0.{self.number}.{130 + last}" if self.nat is Nat.NONE else f"192.168.{self.number}.{last}"

    def _host_ipv6(self, index: int) -> str:
        last = 10 + index + (10 * self._moves["lan"] if index == 0 else 0)
        return f"2a7f:0:{self.number}:1::{last}"

    def _configure(self, index: int) -> None:
        """Give a host the addresses of the present NAT kind, and no others."""
        n, commands = self.number, ["addr flush dev eth0 scope global"]
        if self._ipv4:
            gateway, bits = (f"25.0.{n}.129", 25) if self.nat is Nat.NONE else (f"192.168.{n}.1", 24)
            commands.append(f"addr add {self._host_ipv4(index)}/{bits} dev eth0")
            commands.append(f"route replace default via {gateway}")
        if self._ipv6:
            commands.append(f"addr add {self._host_ipv6(index)}/64 dev eth0 nodad")
            commands.append(f"route replace ::/0 via 2a7f:0:{n}:1::1")
        self._spaces.ip(self._hosts[index], *commands)

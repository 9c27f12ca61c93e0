"""Homes behind NAT routers, relays and a public host, joined by an emulated internet, all in network namespaces.

::

    h1 192.168.1.10 -- r1 25.0.1.1 --+                +-- relay1 25.0.0.11 (coturn)
    s1 192.168.1.11 --'              +-- the emulator --+
    h2 192.168.2.10 -- r2 25.0.2.1 --+                +-- public 25.0.0.10

With ``ipv6`` every site has a prefix 2a7f:0:<site>::/48 besides, without translation. Outside the home all addresses are such
that every check takes them for public; nothing leaves the namespaces, and nothing touches the machine's own interfaces. Needs
root.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

from tests.testbed import namespaces
from tests.testbed.emulator import Emulator, Site
from tests.testbed.hosts import ROOT, Home, Host
from tests.testbed.link import Link
from tests.testbed.namespaces import Namespaces
from tests.testbed.nat import Nat
from tests.testbed.relay import CERTIFICATE, PROGRAM, SECRET, Relay, RelayProgram, start

__all__ = ["ROOT", "Home", "Homes", "Host", "Link", "Nat", "RelayProgram", "built", "homes", "missing"]

MAX_HOMES = 16
PUBLIC_NUMBER = 10  # The last part of the public host's address; relays come after it.
END_LIMIT_S = 10.0
FOLDER = "cottage-bed-"


def missing(*, relays: bool = True) -> str:
    """Why the test-bed cannot be built here; empty if it can."""
    return namespaces.missing([PROGRAM] if relays else [])


def sweep() -> None:
    """Remove what killed processes left behind: namespaces, what runs in them, and folders."""
    namespaces.sweep()
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*-*"):
        if not Path("/proc", folder.name.removeprefix(FOLDER).split("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)  # Another process may be sweeping, too.


class Homes:
    """The built network; ``homes`` makes one."""

    def __init__(self, count: int, *, relays: int, ipv4: bool, ipv6: bool, folder: Path) -> None:
        """Plan it; ``build`` makes it, ``remove`` ends it."""
        if not 0 < count <= MAX_HOMES:
            raise ValueError(f"{count} homes: from 1 to {MAX_HOMES}")
        self._spaces = Namespaces()
        self._ipv4, self._ipv6 = ipv4, ipv6
        self._folder = folder
        self._homes = [Home(self._spaces, number, ipv4=ipv4, ipv6=ipv6) for number in range(1, count + 1)]
        self._servers: list[subprocess.Popen[bytes]] = []
        self._emulator: Emulator | None = None
        self.public = Host(self._spaces, "public")
        self.relays = [
            Relay(f"relay{k}", self._public_addresses(k), folder / f"relay{k}" / CERTIFICATE)
            for k in range(1, relays + 1)
        ]

    @property
    def public_address(self) -> str:
        """The public host's first address."""
        return self._public_addresses(0)[0]

    @property
    def relay(self) -> Relay:
        """The first relay."""
        return self.relays[0]

    @property
    def secret(self) -> str:
        """What the relays share with who hands out credentials."""
        return SECRET

    def home(self, number: int) -> Home:
        """Home ``number``, counted from 1."""
        return self._homes[number - 1]

    def host_of(self, relay: Relay) -> Host:
        """The machine on which a relay runs."""
        return Host(self._spaces, relay.name)

    def set_nat(self, number: int, nat: Nat, *, hairpin: bool = False) -> None:
        """Change a home's router; what was connected through it is forgotten."""
        self.home(number).set_nat(nat, hairpin=hairpin)

    def set_link(self, site: int | str, link: Link) -> None:
        """Change the line of a home, by its number, or of ``public`` or a relay, by its name, while it is used."""
        self._running.set_link(self._site(site), link)

    def cut(self, site: int | str) -> None:
        """Pull the cable between a router and the internet."""
        self._running.cut(self._site(site), True)

    def heal(self, site: int | str) -> None:
        """Plug it in again."""
        self._running.cut(self._site(site), False)

    def change_address(self, number: int, which: str = "wan") -> None:
        """A home's router (``wan``) or first host (``lan``) gets another address; what used the old one is cut."""
        self.home(number).change_address(which)

    def stats(self) -> Mapping[str, Any]:
        """The emulator's counters, see ``Emulator.stats``; homes are called ``h1`` and so on."""
        return self._running.stats()

    def build(
        self, nat: Sequence[Nat], link: Sequence[Link], *, seed: int, portable: bool, program: RelayProgram
    ) -> None:
        """Make everything; ``nat`` and ``link`` have one entry for each home."""
        sweep()
        routers = [home.router for home in self._homes]
        servers = [self.public.name, *(relay.name for relay in self.relays)]
        self._spaces.add(*routers, *(home.name for home in self._homes), *servers)
        sites = [home.site() for home in self._homes] + [self._server_site(k) for k in range(len(servers))]
        self._emulator = Emulator(sites, seed=seed, portable=portable)
        for home, kind, line in zip(self._homes, nat, link, strict=True):
            home.build()
            home.set_nat(kind, hairpin=False)
            self.set_link(home.number, line)
        for k, name in enumerate(servers):
            self._configure_server(k, name)
            self.set_link(name, Link())
        for relay in self.relays:
            relay.authority.parent.mkdir()
            enter = self._spaces.enter(relay.name, [])
            self._servers.append(start(relay, relay.authority.parent, enter, program))

    def remove(self) -> None:
        """End everything that was started and delete every namespace."""
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.wait(timeout=END_LIMIT_S)
        if self._emulator is not None:
            self._emulator.close()
        self._spaces.remove()

    @property
    def _running(self) -> Emulator:
        if self._emulator is None:
            raise RuntimeError("the test-bed is not built")
        return self._emulator

    def _site(self, site: int | str) -> str:
        return self.home(site).name if isinstance(site, int) else site

    def _public_addresses(self, k: int) -> tuple[str, ...]:
        last = PUBLIC_NUMBER + k
        both = ((self._ipv4, f"25.0.0.{last}"), (self._ipv6, f"2a7f:0:{MAX_HOMES + 1 + k}::1"))
        return tuple(address for present, address in both if present)

    def _server_site(self, k: int) -> Site:
        name = f"relay{k}" if k else self.public.name
        rest = f"25.0.0.{PUBLIC_NUMBER + k}/32" if k else "25.0.0.0/24"  # The public host may have further addresses.
        ipv4 = rest if self._ipv4 else "-"
        ipv6 = f"2a7f:0:{MAX_HOMES + 1 + k}::/48" if self._ipv6 else "-"
        return Site(name, self._spaces.full(name), "wan", ipv4, ipv6)

    def _configure_server(self, k: int, name: str) -> None:
        """An address alone is not enough: without a default route coturn closes an allocation at the first private candidate."""
        commands = ["link set wan txqueuelen 10000 up"]
        for address in self._public_addresses(k):
            ipv6 = ":" in address
            commands.append(f"addr add {address}/{128 if ipv6 else 32} dev wan" + (" nodad" if ipv6 else ""))
            commands.append(f"route add {'::' if ipv6 else '0.0.0.0'}/0 dev wan")
        self._spaces.ip(name, *commands)


class Options(TypedDict, total=False):
    """What a bed may have, all optional.

    Attributes:
        nat: of every home, or one for each; the usual home router by default.
        link: of every home, or one for each; relays and the public host have unlimited lines unless ``set_link`` says otherwise.
        ipv4, ipv6: which families the internet has; IPv4 only by default.
        relays: how many relays run; one by default.
        program: what relays; coturn by default.
        seed: of everything that is random on the lines.
        portable: use the emulator in Python, which is good for some 50 Mbit/s, even where there is a compiler.
    """

    nat: Nat | Sequence[Nat]
    link: Link | Sequence[Link]
    ipv4: bool
    ipv6: bool
    relays: int
    program: RelayProgram
    seed: int
    portable: bool


@contextlib.contextmanager
def built(
    count: int = 2,
    *,
    nat: Nat | Sequence[Nat] = Nat.PORT_CONE,
    link: Link | Sequence[Link] = Link(),  # noqa: B008 - frozen
    ipv4: bool = True,
    ipv6: bool = False,
    relays: int = 1,
    program: RelayProgram = RelayProgram.COTURN,
    seed: int = 1,
    portable: bool = False,
) -> Iterator[Homes]:
    """``homes`` without an event loop, for what many tests share; see ``Options``."""
    kinds = [nat] * count if isinstance(nat, Nat) else list(nat)
    lines = [link] * count if isinstance(link, Link) else list(link)
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-") as folder:
        bed = Homes(count, relays=relays, ipv4=ipv4, ipv6=ipv6, folder=Path(folder))
        try:
            bed.build(kinds, lines, seed=seed, portable=portable, program=program)
            yield bed
        finally:
            bed.remove()


@contextlib.asynccontextmanager
async def homes(count: int = 2, **options: Unpack[Options]) -> AsyncIterator[Homes]:
    """So many homes, removed at the end whatever happens; see ``Options``."""
    frame = built(count, **options)
    bed = await asyncio.to_thread(frame.__enter__)
    try:
        yield bed
    finally:
        await asyncio.to_thread(frame.__exit__, None, None, None)

"""The roles of one network on one PC, started in order and found again after a fault."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.urls import parse_url
from cottage.demo.options import DemoOptions
from cottage.demo.processes import DemoProcess, Household, wait_for_file
from ledger.client import Ledger, LedgerConfig
from ledger.money import parse as parse_amount
from protocol.identity import NodeKey

STAKE = "50"  # Tokens; from the embedded ledger's faucet.
STARTING_S = 60.0  # Importing a role's packages from a cold disk took 20 s on two busy cores.
# A thousand tokens for 10^15 operations: a demo's few seconds then cost whole tokens.
PRICE_PER_PETAFLOP = 1_000_000_000
LEASE_S = 8.0
RETURN_S = 30.0  # Who is killed here does not come back.
AGENT = ("-m", "cottage", "node")
LYING_AGENT = ("-m", "cottage.demo.lying_node")


@dataclass
class Provider:
    """One node of the demo: its folder, its key, and its running agent."""

    name: str
    home: Path
    key: NodeKey
    role: DemoProcess | None = None


@dataclass
class DemoNetwork:
    """Ledger, coordinator and providers. ``household`` ends them all."""

    options: DemoOptions
    household: Household
    ledger: Ledger | None = None
    ledger_url: str = ""
    web: str = ""
    coordinator: DemoProcess | None = None
    providers: list[Provider] = field(default_factory=list)
    open_to_all: bool = True  # Nobody signs in: who reaches a port of this PC is its owner.

    async def start_ledger(self) -> Ledger:
        """The embedded ledger and a client on it."""
        folder = self.options.folder / "ledger"
        folder.mkdir(parents=True)
        ready = folder / "url"
        role = await self.household.start(
            "ledger",
            ["-m", "ledger.local", "--port", "0", "--db", str(folder / "ledger.db"), "--ready-file", str(ready)],
        )
        self.ledger_url = await wait_for_file(ready, role, STARTING_S)
        self.ledger = await Ledger.connect(LedgerConfig(self.ledger_url))
        return self.ledger

    async def start_coordinator(self) -> str:
        """The coordinator, on the port that it had before if it is a restart; returns its address."""
        folder = self.options.folder / "coordinator"
        folder.mkdir(parents=True, exist_ok=True)
        ready = folder / "url"
        ready.unlink(missing_ok=True)
        port = parse_url(self.web).port or 0 if self.web else 0
        self.coordinator = await self.household.start("coordinator", self._coordinator_arguments(folder, ready, port))
        self.web = await wait_for_file(ready, self.coordinator, STARTING_S)
        return self.web

    def _coordinator_arguments(self, folder: Path, ready: Path, port: int) -> Sequence[str]:
        values = {
            "--data": str(folder),
            "--host": "127.0.0.1",
            "--port": str(port),
            "--ready-file": str(ready),
            "--ledger-url": self.ledger_url,
            "--lease-seconds": str(LEASE_S),
            "--return-seconds": str(RETURN_S),
            "--audits-per-round": str(self.options.audits),
            "--price-per-petaflop": str(PRICE_PER_PETAFLOP),
            "--min-stake": str(parse_amount(STAKE)),
        }
        opened = ["--open"] if self.open_to_all else []
        return ["-m", "cottage", "serve", *opened, *(word for pair in values.items() for word in pair)]

    async def add_provider(self, name: str, extra: Sequence[str] = (), program: Sequence[str] = AGENT) -> Provider:
        """A node with a key and a wallet of its own; its agent, Python with the words of ``program``, puts down the stake."""
        home = self.options.folder / "nodes" / name
        home.mkdir(parents=True)
        key = NodeKey.load_or_generate(home / "node.key")
        provider = Provider(name, home, key)
        self.providers.append(provider)
        provider.role = await self.household.start(f"node-{name}", [*program, *self._agent_words(provider), *extra])
        return provider

    def _agent_words(self, provider: Provider) -> Sequence[str]:
        return [
            "run",
            "--always",
            "--coordinator",
            self.web,
            "--home",
            str(provider.home),
            "--name",
            provider.name,
            "--sandbox",
            self.options.sandbox,
            "--threads",
            "1",
            "--stake",
            STAKE,
            "--loopback",
        ]

    async def close(self) -> None:
        """End every role and the client."""
        if self.ledger is not None:
            await self.ledger.aclose()
            self.ledger = None
        await self.household.close()

"""Homes on the test-bed, and a relay with two addresses that it measures against."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.relay.conftest import credentials, relay_options
from tests.testbed.homes import ROOT, Homes, built, missing
from transport.nettest.target import Target, targets
from transport.relay.server import RelayServer

MAIN, OTHER = "25.0.0.10", "25.0.0.9"  # Two addresses of the public host.
SECRET = "shared with the coordinator only"
HOMES = 6  # One for each kind of NAT.
START_LIMIT_S = 30.0
END_LIMIT_S = 10.0


class Bed:
    """Homes, and a relay of ours at two public addresses; the first home is the one that most tests are about."""

    def __init__(self, homes: Homes, secret: Path, port: int) -> None:
        self.homes = homes
        self.secret = secret
        self.port = port
        self.relay = f"turn:{MAIN}:{port}?transport=udp"

    def words(self, *more: str) -> list[str]:
        return ["nettest", "--relay", self.relay, "--relay-secret-file", str(self.secret), *more]

    async def nettest(self, *more: str, code: int = 0, home: int = 1) -> dict[str, Any]:
        """What the command finds in a home."""
        process = await self.homes.home(home).python("cottage", *self.words("--json", *more), stderr=subprocess.PIPE)
        out, complaint = await process.communicate()
        assert process.returncode == code, complaint.decode()
        found: dict[str, Any] = json.loads(out)
        return found

    async def plain_ping(self) -> float:
        """The round trip to the relay without a word of ours, in milliseconds."""
        own = await self.homes.home(1).python("tests.nettest.plain_ping", MAIN, str(self.port), stdout=subprocess.PIPE)
        out, _ = await own.communicate()
        return float(out)


@contextlib.contextmanager
def bed_with(homes: Homes, folder: Path, listen: Sequence[str], port: int, *options: str) -> Iterator[Bed]:
    secret, ready = folder / "secret", folder / "ready"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    ready.unlink(missing_ok=True)
    addresses = [word for address in listen for word in ("--listen", address)]
    options = ("--port", str(port), "--nat-port", str(port + 1), *options)
    files = ["--secret-file", str(secret), "--ready-file", str(ready)]
    command = [sys.executable, "-m", "cottage", "relay", *addresses, *files, *options]
    with (folder / "relay.log").open("wb") as log:
        process = subprocess.Popen(homes.public.enter(command), cwd=ROOT, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not ready.exists():
            assert process.poll() is None, (folder / "relay.log").read_text()
            assert time.monotonic() < deadline, "the relay did not start"
            time.sleep(0.02)
        yield Bed(homes, secret, port)
    finally:
        process.terminate()
        process.wait(END_LIMIT_S)


@pytest.fixture(scope="module")
def network() -> Iterator[Homes]:
    why_not = missing(relays=False)
    if why_not:
        pytest.skip(f"no test-bed: {why_not}")
    with built(HOMES, relays=0) as homes:
        homes.public.run("ip", "addr", "add", f"{OTHER}/32", "dev", "wan")
        yield homes


@pytest.fixture(scope="module")
def bed(network: Homes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with bed_with(network, tmp_path_factory.mktemp("relay"), (MAIN, OTHER), 3478) as bed:
        yield bed


def targets_of(relay: RelayServer, user: str = "node") -> list[Target]:
    host, port = relay.addresses[0]
    return targets([((f"turn:{host}:{port}?transport=udp",), *credentials(user))])


@pytest.fixture
async def relay() -> AsyncIterator[RelayServer]:
    async with RelayServer(relay_options()) as server:
        yield server

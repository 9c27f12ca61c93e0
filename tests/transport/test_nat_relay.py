"""Two nodes in homes behind real NATs, with coturn between them."""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.testbed.homes import RELAY, RELAY_PORT, Nat, homes, missing
from transport.ice import turn_credentials
from transport.identity import NodeKey
from transport.lane import Lane

ROOT = Path(__file__).parents[2]
SECRET = "shared with the coordinator only"
LIMIT_S = 40.0
WHY_NOT = missing()

pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "the test-bed can be built"),
    pytest.mark.slow,
]


class Program:
    """A node in one of the homes; the test carries its envelopes, as a coordinator outside both homes would."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def tell(self, **message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def wait_for(self, kind: str) -> Any:
        async with asyncio.timeout(LIMIT_S):
            while True:
                event = await self.events.get()
                if kind in event:
                    return event[kind]
                assert "failed" not in event, event

    async def read(self, address: str, other: "Program") -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            event = json.loads(line)
            if "signal" in event:
                other.tell(signal=[address, event["signal"]])
            else:
                self.events.put_nowait(event)

    async def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def nodes_at_home(
    folder: Path, first: Nat, second: Nat, transport: str
) -> AsyncIterator[tuple[Program, Program]]:
    username, password = turn_credentials(SECRET, "node", time.time())
    relay = f"turn:{RELAY}:{RELAY_PORT}?transport={transport}"
    servers = [[f"stun:{RELAY}:{RELAY_PORT}", "", ""], [relay, username, password]]
    options = json.dumps({"servers": servers, "limits": {"reach_s": LIMIT_S}})
    keys = sorted((NodeKey.generate(), NodeKey.generate()), key=lambda key: key.address)
    with homes(folder, first, second, SECRET) as network:
        programs = []
        for home, (key, peer) in enumerate((keys, reversed(keys)), start=1):
            command = [sys.executable, "-m", "tests.transport.peer_program", key.seed.hex(), peer.address, options]
            process = await asyncio.create_subprocess_exec(
                *network.enter(home, command),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                limit=1 << 20,
            )
            programs.append(Program(process))
        left, right = programs
        reading = asyncio.gather(left.read(keys[0].address, right), right.read(keys[1].address, left))
        try:
            await asyncio.gather(left.wait_for("ready"), right.wait_for("ready"))
            yield left, right
        finally:
            await asyncio.gather(left.end(), right.end())
            await reading


@pytest.mark.parametrize(
    ("first", "second", "transport", "relayed"),
    [
        pytest.param(Nat.CONE, Nat.CONE, "udp", False, id="two cones meet directly"),
        pytest.param(Nat.SYMMETRIC, Nat.SYMMETRIC, "udp", True, id="two symmetric NATs need the relay"),
        pytest.param(Nat.NO_UDP, Nat.SYMMETRIC, "tcp", True, id="without UDP the relay is reached over TCP"),
    ],
)
async def test_two_homes_reach_each_other(
    tmp_path: Path, first: Nat, second: Nat, transport: str, relayed: bool
) -> None:
    async with nodes_at_home(tmp_path, first, second, transport) as (left, right):
        left.tell(send=[Lane.BULK, "one megabyte", 1 << 20])
        assert await left.wait_for("sent") == "one megabyte"
        assert await right.wait_for("got") == [Lane.BULK, "one megabyte", 1 << 20]
        right.tell(send=[Lane.CONTROL, "and back", 100])
        assert await right.wait_for("sent") == "and back"
        left.tell(pair=True)
        pair = await left.wait_for("pair")
        assert ("relay" in pair) is relayed, pair

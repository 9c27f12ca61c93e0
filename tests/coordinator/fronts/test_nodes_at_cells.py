"""Nodes at a front of several cells: it asks who they are, and leads them to the cell of what they hold, or to one that lacks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from coordinator.config import Config
from coordinator.domain.cells import Cell, CellState
from coordinator.domain.lease import Lease
from coordinator.services.network import admission
from coordinator.store.sql import SqlStore
from coordinator.web import signal
from coordinator.web.fronts import choosing, node_lines
from coordinator.web.fronts.seal import NONCE
from coordinator.web.signal import PATH
from protocol.codec import decode, encode
from protocol.identity import NodeKey
from protocol.node import Challenge, CoordinatorMessage, HeldLease, Refused, Welcome
from tests.coordinator.conftest import FRONTS, House, until
from tests.coordinator.fakes import profile
from tests.coordinator.fronts.carriers import Carrier, all_carried, carried, doors_of, front, job_of
from tests.coordinator.network.test_node_socket import closing, hello, refusal, welcomed
from tests.support.databases import Postgres, needs_postgres
from tests.support.wait import HANGS_S

pytestmark = needs_postgres

CELLS = 2
KEY = NodeKey(b"n" * 32)
AUDITORS = [NodeKey(bytes([number]) * 32) for number in range(100, 104)]
Socket = aiohttp.ClientWebSocketResponse


@dataclass
class Parted:
    """A network in two cells. ``told``: what these tell of themselves; ``doors``: where they serve."""

    config: Config
    houses: list[House]
    url: str
    told: dict[int, CellState]
    doors: list[str]
    store: SqlStore

    def lacks(self, cell: int) -> None:
        """Nodes are wanted in this cell alone."""
        self.told.clear()
        self.told[cell] = CellState(wanted=100)

    def where(self, key: NodeKey = KEY) -> list[int]:
        """Cells that a node is connected to."""
        return [cell for cell, house in enumerate(self.houses) if house.parts.nodes.session(key.address) is not None]

    async def holds(self, cell: int, name: str, **fields: Any) -> HeldLease:
        """Store a lease of a node in a job of this cell."""
        made = Lease(name, job_of(cell, CELLS), KEY.address, KEY.address, 1, 0, 0, granted=10.0)
        async with self.store.transaction() as tx:
            await tx.insert(msgspec.structs.replace(made, **fields))
        return HeldLease(name, 1)


@pytest.fixture
async def parted(config: Config, postgres: Postgres) -> AsyncIterator[Parted]:
    auditors = frozenset(key.address for key in AUDITORS)
    config = replace(config, database_url=postgres.migrated_url(), return_seconds=60.0, auditors=auditors)
    told: dict[int, CellState] = {}
    store = await SqlStore.open(config.database)
    async with all_carried(config, CELLS) as houses:
        doors = [house.url.removesuffix(PATH) for house in houses]
        async with front(config, [lambda cell=cell: doors[cell] for cell in range(CELLS)], lambda: told) as url:  # type: ignore[misc]
            yield Parted(config, houses, url, told, doors, store)
    await store.close()


@asynccontextmanager
async def dialled(url: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[Socket]:
    async with aiohttp.ClientSession() as http, http.ws_connect(url + PATH, headers=headers) as socket:
        yield socket


async def led_to(parted: Parted, leases: Sequence[HeldLease] = (), key: NodeKey = KEY, **fields: Any) -> list[int]:
    """Where a node comes in; it is gone afterwards."""
    async with dialled(parted.url) as socket:
        await welcomed(socket, key, leases=tuple(leases), **fields)
        found = parted.where(key)
    await until(lambda: not parted.where(key))
    return found


async def test_an_idle_node_goes_where_nodes_are_lacked(parted: Parted) -> None:
    for cell in (0, 1, 0):
        parted.lacks(cell)
        async with dialled(parted.url) as socket:
            challenge = decode(await socket.receive_bytes(), Challenge)
            assert parted.url.endswith(challenge.host), "what it signs is the name that it asked for"
            signature = KEY.sign("cottage-hello", challenge.nonce, challenge.host.encode())
            await socket.send_bytes(encode(signal.Hello(1, KEY.address, KEY.address, signature, profile("idle"))))
            assert isinstance(decode(await socket.receive_bytes(), CoordinatorMessage), Welcome)
            assert parted.where() == [cell]
            session = parted.houses[cell].parts.nodes.session(KEY.address)
            assert session is not None
            assert session.address == "127.0.0.1"
        await until(lambda: not parted.where())


async def test_many_nodes_at_once_are_spread_before_cells_can_tell(
    parted: Parted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "TOLD_S", 60.0)
    keys = [NodeKey(bytes([number + 1]) * 32) for number in range(8)]
    cells = await asyncio.gather(*(led_to(parted, key=key) for key in keys))
    assert sorted(cells) == 4 * [[0]] + 4 * [[1]]


async def test_a_node_goes_to_the_cell_of_its_lease_whatever_it_says_of_it(parted: Parted) -> None:
    parted.lacks(0)
    held = await parted.holds(1, 32 * "a", state="ready")
    for leases in ((held,), (), (HeldLease(32 * "f", 3),)):
        assert await led_to(parted, leases) == [1]
    assert await led_to(parted, key=NodeKey(b"o" * 32)) == [0], "it is nobody else's"


async def test_a_lease_that_ran_out_is_come_back_to(parted: Parted) -> None:
    parted.lacks(0)
    now = parted.houses[0].parts.context.clock.time()
    held = await parted.holds(1, 32 * "b", state="ended", end="expired", ended=now - 1.0)
    for _ in range(2):
        assert await led_to(parted, (held,)) == [1], "it has its worker"
    assert await led_to(parted) == [1], "it has none any more, and the cell is shown that"
    assert await led_to(parted) == [0], "once: it is free"
    for number, fields in enumerate(({"end": "failed", "ended": now}, {"end": "expired", "ended": now - 600.0})):
        await parted.holds(1, f"{number:032x}", state="ended", **fields)
        assert await led_to(parted) == [0], fields


async def test_a_lease_is_looked_up_for_nobody_who_lies(parted: Parted) -> None:
    await parted.holds(1, 32 * "c", state="ready")
    parted.lacks(0)
    async with dialled(parted.url) as socket:
        stolen = await hello(socket, NodeKey(b"x" * 32), node=KEY.address)
        await socket.send_bytes(encode(stolen))
        assert "is not by" in (await refusal(socket)).reason
        assert (await closing(socket))[0] == 1008
    refused = [house.parts.context.metrics.value("connections_refused_total") for house in parted.houses]
    assert refused == [1, 0], "the cell that anybody is led to has said it"
    async with dialled(parted.url) as first:
        recorded = await hello(first, KEY)
    async with dialled(parted.url) as second:
        await second.receive_bytes()
        await second.send_bytes(encode(recorded))
        assert "is not by" in (await refusal(second)).reason


async def broken(socket: Socket) -> None:
    await socket.send_bytes(b"\xc1 no message")


async def texted(socket: Socket) -> None:
    await socket.send_str("hello")


async def with_another_message(socket: Socket) -> None:
    await socket.send_bytes(encode(Challenge(32 * b"n", "me")))


async def silent(_socket: Socket) -> None:
    return


@pytest.mark.parametrize("says", [broken, texted, with_another_message, silent])
async def test_who_says_no_hello_hears_the_same_as_at_a_carrier(
    parted: Parted, says: Callable[[Socket], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "HELLO_S", 0.2)
    ends = []
    for url in (parted.url, parted.doors[1]):
        async with dialled(url) as socket:
            await socket.receive_bytes()
            await says(socket)
            ends.append(await closing(socket))
    assert ends[0] == ends[1]
    assert ends[0][0] == 1008
    assert ends[0][1]


async def test_a_nonce_counts_with_the_seal_alone(parted: Parted) -> None:
    nonce = 32 * b"\x07"
    for headers in ({NONCE: nonce.hex()}, {NONCE: nonce.hex(), "X-Cottage-Front": 64 * "0"}):
        for url in (parted.doors[1], parted.url):
            async with dialled(url, headers) as socket:
                assert decode(await socket.receive_bytes(), Challenge).nonce != nonce
    for odd in ("", "07", 64 * "g", 66 * "0"):
        async with dialled(parted.doors[1], {NONCE: odd, **FRONTS.headers}) as socket:
            decode(await socket.receive_bytes(), Challenge)
    async with dialled(parted.doors[1], {NONCE: nonce.hex(), **FRONTS.headers}) as socket:
        host = parted.doors[1].removeprefix("http://")
        signature = KEY.sign("cottage-hello", nonce, host.encode())
        await socket.send_bytes(encode(signal.Hello(1, KEY.address, KEY.address, signature, profile("led"))))
        assert isinstance(decode(await socket.receive_bytes(), CoordinatorMessage), Welcome)


async def test_a_node_that_its_cell_lets_go_hears_why_and_comes_in_at_another_one(parted: Parted) -> None:
    parted.lacks(0)
    async with dialled(parted.url) as socket:
        await welcomed(socket, KEY)
        session = parted.houses[0].parts.nodes.session(KEY.address)
        assert session is not None
        parted.lacks(1)
        session.close("another cell lacks nodes: come back")
        assert await closing(socket) == (1008, "another cell lacks nodes: come back")
    assert await led_to(parted) == [1]


async def test_of_one_address_few_may_not_have_said_who_they_are(
    parted: Parted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "MAX_GREETING", 2)
    monkeypatch.setattr(admission, "WAIT_S", 0.2)
    async with dialled(parted.url) as one, dialled(parted.url):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with dialled(parted.url):
                pass
        assert refused.value.status == 503
        await welcomed(one, KEY)
        async with dialled(parted.url):
            pass  # Who has said it is counted no longer.


async def test_a_node_whose_cell_is_away_is_told_to_come_back(parted: Parted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_lines, "HELLO_S", 0.3)
    held = await parted.holds(1, 32 * "d", state="ready")
    parted.lacks(1)
    door, parted.doors[1] = parted.doors[1], ""
    await asyncio.sleep(0.5)
    assert await led_to(parted, key=NodeKey(b"o" * 32)) == [0], "whoever may work anywhere waits for nobody"
    async with dialled(parted.url) as socket:
        await socket.send_bytes(encode(await hello(socket, KEY, leases=(held,))))
        told = await refusal(socket)
        assert "cell 2 of 2" in told.reason
        assert told.retry_seconds == 5.0
        assert (await closing(socket))[0] == 1008
    parted.doors[1] = door
    assert await led_to(parted, (held,)) == [1]


async def test_auditors_are_spread(parted: Parted) -> None:
    sockets: list[Socket] = []
    async with aiohttp.ClientSession() as http:
        for key in AUDITORS:
            sockets.append(socket := await http.ws_connect(parted.url + PATH))
            await welcomed(socket, key, profile=msgspec.structs.replace(profile("looks"), auditor=True))
            here = [len(house.parts.nodes.auditors()) for house in parted.houses]
            parted.told.update({cell: CellState(wanted=1 - cell, auditors=count) for cell, count in enumerate(here)})
        assert sorted(parted.where(key) for key in AUDITORS) == [[0], [0], [1], [1]]
        for socket in sockets:
            await socket.close()


async def test_with_one_cell_a_connection_is_led_as_it_comes(config: Config, postgres: Postgres) -> None:
    config = replace(config, database_url=postgres.migrated_url())
    async with carried(config, Cell()) as house:
        door = house.url.removesuffix(PATH)
        async with front(config, [lambda: door]) as url, dialled(url) as socket:
            assert isinstance(await welcomed(socket, KEY), Welcome)
            assert house.parts.nodes.session(KEY.address) is not None


async def test_with_one_cell_nothing_is_added_to_a_connection(shared_config: Config) -> None:
    """The carrier challenges; the front adds its seal, and who asks."""
    carrier, seen = Carrier(0), list[Mapping[str, str]]()

    async def challenges(request: web.Request) -> web.WebSocketResponse:
        seen.append(request.headers.copy())
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_bytes(b"any challenge")
        assert await socket.receive_bytes() == b"any answer"
        await socket.close(code=4001, message=b"any end")
        return socket

    carrier.socket = challenges
    async with carrier.serves(), front(shared_config, doors_of([carrier])) as url, dialled(url) as socket:
        assert await socket.receive_bytes() == b"any challenge"
        await socket.send_bytes(b"any answer")
        assert await closing(socket) == (4001, "any end")
    assert NONCE not in seen[0]
    assert FRONTS.is_on(seen[0])


async def test_a_node_that_is_led_to_a_silent_carrier_is_let_go_once_another_one_is_at_work(
    shared_config: Config,
) -> None:
    """A process that is frozen takes a connection, and says nothing until it wakes."""
    carrier, came, over = Carrier(0), asyncio.Event(), asyncio.Event()

    async def says_nothing(_request: web.Request) -> web.WebSocketResponse:
        came.set()
        await over.wait()
        return web.WebSocketResponse()

    carrier.socket = says_nothing
    async with carrier.serves(), front(shared_config, doors_of([carrier])) as url, aiohttp.ClientSession() as http:
        coming = asyncio.ensure_future(http.ws_connect(url + PATH))
        await came.wait()
        carrier.door = ""
        try:
            with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
                await asyncio.wait_for(coming, HANGS_S / 2)
        finally:
            over.set()


async def test_a_node_is_refused_in_words_that_it_understands(parted: Parted) -> None:
    """Whatever a cell says to a Hello passes through."""
    async with dialled(parted.url) as socket:
        await socket.send_bytes(encode(await hello(socket, KEY, protocol=9)))
        answer: CoordinatorMessage = decode(await socket.receive_bytes(), CoordinatorMessage)
        assert isinstance(answer, Refused)
        assert "protocol 9 is not spoken here" in answer.reason

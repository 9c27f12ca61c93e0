"""One end of a transfer, as a process of its own: ``python _endpoints.py SYSTEM send|receive OPTIONS``.

Standard input and output carry one JSON object a line::

    out  {"signal": anything}          for the other end; arrives there as {"signal": the same}
         {"ready": true}               the sender is connected
         {"mark": {...}}               answer to a mark: time, payload bytes so far, CPU seconds, and what the system tells
    in   {"go": {"total": bytes|0}}    to the sender: send so many bytes, or (0) for ever
         {"mark": true}                to either
         {"end": true}                 to either

Every system moves the same thing, 64 KB pieces (``cottage``: 1 MB messages over ``PeerNet``) of one random buffer, as fast as it
takes them, with at most ``AHEAD`` bytes handed over and not yet gone or arrived.
"""

import asyncio
import base64
import contextlib
import functools
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

PIECE = 64 * 1024
MESSAGE = 1 << 20
AHEAD = 32 << 20
PING = b"ping"
STAMP = struct.Struct("<d")  # Seconds on the clock that all processes of this machine share.
Options = dict[str, Any]


class Wire:
    """The parent's side of standard input and output, and the counters that it asks for."""

    def __init__(self) -> None:
        self.signals: asyncio.Queue[Any] = asyncio.Queue()
        self.go: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.ended = asyncio.Event()
        self.payload = 0
        self.latency: list[float] = []
        self.details: Callable[[], dict[str, Any]] = dict

    def say(self, **message: Any) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    async def listen(self) -> None:
        reader = asyncio.StreamReader(limit=1 << 22)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if "signal" in message:
                self.signals.put_nowait(message["signal"])
            elif "go" in message:
                self.go.set_result(message["go"]["total"])
            elif "mark" in message:
                usage = time.process_time()
                latency, self.latency = self.latency, []
                self.say(
                    mark={
                        "time": time.monotonic(),
                        "bytes": self.payload,
                        "cpu": usage,
                        "latency": latency,
                        **self.details(),
                    }
                )
            else:
                break
        self.ended.set()

    async def told(self) -> int:
        """Say that the connection stands; returns how much to send, 0 for ever."""
        self.say(ready=True)
        return await self.go


async def _fill(wire: Wire, total: int, room: Callable[[], Awaitable[None]], send: Callable[[bytes], Any]) -> None:
    """Send pieces while there is room."""
    piece = os.urandom(PIECE)
    while not total or wire.payload < total:
        await room()
        outcome = send(piece)
        if asyncio.iscoroutine(outcome):
            await outcome
        wire.payload += len(piece)


# --- cottage ------------------------------------------------------------------------------------------------------------


async def cottage(role: str, options: Options, wire: Wire) -> None:
    from common import gc_tuning
    from protocol.identity import NodeKey
    from transport.ice.ice import IceServer
    from transport.messages.lanes import Lane
    from transport.peer.peer import PeerNet

    gc_tuning.settle()  # As the agent does.
    keys = [NodeKey(bytes.fromhex(seed)) for seed in options["seeds"]]
    key, other = keys if role == "send" else reversed(keys)

    async def send_signal(_: str, envelope: bytes) -> None:
        wire.say(signal=base64.b64encode(envelope).decode())

    async def on_message(_peer: str, lane: Lane, header: bytes, payload: memoryview) -> None:
        """Small messages say when they began; of others the link's own counters tell more than whole messages would."""
        if lane is Lane.CONTROL and header == PING:
            wire.latency.append(time.monotonic() - STAMP.unpack_from(payload)[0])

    servers = [IceServer(*server) for server in options.get("servers", [])]
    net = PeerNet(key, send_signal, on_message, ice_servers=servers, polite=options.get("polite", False))
    await net.allow({other.address})

    def details() -> dict[str, Any]:
        stats = net.stats()[other.address]
        bulk = stats.lanes[Lane.BULK]
        return {"bytes": bulk.payload_sent if role == "send" else bulk.payload_received, "stats": _plain(stats)}

    wire.details = details

    async def hear() -> None:
        while True:
            await net.on_signal(other.address, base64.b64decode(await wire.signals.get()))

    jobs = [asyncio.create_task(hear())]
    if role == "send":
        await net.send(other.address, Lane.CONTROL, b"hello", b"", timeout=60)
        total = await wire.told()
        jobs.append(asyncio.create_task(_pour(wire, total, lambda load: net.send(other.address, Lane.BULK, b"", load))))
        if options.get("control"):
            send = functools.partial(net.send, other.address, Lane.CONTROL, PING, timeout=60)
            jobs.append(asyncio.create_task(_confirm(wire, send)))
    await wire.ended.wait()
    for job in jobs:
        job.cancel()


async def _pour(wire: Wire, total: int, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Send messages, several at a time."""
    payload = os.urandom(MESSAGE)
    places = asyncio.Semaphore(AHEAD // MESSAGE)

    async def one() -> None:
        await send(payload)
        wire.payload += MESSAGE
        places.release()

    begun = 0
    async with asyncio.TaskGroup() as group:
        while not total or begun < total:
            await places.acquire()
            group.create_task(one())
            begun += MESSAGE


async def _confirm(wire: Wire, send: Callable[..., Awaitable[None]]) -> None:
    """One small message after the other; how long until the peer has confirmed each."""
    while True:
        began = time.monotonic()
        await send(payload=STAMP.pack(began) + b"x" * 200)
        wire.latency.append(time.monotonic() - began)
        await asyncio.sleep(0.01)


def _plain(stats: Any) -> dict[str, Any]:
    return {
        name: value
        for name in dir(stats)
        if not name.startswith("_") and isinstance(value := getattr(stats, name), int | float | str)
    }


# --- aiortc as it is installed ---------------------------------------------------------------------------------------------


async def aiortc(role: str, options: Options, wire: Wire) -> None:
    from aiortc import RTCConfiguration, RTCDataChannel, RTCIceServer, RTCPeerConnection, RTCSessionDescription
    from aiortc.rtcconfiguration import RTCIceTransportPolicy

    servers = [RTCIceServer(url, user, word) for url, user, word in options.get("servers", [])]
    policy = RTCIceTransportPolicy.RELAY if servers else RTCIceTransportPolicy.ALL
    link = RTCPeerConnection(RTCConfiguration(iceServers=servers, iceTransportPolicy=policy))

    def say_local() -> None:
        wire.say(signal={"sdp": link.localDescription.sdp, "type": link.localDescription.type})

    if role == "receive":

        @link.on("datachannel")
        def incoming(channel: RTCDataChannel) -> None:
            channel.on("message", lambda data: setattr(wire, "payload", wire.payload + len(data)))

        await link.setRemoteDescription(RTCSessionDescription(**await wire.signals.get()))
        await link.setLocalDescription(await link.createAnswer())
        say_local()
        await wire.ended.wait()
        return
    channel = link.createDataChannel("bulk")
    opened, room = asyncio.Event(), asyncio.Event()
    channel.on("open", opened.set)
    channel.bufferedAmountLowThreshold = 8 * PIECE
    channel.on("bufferedamountlow", room.set)
    await link.setLocalDescription(await link.createOffer())
    say_local()
    await link.setRemoteDescription(RTCSessionDescription(**await wire.signals.get()))
    await opened.wait()
    total = await wire.told()

    async def wait_for_room() -> None:
        if channel.bufferedAmount > AHEAD // 4:
            room.clear()
            await room.wait()
        else:
            await asyncio.sleep(0)

    filling = asyncio.create_task(_fill(wire, total, wait_for_room, channel.send))
    await wire.ended.wait()
    filling.cancel()


# --- libdatachannel through pylibdatachannel ---------------------------------------------------------------------------------


async def libdatachannel(role: str, options: Options, wire: Wire) -> None:
    """Its binding hides the buffered amount, so the receiver confirms every megabyte.

    It offers no relay-only policy: where NATs let no stranger in, a relay is what remains to it.
    """
    import pylibdatachannel as library

    loop = asyncio.get_running_loop()
    servers = []
    for url, user, word in options.get("servers", []):
        host, port = url.split("?")[0].removeprefix("turn:").rsplit(":", 1)
        servers.append(library.IceServer(host, int(port), user, word, library.IceServerRelayType.TURN_UDP))
    link = library.PeerConnection(library.Configuration(servers))
    gathered, opened = asyncio.Event(), asyncio.Event()

    def on_gathering(state: Any) -> None:
        if state == library.GatheringState.COMPLETE:
            loop.call_soon_threadsafe(gathered.set)

    link.on_gathering_state_change(on_gathering)

    async def say_local() -> None:
        await gathered.wait()
        wire.say(signal=str(link.local_description))

    if role == "receive":
        held: list[Any] = []
        link.on_data_channel(lambda channel: (held.append(channel), _confirm_megabytes(channel, wire)))
        offer = library.Description(await wire.signals.get(), library.DescriptionType.OFFER)
        link.set_remote_description(offer)  # It answers by itself.
        await say_local()
        await wire.ended.wait()
        return
    channel = link.create_data_channel("bulk")
    channel.on_open(lambda: loop.call_soon_threadsafe(opened.set))
    wait_for_room = _room_by_confirmations(channel, wire)
    link.set_local_description(library.DescriptionType.OFFER)
    await say_local()
    link.set_remote_description(library.Description(await wire.signals.get(), library.DescriptionType.ANSWER))
    await opened.wait()
    filling = asyncio.create_task(_fill(wire, await wire.told(), wait_for_room, channel.send))
    await wire.ended.wait()
    filling.cancel()


def _confirm_megabytes(channel: Any, wire: Wire) -> None:
    told = 0

    def message(data: bytes) -> None:
        nonlocal told
        wire.payload += len(data)
        if wire.payload - told >= MESSAGE:
            told = wire.payload
            channel.send(str(told))

    channel.on_message(message)


def _room_by_confirmations(channel: Any, wire: Wire) -> Callable[[], Awaitable[None]]:
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    confirmed = 0

    def confirm(text: str) -> None:
        nonlocal confirmed
        confirmed = int(text)
        loop.call_soon_threadsafe(changed.set)

    async def wait_for_room() -> None:
        await asyncio.sleep(0)
        while wire.payload - confirmed > AHEAD:
            changed.clear()
            await changed.wait()

    channel.on_message(confirm)
    return wait_for_room


# --- iroh ----------------------------------------------------------------------------------------------------------------


async def iroh(role: str, options: Options, wire: Wire) -> None:
    """QUIC with hole punching; here its relays are off and it is told the address."""
    import iroh as library

    alpn = b"cottage/bench"
    end = await library.Endpoint.bind(
        library.EndpointOptions(preset=library.preset_minimal(), alpns=[alpn], relay_mode=library.RelayMode.disabled())
    )
    if role == "receive":
        port = int(end.bound_sockets()[0].rsplit(":", 1)[1])
        wire.say(signal={"id": str(end.id()), "port": port, "address": options["addresses"][1]})
        incoming = await end.accept_next()
        connection = await (await incoming.accept()).connect()
        stream = await connection.accept_uni()
        while data := await stream.read(PIECE * 4):
            wire.payload += len(data)
        return
    told = await wire.signals.get()
    address = library.EndpointAddr(
        library.EndpointId.from_string(told["id"]), None, [f"{told['address']}:{told['port']}"]
    )
    connection = await end.connect(address, alpn)
    stream = await connection.open_uni()
    total = await wire.told()

    async def no_wait() -> None:
        """Its write waits itself."""

    filling = asyncio.create_task(_fill(wire, total, no_wait, stream.write_all))
    await wire.ended.wait()
    filling.cancel()


# --- TCP as the kernel does it (cubic) -----------------------------------------------------------------------------------------


async def tcp(role: str, options: Options, wire: Wire) -> None:
    """A plain TCP connection; where homes are behind NAT it cannot be used."""
    loop = asyncio.get_running_loop()
    if role == "receive":
        with socket.create_server(("0.0.0.0", 0)) as server:
            server.setblocking(False)
            wire.say(signal={"port": server.getsockname()[1], "address": options["addresses"][1]})
            taken, _ = await loop.sock_accept(server)
        taken.setblocking(False)
        buffer = bytearray(4 * PIECE)
        while n := await loop.sock_recv_into(taken, buffer):
            wire.payload += n
        return
    told = await wire.signals.get()
    end = socket.socket()
    end.setblocking(False)
    if hasattr(socket, "TCP_CONGESTION"):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, options.get("congestion", "cubic").encode())
    await loop.sock_connect(end, (told["address"], told["port"]))
    total = await wire.told()

    async def no_wait() -> None:
        """The socket waits itself."""

    filling = asyncio.create_task(_fill(wire, total, no_wait, lambda piece: loop.sock_sendall(end, piece)))
    await wire.ended.wait()
    filling.cancel()


# --- round trips beside a transfer ----------------------------------------------------------------------------------------------


async def echo(role: str, options: Options, wire: Wire) -> None:
    """UDP round trips every 10 ms: what somebody else in the household notices."""
    with contextlib.suppress(PermissionError):  # What measures a line waits for nobody's processor time.
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    loop = asyncio.get_running_loop()
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.setblocking(False)
    if role == "receive":
        end.bind(("0.0.0.0", 0))
        wire.say(signal={"port": end.getsockname()[1], "address": options["addresses"][1]})
        while True:
            data, sender = await loop.sock_recvfrom(end, 100)
            await loop.sock_sendto(end, data, sender)
    told = await wire.signals.get()
    end.connect((told["address"], told["port"]))
    wire.say(ready=True)

    async def hear() -> None:
        while True:
            sent = float(await loop.sock_recv(end, 100))
            wire.latency.append(time.perf_counter() - sent)

    hearing = asyncio.create_task(hear())
    while not wire.ended.is_set():
        await loop.sock_sendall(end, repr(time.perf_counter()).encode())
        await asyncio.sleep(0.01)
    hearing.cancel()


SYSTEMS = {
    "cottage": cottage,
    "aiortc": aiortc,
    "libdatachannel": libdatachannel,
    "iroh": iroh,
    "tcp": tcp,
    "echo": echo,
}


async def main(system: str, role: str, options: Options) -> None:
    """Run one end until the parent ends it."""
    wire = Wire()
    listening = asyncio.create_task(wire.listen())
    work = asyncio.create_task(SYSTEMS[system](role, options, wire))
    await asyncio.wait([work, asyncio.create_task(wire.ended.wait())], return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    await wire.ended.wait()
    listening.cancel()
    os._exit(0)  # The libraries' threads and half-open connections are of no interest any more.


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))

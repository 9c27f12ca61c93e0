"""An aiortc SCTP transport whose data path is ours: the only module here that knows aiortc's privates.

aiortc makes and ends the association, resets streams and keeps the data channels. From the moment the association is established,
DATA, SACK, FORWARD-TSN and HEARTBEAT, and what travels in them, belong to ``DataPath``.
"""

import asyncio
import logging
import struct
from collections.abc import Coroutine, Hashable
from typing import Any, cast

from aiortc import RTCDataChannel, RTCDataChannelParameters
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcsctptransport import (
    CHUNK_TYPES,
    RECONFIG_MAX_STREAMS,
    Chunk,
    DataChunk,
    ForwardTsnChunk,
    RTCSctpTransport,
    SackChunk,
)

from transport.sctp import dcep
from transport.sctp.allowance import Allowance
from transport.sctp.congestion.control import Controller, PathStats
from transport.sctp.congestion.controller import RateController
from transport.sctp.datapath import DataPath, DatapathSetup
from transport.sctp.dtls import open_records
from transport.sctp.mtu import BASE_MTU
from transport.sctp.packet import TSN_MASK, ZERO_CHECKSUM, parameters_hold, split, with_checksum
from transport.sctp.receive import RECEIVE_WINDOW, ReceiveBook, SctpMessage
from transport.sctp.schedule import ScheduledMessage
from transport.sctp.send import SendBook
from transport.sctp.udp.datagram import open_path
from transport.sctp.udp.offload import DatagramRun

LOG = logging.getLogger(__name__)

MAX_CONTROL = 256  # Chunks that wait for aiortc's coroutines; an honest peer has a few at a time.
LEAST_RESET_TIMEOUT_S = 0.2  # Of a stream reset; aiortc's coroutines answer it at their leisure.
MAX_CHANNELS = 1024  # Channels that a peer may open; each costs two kilobytes.
IDLE_STATS = PathStats(None, None, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, BASE_MTU, "portable")


class FastSctpTransport(RTCSctpTransport):
    """The SCTP transport of a ``FastPeerConnection``.

    Attributes:
        fault: why the association was aborted; empty while nothing is wrong.
        portable: keep to the system calls that every system has; to be set before the connection is up.
    """

    def __init__(self, transport: RTCDtlsTransport, port: int = 5000) -> None:
        """Prepare as aiortc does, with a larger receive window."""
        super().__init__(transport, port)
        self.fault = ""
        self.portable = False
        self._advertised_rwnd = RECEIVE_WINDOW
        self._data: DataPath | None = None
        self._receiver: ReceiveBook | None = None
        self._pair: Any = None
        self._polite = False
        self._checksums = True
        self._levels: dict[int, int] = {}
        self._allowance: Allowance | None = None
        self._controls: list[Chunk] = []
        self._control_task: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._running: asyncio.AbstractEventLoop = asyncio.get_event_loop()

    # What others may set and read

    @property
    def polite(self) -> bool:
        """Whether to yield to everybody else on the line."""
        return self._polite

    @polite.setter
    def polite(self, polite: bool) -> None:
        self._polite = polite
        if self._data is not None and isinstance(self._data.controller, RateController):
            self._data.controller.polite = polite

    @property
    def frame_bytes(self) -> int:
        """A good size for messages now, in bytes: about two milliseconds of the line, in whole packets."""
        return self._data.frame_bytes if self._data is not None else 4096

    @property
    def line_rate(self) -> float:
        """What the path carries of ours as far as it is known, in bytes a second; 0 before the association is established."""
        data = self._data
        return (data.controller.bandwidth or data.controller.pacing_rate) if data is not None else 0.0

    @property
    def held(self) -> int:
        """Bytes received of messages that cannot be delivered yet."""
        return self._receiver.held if self._receiver is not None else 0

    def path_stats(self) -> PathStats:
        """The path's figures; zeros before the association is established."""
        return self._data.stats() if self._data is not None else IDLE_STATS

    def set_allowance(self, allowance: Allowance | None) -> None:
        """Share the process's limits on upload and download; None lifts them."""
        self._allowance = allowance
        if self._data is not None:
            self._data.allowance = allowance
            self._data.wake()

    def set_priority(self, stream_id: int, level: int) -> None:
        """Give a stream's messages a level: 0 before all others, then by weight (``transport.sctp.schedule``).

        Raises:
            ValueError: there is no such level.
        """
        self._levels[stream_id] = level
        if self._data is not None:
            self._data.sender.set_level(stream_id, level)

    # The data path's host

    def on_messages(self, messages: list[SctpMessage]) -> None:
        """Hand messages to their channels."""
        self._sync_received()
        for message in messages:
            if message.protocol == dcep.DCEP:
                self._on_dcep(message.stream, message.data)
                continue
            channel = self._data_channels.get(message.stream)
            value = dcep.from_wire(message.protocol, message.data) if channel is not None else None
            if channel is not None and value is not None:
                self._emit(channel, "message", value)

    def on_control(self, kind: int, flags: int, body: bytes) -> None:
        """Let aiortc's coroutines handle a chunk, one after the other."""
        known = CHUNK_TYPES.get(kind)
        if known is None or len(self._controls) >= MAX_CONTROL:
            return
        if not parameters_hold(body, kind, 0, len(body)):
            return
        try:
            chunk = known(flags=flags, body=body)
        except (struct.error, ValueError) as error:
            LOG.debug("a chunk of kind %d cannot be read: %s", kind, error)
            return
        self._controls.append(chunk)
        if self._control_task is None:
            self._control_task = asyncio.ensure_future(self._handle_controls())

    def on_released(self, released: dict[Hashable, int]) -> None:
        """Tell the channels that bytes have left their queues."""
        for owner, size in released.items():
            try:
                cast(RTCDataChannel, owner)._addBufferedAmount(-size)
            except Exception as error:  # noqa: BLE001 - the application's own handler; its errors are not the association's.
                self._complain(error)
        if self._reconfig_queue and not self._reconfig_request:
            self._start(self._transmit_reconfig())

    def on_fault(self, reason: str) -> None:
        """End the association: the peer broke the rules."""
        LOG.warning("an association is aborted: %s", reason)
        self.fault = reason
        self._set_state(self.State.CLOSED)

    def on_closed(self) -> None:
        """The DTLS session has ended: let aiortc's reader find out."""
        self._connection()._queue.put_nowait(None)

    def on_traffic(self, sent: tuple[int, int], received: tuple[int, int]) -> None:
        """Keep aiortc's own counters right."""
        counters = self.transport.__dict__
        counters["_RTCDtlsTransport__tx_packets"] += sent[0]
        counters["_RTCDtlsTransport__tx_bytes"] += sent[1]
        counters["_RTCDtlsTransport__rx_packets"] += received[0]
        counters["_RTCDtlsTransport__rx_bytes"] += received[1]

    def check_path(self) -> None:
        """Follow ICE to the pair that it has nominated."""
        pair = self._connection()._nominated.get(1)
        if pair is None or pair is self._pair or self._data is None:
            return
        self._pair = pair
        path = open_path(
            pair.protocol,
            pair.remote_addr,
            self._running,
            self._data.on_datagrams,
            self._data.wake,
            self._data.on_too_big,
            portable=self.portable,
        )
        self._data.attach(path)

    # In aiortc's place

    def _set_state(self, state: Any) -> None:
        if state == self.State.CLOSED and self._data is not None:
            self._data.close()
        super()._set_state(state)
        if state == self.State.ESTABLISHED and self._data is None:
            self._take_over()

    def _get_extensions(self, params: list[tuple[int, bytes]]) -> None:
        super()._get_extensions(params)
        self._checksums = ZERO_CHECKSUM not in params

    def _set_extensions(self, params: list[tuple[int, bytes]]) -> None:
        super()._set_extensions(params)
        params.append(ZERO_CHECKSUM)

    def _take_over(self) -> None:
        assert self._last_received_tsn is not None
        assert self._remote_port is not None
        assert self.transport._ssl is not None
        if self._receiver is None:
            self._receiver = self._new_receiver()
        sender = SendBook(
            self._local_tsn, self._ssthresh, self._outbound_stream_seq, partial=self._remote_partial_reliability
        )
        for stream, level in self._levels.items():
            sender.set_level(stream, level)
        setup = DatapathSetup(
            self._local_port,
            self._remote_port,
            self._local_verification_tag,
            self._remote_verification_tag,
            checksums=self._checksums,
        )
        records = open_records(self.transport._ssl)
        self._data = DataPath(setup, records, self._receiver, sender, self._new_controller(), self)
        self._data.allowance = self._allowance
        self.check_path()
        self._data.on_packets([])

    def _new_receiver(self) -> ReceiveBook:
        assert self._last_received_tsn is not None
        return ReceiveBook(self._last_received_tsn, self.getCapabilities().maxMessageSize)

    def _new_controller(self) -> Controller:
        return RateController(packet_bytes=BASE_MTU, polite=self._polite)

    async def _handle_data(self, data: bytes) -> None:
        if self._data is not None:
            self._data.on_packets([DatagramRun(data, len(data))] if data else [])
            return
        try:
            if not all(parameters_hold(data, kind, start, end) for kind, _, start, end in split(data)):
                return
            await super()._handle_data(with_checksum(data))
        except (AssertionError, struct.error, ValueError) as error:
            LOG.debug("a packet of the handshake is left out: %r", error)

    async def _receive_chunk(self, chunk: Chunk) -> None:
        if isinstance(chunk, DataChunk):
            self._on_early_data(chunk)
        elif isinstance(chunk, SackChunk | ForwardTsnChunk):
            return  # Nothing has been sent that they could be about.
        else:
            await super()._receive_chunk(chunk)

    def _on_early_data(self, chunk: DataChunk) -> None:
        """The peer may be established first. What comes behind the handshake in one packet, or before it, is kept."""
        if self._receiver is None and self._last_received_tsn is not None:
            self._receiver = self._new_receiver()
        if self._receiver is not None and chunk.user_data:
            self._receiver.on_data(
                chunk.tsn, chunk.stream_id, chunk.stream_seq, chunk.protocol, chunk.flags, chunk.user_data
            )
        if self._data is not None:
            self._data.on_packets([])

    async def _handle_controls(self) -> None:
        while self._controls:
            chunk = self._controls.pop(0)
            self._sync_received()
            try:
                await super()._receive_chunk(chunk)
            except ConnectionError:
                break
            except (AssertionError, LookupError, struct.error, ValueError) as error:
                LOG.debug("a control chunk is left out: %r", error)
        self._control_task = None

    def _sync_received(self) -> None:
        """Tell aiortc how far the peer's data has come: its stream resets wait for that."""
        if self._receiver is None:
            return
        self._last_received_tsn = self._receiver.cumulative & TSN_MASK
        self._advertised_rwnd = self._receiver.window
        if self._reconfig_deferred is not None:
            self._start(self._reset_deferred_streams())

    async def _reset_deferred_streams(self) -> None:
        request, receiver = self._reconfig_deferred, self._receiver
        if request is not None and receiver is not None:
            if (self._receiver_tsn() - request.last_tsn) & TSN_MASK >= 1 << 31:
                return
            receiver.reset(request.streams)
        await super()._reset_deferred_streams()

    def _receiver_tsn(self) -> int:
        assert self._receiver is not None
        return self._receiver.cumulative

    async def _transmit_reconfig(self) -> None:
        """Pending messages go before the reset of their stream (W3C WebRTC, section 6.2.4)."""
        if self._data is None:
            return
        streams = self._reconfig_queue[:RECONFIG_MAX_STREAMS]
        if any(self._data.sender.waits(stream) for stream in streams):
            return
        self._local_tsn = self._data.sender.next_tsn & TSN_MASK
        self._rto = max(self._data.sender.round_trips.timeout, LEAST_RESET_TIMEOUT_S)
        await super()._transmit_reconfig()

    async def _data_channel_flush(self) -> None:
        if self._data is None:
            return
        while self._data_channel_queue:
            channel, protocol, data = self._data_channel_queue.popleft()
            self._name(channel)
            self._queue(channel, protocol, data)
        await self._transmit_reconfig()

    def _name(self, channel: RTCDataChannel) -> None:
        """Give a channel that has none its stream (RFC 8832, section 6)."""
        if channel.id is None:
            assert self._data_channel_id is not None
            stream = self._data_channel_id
            while stream in self._data_channels:
                stream += 2
            self._data_channels[stream] = channel
            channel._setId(stream)

    def _queue(self, channel: RTCDataChannel, protocol: int, data: bytes) -> None:
        assert self._data is not None
        assert channel.id is not None
        if protocol == dcep.DCEP:
            self._data.queue(ScheduledMessage(None, channel.id, protocol, data, ordered=True))
            return
        lifetime = channel.maxPacketLifeTime
        expires = self._running.time() + lifetime / 1000 if lifetime is not None else None
        self._data.queue(
            ScheduledMessage(
                channel, channel.id, protocol, data, bool(channel.ordered), channel.maxRetransmits, expires
            )
        )

    def _data_channel_send(self, channel: RTCDataChannel, data: bytes | str) -> None:
        protocol, payload = dcep.to_wire(data)
        most = self._remote_max_message_size
        if most and len(payload) > most:
            raise ValueError(f"a message of {len(payload)} bytes: the other side takes up to {most}")
        channel._addBufferedAmount(len(payload))
        if self._data is None or self._data_channel_queue:
            self._data_channel_queue.append((channel, protocol, payload))
            self._start(self._data_channel_flush())
        else:
            self._queue(channel, protocol, payload)

    def _data_channel_closed(self, stream_id: int) -> None:
        if self._data is not None:
            self._data.sender.drop(stream_id)
        if stream_id in self._data_channels:
            super()._data_channel_closed(stream_id)

    # Channels that the peer opens

    def _on_dcep(self, stream: int, data: bytes) -> None:
        channel = self._data_channels.get(stream)
        if data[:1] == bytes([dcep.ACK]):
            if channel is not None and channel.readyState == "connecting":
                channel._setReadyState("open")
            return
        wish = dcep.read_open(data)
        if wish is None or channel is not None:
            LOG.debug("a message about stream %d is left out", stream)
        elif len(self._data_channels) >= MAX_CHANNELS:
            assert self._data is not None
            self._data.fail(f"the peer opens more than {MAX_CHANNELS} data channels")
        else:
            self._open_foreign(stream, wish)

    def _open_foreign(self, stream: int, wish: dcep.ChannelOpen) -> None:
        parameters = RTCDataChannelParameters(
            label=wish.label,
            maxPacketLifeTime=wish.max_lifetime_ms,
            maxRetransmits=wish.max_retransmits,
            ordered=wish.ordered,
            protocol=wish.protocol,
            id=stream,
        )
        channel = RTCDataChannel(self, parameters, send_open=False)
        channel._setReadyState("open")
        self._data_channels[stream] = channel
        self._queue(channel, dcep.DCEP, bytes([dcep.ACK]))
        self._emit(self, "datachannel", channel)

    def _emit(self, emitter: Any, event: str, value: object) -> None:
        try:
            emitter.emit(event, value)
        except Exception as error:  # noqa: BLE001 - the application's own handler; its errors are not the association's.
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        context = {"message": "a data channel's event handler failed", "exception": error}
        self._running.call_exception_handler(context)

    def _start(self, job: Coroutine[Any, Any, None]) -> None:
        """Run one of aiortc's coroutines; a connection that is gone meanwhile is known elsewhere."""
        task = asyncio.ensure_future(job)
        self._jobs.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ConnectionError):
            LOG.debug("a control chunk was not sent: %s", error)
        elif isinstance(error, Exception):
            self._complain(error)

    def _connection(self) -> Any:
        return self.transport.transport._connection

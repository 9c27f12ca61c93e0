"""The data path of one established association: datagrams in, messages out, and the other way round.

It joins the books (``receive``, ``send``), the DTLS records and the datagram path, and asks the congestion controller how fast.
No coroutine and no task: everything happens in the event loop's callbacks, once per batch of packets.
"""

import asyncio
import logging
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol

from common import clock
from transport.sctp import packet as wire
from transport.sctp.allowance import Allowance
from transport.sctp.batches import Batches
from transport.sctp.congestion.control import AckSample, Controller, PathStats
from transport.sctp.congestion.controller import RateController
from transport.sctp.congestion.pacing import LEAST_PACKETS, URGENT_PACKETS, Pacer, burst_seconds, rest_seconds
from transport.sctp.dtls import MAX_BATCH, Records
from transport.sctp.meter import AssociationMeter
from transport.sctp.mtu import BASE_MTU, BLACK_HOLE_LOSSES
from transport.sctp.packet import DataRun, Framer, MalformedPacketError, Sack
from transport.sctp.probing import MtuProber, probe_chunks
from transport.sctp.receive import RECEIVE_WINDOW, ReceiveBook, SctpMessage
from transport.sctp.record import Flight, Record, Sent
from transport.sctp.schedule import ScheduledMessage
from transport.sctp.send import SendBook
from transport.sctp.udp.datagram import DatagramPath
from transport.sctp.udp.offload import DatagramRun
from transport.sctp.udp.timer import fine_timer

LOG = logging.getLogger(__name__)

# For a single packet. RFC 9260, section 6.2 allows 200 ms; a sender waits 25 ms longer than a round trip.
SACK_DELAY_S = 0.020
SACK_SOON_S = 0.001  # For two packets and more, up to
SACK_PACKETS = 128  # so many. Our own sender asks for an acknowledgement with the last packet of each burst.
MAX_GAPS = 276  # Ranges in one SACK: with the headers, what BASE_MTU holds.
LEAST_FRAME, GREATEST_FRAME = 4 << 10, 64 << 10
FRAME_S = 0.002  # A message holds up more urgent ones for this long.
ASSUMED_RTT_S = 0.05  # For whoever only receives and so measures none.
# After an urgent packet its copy leaves on a line that loses: losses come in clusters shorter than this.
REPEAT_S = 0.004
REPEAT_SHARE = 1 / 4  # Of the round trip, and no later.
LOSSY_S = 30.0  # How long a line that has lost a packet counts as one that loses.
FINE_SLEEP_S = 0.0002  # With a fine timer: a third of a packet's time at 20 Mbit/s.
MIN_SLEEP_S = 0.001  # Event loops count whole milliseconds; a shorter wait would spin.


class Host(Protocol):
    """Who owns the data path."""

    def on_messages(self, messages: list[SctpMessage]) -> None:
        """Whole messages, in the order of delivery."""

    def on_control(self, kind: int, flags: int, body: bytes) -> None:
        """A chunk that belongs to the life of the association."""

    def on_released(self, released: dict[Hashable, int]) -> None:
        """Bytes have left the queues, per owner."""

    def on_fault(self, reason: str) -> None:
        """The peer broke the rules: the association must end."""

    def on_closed(self) -> None:
        """The DTLS session has ended."""

    def on_traffic(self, sent: tuple[int, int], received: tuple[int, int]) -> None:
        """Datagrams and bytes that DTLS sent and received since the last call."""

    def check_path(self) -> None:
        """Look whether ICE has chosen another way."""


@dataclass(frozen=True, slots=True)
class DatapathSetup:
    """What the handshake agreed on.

    Attributes:
        local_port, remote_port: SCTP ports.
        local_tag, remote_tag: verification tags; ``local_tag`` is what the peer must send.
        checksums: the peer needs them; it has not said that it goes without (RFC 9653).
    """

    local_port: int
    remote_port: int
    local_tag: int
    remote_tag: int
    checksums: bool = True


class DataPath:
    """Moves the packets of one association.

    Attributes:
        sender, receiver: the books.
        controller: decides how fast.
        allowance: the limits of the process, None for none.
    """

    def __init__(
        self,
        setup: DatapathSetup,
        records: Records,
        receiver: ReceiveBook,
        sender: SendBook,
        controller: Controller,
        host: Host,
    ) -> None:
        """Prepare; nothing moves before ``attach``."""
        self.sender, self.receiver, self.controller = sender, receiver, controller
        self.allowance: Allowance | None = None
        self._granted = 0
        self._prober: MtuProber | None = None
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._records = records
        self._batching = records.batching
        self._framer = Framer(setup.local_port, setup.remote_port, setup.remote_tag, checksums=setup.checksums)
        self._batches = Batches(self._framer, records, self._send_datagrams, self._on_sealed_off)
        self._tag = setup.local_tag
        self._path: DatagramPath | None = None
        self._mtu = BASE_MTU
        self._payload = 0
        self._packet = BASE_MTU
        self._pacer = Pacer(clock.instant())
        self._meter = AssociationMeter(clock.instant())
        self._sent_at = clock.instant()
        self._blocked_until = 0.0
        self._lossy_until = 0.0
        self._unacknowledged = 0
        self._newest = 0
        self._arrived_at = 0.0
        self._forward_delay: float | None = None
        self._ack_now = self._ack_soon = False
        self._woken: asyncio.Handle | None = None
        self._pace: asyncio.Handle | None = None
        self._fine = fine_timer(self._loop, self._pump)
        self.controller.fine = self._fine is not None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ended = False

    # The path

    def attach(self, path: DatagramPath) -> None:
        """Use a path from now on; one that was used before is closed."""
        previous, self._path = self._path, path
        if previous is not None and previous is not path:
            previous.close()
            now = clock.instant()
            self.sender.on_path_change(now)
            self.controller.on_path_change(now)
        if self._prober is not None:
            self._prober.close()
            self._prober = None
        self.set_mtu(min(BASE_MTU, path.interface_mtu))
        if path.truthful:
            self._prober = MtuProber(self._loop, self._send_probe, self.set_mtu, path.max_payload + path.overhead)
        self.wake()

    def on_too_big(self, size: int) -> None:
        """The local interface refused an IP packet of ``size`` bytes."""
        if self._prober is not None:
            self._prober.on_too_big(size)

    def set_mtu(self, mtu: int) -> None:
        """Send IP packets of at most ``mtu`` bytes."""
        assert self._path is not None
        self._mtu = mtu
        below = self._path.overhead + self._records.overhead
        self._payload = (mtu - below - wire.COMMON_HEADER - wire.DATA_HEADER) & ~3
        headers = below + wire.COMMON_HEADER + wire.DATA_HEADER
        self._packet = self._payload + headers
        if self._batching:
            self._batches.most = max(1, MAX_BATCH // mtu)
        self.sender.set_size(self._payload, headers)
        if isinstance(self.controller, RateController):
            self.controller.packet_bytes = self._packet

    @property
    def frame_bytes(self) -> int:
        """A good size for messages now: whole packets that take about two milliseconds of the line."""
        rate = self.controller.bandwidth or self.controller.pacing_rate
        packets = round(min(max(rate * FRAME_S, LEAST_FRAME), GREATEST_FRAME) / self._payload)
        return min(max(packets, 1), GREATEST_FRAME // self._payload) * self._payload

    def close(self) -> None:
        """Stop; the path goes back to aioice."""
        self._ended = True
        for handle in (self._woken, self._pace, self._alarm, self._ack_timer):
            if handle is not None:
                handle.cancel()
        if self._fine is not None:
            self._fine.close()
            self._fine = None
        if self._prober is not None:
            self._prober.close()
        if self.allowance is not None:
            self.allowance.forget(self)
        if self._path is not None:
            self._path.close()

    def stats(self) -> PathStats:
        """The path's figures."""
        trips, meter, path = self.sender.round_trips, self._meter, self._path
        smallest = self.controller.min_rtt or trips.smallest
        queue = max(0.0, trips.smoothed - smallest) if trips.smoothed is not None and smallest is not None else 0.0
        overhead = path.overhead if path is not None else 0
        now = clock.instant()
        return PathStats(
            rtt_s=trips.smoothed,
            min_rtt_s=smallest,
            queue_s=queue,
            send_rate=meter.send_rate(now),
            receive_rate=meter.receive_rate(now),
            pacing_rate=self.controller.pacing_rate,
            packets_sent=meter.packets_sent,
            packets_received=meter.packets_received,
            packets_retransmitted=self.sender.retransmitted,
            packets_lost=self.sender.lost,
            bytes_sent=meter.bytes_sent + overhead * meter.packets_sent,
            bytes_received=meter.bytes_received + overhead * meter.packets_received,
            bytes_inflight=self.sender.inflight,
            mtu=self._mtu,
            offload=path.offload if path is not None else "portable",
        )

    # Receiving

    def on_datagrams(self, runs: list[DatagramRun]) -> None:
        """Take the DTLS datagrams of one reading."""
        if self._ended:
            return
        size, count = sum(len(run.data) for run in runs), sum(run.datagrams for run in runs)
        self._meter.received(count, size)
        self._host.on_traffic((0, 0), (count, size))
        if self.allowance is not None and self._path is not None:
            self.allowance.on_received(self, size + self._path.overhead * count, clock.instant())
        opened = self._records.open(runs)
        answer = self._records.answers()
        if answer:
            self._send_datagrams(memoryview(answer), len(answer), 1)
        self.on_packets(opened)
        if self._records.closed and not self._ended:
            self._host.on_closed()

    def on_packets(self, opened: list[DatagramRun]) -> None:
        """Take decrypted packets."""
        if self._ended:
            return
        now = clock.instant()
        before = self._unacknowledged
        tag = self._tag
        for run in opened:
            chunks = wire.data_runs(run.data, run.size, tag)
            if chunks is not None:
                for alike in chunks:
                    self._on_run(alike)
                continue
            for packet in run.each():
                data = wire.lone_data(packet, tag)
                if data is not None:
                    self._on_data(*data)
                else:
                    self._take(packet, now)
        if self._unacknowledged > before:
            self._arrived_at = now
        if self.receiver.gaps:
            self._lossy_until = now + LOSSY_S
        self._acknowledge()
        self._deliver(now)
        fault = self.receiver.fault or self.sender.fault
        if fault:
            self.fail(fault)
        else:
            self._pump()

    def _take(self, packet: bytes, now: float) -> None:
        if not wire.verify(packet, self._tag):
            return
        try:
            for kind, flags, start, end in wire.split(packet):
                if kind == wire.DATA:
                    self._on_data(*wire.read_data(packet, flags, start, end))
                elif kind == wire.SACK:
                    self._on_sack(wire.read_sack(packet, start, end), now)
                elif kind == wire.ARRIVAL:
                    self._forward_delay = self.sender.forward_delay(*wire.read_arrival(packet, start, end))
                elif not self._on_other(kind, flags, packet, start, end):
                    break
        except MalformedPacketError as error:
            LOG.debug("a packet is left out: %s", error)

    def _on_data(self, tsn: int, stream: int, sequence: int, protocol: int, flags: int, payload: bytes) -> None:
        if not payload:
            self.receiver.fault = "a DATA chunk without data (RFC 9260, section 3.3.1)"
            return
        self.receiver.on_data(tsn, stream, sequence, protocol, flags, payload)
        self._unacknowledged += 1
        self._newest = tsn
        if flags & wire.ACK_AT_ONCE:
            self._ack_now = True

    def _on_run(self, run: DataRun) -> None:
        self.receiver.on_run(run)
        count = len(run.payloads)
        self._unacknowledged += count
        self._newest = (run.tsn + count - 1) & wire.TSN_MASK
        if any(flags & wire.ACK_AT_ONCE for flags in set(run.flags)):
            self._ack_now = True

    def _on_sack(self, sack: Sack, now: float) -> None:
        forward, self._forward_delay = self._forward_delay, None
        sample = self.sender.on_sack(sack, now, forward)
        if sample is None:
            return
        self.controller.on_ack(sample)
        if sample.lost:
            self._lossy_until = now + LOSSY_S
        if sample.round_ended and self._path is not None:
            trip = self.controller.min_rtt
            self._pacer.burst_s = 0.0 if self.controller.one_by_one else burst_seconds(trip)
            self._path.rest_s = rest_seconds(trip)
        if self._prober is not None and sample.round_ended and sample.rtt is not None:
            self._prober.on_rtt(sample.rtt)
            if self.sender.full_lost >= BLACK_HOLE_LOSSES:
                self._prober.on_full_losses(self.sender.full_lost)

    def _on_other(self, kind: int, flags: int, packet: bytes, start: int, end: int) -> bool:
        """Take any other chunk; returns whether the packet's next ones are to be read (RFC 9260, section 3.2)."""
        if kind == wire.FORWARD_TSN:
            self.receiver.on_forward(*wire.read_forward(packet, start, end))
            self._ack_now = True
        elif kind == wire.HEARTBEAT:
            self._send_unasked(wire.chunk(wire.HEARTBEAT_ACK, 0, packet[start:end]))
        elif kind == wire.HEARTBEAT_ACK:
            if self._prober is not None:
                self._prober.on_answer(packet[start:end])
        elif kind != wire.PAD:
            self._host.on_control(kind, flags, packet[start:end])
            return bool(kind & 0x80) or kind <= wire.LAST_KNOWN
        return True

    def _deliver(self, now: float) -> None:
        ready = self.receiver.ready
        if ready:
            self.receiver.ready = []
            self._meter.delivered(sum(len(message.data) for message in ready), now)
            self._host.on_messages(ready)

    def _acknowledge(self) -> None:
        """Acknowledge at once what the sender asks for, what is new about gaps, and many packets; the rest a little later."""
        count = self._unacknowledged
        if self._ack_now or count >= SACK_PACKETS or self.receiver.changed:
            self._send_sack()
        elif count and (self._ack_timer is None or (count > 1 and not self._ack_soon)):
            if self._ack_timer is not None:
                self._ack_timer.cancel()
            self._ack_soon = count > 1
            delay = SACK_SOON_S if self._ack_soon else SACK_DELAY_S
            self._ack_timer = self._loop.call_later(delay, self._send_sack)

    def _send_sack(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None
        new = [wire.arrival_chunk(self._newest, self._arrived_at)] if self._unacknowledged else []
        self._unacknowledged, self._ack_now, self._ack_soon = 0, False, False
        sack = self.receiver.sack(MAX_GAPS, self._download_window())
        self._send_unasked(*new, wire.sack_chunk(sack))

    def _download_window(self) -> int:
        """The most that may be advertised, so that the process keeps to its download limit."""
        limit = None
        if self.allowance is not None:
            limit = self.allowance.download_window(self, self.sender.round_trips.smoothed or ASSUMED_RTT_S)
        return RECEIVE_WINDOW if limit is None else limit

    def _send_unasked(self, *chunks: bytes) -> None:
        """Send a packet that no limit holds up: others wait the longer."""
        self._send_packet(self._framer.packet(*chunks))

    def _send_packet(self, packet: bytes) -> None:
        self._batches.add(packet)
        self._batches.flush()
        self._charge(packet)

    def _charge(self, packet: bytes) -> None:
        if self.allowance is not None and self._path is not None:
            size = len(packet) + self._records.overhead + self._path.overhead
            self.allowance.charge_upload(size, clock.instant())

    def _send_probe(self, size: int, body: bytes) -> None:
        if self._path is not None:
            below = self._path.overhead + self._records.overhead
            self._send_unasked(*probe_chunks(body, size - below))

    def fail(self, reason: str) -> None:
        """End the association, telling the peer why."""
        if not self._ended:
            self._send_unasked(wire.abort_chunk(reason))
            self._host.on_fault(reason)

    # Sending

    def queue(self, message: ScheduledMessage) -> None:
        """Send a message when its turn comes."""
        self.sender.queue(message)
        self.wake()

    def wake(self) -> None:
        """Look for something to send, once in this round of the event loop."""
        if self._woken is None and not self._ended:
            self._woken = self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what pace, window and limits allow now."""
        if self._woken is not None:
            self._woken.cancel()
            self._woken = None
        self._host.check_path()
        path, sender = self._path, self.sender
        if self._ended or path is None:
            return
        now = clock.instant()
        self._forward(now)
        if sender.backlog and path.writable and now >= self._blocked_until:
            self._send_burst(now)
            released = sender.settle_released()
            if released:
                self._host.on_released(released)
        self._set_timers(now)

    def _send_burst(self, now: float) -> None:
        """Send what is due, as few batches as the lengths of the packets allow: all alike, the last may be shorter."""
        before = self.sender.payload_sent
        chosen = self._choose(now)
        if not chosen:
            return
        for one in chosen:
            if isinstance(one, Flight):
                self._batches.add_flight(one)
            elif one.payload > self._payload:
                self._send_in_fragments(one)
            else:
                self._batches.add(self._batches.packet(one))
        self._batches.flush()
        if now < self._lossy_until:
            self._repeat_urgent(chosen)
        self._sent_at = now
        self._meter.sent_payload(self.sender.payload_sent - before, now)

    def _send_in_fragments(self, record: Record) -> None:
        """Send what was cut for a path with a larger MTU; alone, for the kernel does not cut segments further."""
        path = self._path
        if path is None:
            return
        self._batches.flush()
        path.let_fragment(True)
        self._batches.add(self._batches.packet(record))
        self._batches.flush()
        path.let_fragment(False)

    def _choose(self, now: float) -> list[Sent]:
        """What may leave now. The last one asks for an acknowledgement at once."""
        sender, controller, pacer, packet = self.sender, self.controller, self._pacer, self._packet
        if not sender.outstanding and now - self._sent_at > sender.round_trips.timeout:
            controller.on_restart(now)
        window = self._window()
        pacer.refill(controller.pacing_rate, packet, now)
        chosen: list[Sent] = []
        allowance = self.allowance
        while sender.inflight < window and (pacer.open or (sender.urgent and pacer.ahead(packet))):
            if allowance is not None and not self._may_upload(allowance, now):
                break
            room = min(pacer.room, window - sender.inflight) if pacer.open else 1
            if allowance is not None:
                room = min(room, max(1, self._granted - packet + 1))
            inflight = sender.inflight
            run = sender.next_run(now, room)
            if not run:
                break
            size = sender.inflight - inflight
            pacer.spend(size)
            self._granted -= size
            chosen += run
        if chosen:
            chosen[-1].ask()
        return chosen

    def _repeat_urgent(self, chosen: list[Sent]) -> None:
        """Small urgent messages go twice on a line that loses: waiting for the loss to show would take a round trip and more."""
        after = min(REPEAT_S, REPEAT_SHARE * (self.controller.min_rtt or ASSUMED_RTT_S))
        for one in chosen:
            if (
                isinstance(one, Record)
                and one.message.urgent
                and one.sends == 1
                and len(one.message.data) == one.payload
            ):
                self._loop.call_later(after, self._send_copy, one)

    def _send_copy(self, record: Record) -> None:
        if not self._ended and self._path is not None and self._path.writable and self.sender.repeat(record):
            self._send_packet(self._batches.packet(record))

    def _window(self) -> int:
        """Bytes that may be on their way. Bulk fills the controller's window; what is urgent need not wait for room in it."""
        overtaking = self.sender.overtaking
        ahead = overtaking + URGENT_PACKETS * self._packet if overtaking >= 0 else 0
        return self.controller.window + ahead

    def _may_upload(self, allowance: Allowance, now: float) -> bool:
        """Whether the process's upload limit has room for another packet; asks for a burst at a time."""
        if self._granted < self._packet:
            rate = min(self.controller.pacing_rate, allowance.upload or math.inf)
            burst = max(LEAST_PACKETS * self._packet, int(rate * self._pacer.burst_s))
            wait = allowance.take_upload(self, burst, now)
            if wait > 0:
                self._blocked_until = now + wait
                return False
            self._granted += burst
        return True

    def _set_timers(self, now: float) -> None:
        if self._ended or self._path is None:
            return
        waiting = self._pace is not None or (self._fine is not None and self._fine.waiting)
        if self.sender.backlog and not waiting and self._path.writable:
            self._pace_later(now)
        self._arm(now)

    def _pace_later(self, now: float) -> None:
        wait = self._blocked_until - now
        if wait <= 0:
            if self.sender.inflight >= self._window():
                return  # The next acknowledgement goes on.
            wait = self._pacer.wait(self.controller.pacing_rate, self._packet)
            if self._fine is not None and self.controller.one_by_one and self._fine.start(max(wait, FINE_SLEEP_S)):
                return
            if self._sent_at == now:
                wait -= clock.instant() - now  # What building and sealing took.
                if wait <= 0:
                    self._pace = self._loop.call_soon(self._on_pace)
                    return
        self._pace = self._loop.call_later(max(wait, MIN_SLEEP_S), self._on_pace)

    def _on_pace(self) -> None:
        self._pace = None
        self._pump()

    def _forward(self, now: float) -> None:
        forward = self.sender.forward(now)
        if forward is not None:
            self._send_unasked(wire.forward_chunk(*forward))

    def _on_sealed_off(self) -> None:
        self._loop.call_soon(self._host.on_closed)

    def _send_datagrams(self, sealed: memoryview, segment: int, count: int) -> None:
        if self._path is not None:
            self._path.send(sealed, segment)
            self._meter.sent(count, len(sealed))
            self._host.on_traffic((count, len(sealed)), (0, 0))

    # Time

    def _arm(self, now: float) -> None:
        """Have the alarm ring no later than the sender's deadline; one that rings too early looks again."""
        deadline = self.sender.deadline
        if deadline is None:
            return
        due = max(deadline, now + MIN_SLEEP_S)
        if self._alarm is not None:
            if self._alarm_at <= due:
                return  # Nor is one that is overdue put off.
            self._alarm.cancel()
        self._alarm, self._alarm_at = self._loop.call_later(due - now, self._on_alarm), due

    def _on_alarm(self) -> None:
        self._alarm = None
        now = clock.instant()
        deadline = self.sender.deadline
        if deadline is None or self._ended:
            return
        if now >= deadline:
            lost, timed_out = self.sender.on_timer(now)
            if timed_out:
                self.controller.on_timeout(now)
            elif lost:
                self.controller.on_ack(AckSample(now, None, None, False, 0, lost, self.sender.inflight, False))
            self._pump()
        else:
            self._arm(now)

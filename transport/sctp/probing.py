"""Path-MTU probes of one association: it gives ``mtu.PathMtu`` a clock, a timer and the packets."""

import asyncio
import secrets
import struct
from collections.abc import Callable

from transport.sctp import packet as wire
from transport.sctp.mtu import PathMtu

# Stock aiortc reads records of up to 1,500 bytes; the rest of a longer one would delay all later ones.
GREATEST_MTU = 1500
INFO_PARAMETER = 1  # RFC 9260, section 3.3.5.
_INFO = struct.Struct("!HH8sL")


class MtuProber:
    """Keeps the MTU of the path in use.

    Attributes:
        mtu: greatest IP packet that may be used.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[int, bytes], None],
        on_mtu: Callable[[int], None],
        interface_mtu: int,
    ) -> None:
        """Probe from now on.

        Args:
            loop: the running event loop.
            send: sends a HEARTBEAT with the given body, brought to an IP packet of the given size.
            on_mtu: told of each change.
            interface_mtu: greatest IP packet of the local interface.
        """
        self._loop = loop
        self._send = send
        self._on_mtu = on_mtu
        self._search = PathMtu(min(interface_mtu, GREATEST_MTU))
        self._nonce = secrets.token_bytes(8)
        self._timer: asyncio.TimerHandle | None = None
        self.mtu = self._search.mtu
        self._go_on()

    def on_answer(self, body: bytes) -> None:
        """A HEARTBEAT ACK has come; others than to our own probes are ignored."""
        if len(body) != _INFO.size:
            return
        kind, _, nonce, size = _INFO.unpack(body)
        if kind == INFO_PARAMETER and nonce == self._nonce:
            self._search.on_probe_acked(size, self._loop.time())
            self._go_on()

    def on_rtt(self, rtt_s: float) -> None:
        """Take the smoothed round trip."""
        self._search.on_rtt(rtt_s)

    def on_too_big(self, size: int) -> None:
        """The local interface refused an IP packet of ``size`` bytes."""
        self._search.on_too_big(size, self._loop.time())
        self._go_on()

    def on_full_losses(self, count: int) -> None:
        """So many full packets were lost in a row while smaller ones pass."""
        self._search.on_loss_of_full_packets(count, self._loop.time())
        self._go_on()

    def close(self) -> None:
        """Stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        self._search.on_timer(self._loop.time())
        self._go_on()

    def _go_on(self) -> None:
        """Probe what is to be probed, and look again when it is due."""
        size = self._search.next_probe(self._loop.time())
        if size is not None:
            self._send(size, _INFO.pack(INFO_PARAMETER, _INFO.size, self._nonce, size))
        if self._search.mtu != self.mtu:
            self.mtu = self._search.mtu
            self._on_mtu(self.mtu)
        self.close()
        if self._search.deadline is not None:
            self._timer = self._loop.call_at(self._search.deadline, self._on_timer)


def probe_chunks(body: bytes, size: int) -> tuple[bytes, bytes]:
    """A HEARTBEAT with ``body`` and the PAD that brings the packet to ``size`` bytes of SCTP (RFC 4820)."""
    heartbeat = wire.chunk(wire.HEARTBEAT, 0, body)
    room = (size & ~3) - wire.COMMON_HEADER - len(heartbeat) - wire.CHUNK_HEADER
    return heartbeat, wire.chunk(wire.PAD, 0, bytes(max(0, room)))

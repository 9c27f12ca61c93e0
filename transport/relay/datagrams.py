"""UDP sockets that move many datagrams in one system call where Linux can (GSO and GRO), and one by one elsewhere."""

import errno
import socket
import struct
import sys
from collections.abc import Iterator, Sequence

from transport.relay.errors import ListenError
from transport.relay.message import Address

Buffer = bytes | memoryview

MAX_DATAGRAM = 65535
MAX_BATCHES = 32  # Reads of one socket before the others get their turn: 2 MB.
MAX_SEGMENTS = 60  # Linux takes 64 in one call (UDP_MAX_SEGMENTS).
MAX_BATCH_BYTES = 64000  # One call makes at most one IP packet's worth: 65,507 bytes.

# Whether packets leave with "don't fragment", which path-MTU discovery of the peers needs.
SETS_DF = sys.platform == "linux"
_UDP_SEGMENT = 103
_UDP_GRO = 104
_GRO_SPACE = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0
_PMTUDISC_PROBE = 3
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_CANNOT_SEGMENT = (errno.EINVAL, errno.EMSGSIZE, errno.EIO, errno.EOPNOTSUPP)

# One buffer for all sockets: a batch is sent on, or copied, before the next is read, and all happens on one thread.
_SHARED = bytearray(MAX_DATAGRAM)


def family_of(ip: str) -> socket.AddressFamily:
    """AF_INET or AF_INET6."""
    return socket.AF_INET6 if ":" in ip else socket.AF_INET


class DatagramSocket:
    """A bound UDP socket.

    Attributes:
        address: where it is bound.
    """

    def __init__(self, address: Address, buffer_bytes: int, *, offload: bool = True) -> None:
        """Bind; port 0 takes any free one. ``offload`` off: the portable way on any system.

        Raises:
            ListenError: the address or port cannot be used.
        """
        self._socket = socket.socket(family_of(address[0]), socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._enlarge(buffer_bytes)
            self._offload = offload and self._prepare_linux()
            if self._socket.family == socket.AF_INET6:
                self._socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise ListenError(f"cannot use UDP port {address[1]} of {address[0]}: {error.strerror}") from error
        self.address: Address = self._socket.getsockname()[:2]

    def fileno(self) -> int:
        """For the event loop."""
        return self._socket.fileno()

    def close(self) -> None:
        """Release the port."""
        self._socket.close()

    def receive(self) -> Iterator[tuple[memoryview, int, Address]]:
        """What has arrived: bytes, the length of each datagram in them (the last may be shorter; at least 1), and who sent them.

        A view is valid until the next one is taken from any socket.
        """
        view = memoryview(_SHARED)
        for _ in range(MAX_BATCHES):
            try:
                length, size, address = self._receive_one()
            except OSError:  # Nothing more, or an ICMP error of an earlier datagram: neither concerns anybody.
                return
            yield view[:length], max(size or length, 1), address

    def send(self, parts: Sequence[Buffer], per_datagram: int, address: Address) -> int:
        """Send datagrams of ``per_datagram`` parts each, all equally long but the last, which may be shorter.

        Returns:
            how many the system took; it refuses when its buffers are full or there is no way to ``address``.
        """
        size = sum(map(len, parts[:per_datagram]))
        step = max(1, min(MAX_SEGMENTS, MAX_BATCH_BYTES // max(size, 1))) * per_datagram
        taken = 0
        for start in range(0, len(parts), step):
            taken += self._send_batch(parts[start : start + step], per_datagram, size, address)
        return taken

    def _send_batch(self, parts: Sequence[Buffer], per_datagram: int, size: int, address: Address) -> int:
        count = len(parts) // per_datagram
        if count > 1 and self._offload:
            try:
                self._socket.sendmsg(parts, [(socket.SOL_UDP, _UDP_SEGMENT, struct.pack("=H", size))], 0, address)
                return count
            except OSError as error:
                if error.errno not in _CANNOT_SEGMENT:
                    return 0
        taken = 0
        for start in range(0, len(parts), per_datagram):
            try:
                self._socket.sendto(b"".join(parts[start : start + per_datagram]), address)
                taken += 1
            except OSError:
                continue
        return taken

    def _receive_one(self) -> tuple[int, int, Address]:
        """Length, length of a segment (0: there is only one), sender."""
        if not self._offload:
            length, address = self._socket.recvfrom_into(_SHARED)
            return length, 0, address[:2]
        length, extra, _, address = self._socket.recvmsg_into([_SHARED], _GRO_SPACE)
        for level, kind, value in extra:
            if level == socket.SOL_UDP and kind == _UDP_GRO:
                return length, int.from_bytes(value[:4], sys.byteorder), address[:2]
        return length, 0, address[:2]

    def _enlarge(self, wanted: int) -> None:
        """Ask for room in both directions; the system may give less."""
        for ordinary, forced in (("SO_RCVBUF", "SO_RCVBUFFORCE"), ("SO_SNDBUF", "SO_SNDBUFFORCE")):
            self._socket.setsockopt(socket.SOL_SOCKET, getattr(socket, ordinary), wanted)
            if SETS_DF and self._socket.getsockopt(socket.SOL_SOCKET, getattr(socket, ordinary)) < wanted:
                self._force(forced, wanted)

    def _force(self, option: str, wanted: int) -> None:
        numbers = {"SO_SNDBUFFORCE": 32, "SO_RCVBUFFORCE": 33}  # asm-generic/socket.h; Python has no names for them.
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, numbers[option], wanted)
        except PermissionError:
            return  # Only root passes net.core.rmem_max; the operator may raise that instead.

    def _prepare_linux(self) -> bool:
        """Set "don't fragment" and coalescing of what arrives; whether the kernel can coalesce."""
        if sys.platform != "linux":
            return False
        if self._socket.family == socket.AF_INET6:
            self._socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, _PMTUDISC_PROBE)
        else:
            self._socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
        try:
            self._socket.setsockopt(socket.SOL_UDP, _UDP_GRO, 1)
        except OSError:
            return False  # Before Linux 5.0.
        return True

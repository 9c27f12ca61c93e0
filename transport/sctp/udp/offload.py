"""How UDP datagrams pass between this process and the kernel in few system calls.

Linux takes up to 64 equally long datagrams in one call (UDP_SEGMENT, since 4.18) and hands over what came in one burst from one
sender as one buffer (UDP_GRO, since 5.0). A datagram then costs 0.2-0.3 us each way instead of 3 us and 1.5 us. sendmmsg was
measured too: it saves a tenth of the one-by-one cost, not worth its code. Everything here also works where neither option exists.
"""

import errno
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

Address = tuple[Any, ...]

LINUX = sys.platform == "linux"

# linux/udp.h, linux/in.h, linux/in6.h: Python 3.11 names none of them.
SOL_UDP = 17
UDP_SEGMENT = 103
UDP_GRO = 104
IP_MTU = 14
IPV6_MTU = 24

DONT_FRAGMENT = {
    # (platform, family): level, option, value. Linux: PMTUDISC_PROBE sets DF and ignores the kernel's own idea of the path, so
    # that a probe is really sent (RFC 8899, section 4.1). macOS: netinet/in.h. Windows: ws2ipdef.h.
    ("linux", socket.AF_INET): (socket.IPPROTO_IP, 10, 3),
    ("linux", socket.AF_INET6): (socket.IPPROTO_IPV6, 23, 3),
    ("darwin", socket.AF_INET): (socket.IPPROTO_IP, 28, 1),
    ("darwin", socket.AF_INET6): (socket.IPPROTO_IPV6, 62, 1),
    ("win32", socket.AF_INET): (socket.IPPROTO_IP, 14, 1),
    ("win32", socket.AF_INET6): (socket.IPPROTO_IPV6, 14, 1),
}

SOCKET_BUFFER = 4 << 20  # A 1 Gbit/s line fills it in 32 ms: longer than this process is ever away from its socket.
MAX_SEGMENTS = 64  # UDP_MAX_SEGMENTS of the kernels before 6.9.
MAX_SEND = 65_000  # Headers included, an IP packet may have 65,535 bytes, before and after segmentation.
MAX_RECEIVE = 65_535
MAX_READS = 48  # Calls a wake-up: small datagrams must not hold up the event loop either.
MAX_READ_BYTES = 256 << 10  # About 1.5 ms of decryption: timers and other peers get their turn in between.
ANCILLARY_SPACE = 64  # One int with its header, and some room.
DEFAULT_MTU = 1500  # Ethernet.

GSO_REFUSED = frozenset({errno.EIO, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOPROTOOPT})  # EIO: no checksum offload.


class DatagramRun(NamedTuple):
    """Datagrams of one sender that were read together.

    Attributes:
        data: one after the other.
        size: length of each, above 0; the last may be shorter.
    """

    data: bytes
    size: int

    @property
    def datagrams(self) -> int:
        """How many."""
        return -(-len(self.data) // self.size)

    def each(self) -> list[bytes]:
        """One by one."""
        return [self.data[start : start + self.size] for start in range(0, len(self.data), self.size)]


class UdpSender:
    """Sends buffers of equally long datagrams through one UDP socket, to one destination."""

    def __init__(self, end: socket.socket, destination: Address | None, *, segmenting: bool) -> None:
        """Prepare.

        Args:
            end: a non-blocking socket.
            destination: None where the socket is connected.
            segmenting: let the kernel cut; switched off as soon as it refuses.
        """
        self.segmenting = segmenting
        self._end = end
        self._destination = destination
        self._size = 0
        self._ancillary: list[tuple[int, int, bytes]] = []

    def send(self, buffer: bytes | bytearray | memoryview, segment: int, channel: int | None = None) -> None:
        """Send datagrams of ``segment`` bytes each, the last of which may be shorter.

        Args:
            buffer: the datagrams, one after the other.
            segment: length of each, above 0.
            channel: put a ChannelData header with this number before each (RFC 8656, section 12.4).
        Raises:
            BlockingIOError: the socket's buffer is full; what did not fit is not sent.
            OSError: EMSGSIZE where ``segment`` exceeds the interface's MTU, or any other error of the network.
        """
        view = memoryview(buffer)
        size = segment if channel is None else segment + 4
        count = max(1, min(MAX_SEGMENTS, MAX_SEND // size)) if self.segmenting else 1
        for start in range(0, len(view), segment * count):
            self._send_run(view[start : start + segment * count], segment, channel)

    def send_one(self, datagram: bytes | bytearray | memoryview, channel: int | None = None) -> None:
        """Send one datagram; arguments and errors as of ``send``."""
        self._transmit([datagram] if channel is None else [struct.pack("!HH", channel, len(datagram)), datagram], [])

    def _send_run(self, run: memoryview, segment: int, channel: int | None) -> None:
        parts: list[bytes | memoryview] = [run] if channel is None else _framed(run, segment, channel)
        if len(run) <= segment:
            self._transmit(parts, [])
            return
        size = segment if channel is None else segment + 4
        if size != self._size:
            self._size, self._ancillary = size, [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", size))]
        try:
            self._transmit(parts, self._ancillary)
        except OSError as error:
            if error.errno not in GSO_REFUSED:
                raise
            self._send_apart(run, segment, channel)

    def _send_apart(self, run: memoryview, segment: int, channel: int | None) -> None:
        """Send without segmentation, for good, unless a datagram is at fault itself.

        Some kernels say EINVAL to segments above the MTU as well; a single one they call EMSGSIZE.
        """
        for start in range(0, len(run), segment):
            self._send_run(run[start : start + segment], segment, channel)
        self.segmenting = False

    def _transmit(self, parts: list[Any], ancillary: list[tuple[int, int, bytes]]) -> None:
        arguments = (parts, ancillary, 0) if self._destination is None else (parts, ancillary, 0, self._destination)
        if sys.platform == "win32":
            raise NotImplementedError("datagram asks for this call first")
        try:
            self._end.sendmsg(*arguments)
        except ConnectionRefusedError:
            self._end.sendmsg(*arguments)  # That was the answer to an earlier datagram; this one had not left.


def _framed(run: memoryview, segment: int, channel: int) -> list[bytes | memoryview]:
    """The datagrams of ``run``, each behind its ChannelData header."""
    whole = len(run) // segment * segment
    parts: list[bytes | memoryview] = []
    if whole:
        head = struct.pack("!HH", channel, segment)
        parts.append(head + head.join([run[i : i + segment] for i in range(0, whole, segment)]))
    if whole < len(run):
        parts += [struct.pack("!HH", channel, len(run) - whole), run[whole:]]
    return parts


def receive(end: socket.socket) -> Iterator[tuple[bytes, int, Address]]:
    """Read what waits, up to the limits of one wake-up.

    Yields:
        a buffer of datagrams, the length of each (the last may be shorter), and who sent them.
    Raises:
        OSError: what the network said of an earlier datagram (ECONNREFUSED, for instance); what waits can still be read.
    """
    if sys.platform == "win32":
        raise NotImplementedError("datagram asks for this call first")
    total = 0
    for _ in range(MAX_READS):
        try:
            data, ancillary, _, address = end.recvmsg(MAX_RECEIVE, ANCILLARY_SPACE)
        except BlockingIOError:
            return
        size = len(data)
        for level, kind, value in ancillary:
            if level == SOL_UDP and kind == UDP_GRO and len(value) >= 4:
                size = struct.unpack_from("=i", value)[0]
        yield data, max(1, size), address
        total += len(data)
        if total >= MAX_READ_BYTES:
            return


def can_segment(end: socket.socket) -> bool:
    """Whether the kernel knows UDP_SEGMENT; an interface may refuse it still."""
    if not LINUX:
        return False
    try:
        end.getsockopt(SOL_UDP, UDP_SEGMENT)
    except OSError:
        return False
    return True


def coalesce(end: socket.socket, on: bool) -> bool:
    """Switch UDP_GRO on or off; whether it is now as wished. Only who reads with ``receive`` may switch it on."""
    if not LINUX:
        return not on
    try:
        end.setsockopt(SOL_UDP, UDP_GRO, int(on))
    except OSError:
        return not on
    return True


def widen_buffers(end: Any) -> None:
    """Ask for large socket buffers; the system gives what it allows (on Linux up to twice net.core.rmem_max)."""
    for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        try:
            end.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        except OSError:
            continue  # macOS refuses instead of giving less: what it has stays.


def forbid_fragments(end: Any) -> int | None:
    """Set the don't-fragment bit; what ``allow_fragments`` needs to undo it, None where the system would not."""
    entry = DONT_FRAGMENT.get((sys.platform, end.family))
    if entry is None:
        return None
    level, option, value = entry
    try:
        before: int = end.getsockopt(level, option)
        end.setsockopt(level, option, value)
    except OSError:
        return None
    return before


def allow_fragments(end: Any, before: int = 0) -> None:
    """Undo ``forbid_fragments``, or with 0 clear the don't-fragment bit whatever it was."""
    level, option, _ = DONT_FRAGMENT[sys.platform, end.family]
    try:
        end.setsockopt(level, option, before)
    except OSError:
        return  # The socket is on its way out: nothing more will be sent with it.


def interface_mtu(remote: Address) -> int:
    """Greatest IP packet in bytes that the interface towards ``remote`` takes; 1,500 where the system does not say."""
    if not LINUX:
        return DEFAULT_MTU
    six = ":" in remote[0]
    family = socket.AF_INET6 if six else socket.AF_INET
    level, option = (socket.IPPROTO_IPV6, IPV6_MTU) if six else (socket.IPPROTO_IP, IP_MTU)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((remote[0], remote[1]))  # Sends nothing: the kernel looks up the way.
            return probe.getsockopt(level, option)
        except OSError:
            return DEFAULT_MTU

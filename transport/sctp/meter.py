"""What has crossed a path, in all and over about the last second. Pure."""

from collections import deque

SPAN_S = 1.0
SLICE_S = 0.1


class _Rate:
    """Bytes a second over about the last second."""

    def __init__(self, now: float) -> None:
        self._total = 0
        self._marks: deque[tuple[float, int]] = deque([(now, 0)])

    def add(self, size: int, now: float) -> None:
        if now - self._marks[-1][0] >= SLICE_S:
            self._mark(now)
        self._total += size

    def read(self, now: float) -> float:
        if now - self._marks[-1][0] >= SLICE_S:
            self._mark(now)
        at, total = self._marks[0]
        return (self._total - total) / max(now - at, SLICE_S)

    def _mark(self, now: float) -> None:
        self._marks.append((now, self._total))
        while len(self._marks) > 2 and now - self._marks[1][0] >= SPAN_S:
            self._marks.popleft()


class AssociationMeter:
    """Counts of one association.

    Attributes:
        packets_sent, packets_received: datagrams since the start.
        bytes_sent, bytes_received: bytes of DTLS since the start.
    """

    def __init__(self, now: float) -> None:
        """Begin at zero."""
        self.packets_sent = 0
        self.packets_received = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self._up = _Rate(now)
        self._down = _Rate(now)

    def sent(self, packets: int, size: int) -> None:
        """Datagrams have left."""
        self.packets_sent += packets
        self.bytes_sent += size

    def received(self, packets: int, size: int) -> None:
        """Datagrams have come."""
        self.packets_received += packets
        self.bytes_received += size

    def sent_payload(self, size: int, now: float) -> None:
        """Payload has left, sent again or not."""
        self._up.add(size, now)

    def delivered(self, size: int, now: float) -> None:
        """Whole messages have come."""
        self._down.add(size, now)

    def send_rate(self, now: float) -> float:
        """Bytes of payload a second, sent."""
        return self._up.read(now)

    def receive_rate(self, now: float) -> float:
        """Bytes of payload a second, delivered."""
        return self._down.read(now)

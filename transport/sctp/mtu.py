"""Finding the greatest packet that a path carries: packetisation-layer path MTU discovery (RFC 8899), without I/O.

A probe is an SCTP HEARTBEAT with a PAD chunk (RFC 4820) that brings it to the size in question; any SCTP answers the HEARTBEAT
and skips the PAD. Nothing depends on ICMP, which home routers lose and strangers forge.

::

    search --probe acknowledged--> a greater size --none left--> done --10 minutes--> search above what is known
       ^ '--lost 3 times--> a smaller size                        |
       '------ the path changed, or full packets vanish (from the base again) ------'
"""

from collections.abc import Iterator

BASE_MTU = 1200  # Assumed to pass everywhere, as DTLS and ICE on this path have shown with packets of about this size.
LIKELY_MTU = 1492  # PPPoE; what nearly every home passes, so it is tried first.
# IPv6's least, LTE, WireGuard, 6in4, DS-Lite, PPPoE.
COMMON_MTUS = (1280, 1360, 1400, 1420, 1440, 1460, 1480, 1492, 1500)
JUMBO_MTUS = (4352, 9000)  # Only in a LAN or on loopback, where the interface says so.
MAX_TRIES = 3  # RFC 8899, MAX_PROBES: 3 % loss then misjudges a size once in 37,000 times.
FIRST_TIMEOUT_S = 1.0  # PROBE_TIMER before a round trip is known (RFC 8899, section 5.1.1).
LEAST_TIMEOUT_S = 0.25
TIMEOUT_ROUND_TRIPS = 3.0  # A full queue doubles the round trip; a probe behind it is not lost.
RAISE_INTERVAL_S = 600.0  # PMTU_RAISE_TIMER.
BLACK_HOLE_LOSSES = 8  # In a row, with smaller packets passing: a drop-tail queue lets some of eight through.


class PathMtu:
    """Decides which sizes to probe and which one to use. Sizes are whole IP packets in bytes, times seconds of one clock."""

    def __init__(self, interface_mtu: int) -> None:
        """Start with the base size.

        Args:
            interface_mtu: what the local interface takes; smaller than the base, it is the base.
        """
        self._interface = self._limit = interface_mtu
        self._rtt: float | None = None
        self._fell_from: int | None = None
        self._base = self._mtu = BASE_MTU
        self._ceiling = 0  # The least size that is known not to pass.
        self._sent: set[int] = set()
        self._pending: int | None = None
        self._tries = 0
        self._due: float | None = None
        self._raise_at: float | None = None
        self._reset()

    @property
    def mtu(self) -> int:
        """Greatest size that was acknowledged on this path, or the base."""
        return self._mtu

    @property
    def deadline(self) -> float | None:
        """When ``on_timer`` is due; None where nothing runs."""
        return self._due if self._pending is not None else self._raise_at

    @property
    def searching(self) -> bool:
        """Whether there is a size still to be tried."""
        return self._pending is not None or self._choose() is not None

    def next_probe(self, now: float) -> int | None:
        """Size of the probe to send at once, counted as sent; None where there is none or one is on its way.

        To be asked at the start and after every other call.
        """
        if self._pending is None:
            self._pending, self._tries = self._choose(), 0
            if self._pending is None:
                if self._raise_at is None and any(self._above()):
                    self._raise_at = now + RAISE_INTERVAL_S
                return None
        elif self._due is not None:
            return None
        self._tries += 1
        self._due = now + self._timeout()
        self._sent.add(self._pending)
        return self._pending

    def on_rtt(self, rtt_s: float) -> None:
        """Take the path's smoothed round trip, from which probes get their time."""
        self._rtt = rtt_s

    def on_probe_acked(self, size: int, now: float) -> None:
        """A probe of ``size`` bytes was answered, however late. Sizes that were not sent on this path are ignored."""
        if size not in self._sent:
            return
        if size >= self._ceiling:
            self._ceiling = min(s for s in (*self._candidates(), self._limit + 1) if s > size)
        self._mtu = max(self._mtu, size)
        if self._pending is not None and self._pending <= size:
            self._pending = self._due = None

    def on_timer(self, now: float) -> None:
        """The time of ``deadline`` has come."""
        if self._pending is not None:
            if self._due is not None and now >= self._due:
                self._due = None
                if self._tries >= MAX_TRIES:
                    self._fail(self._pending)
        elif self._raise_at is not None and now >= self._raise_at:
            self._raise_at = self._fell_from = None
            self._ceiling = self._limit + 1

    def on_too_big(self, size: int, now: float) -> None:
        """The local interface refused an IP packet of ``size`` bytes."""
        if size <= self._mtu:
            self._mtu = max((s for s in self._sent if s < size), default=min(self._base, size - 1))
        if size > self._base:
            self._limit = min(self._limit, size - 1)
            self._fail(size)

    def on_loss_of_full_packets(self, count: int, now: float) -> None:
        """Full-size packets are being lost while smaller ones pass.

        Args:
            count: how many were lost in a row, none of this size having been acknowledged since the first of them.
            now: the time.
        """
        if count < BLACK_HOLE_LOSSES or self._mtu <= self._base:
            return
        fell_from, again = self._mtu, self._fell_from == self._mtu
        self._reset()
        self._fell_from = fell_from
        if again:  # Probes pass and data does not: leave that size alone until the next raise.
            self._ceiling = fell_from

    def on_path_change(self, interface_mtu: int, now: float) -> None:
        """Packets take another way from now on: start again from the base."""
        self._interface = self._limit = interface_mtu
        self._rtt = self._fell_from = None
        self._reset()

    def _reset(self) -> None:
        self._base = self._mtu = min(BASE_MTU, self._limit)
        self._ceiling = self._limit + 1
        self._sent.clear()
        self._pending = self._due = self._raise_at = None
        self._tries = 0

    def _fail(self, size: int) -> None:
        self._ceiling = min(self._ceiling, size)
        if self._pending is not None and self._pending >= self._ceiling:
            self._pending = self._due = None

    def _timeout(self) -> float:
        return FIRST_TIMEOUT_S if self._rtt is None else max(LEAST_TIMEOUT_S, TIMEOUT_ROUND_TRIPS * self._rtt)

    def _candidates(self) -> list[int]:
        """Every size worth trying, ascending; an interface below Ethernet's size is itself one."""
        known = {*COMMON_MTUS, *JUMBO_MTUS}
        if self._interface < COMMON_MTUS[-1]:
            known.add(self._interface)
        return sorted(size for size in known if self._base < size <= self._limit)

    def _above(self) -> Iterator[int]:
        return (size for size in self._candidates() if size > self._mtu)

    def _choose(self) -> int | None:
        """The likeliest first, then step by step above it and by halves below."""
        open_sizes = [size for size in self._above() if size < self._ceiling]
        if not open_sizes:
            return None
        if LIKELY_MTU in open_sizes:
            return LIKELY_MTU
        return open_sizes[0] if self._mtu >= LIKELY_MTU else open_sizes[len(open_sizes) // 2]

"""How much of the line this process may use: upload and download rates and a monthly cap, shared by all associations. Pure.

Upload is a token bucket whose tokens go to the association that has had least (start-time fair queueing: Goyal, Vin and Cheng,
SIGCOMM 1996), so that nobody who asks often can starve another. Download can only be asked for: each association advertises a
receive window of its share of the rate times its round trip. Times are seconds of one monotonic clock, rates bytes a second,
bytes as they are on the wire. All limits can be changed at any time.
"""

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo

BURST_S = 0.02  # What may go at once after a pause: more would queue in the router, less would waste late timers.
MIN_BURST = 3000  # Two packets, so that a limit of a few kilobytes a second still lets packets through.
MIN_WAIT_S = 0.001  # Event loops do not wait for less.
MAX_WAIT_S = 0.25  # A changed limit is noticed this soon.
ABSENT_S = 0.05  # Whoever does not come back this long after its time loses its turn.
RATE_MEMORY_S = 0.5  # Time constant of the receive rates: a few round trips, so that shares neither flap nor lag.
IDLE_RATE = 0.01  # An association below this part of an equal share leaves all the rest to the others.
MIN_WINDOW = 3000  # Two packets: with one, every acknowledgement would wait for the delayed-SACK timer.
THRESHOLDS = (80, 100)  # Per cent of the monthly cap at which the owner of the line is told.


@dataclass(frozen=True, slots=True)
class Usage:
    """What the caller keeps between runs.

    Attributes:
        month: calendar month, "2026-02".
        used: bytes sent and received in it.
    """

    month: str
    used: int


@dataclass(slots=True)
class _Sender:
    """An association that sends: the virtual time at which its next turn begins, and what it waits for."""

    tag: float = 0.0
    wanted: int = 0
    until: float = -math.inf  # When it stops counting as waiting.


@dataclass(slots=True)
class _Receiver:
    """An association that receives: its rate as of ``at``."""

    rate: float = 0.0
    at: float = 0.0


def month_of(unix_s: float, zone: tzinfo = UTC) -> str:
    """The calendar month of a time in seconds since 1970: "2026-02"."""
    return datetime.fromtimestamp(unix_s, zone).strftime("%Y-%m")


class Allowance:
    """The limits of the process and what is left of them."""

    def __init__(
        self,
        upload: float | None = None,
        download: float | None = None,
        monthly_bytes: int | None = None,
        *,
        usage: Usage | None = None,
        on_threshold: Callable[[int], None] | None = None,
    ) -> None:
        """Set the limits; None is no limit.

        Args:
            upload: bytes a second that may leave.
            download: bytes a second that peers are asked to keep to.
            monthly_bytes: both directions together, a calendar month.
            usage: what was used before this start.
            on_threshold: called with 80 and with 100 when that many per cent of the month's bytes are used, once each.
        Raises:
            ValueError: a rate that is not above 0, or a negative cap.
        """
        self._usage_month = usage.month if usage is not None else ""
        self._used = usage.used if usage is not None else 0
        self._on_threshold = on_threshold
        self._told = 0
        self._now = -math.inf
        self._tokens = math.inf
        self._virtual = 0.0
        self._senders: dict[Hashable, _Sender] = {}
        self._receivers: dict[Hashable, _Receiver] = {}
        self.change(upload, download, monthly_bytes)

    def change(self, upload: float | None, download: float | None, monthly_bytes: int | None) -> None:
        """Set other limits; they hold from the next call on.

        Raises:
            ValueError: as the constructor's.
        """
        for name, rate in (("upload", upload), ("download", download)):
            if rate is not None and not 0 < rate < math.inf:
                raise ValueError(
                    f"a limit of {rate} bytes/s for the {name} cannot be kept: above 0, or None for no limit"
                )
        if monthly_bytes is not None and monthly_bytes < 0:
            raise ValueError(f"a cap of {monthly_bytes} bytes a month cannot be kept: 0 or more, or None for no cap")
        self.upload = upload
        self.download = download
        self.monthly_bytes = monthly_bytes
        self._tokens = min(self._tokens, self.burst)
        self._told = min(self._told, self._reached())
        self._tell()

    @property
    def usage(self) -> Usage:
        """What is to be kept for the next start."""
        return Usage(self._usage_month, self._used)

    @property
    def exhausted(self) -> bool:
        """Whether the month's bytes are used up."""
        return self.monthly_bytes is not None and self._used >= self.monthly_bytes

    @property
    def remaining(self) -> int | None:
        """Bytes left this month; None without a cap."""
        return None if self.monthly_bytes is None else max(0, self.monthly_bytes - self._used)

    @property
    def burst(self) -> float:
        """Most bytes to ask for at a time: what is granted beyond it leaves in one go, and is waited for afterwards."""
        return math.inf if self.upload is None else max(MIN_BURST, self.upload * BURST_S)

    def set_month(self, month: str) -> None:
        """Say which month it is (``month_of``), at the start and now and then: a later one than before begins with 0 bytes.

        An earlier one means that a clock was put right: what was used stays used.
        """
        if month > self._usage_month and self._usage_month:
            self._used = 0
            self._told = 0
        self._usage_month = month

    def take_upload(self, owner: Hashable, nbytes: int, now: float) -> float:
        """Ask to send ``nbytes``.

        Returns:
            0: they are taken, send them. Otherwise nothing is taken: ask again after so many seconds, not before.
        """
        if self.exhausted:
            return MAX_WAIT_S
        if self.upload is None:
            self._count(nbytes)
            return 0.0
        self._advance(now)
        sender = self._senders.setdefault(owner, _Sender())
        sender.tag = max(sender.tag, self._virtual)
        ahead = self._ahead(owner, sender, now)
        if self._tokens > 0 and not ahead:
            self._tokens -= nbytes
            self._virtual = sender.tag
            sender.tag += nbytes
            sender.until = -math.inf
            self._count(nbytes)
            return 0.0
        wait = min(MAX_WAIT_S, max(MIN_WAIT_S, (ahead - self._tokens) / self.upload))
        sender.wanted, sender.until = nbytes, now + wait + ABSENT_S
        return wait

    def charge_upload(self, nbytes: int, now: float) -> None:
        """Count what had to be sent without asking: acknowledgements, probes. The others wait the longer."""
        self._count(nbytes)
        if self.upload is not None:
            self._advance(now)
            self._tokens -= nbytes

    def on_received(self, owner: Hashable, nbytes: int, now: float) -> None:
        """Count what has come in for an association."""
        self._count(nbytes)
        if self.download is None:
            return
        self._advance(now)
        receiver = self._receivers.setdefault(owner, _Receiver(at=self._now))
        receiver.rate = self._rate(receiver) + nbytes / RATE_MEMORY_S
        receiver.at = self._now

    def download_window(self, owner: Hashable, rtt_s: float) -> int | None:
        """The receive window in bytes to advertise with a round trip of ``rtt_s``; None without a limit.

        The shares of all active associations add up to the limit. Who receives less than its equal share keeps twice what it
        receives, to grow into; the rest is divided among the others.
        """
        if self.exhausted:
            return MIN_WINDOW
        if self.download is None:
            return None
        return max(MIN_WINDOW, int(self._share(owner) * rtt_s))

    def forget(self, owner: Hashable) -> None:
        """An association has ended."""
        self._senders.pop(owner, None)
        self._receivers.pop(owner, None)

    def _advance(self, now: float) -> None:
        """Let time pass; one that runs backwards stands still instead."""
        passed = now - self._now
        if passed < 0:
            for sender in self._senders.values():
                sender.until = -math.inf
            for receiver in self._receivers.values():
                receiver.at = now
        elif self.upload is not None:
            self._tokens = min(self.burst, self._tokens + self.upload * passed)
        self._now = now

    def _ahead(self, owner: Hashable, sender: _Sender, now: float) -> int:
        """Bytes that others wait for who have had less."""
        others = (s for key, s in self._senders.items() if key != owner)
        return sum(s.wanted for s in others if s.until >= now and s.tag < sender.tag)

    def _rate(self, receiver: _Receiver) -> float:
        return receiver.rate * math.exp(-max(0.0, self._now - receiver.at) / RATE_MEMORY_S)

    def _share(self, owner: Hashable) -> float:
        """Max-min fair part of the download limit, in bytes a second."""
        assert self.download is not None
        rates = {key: self._rate(receiver) for key, receiver in self._receivers.items()}
        idle = IDLE_RATE * self.download / max(1, len(rates))
        wishes = {key: 2 * rate for key, rate in rates.items() if rate > idle}
        wishes.setdefault(owner, 2 * idle)
        left, level = self.download, 0.0
        for served, wish in enumerate(sorted(wishes.values())):
            level = left / (len(wishes) - served)
            if wish >= level:
                return min(wishes[owner], level)
            left -= wish
        return wishes[owner] + left / len(wishes)

    def _count(self, nbytes: int) -> None:
        self._used += nbytes
        if self.monthly_bytes is not None:
            self._tell()

    def _reached(self) -> int:
        if self.monthly_bytes is None:
            return 0
        return max((p for p in THRESHOLDS if self._used * 100 >= self.monthly_bytes * p), default=0)

    def _tell(self) -> None:
        reached = self._reached()
        for threshold in THRESHOLDS:
            if self._told < threshold <= reached:
                self._told = threshold
                if self._on_threshold is not None:
                    self._on_threshold(threshold)

"""Both books joined by a network of a virtual clock: loss, delay, jitter, duplicates and a rate, all from one seed."""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from transport.sctp.packet import TSN_MASK, Sack
from transport.sctp.receive import ReceiveBook, SctpMessage
from transport.sctp.record import Record
from transport.sctp.schedule import ScheduledMessage
from transport.sctp.send import SendBook

START = 2**32 - 50
PAYLOAD, HEADERS = 1000, 100
TICK = 0.001


@dataclass
class Network:
    """One-way behaviour of both directions."""

    delay: float = 0.02
    jitter: float = 0.0
    loss: float = 0.0
    ack_loss: float = 0.0
    duplicates: float = 0.0


@dataclass
class Exchange:
    """A sender, a receiver, and ``rate`` bytes a second between them."""

    network: Network = field(default_factory=Network)
    rate: float = 1.25e6
    window: int = 1 << 20
    seed: int = 1
    partial: bool = True
    receive_window: int = 16 << 20

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.sequences: dict[int, int] = {}
        self.sender = SendBook(START, self.receive_window, self.sequences, partial=self.partial)
        self.sender.set_size(PAYLOAD, HEADERS)
        self.receiver = ReceiveBook(START - 1, 1 << 20, self.receive_window)
        self.now = 0.0
        self.credit = 0.0
        self.sent: list[int] = []
        self.samples: list[tuple[float, float | None, float | None, bool]] = []
        self.cut: Callable[[float], bool] = lambda now: False
        self.timeouts = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    @property
    def delivered(self) -> list[SctpMessage]:
        return self.receiver.ready

    def queue(self, stream: int, data: bytes, **options: object) -> None:
        ordered = bool(options.pop("ordered", True))
        self.sender.queue(ScheduledMessage(stream, stream, 53, data, ordered, **options))  # type: ignore[arg-type]

    def run(self, done: Callable[[], bool], limit_s: float = 60.0) -> None:
        """Let time pass until ``done``."""
        while not done():
            self.now += TICK
            assert self.now < limit_s, "the exchange does not come to an end"
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            deadline = self.sender.deadline
            if deadline is not None and self.now >= deadline:
                self.timeouts += self.sender.on_timer(self.now)[1]
            self._pump()

    def run_to_end(self, limit_s: float = 60.0) -> None:
        """Let time pass until everything is acknowledged."""
        self.run(lambda: not self.sender.backlog and not self.sender.outstanding, limit_s)

    def _pump(self) -> None:
        forward = self.sender.forward(self.now)
        if forward is not None:
            self._travel(lambda: self._on_forward(forward), self.network.loss)
        self.credit = min(self.credit + self.rate * TICK, max(4000.0, self.rate * TICK))
        while self.credit > 0 and self.sender.inflight < self.window:
            room = math.ceil(min(self.credit, self.window - self.sender.inflight))
            run = self.sender.next_run(self.now, room)
            if not run:
                return
            for record in itertools.chain.from_iterable(run):
                self._send(record)

    def _send(self, record: Record) -> None:
        self.credit -= record.size
        self.sent.append(record.tsn)
        message = record.message
        payload = message.data[record.start : record.end]
        arguments = (record.tsn & TSN_MASK, message.stream, message.sequence, 53, record.flags, payload)
        for _ in range(2 if self.chance.random() < self.network.duplicates else 1):
            self._travel(lambda: self._on_data(*arguments), self.network.loss)

    def _travel(self, arrive: Callable[[], None], loss: float) -> None:
        if self.chance.random() < loss or self.cut(self.now):
            return
        due = self.now + self.network.delay + self.network.jitter * self.chance.random()
        heapq.heappush(self._events, (due, next(self._count), arrive))

    def _on_data(self, *arguments: object) -> None:
        self.receiver.on_data(*arguments)  # type: ignore[arg-type]
        self._acknowledge()

    def _on_forward(self, forward: tuple[int, list[tuple[int, int]]]) -> None:
        self.receiver.on_forward(*forward)
        self._acknowledge()

    def _acknowledge(self) -> None:
        sack = self.receiver.sack(280)
        self._travel(lambda: self._on_sack(sack), self.network.ack_loss)

    def _on_sack(self, sack: Sack) -> None:
        sample = self.sender.on_sack(sack, self.now)
        if sample is not None:
            self.samples.append((sample.now, sample.rtt, sample.delivery_rate, sample.app_limited))

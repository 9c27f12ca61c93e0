"""What the controller makes of the way back, and of round trips that are noisier than any queue it could hold."""

import random
from collections.abc import Callable

import pytest

from transport.sctp.congestion.control import AckSample
from transport.sctp.congestion.controller import CRUISE_LEAST, RateController

PACKET = 1500
BASE = 0.05
SECONDS = 12.0


def driven(queue: Callable[[float], tuple[float, float]], *, tells: bool, base: float = BASE) -> RateController:
    """A controller whose window always arrives within a round trip; ``queue`` gives seconds on the way there and back."""
    controller = RateController(packet_bytes=PACKET)
    now = 0.0
    while now < SECONDS:
        there, back = queue(now)
        rtt = base + there + back
        window = controller.window
        for part in range(4):
            now += rtt / 4
            sample = AckSample(now, rtt, window / rtt, False, window // 4, 0, window, part == 3)
            controller.on_ack(sample._replace(forward=777.0 + there if tells else None))
    return controller


def on_the_way_back(now: float) -> tuple[float, float]:
    """A queue of the peer's that swings, so that its least is no part of the path."""
    return 0.0, 0.0 if now < 1.0 else 0.03 + 0.02 * ((now * 3) % 1)


def test_a_queue_on_the_way_back_is_not_taken_for_one_there() -> None:
    told, untold = driven(on_the_way_back, tells=True), driven(on_the_way_back, tells=False)
    assert told._standing <= 1.15 * BASE
    assert untold._standing >= 1.5 * BASE


def test_a_queue_on_the_way_there_counts_as_before() -> None:
    def there(now: float) -> tuple[float, float]:
        return on_the_way_back(now)[::-1]

    told, untold = driven(there, tells=True), driven(there, tells=False)
    assert told._standing == untold._standing >= 1.5 * BASE


def test_a_peer_that_hides_a_queue_hides_a_part_of_it_only() -> None:
    honest, liar = RateController(packet_bytes=PACKET), RateController(packet_bytes=PACKET)
    for step in range(400):
        rtt = BASE if step < 20 else BASE * 3
        sample = AckSample(step * rtt, rtt, 1e6, False, 50_000, 0, 100_000, True, forward=5.0)
        liar.on_ack(sample)
        honest.on_ack(sample._replace(forward=None))
    assert liar.min_rtt == honest.min_rtt == BASE
    assert liar._standing > BASE * 1.2


def alone(rate: float, base: float, losses: bool) -> RateController:
    """A flow alone on a line whose packets leave in bursts of a millisecond; with losses some inside a burst are told of."""
    controller, chance, now = RateController(packet_bytes=PACKET), random.Random(3), 0.0
    burst = rate * 0.001
    controller.on_ack(AckSample(now, base, None, True, 0, 0, PACKET, False))  # A small message before the bulk.
    while now < SECONDS:
        window = controller.window
        rtt = max(base, window / rate)
        for part in range(8):
            now += rtt / 8
            inside = losses and part % 2 == 0
            seen = rtt + (chance.random() * burst if inside else burst) / rate
            acked = min(window, int(rate * rtt)) // 8
            controller.on_ack(AckSample(now, seen, rate, False, acked, 0, window, part == 7, ends_burst=not inside))
    return controller


@pytest.mark.parametrize("rate", [12.5e6, 125e6])
def test_losses_do_not_make_the_queue_longer_by_having_packets_inside_a_burst_acknowledged(rate: float) -> None:
    calm, lossy = alone(rate, 0.01, losses=False), alone(rate, 0.01, losses=True)
    assert 1.0 * rate * 0.01 <= lossy.window <= 1.25 * rate * 0.01
    assert abs(lossy.window / calm.window - 1) < 0.05


def test_the_queue_of_a_fast_line_nearby_outlasts_a_burst_and_stays_a_fifth_of_the_way() -> None:
    controller = alone(125e6, 0.01, losses=False)
    with_its_burst = controller.window / 125e6 - 0.01 + 0.001
    assert 0.0015 <= with_its_burst <= 0.002


def test_the_pace_stays_near_the_window_where_schedulers_are_slower_than_the_wire() -> None:
    chance = random.Random(5)
    controller = RateController(packet_bytes=PACKET)
    now, lowest = 0.0, 1.0
    for step in range(4000):
        rtt = 0.0002 + chance.expovariate(1000.0)
        now += max(rtt, 0.001)
        acked = int(min(controller.window, controller.pacing_rate * 0.001))
        controller.on_ack(AckSample(now, rtt, acked / 0.001, True, acked, 0, acked, True))
        if step > 100 and controller.state == "steady":
            full = controller.window / max(controller._srtt or 1.0, 0.0005)
            lowest = min(lowest, controller.pacing_rate / full)
    assert lowest >= CRUISE_LEAST * 0.99

"""The small pure parts of the data path: pace, rates, round trips, and how channels are opened."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.sctp import dcep
from transport.sctp.congestion.control import AckSample
from transport.sctp.congestion.filters import Epoch
from transport.sctp.congestion.pacing import (
    GREATEST_BURSTS,
    LATE_S,
    LEAST_BURST_S,
    LEAST_PACKETS,
    MOST_BURST_S,
    Pacer,
    burst_seconds,
    rest_seconds,
)
from transport.sctp.meter import AssociationMeter
from transport.sctp.rtt import INITIAL_TIMEOUT_S, MIN_TIMEOUT_S, RoundTrips

PACKET = 1500


def drained(pacer: Pacer, rate: float, now: float, size: int = PACKET) -> int:
    """Bytes that may leave at this moment."""
    pacer.refill(rate, PACKET, now)
    sent = 0
    while pacer.open:
        pacer.spend(size)
        sent += size
    return sent


@pytest.mark.parametrize("burst_s", [LEAST_BURST_S, MOST_BURST_S])
@pytest.mark.parametrize("rate", [10_000.0, 1.25e6, 12.5e6, 125e6])
def test_the_pace_is_kept_on_average_and_bursts_stay_short(rate: float, burst_s: float) -> None:
    pacer, now, sent = Pacer(0.0), 0.0, 0
    pacer.burst_s = burst_s
    for _ in range(5000):
        now += 0.001
        burst = drained(pacer, rate, now)
        assert burst <= max(LEAST_PACKETS * PACKET, rate * burst_s * GREATEST_BURSTS) + PACKET
        sent += burst
    assert sent == pytest.approx(rate * now, rel=0.01, abs=max(3 * PACKET, rate * burst_s))


def test_what_a_late_wake_up_missed_is_made_up_for_but_no_more() -> None:
    pacer = Pacer(0.0)
    drained(pacer, 12.5e6, 0.001)
    bursts = [drained(pacer, 12.5e6, 1.0) for _ in range(100)]
    assert max(bursts) <= 12.5e6 * LEAST_BURST_S * GREATEST_BURSTS + PACKET
    late = sum(bursts)
    assert late == pytest.approx(12.5e6 * LATE_S, abs=2 * PACKET)


def test_packets_leave_in_bursts_and_not_one_by_one() -> None:
    pacer = Pacer(0.0)
    pacer.burst_s = MOST_BURST_S
    drained(pacer, 12.5e6, 0.001)
    bursts = [drained(pacer, 12.5e6, 0.001 * tick) for tick in range(2, 1000)]
    least = min(burst for burst in bursts if burst)
    assert least >= 12.5e6 * MOST_BURST_S - PACKET


@pytest.mark.parametrize(
    ("round_trip", "burst_s"), [(None, LEAST_BURST_S), (0.01, LEAST_BURST_S), (0.064, 0.002), (1.0, MOST_BURST_S)]
)
def test_a_burst_takes_a_small_share_of_the_round_trip(round_trip: float | None, burst_s: float) -> None:
    assert burst_seconds(round_trip) == pytest.approx(burst_s)


@pytest.mark.parametrize(
    ("round_trip", "rest_s"), [(None, 0.0), (0.001, 0.0), (0.01, LEAST_BURST_S), (0.064, 0.002), (1.0, MOST_BURST_S)]
)
def test_packets_gather_for_as_long_as_a_burst_where_the_way_is_long(round_trip: float | None, rest_s: float) -> None:
    assert rest_seconds(round_trip) == pytest.approx(rest_s)


def test_urgent_packets_may_run_ahead_a_little() -> None:
    pacer = Pacer(0.0)
    drained(pacer, 1000.0, 0.0)
    ahead = 0
    while pacer.ahead(PACKET):
        pacer.spend(PACKET)
        ahead += 1
    assert 3 <= ahead <= 5
    assert pacer.wait(1000.0, PACKET) > 1.0
    assert pacer.wait(0.0, PACKET) > 0.0


def test_rates_are_those_of_about_the_last_second() -> None:
    meter = AssociationMeter(0.0)
    for n in range(300):
        meter.sent_payload(1000, n / 100)
        meter.delivered(500 if n < 100 else 0, n / 100)
    assert meter.send_rate(3.0) == pytest.approx(100_000, rel=0.15)
    assert meter.receive_rate(3.0) == 0.0
    assert meter.send_rate(10.0) < 15_000


def test_the_smallest_round_trip_is_forgotten_after_ten_seconds_and_the_timeout_follows() -> None:
    trips = RoundTrips()
    assert (trips.smallest, trips.timeout) == (None, INITIAL_TIMEOUT_S)
    trips.add(0.010, 0.0)
    for n in range(150):
        trips.add(0.050, 0.1 * (n + 1))
    assert trips.smallest == 0.050
    assert trips.smoothed == pytest.approx(0.050, abs=0.001)
    assert 0.075 <= trips.timeout < 0.1
    quick = RoundTrips()
    for n in range(50):
        quick.add(0.0001, 0.01 * n)
    assert quick.timeout == MIN_TIMEOUT_S


def test_a_wish_for_a_channel_is_read() -> None:
    request = struct.pack("!BBHLHH", 3, 0x81, 0, 5, 6, 2) + "größ".encode() + b"pr"
    wish = dcep.read_open(request)
    assert wish == dcep.ChannelOpen("größ", "pr", ordered=False, max_retransmits=5, max_lifetime_ms=None)
    assert dcep.read_open(request[:-1]) is None


@given(st.binary(max_size=40))
def test_a_wish_that_is_none_is_no_error(data: bytes) -> None:
    wish = dcep.read_open(b"\x03" + data)
    assert wish is None or len(wish.label.encode()) + len(wish.protocol.encode()) + 12 <= len(data) + 1


@given(st.one_of(st.binary(max_size=9), st.text(max_size=9)))
def test_every_message_keeps_its_kind(message: bytes | str) -> None:
    protocol, data = dcep.to_wire(message)
    assert data
    assert dcep.from_wire(protocol, data) == message
    assert dcep.from_wire(99, data) is None


def test_round_trips_inside_a_burst_count_only_where_no_burst_has_ended() -> None:
    def standing(*samples: tuple[float, bool]) -> float:
        epoch = Epoch(0.0)
        for rtt, ends in samples:
            epoch.add(AckSample(0.0, rtt, None, False, 0, 0, 0, False, ends_burst=ends))
        return epoch.standing

    assert standing((0.011, False), (0.010, False)) == 0.010
    assert standing((0.010, False), (0.013, True), (0.012, True), (0.009, False)) == 0.012
    assert standing((0.012, True), (0.010, False)) == 0.012

"""The rate controller over a simulated line: how full it keeps it, how short the queue stays, what it does when things change."""

import pytest

from tests.sim.bottleneck import PACKET_BYTES, Flow, Line, run
from transport.sctp.congestion.control import AckSample, Controller
from transport.sctp.congestion.controller import MAX_RATE, MAX_WINDOW, RateController

MBIT = 125_000.0
LARGE_PACKET = 4 * PACKET_BYTES  # At 1 Gbit/s fewer events tell the same.


def line_of(mbit: float, rtt: float, *, buffers: float = 1.0, loss: float = 0.0, packet: int = PACKET_BYTES) -> Line:
    rate = mbit * MBIT
    return Line(rate, rtt, max(buffers * rate * rtt, 8.0 * packet), loss)


def flow_of(packet: int = PACKET_BYTES, *, polite: bool = False) -> Flow:
    controller = RateController(packet, polite=polite)
    controller.fine = True
    return Flow(controller, packet=packet, batch=(0.0002, 0.001))


def controller_of(flow: Flow) -> RateController:
    assert isinstance(flow.controller, RateController)
    return flow.controller


@pytest.mark.one_in(4)
@pytest.mark.parametrize("loss", [0.0, 0.001, 0.01])
@pytest.mark.parametrize(("mbit", "rtt"), [(20, 0.01), (20, 0.05), (20, 0.15), (100, 0.01), (100, 0.05), (100, 0.15)])
def test_home_lines_are_used_to_97_percent_whatever_they_lose(mbit: float, rtt: float, loss: float) -> None:
    line, flow, seconds = line_of(mbit, rtt, loss=loss), flow_of(), 9 + 60 * rtt
    run(line, [flow], seconds)
    assert flow.rate_between(2 + 20 * rtt, seconds) >= 0.97 * line.rate * (1 - loss)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("loss", [0.0, 0.01])
@pytest.mark.parametrize("rtt", [0.01, 0.05, 0.15])
def test_a_gigabit_is_used_to_97_percent(rtt: float, loss: float) -> None:
    line, flow, seconds = line_of(1000, rtt, loss=loss, packet=LARGE_PACKET), flow_of(LARGE_PACKET), 5 + 40 * rtt
    run(line, [flow], seconds)
    assert flow.rate_between(1 + 20 * rtt, seconds) >= 0.97 * line.rate * (1 - loss)


def test_three_percent_of_loss_costs_three_percent() -> None:
    line, flow = line_of(100, 0.05, loss=0.03), flow_of()
    run(line, [flow], 12)
    assert flow.rate_between(3, 12) >= 0.95 * line.rate * 0.97


@pytest.mark.one_in(3)
@pytest.mark.parametrize("buffers", [1.0, 3.0])
@pytest.mark.parametrize(("mbit", "rtt"), [(20, 0.05), (20, 0.15), (100, 0.01), (100, 0.05), (100, 0.15)])
def test_the_round_trip_rises_by_at_most_a_quarter(mbit: float, rtt: float, buffers: float) -> None:
    line, flow, seconds = line_of(mbit, rtt, buffers=buffers), flow_of(), 9 + 60 * rtt
    run(line, [flow], seconds)
    assert flow.mean_rtt(2 + 20 * rtt, seconds) <= 1.25 * rtt


@pytest.mark.parametrize("loss_before", [False, True])
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.03])
def test_alone_on_a_short_slow_line_the_queue_is_three_packets(loss: float, loss_before: bool) -> None:
    line, flow = line_of(20, 0.01, buffers=3.0, loss=loss), flow_of()
    line.loss_before, line.measure_from = loss_before, 3.0
    run(line, [flow], 12)
    assert controller_of(flow).one_by_one
    assert line.waited / line.carried * line.rate <= 3.5 * PACKET_BYTES
    assert flow.rate_between(3, 12) >= 0.97 * line.rate * (1 - loss)


def test_without_a_fine_timer_it_is_twice_as_long() -> None:
    line, flow = line_of(20, 0.01, buffers=3.0), flow_of()
    controller_of(flow).fine = False
    line.measure_from = 2.0
    run(line, [flow], 10)
    assert not controller_of(flow).one_by_one
    assert 4 * PACKET_BYTES <= line.waited / line.carried * line.rate <= 6 * PACKET_BYTES


@pytest.mark.parametrize(("mbit", "rtt"), [(50, 0.005), (20, 0.05), (100, 0.01)])
def test_packets_leave_one_by_one_on_short_slow_lines_only(mbit: float, rtt: float) -> None:
    line, flow = line_of(mbit, rtt), flow_of()
    run(line, [flow], 6)
    assert not controller_of(flow).one_by_one


def test_a_gigabit_keeps_a_short_queue() -> None:
    line, flow = line_of(1000, 0.05, packet=LARGE_PACKET), flow_of(LARGE_PACKET)
    run(line, [flow], 6)
    assert flow.mean_rtt(2, 6) <= 1.25 * 0.05


def test_clumps_of_acknowledgements_do_not_lengthen_the_queue() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    flow.batch = (0.002, 0.008)
    run(line, [flow], 10)
    assert flow.mean_rtt(2, 10) <= 1.25 * 0.05
    assert flow.rate_between(2, 10) >= 0.97 * line.rate


def test_a_short_buffer_is_no_reason_to_be_slow() -> None:
    line, flow = line_of(100, 0.05, buffers=0.1), flow_of()
    run(line, [flow], 10)
    assert flow.rate_between(3, 10) >= 0.95 * line.rate
    assert flow.lost <= 0.08 * flow.sent


def test_a_cold_megabyte_takes_six_round_trips() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    run(line, [flow], 1)
    assert next(now for now, delivered in flow.delivered_log if delivered >= 1_000_000) <= 6 * 0.05


@pytest.mark.parametrize(("mbit", "rtt", "most"), [(5, 0.05, 1.1), (20, 0.01, 1.1), (20, 0.05, 1.4), (50, 0.03, 1.7)])
def test_the_first_packets_queue_is_not_taken_for_a_full_line(mbit: float, rtt: float, most: float) -> None:
    line, flow = line_of(mbit, rtt, buffers=3.0), flow_of()
    hello, total = 3 * PACKET_BYTES, 3 * PACKET_BYTES + (1 << 20)
    flow.supply = lambda now: total if now >= 0.5 else hello  # Small messages have measured the round trip before.
    run(line, [flow], 6)
    done = next(at for at, delivered in flow.delivered_log if delivered >= total)
    assert done - 0.5 <= most * ((1 << 20) / line.rate + rtt)


def test_the_start_leaves_no_queue_behind() -> None:
    line, flow = line_of(100, 0.05, buffers=3.0), flow_of()
    run(line, [flow], 2)
    assert flow.lost == 0
    assert flow.mean_rtt(0.75, 2) <= 1.25 * 0.05


def test_jitter_and_reordering_are_no_congestion() -> None:
    line, flow = line_of(100, 0.05, loss=0.02), flow_of()
    line.jitter, line.reordering = 0.003, 0.01
    run(line, [flow], 12)
    assert flow.rate_between(4, 12) >= 0.9 * line.rate * 0.98


def test_a_line_that_became_slower_is_drained_within_ten_of_its_round_trips() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    line.changes = ((5.0, 20 * MBIT),)
    run(line, [flow], 12)
    longest = max(rtt for now, rtt in flow.rtt_log if 5 < now < 8)
    assert flow.mean_rtt(5 + 5 * longest, 12) <= 1.3 * 0.05
    assert flow.rate_between(7, 12) >= 0.93 * 20 * MBIT


def test_a_line_that_became_faster_is_filled_within_three_seconds() -> None:
    line, flow = line_of(20, 0.05), flow_of()
    line.changes, line.buffer = ((5.0, 100 * MBIT),), 100 * MBIT * 0.05
    run(line, [flow], 12)
    assert flow.rate_between(8, 12) >= 0.95 * 100 * MBIT


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("rtt", "within"), [(0.08, 12.0), (0.02, 1.0)])
def test_another_route_is_learnt(rtt: float, within: float) -> None:
    line, flow = line_of(100, 0.05), flow_of()
    line.rtt_changes = ((5.0, rtt),)
    end = 5 + within + 5
    run(line, [flow], end)
    assert flow.controller.min_rtt == pytest.approx(rtt, rel=0.1)
    assert flow.rate_between(5 + within, end) >= 0.95 * line.rate


def test_a_small_part_of_the_rate_teaches_nothing_wrong() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    flow.supply = lambda now: now * 20 * MBIT if now < 6 else 1e12
    run(line, [flow], 10)
    assert flow.mean_rtt(2, 6) <= 1.1 * 0.05
    assert flow.rate_between(7.5, 10) >= 0.95 * line.rate


def test_a_supply_of_two_milliseconds_at_a_time_fills_a_line_that_became_faster() -> None:
    line, flow = line_of(50, 0.05), flow_of()
    line.changes, line.buffer = ((4.0, 100 * MBIT),), 100 * MBIT * 0.05
    controller = flow.controller
    flow.supply = lambda now: flow.delivered + flow.inflight + max(controller.bandwidth * 0.002, 4 * PACKET_BYTES)
    run(line, [flow], 12)
    assert flow.rate_between(7, 12) >= 0.95 * 100 * MBIT


def test_after_idling_it_goes_on_where_it_was() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    flow.supply = lambda now: 2e6 if now < 4 else 1e12
    run(line, [flow], 8)
    assert flow.rate_between(5, 8) >= 0.95 * line.rate


def test_acknowledgements_that_were_held_up_do_not_raise_the_estimate() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    line.stalls = ((4.0, 4.2), (5.5, 5.7))
    seen: list[float] = []
    controller = controller_of(flow)
    learn = controller.on_ack

    def on_ack(sample: AckSample) -> None:
        learn(sample)
        seen.append(controller.bandwidth)

    controller.on_ack = on_ack  # type: ignore[method-assign]
    run(line, [flow], 9)
    assert max(seen) <= 1.2 * line.rate
    assert flow.rate_between(6.5, 9) >= 0.95 * line.rate


def test_after_an_outage_it_fills_the_line_again() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    line.stalls = ((3.0, 6.0),)
    run(line, [flow], 10)
    assert flow.rate_between(8, 10) >= 0.95 * line.rate


def nonsense(now: float, *, round_ended: bool = True) -> AckSample:
    return AckSample(now, 0.000_001, 1e15, False, 1 << 40, 0, 1 << 40, round_ended)


def test_a_peer_that_acknowledges_nonsense_gets_no_infinite_rate() -> None:
    controller = RateController(PACKET_BYTES)
    for step in range(2000):
        controller.on_ack(nonsense(step * 0.01))
    assert 0 < controller.pacing_rate <= MAX_RATE
    assert 0 < controller.window <= MAX_WINDOW


def test_a_timeout_leaves_the_least_window_and_the_round_trip() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    run(line, [flow], 3)
    controller = controller_of(flow)
    controller.on_timeout(3.5)
    assert controller.window == 4 * PACKET_BYTES
    assert controller.state == "startup"
    assert controller.min_rtt == pytest.approx(0.05, rel=0.02)


def test_another_path_is_learnt_from_nothing() -> None:
    line, flow = line_of(100, 0.05), flow_of()
    run(line, [flow], 3)
    controller = controller_of(flow)
    controller.on_path_change(3.5)
    fresh = RateController(PACKET_BYTES)
    assert (controller.min_rtt, controller.bandwidth, controller.window) == (None, 0.0, fresh.window)
    assert controller.pacing_rate == fresh.pacing_rate


def test_a_known_round_trip_paces_the_first_window() -> None:
    slow, fast = RateController(PACKET_BYTES, rtt_hint=0.2), RateController(PACKET_BYTES, rtt_hint=0.01)
    assert slow.window == fast.window
    assert slow.pacing_rate == pytest.approx(fast.pacing_rate / 20)


def test_the_controller_is_what_the_data_path_expects() -> None:
    controller: Controller = RateController(PACKET_BYTES)
    assert controller.min_rtt is None
    assert controller.bandwidth == 0.0

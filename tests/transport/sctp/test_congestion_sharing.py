"""The rate controller among others: a TCP download, flows of its own kind, and the polite mode."""

import pytest

from tests.sim.bottleneck import Cubic, Flow, Line, run
from transport.sctp.congestion.control import AckSample
from transport.sctp.congestion.controller import RateController

PACKET = 1448
RATE = 12_500_000.0  # 100 Mbit/s


def ours(start: float = 0.0, *, polite: bool = False) -> Flow:
    """A flow that is supplied in pieces of two milliseconds, as messages are: the supply limits nearly all its samples."""
    controller = RateController(PACKET, polite=polite)
    controller.fine = True
    flow = Flow(controller, start=start)
    flow.supply = lambda now: flow.delivered + flow.inflight + max(controller.bandwidth * 0.002, 4 * PACKET)
    return flow


def download(start: float = 2.0, stop: float = float("inf")) -> Flow:
    return Flow(Cubic(), start=start, stop=stop, batch=(0.0001, 0.0005))


def line_of(rtt: float = 0.05, buffers: float = 1.0, loss: float = 0.0) -> Line:
    return Line(RATE, rtt, buffers * RATE * rtt, loss)


def evenness(rates: list[float]) -> float:
    """Jain's index."""
    return sum(rates) ** 2 / (len(rates) * sum(rate * rate for rate in rates))


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("buffers", [1.0, 3.0])
@pytest.mark.parametrize("rtt", [0.02, 0.05])
def test_a_download_and_we_get_between_a_third_and_two_thirds(rtt: float, buffers: float, seed: int) -> None:
    line, flow, other = line_of(rtt, buffers), ours(), download()
    run(line, [flow, other], 60, seed)
    share = flow.rate_between(7, 60) / (flow.rate_between(7, 60) + other.rate_between(7, 60))
    assert 1 / 3 <= share <= 2 / 3


@pytest.mark.long
@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("rtt", [0.02, 0.05])
def test_who_comes_to_a_line_that_a_download_fills_gets_a_third(rtt: float) -> None:
    line, other, flow = line_of(rtt), download(start=0.0), ours(start=5.0)
    run(line, [other, flow], 50)
    share = flow.rate_between(20, 50) / (flow.rate_between(20, 50) + other.rate_between(20, 50))
    assert 1 / 3 <= share <= 2 / 3


def test_a_stall_of_the_machine_does_not_hide_the_losses_of_a_full_queue() -> None:
    line, flow, other = line_of(0.02), ours(), download(start=1.0)
    run(line, [flow, other], 12)
    controller = flow.controller
    assert isinstance(controller, RateController)
    assert controller.state == "competing"
    window = controller.window

    def acknowledge(now: float, rtt: float, lost: int) -> None:
        controller.on_ack(AckSample(now, rtt, 6e6, True, PACKET, lost, window, False))

    for step in range(20):  # What waited in a process that did not run.
        acknowledge(12.1, 0.09 - step * 0.001, 0)
    for step in range(5):
        acknowledge(12.101 + step * 0.0002, 0.039, 0)
    before = controller.window
    acknowledge(12.2, 0.039, PACKET)
    assert controller.window <= 0.75 * before


@pytest.mark.long
@pytest.mark.slow
def test_when_the_download_ends_several_of_us_settle_again() -> None:
    line, flows, other = line_of(), [ours(start=float(index)) for index in range(3)], download(start=4.0, stop=12.0)
    run(line, [*flows, other], 45)
    assert evenness([flow.rate_between(36, 45) for flow in flows]) >= 0.95
    assert flows[0].mean_rtt(36, 45) <= 1.25 * line.rtt


def test_when_the_download_ends_the_queue_goes() -> None:
    line, flow, other = line_of(), ours(), download(stop=10.0)
    run(line, [flow, other], 28)
    assert flow.rate_between(14, 28) >= 0.95 * RATE
    assert flow.mean_rtt(22, 28) <= 1.25 * line.rtt


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4, 8])
def test_flows_of_our_kind_even_out(count: int) -> None:
    line, flows = line_of(), [ours(start=index * 2.0) for index in range(count)]
    run(line, flows, 46)
    rates = [flow.rate_between(25, 45) for flow in flows]
    assert evenness(rates) >= 0.95
    assert sum(rates) >= 0.95 * RATE
    assert max(flow.mean_rtt(25, 45) for flow in flows) <= 1.5 * line.rtt


@pytest.mark.one_in(4)
@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("count", [2, 4])
def test_who_was_alone_on_a_short_line_shares_it(count: int, seed: int) -> None:
    line = Line(RATE / 5, 0.01, RATE / 5 * 0.01)
    flows = [ours(start=15.0 * bool(index) + index) for index in range(count)]
    run(line, flows, 60, seed)
    assert evenness([flow.rate_between(40, 60) for flow in flows]) >= 0.95


def test_flows_of_our_kind_even_out_on_a_line_that_loses() -> None:
    line, flows = line_of(loss=0.01), [ours(start=index * 1.0) for index in range(3)]
    run(line, flows, 24)
    rates = [flow.rate_between(14, 24) for flow in flows]
    assert evenness(rates) >= 0.95
    assert sum(rates) >= 0.95 * RATE * 0.99


@pytest.mark.one_in(3)
@pytest.mark.parametrize("buffers", [1.0, 3.0])
@pytest.mark.parametrize("rtt", [0.02, 0.05])
def test_a_polite_flow_yields_to_a_download(rtt: float, buffers: float) -> None:
    line, flow, other = line_of(rtt, buffers), ours(polite=True), download()
    run(line, [flow, other], 16)
    assert flow.rate_between(3.5, 16) <= 0.10 * RATE
    assert other.rate_between(6, 16) >= 0.85 * RATE


def test_a_polite_flow_yields_within_two_round_trips_of_a_full_queue() -> None:
    line, flow, other = line_of(), ours(polite=True), download()
    run(line, [flow, other], 4)
    seen = next(now for now, rtt in flow.rtt_log if now > 2 and rtt > 1.5 * line.rtt)
    assert flow.rate_between(seen + 0.15, seen + 0.4) <= 0.25 * RATE


def test_a_polite_flow_takes_an_idle_line_again() -> None:
    line, flow, other = line_of(), ours(polite=True), download(stop=8.0)
    run(line, [flow, other], 26)
    assert flow.rate_between(11, 18) >= 0.7 * RATE
    assert flow.rate_between(21, 26) >= 0.9 * RATE


def test_a_polite_flow_fills_an_idle_line() -> None:
    line, flow = line_of(), ours(polite=True)
    run(line, [flow], 10)
    assert flow.rate_between(3, 10) >= 0.95 * RATE
    assert flow.mean_rtt(3, 10) <= 1.15 * line.rtt


def test_politeness_can_be_switched_while_running() -> None:
    line, flow, other = line_of(), ours(), download(start=1.0)
    run(line, [flow, other], 10)
    before = flow.rate_between(5, 10)
    line, flow, other = line_of(), ours(), download(start=1.0)
    controller = flow.controller
    assert isinstance(controller, RateController)
    flow.on_time = {10.0: lambda: setattr(controller, "polite", True)}
    run(line, [flow, other], 22)
    assert before >= 0.2 * RATE
    assert flow.rate_between(17, 22) <= 0.10 * RATE


def test_a_polite_flow_yields_to_an_ordinary_one() -> None:
    line, quiet, loud = line_of(), ours(polite=True), ours(start=2.0)
    run(line, [quiet, loud], 14)
    assert loud.rate_between(6, 14) >= 0.8 * RATE

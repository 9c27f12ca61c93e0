"""The pure parts: the kind of NAT from what was seen, rates from counts, and the words for it all."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import decode, encode
from protocol.network import NetworkReport
from transport.nettest import words
from transport.nettest.errors import NoRelayError, SpeedError
from transport.nettest.nat import Filtering, Mapping, Nat, classify
from transport.nettest.ping import summarise
from transport.nettest.result import NetTest, PeerTest, RelayResult
from transport.nettest.speed import Trace, steady_rate
from transport.nettest.target import targets

HOME, ROUTER = ("192.168.1.2", 5000), ("9.9.9.9", 6000)
A, A_PORT, B, B_PORT = ("1.1.1.1", 3478), ("1.1.1.1", 3479), ("2.2.2.2", 3478), ("2.2.2.2", 3479)
SAME = Mapping(HOME, {A: ROUTER, B_PORT: ROUTER})
SAME_ADDRESS_ONLY = Mapping(HOME, {A: ROUTER, A_PORT: ROUTER})


@pytest.mark.parametrize(
    ("mapping", "filtering", "expected"),
    [
        (Mapping(HOME, {A: HOME, B: HOME}), Filtering(True, True), Nat("none", True)),
        (Mapping(HOME, {A: HOME}), Filtering(), Nat("none", True)),
        (SAME, Filtering(True, True), Nat("full cone", True)),
        (SAME, Filtering(False, True), Nat("address cone", True)),
        (SAME, Filtering(False, False), Nat("port cone", True)),
        (SAME, Filtering(None, None), Nat("port cone", False)),
        (SAME, Filtering(None, True), Nat("address cone", False)),
        (SAME_ADDRESS_ONLY, Filtering(None, True), Nat("address cone", False)),
        (SAME_ADDRESS_ONLY, Filtering(None, False), Nat("port cone", False)),
        (Mapping(HOME, {A: ROUTER, A_PORT: ("9.9.9.9", 6001)}), Filtering(), Nat("symmetric", True)),
        (Mapping(HOME, {A: ROUTER, B: ("9.9.9.8", 6000)}), Filtering(True, True), Nat("symmetric", True)),
        (Mapping(HOME, {A: ROUTER}), Filtering(None, False), Nat("unknown", False)),
    ],
)
def test_the_kind_follows_from_mapping_and_filtering(mapping: Mapping, filtering: Filtering, expected: Nat) -> None:
    assert classify(mapping, filtering, stream=True) == expected


def test_without_an_answer_over_udp_it_depends_on_tcp() -> None:
    assert classify(None, Filtering(), stream=True) == Nat("no udp", True)
    assert classify(None, Filtering(), stream=False) == Nat("unknown", False)


def trace(*counts: tuple[float, int]) -> Trace:
    made = Trace()
    for at, total in counts:
        made.add(at, total)
    return made


def test_the_start_up_does_not_count() -> None:
    slow_start = trace((10.0, 0), (10.8, 100), (11.0, 1100), (12.0, 6100))
    assert steady_rate([slow_start], 0.8) == pytest.approx(5000)


def test_connections_add_up_even_where_one_ends_early_or_begins_late() -> None:
    whole = trace((0.0, 0), (1.0, 1000), (2.0, 2000))
    early = trace((0.0, 0), (1.0, 1000), (1.5, 1500))
    late = trace((1.5, 0), (2.0, 500))
    assert steady_rate([whole, early, late], 1.0) == pytest.approx(1000 + 500 + 500)


@pytest.mark.parametrize("traces", [[], [Trace()], [trace((0.0, 0), (1.1, 5))]], ids=["none", "empty", "short"])
def test_too_little_is_no_rate(traces: list[Trace]) -> None:
    with pytest.raises(SpeedError):
        steady_rate(traces, 0.8)


@given(rate=st.floats(1e3, 7e8), connections=st.integers(1, 16), step=st.floats(0.01, 0.1))
def test_an_even_flow_has_the_rate_that_it_has(rate: float, connections: int, step: float) -> None:
    steps = int(2 / step)
    traces = [trace(*((k * step, int(rate * k * step)) for k in range(steps + 1))) for _ in range(connections)]
    assert steady_rate(traces, 0.8) == pytest.approx(rate * connections, rel=0.02)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 2**64 - 1)), max_size=20))
def test_whatever_a_relay_reports_the_rate_is_one_that_the_coordinator_takes(counts: list[tuple[float, int]]) -> None:
    try:
        rate = steady_rate([trace(*sorted(counts, key=lambda count: count[0]))], 0.8)
    except SpeedError:
        return
    assert 0 <= rate <= 1e12


def test_round_trips_are_told_by_their_median_and_the_lost_ones_by_their_share() -> None:
    found = summarise(50, [0.010] * 25 + [0.5] * 20)
    assert (found.rtt_s, found.loss) == (0.010, pytest.approx(0.1))
    assert (summarise(50, ()).rtt_s, summarise(50, ()).loss) == (None, 1.0)
    assert summarise(0, ()).loss == 0


def relay(**changes: object) -> RelayResult:
    return RelayResult(**({"relay": "turn:a:1", "rtt_s": 0.02, "loss": 0.0, "udp": True, "stream": True} | changes))


def test_the_coordinator_hears_what_was_measured_and_only_that() -> None:
    silent = relay(relay="turn:b:1", rtt_s=None, udp=False, stream=False)
    test = NetTest(1.0, 6.0, "port cone", True, "9.9.9.9", False, (relay(), silent), 2e6, 1e7)
    report = test.report()
    assert [measure.relay for measure in report.relays] == ["turn:a:1"]
    assert (report.nat, report.up, report.down) == ("port cone", 2e6, 1e7)
    assert decode(encode(report), NetworkReport) == report
    assert msgspec.json.decode(msgspec.json.encode(test), type=NetTest) == test


def test_every_kind_has_words_and_doubt_is_said() -> None:
    for kind in ("none", "full cone", "address cone", "port cone", "symmetric", "no udp", "unknown"):
        test = NetTest(1.0, 6.0, kind, False, relays=(relay(),))
        assert words.nat(test)
        assert words.earning(test)
    assert words.nat(NetTest(1.0, 6.0, "port cone", True)) == "port-restricted cone: most peers reach you directly"
    assert "not all could be asked" in words.nat(NetTest(1.0, 6.0, "port cone", False))


def test_people_are_told_what_is_wrong_with_their_line() -> None:
    good = NetTest(1.0, 6.0, "port cone", True, relays=(relay(),), up=5e6, down=5e6)
    assert words.earning(good) == ["This line is good for every kind of job."]
    bad = msgspec.structs.replace(good, nat="symmetric", up=1e5, relays=(relay(loss=0.05),))
    assert len(words.earning(bad)) == 3
    assert "cannot take part" in words.earning(msgspec.structs.replace(good, relays=(relay(rtt_s=None),)))[0]
    assert words.rate(None) == "not measured"
    assert words.rate(12.5e6) == "100.0 Mbit/s"


def test_a_link_looks_the_other_way_round_from_the_other_side() -> None:
    seen = PeerTest("2" * 44, 0.02, 0.0, up=1.0, down=2.0)
    assert (seen.turned("3" * 44).up, seen.turned("3" * 44).down, seen.turned("3" * 44).peer) == (2.0, 1.0, "3" * 44)


def test_the_ways_to_a_relay_follow_from_its_urls() -> None:
    one, two, three = targets(
        [
            (("turn:a.test:3478?transport=udp",), "u", "c"),
            (("turn:b.test:1?transport=udp", "turn:b.test:2?transport=tcp", "turns:b.test:3?transport=tcp"), "u", "c"),
            (("stun:c.test:3478",), "", ""),
            (("turns:d.test:443?transport=tcp",), "u", "c"),
        ]
    )
    assert one.datagram is not None
    assert (one.datagram.port, [server.transport for server in one.streams]) == (3478, ["tcp"])
    assert [server.port for server in two.streams] == [2, 3]
    assert (three.datagram, [server.secure for server in three.streams]) == (None, [True])
    with pytest.raises(NoRelayError):
        targets([(("stun:c.test:3478",), "", "")])

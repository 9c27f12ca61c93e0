"""Path MTU discovery against simulated paths, by table and by property."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from transport.sctp.mtu import (
    BASE_MTU,
    BLACK_HOLE_LOSSES,
    COMMON_MTUS,
    FIRST_TIMEOUT_S,
    JUMBO_MTUS,
    LIKELY_MTU,
    MAX_TRIES,
    RAISE_INTERVAL_S,
    PathMtu,
)

EVERY_SIZE = sorted({*COMMON_MTUS, *JUMBO_MTUS})
PROBES_AT_MOST = MAX_TRIES * len(EVERY_SIZE)


class Path:
    """A path that carries packets up to ``carries`` bytes, and what the discovery did on it."""

    def __init__(self, interface: int, carries: int, rtt: float = 0.05) -> None:
        self.carries = carries
        self.rtt = rtt
        self.now = 0.0
        self.sent: list[int] = []
        self.acknowledged: set[int] = set()
        self.found = PathMtu(interface)

    def search(self, lost: set[int] = frozenset()) -> int:  # type: ignore[assignment]
        """Run until nothing is left to try; ``lost`` are the numbers of probes that vanish by chance."""
        for _ in range(2 * PROBES_AT_MOST):
            size = self.found.next_probe(self.now)
            if size is None:
                return self.found.mtu
            self.sent.append(size)
            if size <= self.carries and len(self.sent) not in lost:
                self.now += self.rtt
                self.acknowledged.add(size)
                self.found.on_rtt(self.rtt)
                self.found.on_probe_acked(size, self.now)
            else:
                assert self.found.deadline is not None
                self.now = max(self.now, self.found.deadline)
                self.found.on_timer(self.now)
        raise AssertionError("the search does not end")


@pytest.mark.parametrize(
    ("interface", "carries", "expected"),
    [
        (1500, 1500, 1500),
        (1500, 1492, 1492),
        (1500, 1480, 1480),
        (1500, 1479, 1460),
        (1500, 1420, 1420),
        (1500, 1400, 1400),
        (1500, 1280, 1280),
        (1500, 1279, BASE_MTU),
        (1500, 1200, BASE_MTU),
        (1500, 600, BASE_MTU),
        (1412, 1412, 1412),
        (1412, 1400, 1400),
        (1280, 1280, 1280),
        (9000, 9000, 9000),
        (9000, 1500, 1500),
        (9000, 1492, 1492),
        (65_536, 65_536, 9000),
        (65_536, 4352, 4352),
        (1200, 1200, 1200),
        (576, 576, 576),
    ],
)
def test_the_greatest_size_that_the_path_carries_is_found(interface: int, carries: int, expected: int) -> None:
    assert Path(interface, carries).search() == expected


def test_an_ordinary_line_is_settled_in_two_round_trips() -> None:
    path = Path(1500, 1500)
    path.search()
    assert path.sent == [LIKELY_MTU, 1500]


def test_a_size_counts_as_too_great_only_after_three_losses() -> None:
    path = Path(1500, 1492)
    path.search()
    assert path.sent == [1492, 1500, 1500, 1500]
    chance = Path(1500, 1500)
    assert chance.search(lost={1, 2}) == 1500
    assert chance.sent == [1492, 1492, 1492, 1500]


def test_only_one_probe_is_on_its_way() -> None:
    found = PathMtu(1500)
    assert found.next_probe(0.0) == LIKELY_MTU
    assert found.next_probe(0.1) is None
    found.on_timer(0.1)
    assert found.next_probe(0.1) is None, "its time is not over"
    assert found.deadline == FIRST_TIMEOUT_S


def test_a_late_answer_still_counts() -> None:
    path = Path(1500, 1480)
    path.search()
    path.found.on_probe_acked(1492, path.now)
    assert path.found.mtu == 1492


def test_an_answer_to_a_size_that_was_never_sent_counts_for_nothing() -> None:
    found = PathMtu(65_536)
    for size in (0, 1200, 1499, 9000, 65_536, 1 << 40):
        found.on_probe_acked(size, 0.0)
    assert found.mtu == BASE_MTU


def test_greater_sizes_are_tried_again_every_ten_minutes() -> None:
    path = Path(1500, 1492)
    path.search()
    assert path.found.deadline == pytest.approx(path.now + RAISE_INTERVAL_S)
    path.carries = 1500
    path.found.on_timer(path.now + 1)
    assert path.found.next_probe(path.now + 1) is None
    path.now += RAISE_INTERVAL_S
    path.found.on_timer(path.now)
    assert path.search() == 1500
    assert path.found.deadline is None, "nothing is left to raise to"


def test_a_black_hole_sends_it_back_to_the_base_and_the_new_size_is_found() -> None:
    path = Path(1500, 1500)
    path.search()
    path.carries = 1440
    path.found.on_loss_of_full_packets(BLACK_HOLE_LOSSES - 1, path.now)
    assert path.found.mtu == 1500
    path.found.on_loss_of_full_packets(BLACK_HOLE_LOSSES, path.now)
    assert path.found.mtu == BASE_MTU
    assert path.search() == 1440


def test_a_false_alarm_costs_two_round_trips() -> None:
    path = Path(1500, 1500)
    path.search()
    path.sent.clear()
    path.found.on_loss_of_full_packets(BLACK_HOLE_LOSSES, path.now)
    assert path.search() == 1500
    assert path.sent == [LIKELY_MTU, 1500]


def test_a_size_that_fails_data_again_after_its_probes_passed_is_left_alone_for_ten_minutes() -> None:
    path = Path(1500, 1500)
    for _ in range(2):
        assert path.search() == 1500
        path.found.on_loss_of_full_packets(BLACK_HOLE_LOSSES, path.now)
    assert path.search() == 1492
    path.now += RAISE_INTERVAL_S
    path.found.on_timer(path.now)
    assert path.search() == 1500


def test_losses_at_the_base_are_no_black_hole() -> None:
    path = Path(1500, 1000)
    path.search()
    path.sent.clear()
    path.found.on_loss_of_full_packets(1000, path.now)
    assert path.search() == BASE_MTU
    assert not path.sent


def test_a_new_path_is_searched_from_the_base_with_its_own_interface() -> None:
    path = Path(1500, 1500)
    path.search()
    path.found.on_path_change(65_536, path.now)
    assert path.found.mtu == BASE_MTU
    path.carries = 4400
    assert path.search() == 4352


def test_an_answer_from_before_the_path_changed_counts_for_nothing() -> None:
    found = PathMtu(1500)
    size = found.next_probe(0.0)
    assert size is not None
    found.on_path_change(1500, 0.1)
    found.on_probe_acked(size, 0.2)
    assert found.mtu == BASE_MTU


def test_a_size_that_the_interface_refuses_is_given_up_at_once() -> None:
    found = PathMtu(1500)
    assert found.next_probe(0.0) == 1492
    found.on_too_big(1492, 0.0)
    second = found.next_probe(0.0)
    assert second is not None
    assert second < 1492


def test_an_interface_that_refuses_everything_is_asked_only_once_for_each_size() -> None:
    found = PathMtu(1500)
    asked = []
    while (size := found.next_probe(0.0)) is not None:
        asked.append(size)
        found.on_too_big(size, 0.0)
    assert found.mtu == BASE_MTU
    assert len(asked) == len(set(asked)) <= len(COMMON_MTUS)


def test_a_refused_size_is_not_tried_again_after_ten_minutes() -> None:
    path = Path(1500, 1480)
    path.found.on_too_big(1481, path.now)
    assert path.search() == 1480
    assert max(path.sent) == 1480
    assert path.found.deadline is None


def test_an_interface_that_shrinks_takes_the_mtu_down_to_a_size_that_was_acknowledged() -> None:
    path = Path(1500, 1500)
    path.search()
    path.found.on_too_big(1500, path.now)
    assert path.found.mtu == 1492
    assert not path.found.searching
    path.found.on_too_big(1300, path.now)
    assert path.found.mtu <= 1280
    assert path.found.mtu in {BASE_MTU, *path.acknowledged}


def test_the_time_of_a_probe_follows_the_round_trip() -> None:
    found = PathMtu(1500)
    found.on_rtt(0.6)
    found.next_probe(10.0)
    assert found.deadline == pytest.approx(11.8)


paths = st.integers(576, 10_000)
events = st.lists(
    st.one_of(
        st.tuples(st.just("search"), st.frozensets(st.integers(1, 80), max_size=30)),
        st.tuples(st.just("carries"), paths),
        st.tuples(st.just("losses"), st.integers(1, 30)),
        st.tuples(st.just("too big"), paths),
        st.tuples(st.just("wait"), st.floats(0, 2 * RAISE_INTERVAL_S)),
        st.tuples(st.just("move"), paths),
        st.tuples(st.just("forged"), paths),
    ),
    max_size=12,
)


@example(interface=1201, carries=576, story=[("search", frozenset()), ("forged", 1201)])
@given(interface=paths, carries=paths, story=events)
def test_whatever_happens_no_size_is_reported_that_was_not_acknowledged(
    interface: int, carries: int, story: list[tuple[str, object]]
) -> None:
    path = Path(interface, carries)
    limit = interface
    for what, value in story:
        if what == "search":
            path.sent.clear()
            path.search(value)  # type: ignore[arg-type]
            assert len(path.sent) <= PROBES_AT_MOST
            assert max(path.sent, default=0) <= max(limit, BASE_MTU)
        elif what == "carries":
            path.carries = value  # type: ignore[assignment]
        elif what == "losses":
            path.found.on_loss_of_full_packets(value, path.now)  # type: ignore[arg-type]
        elif what == "too big":
            path.found.on_too_big(value, path.now)  # type: ignore[arg-type]
        elif what == "wait":
            path.now += value  # type: ignore[operator]
            path.found.on_timer(path.now)
        elif what == "forged" and value not in {*EVERY_SIZE, limit}:  # Of a size that was never sent.
            path.found.on_probe_acked(value, path.now)  # type: ignore[arg-type]
        elif what == "move":
            limit = value  # type: ignore[assignment]
            path.acknowledged.clear()
            path.found.on_path_change(limit, path.now)
        assert path.found.mtu in path.acknowledged or path.found.mtu <= BASE_MTU


@given(interface=st.integers(1280, 10_000), first=paths, then=paths)
def test_after_a_black_hole_what_is_found_is_what_a_fresh_search_finds(interface: int, first: int, then: int) -> None:
    path = Path(interface, first)
    path.search()
    path.carries = then
    if path.found.mtu > then:
        path.found.on_loss_of_full_packets(BLACK_HOLE_LOSSES, path.now)
    path.now += RAISE_INTERVAL_S
    path.found.on_timer(path.now)
    assert path.search() == Path(interface, then).search()

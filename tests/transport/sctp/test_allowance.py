"""Shared limits over virtual time."""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.sctp.allowance import BURST_S, MAX_WAIT_S, MIN_BURST, MIN_WAIT_S, MIN_WINDOW, Allowance, Usage, month_of

MBIT = 125_000.0  # Bytes a second.
PACKET = 1440


class Line:
    """Associations that ask for what they want to send, on one virtual clock."""

    def __init__(self, allowance: Allowance, start: float = 1000.0) -> None:
        self.allowance = allowance
        self.now = start
        self.sent: Counter[str] = Counter()
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def greedy(self, name: str, nbytes: int = 10 * PACKET, late_s: float = 0.0, stop: float = float("inf")) -> None:
        """Sends as much as it may, ``nbytes`` at a time; comes back up to ``late_s`` later than told."""
        chance = random.Random(name)

        def ask() -> None:
            wait = 0.0
            while self.now < stop and (wait := self.allowance.take_upload(name, nbytes, self.now)) == 0:
                self.sent[name] += nbytes
            if self.now < stop:
                assert MIN_WAIT_S <= wait <= MAX_WAIT_S
                self.at(self.now + wait + chance.uniform(0, late_s), ask)

        self.at(self.now, ask)

    def modest(self, name: str, nbytes: int, every_s: float, waits: list[float]) -> None:
        """Sends a little now and then; ``waits`` takes how long each had to wait."""

        def ask(since: float) -> None:
            wait = self.allowance.take_upload(name, nbytes, self.now)
            if wait:
                self.at(self.now + wait, lambda: ask(since))
            else:
                self.sent[name] += nbytes
                waits.append(self.now - since)
                self.at(since + every_s, lambda: ask(self.now))

        self.at(self.now, lambda: ask(self.now))

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), action))

    def run(self, seconds: float) -> Counter[str]:
        """Let time pass; what each has sent in it."""
        before, end = self.sent.copy(), self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = end
        return self.sent - before


@pytest.mark.parametrize("rate", [50_000.0, 1 * MBIT, 20 * MBIT, 400 * MBIT])
@pytest.mark.parametrize("senders", [1, 2, 7])
def test_the_upload_rate_is_kept_within_two_per_cent(rate: float, senders: int) -> None:
    line = Line(Allowance(upload=rate))
    for number in range(senders):
        line.greedy(f"peer {number}")
    line.run(2)
    seconds = 50_000_000 / rate if rate > 20 * MBIT else 30
    total = line.run(seconds).total()
    assert total == pytest.approx(rate * seconds, rel=0.02)


def test_never_more_than_the_rate_and_one_burst_leaves_in_any_second() -> None:
    rate = 10 * MBIT
    line = Line(Allowance(upload=rate))
    line.greedy("one")
    line.greedy("two", 3 * PACKET, late_s=0.004)
    for _ in range(20):
        assert line.run(1.0).total() <= rate * (1 + BURST_S) + 10 * PACKET


def test_the_burst_follows_the_limit_and_has_none_without_one() -> None:
    allowance = Allowance(upload=40 * MBIT)
    assert allowance.burst == 40 * MBIT * BURST_S
    allowance.change(1000.0, None, None)
    assert allowance.burst == MIN_BURST
    allowance.change(None, None, None)
    assert allowance.burst == float("inf")


def test_a_pause_earns_one_burst_and_no_more() -> None:
    allowance = Allowance(upload=1 * MBIT)
    line = Line(allowance)
    line.run(3600)
    line.greedy("one", PACKET)
    assert line.run(0.0).total() <= max(MIN_BURST, MBIT * BURST_S) + PACKET


@pytest.mark.parametrize("sizes", [(PACKET, PACKET), (PACKET, 20 * PACKET), (2 * PACKET, 7 * PACKET, 20 * PACKET, 60)])
def test_greedy_senders_get_equal_shares_whatever_they_ask_for_at_a_time(sizes: Sequence[int]) -> None:
    line = Line(Allowance(upload=20 * MBIT))
    for number, size in enumerate(sizes):
        line.greedy(f"peer {number}", size, late_s=0.0005 * number)
    line.run(1)
    shares = line.run(20)
    mean = shares.total() / len(sizes)
    assert all(share == pytest.approx(mean, rel=0.05) for share in shares.values())
    assert shares.total() == pytest.approx(20 * 20 * MBIT, rel=0.02)


def test_who_asks_for_little_hardly_waits_behind_those_who_ask_for_everything() -> None:
    line = Line(Allowance(upload=20 * MBIT))
    for number in range(5):
        line.greedy(f"peer {number}", 20 * PACKET)
    waits: list[float] = []
    line.modest("control", 200, 0.01, waits)
    line.run(10)
    assert len(waits) > 800
    waits.sort()
    assert waits[len(waits) // 2] <= 0.015
    assert waits[-1] < 0.1


def test_a_share_that_is_not_used_goes_to_the_others() -> None:
    line = Line(Allowance(upload=10 * MBIT))
    line.greedy("one")
    line.greedy("gone", stop=line.now + 5)
    line.run(5.2)
    assert line.run(10)["one"] == pytest.approx(100 * MBIT, rel=0.02)


def test_one_that_was_idle_gets_its_share_and_no_arrears() -> None:
    line = Line(Allowance(upload=10 * MBIT))
    line.greedy("one")
    line.run(60)
    line.greedy("late")
    line.run(0.5)
    shares = line.run(10)
    assert shares["late"] == pytest.approx(shares["one"], rel=0.05)


def take_all(allowance: Allowance, name: str, now: float) -> None:
    """Take until the tokens are gone."""
    while allowance.take_upload(name, 10 * PACKET, now) == 0:
        pass


def test_one_that_got_what_it_waited_for_holds_nobody_up() -> None:
    allowance = Allowance(upload=10 * MBIT)
    take_all(allowance, "much", 0.0)
    assert allowance.take_upload("little", PACKET, 0.0) > 0
    assert allowance.take_upload("little", PACKET, 0.01) == 0
    assert allowance.take_upload("much", PACKET, 0.01) == 0


def test_one_that_waited_when_the_clock_was_put_back_holds_nobody_up() -> None:
    allowance = Allowance(upload=10 * MBIT)
    take_all(allowance, "much", 1000.0)
    assert allowance.take_upload("gone", PACKET, 1000.0) > 0
    assert allowance.take_upload("much", PACKET, 1000.01) > 0, "the other one comes first"
    allowance.charge_upload(0, 3.0)
    assert allowance.take_upload("much", PACKET, 3.02) == 0


def test_limits_change_while_running() -> None:
    allowance = Allowance(upload=10 * MBIT)
    line = Line(allowance)
    line.greedy("one")
    line.greedy("two")
    line.run(2)
    for rate in (40 * MBIT, 2 * MBIT, 80 * MBIT):
        allowance.change(rate, None, None)
        line.run(0.5)
        assert line.run(10).total() == pytest.approx(10 * rate, rel=0.02)
    allowance.change(None, None, None)
    assert allowance.take_upload("one", 1 << 30, line.now) == 0
    allowance.change(1 * MBIT, None, None)
    line.run(MAX_WAIT_S)
    assert line.run(20).total() == pytest.approx(20 * MBIT, rel=0.02)


def test_without_limits_nothing_waits_and_no_window_is_set() -> None:
    allowance = Allowance()
    assert all(allowance.take_upload("one", 10**9, now) == 0 for now in (0.0, 0.0, -5.0))
    assert allowance.download_window("one", 0.1) is None
    assert allowance.remaining is None
    assert not allowance.exhausted


def test_what_must_be_sent_without_asking_counts_against_the_rate() -> None:
    allowance = Allowance(upload=10 * MBIT)
    line = Line(allowance)
    line.greedy("one")

    def acknowledge() -> None:
        allowance.charge_upload(2500, line.now)
        line.at(line.now + 0.01, acknowledge)

    acknowledge()
    line.run(1)
    assert line.run(20)["one"] == pytest.approx(20 * (10 * MBIT - 250_000), rel=0.02)


def test_a_clock_that_runs_backwards_stops_nobody() -> None:
    allowance = Allowance(upload=10 * MBIT, download=10 * MBIT)
    line = Line(allowance)
    line.greedy("one")
    line.greedy("two")
    line.run(1)
    again = Line(allowance, start=3.0)
    again.greedy("one")
    again.greedy("two")
    again.run(0.3)
    assert again.run(10).total() == pytest.approx(100 * MBIT, rel=0.02)
    allowance.on_received("one", 1000, 900.0)
    allowance.on_received("one", 1000, 3.0)
    assert allowance.download_window("one", 0.1) == int(MBIT)


def receive(allowance: Allowance, rates: dict[str, float], seconds: float, start: float = 0.0) -> float:
    """Let every association receive at its rate; the time at the end."""
    step = 0.01
    for tick in range(int(seconds / step)):
        for name, rate in rates.items():
            allowance.on_received(name, int(rate * step), start + tick * step)
    return start + seconds


def test_one_receiver_is_given_the_whole_download_rate() -> None:
    allowance = Allowance(download=40 * MBIT)
    assert allowance.download_window("one", 0.05) == int(0.05 * 40 * MBIT)
    receive(allowance, {"one": 39 * MBIT}, 3)
    assert allowance.download_window("one", 0.05) == int(0.05 * 40 * MBIT)


def test_receivers_that_take_all_they_get_are_given_equal_shares() -> None:
    allowance = Allowance(download=40 * MBIT)
    receive(allowance, {"one": 10 * MBIT, "two": 10 * MBIT, "three": 20 * MBIT}, 3)
    windows = [allowance.download_window(name, 0.1) or 0 for name in ("one", "two", "three")]
    assert windows == pytest.approx([0.1 * 40 * MBIT / 3] * 3, rel=0.02)


def test_what_a_slow_receiver_leaves_goes_to_the_others() -> None:
    allowance = Allowance(download=40 * MBIT)
    receive(allowance, {"slow": 2 * MBIT, "one": 19 * MBIT, "two": 19 * MBIT}, 3)
    slow, one, two = (allowance.download_window(name, 1.0) or 0 for name in ("slow", "one", "two"))
    assert slow == pytest.approx(4 * MBIT, rel=0.05)
    assert one == pytest.approx(18 * MBIT, rel=0.02)
    assert slow + one + two <= 40 * MBIT


@given(rates=st.lists(st.floats(0, 100), min_size=1, max_size=8), limit=st.floats(1, 200))
def test_the_shares_of_all_active_receivers_never_exceed_the_limit(rates: list[float], limit: float) -> None:
    allowance = Allowance(download=limit * MBIT)
    receive(allowance, {str(number): rate * MBIT for number, rate in enumerate(rates)}, 1.5)
    rtt = 10.0  # Long, so that no window is at its least.
    windows = [allowance.download_window(str(number), rtt) or 0 for number in range(len(rates))]
    idle = [w for w, rate in zip(windows, rates, strict=True) if rate < 0.04 * limit / len(rates)]
    assert sum(windows) - sum(idle) <= limit * MBIT * rtt * 1.001


def test_receivers_that_obey_their_windows_settle_below_the_limit() -> None:
    """Each sends one window a round trip, as SCTP does; two of five have little to send."""
    allowance = Allowance(download=20 * MBIT)
    rtts = {"a": 0.02, "b": 0.05, "c": 0.15, "d": 0.05, "e": 0.08}
    wants = {"a": 1e12, "b": 1e12, "c": 1e12, "d": 0.5 * MBIT, "e": 1 * MBIT}
    due = [(0.0, name) for name in rtts]
    totals: Counter[str] = Counter()
    while due[0][0] < 30:
        now, name = heapq.heappop(due)
        window = allowance.download_window(name, rtts[name])
        assert window is not None
        got = int(min(window, wants[name] * rtts[name]))
        allowance.on_received(name, got, now)
        if now >= 10:
            totals[name] += got
        heapq.heappush(due, (now + rtts[name], name))
    assert totals.total() <= 20 * 20 * MBIT * 1.02
    assert totals.total() >= 20 * 20 * MBIT * 0.9
    assert totals["d"] == pytest.approx(20 * 0.5 * MBIT, rel=0.02)
    assert totals["a"] == pytest.approx(totals["c"], rel=0.1)


def test_the_smallest_window_is_two_packets() -> None:
    assert Allowance(download=1000).download_window("one", 0.001) == MIN_WINDOW


def test_an_association_that_has_ended_leaves_its_share() -> None:
    allowance = Allowance(download=40 * MBIT)
    receive(allowance, {"one": 20 * MBIT, "two": 20 * MBIT}, 3)
    allowance.forget("two")
    assert allowance.download_window("one", 1.0) == pytest.approx(40 * MBIT, rel=0.01)


def test_both_directions_count_against_the_month_and_the_owner_is_told_once_each() -> None:
    told: list[int] = []
    allowance = Allowance(monthly_bytes=1000, usage=Usage("2026-02", 500), on_threshold=told.append)
    allowance.set_month("2026-02")
    assert allowance.take_upload("one", 299, 0.0) == 0
    assert told == []
    allowance.on_received("one", 1, 0.0)
    assert told == [80]
    assert allowance.remaining == 200
    allowance.charge_upload(300, 0.0)
    assert told == [80, 100]
    assert allowance.exhausted
    assert allowance.remaining == 0
    assert allowance.usage == Usage("2026-02", 1100)


def test_when_the_month_is_used_up_nothing_more_is_sent_or_asked_for() -> None:
    allowance = Allowance(monthly_bytes=1000, usage=Usage("2026-02", 1000))
    assert allowance.take_upload("one", 100, 0.0) == MAX_WAIT_S
    assert allowance.download_window("one", 1.0) == MIN_WINDOW
    assert allowance.usage.used == 1000


def test_a_new_month_begins_with_nothing_used() -> None:
    told: list[int] = []
    allowance = Allowance(monthly_bytes=1000, usage=Usage("2026-12", 1000), on_threshold=told.append)
    assert told == [80, 100]
    allowance.set_month("2027-01")
    assert allowance.usage == Usage("2027-01", 0)
    assert allowance.take_upload("one", 900, 0.0) == 0
    assert told == [80, 100, 80]


def test_a_clock_put_back_to_an_earlier_month_keeps_what_was_used() -> None:
    allowance = Allowance(monthly_bytes=1000, usage=Usage("2027-01", 700))
    allowance.set_month("2026-12")
    assert allowance.usage == Usage("2026-12", 700)


def test_the_first_month_ever_keeps_what_was_used_before_it_was_known() -> None:
    allowance = Allowance(monthly_bytes=1000)
    allowance.on_received("one", 10, 0.0)
    allowance.set_month("2026-02")
    assert allowance.usage == Usage("2026-02", 10)


def test_a_raised_cap_lets_traffic_go_on_and_is_told_of_again() -> None:
    told: list[int] = []
    allowance = Allowance(monthly_bytes=1000, usage=Usage("2026-02", 1000), on_threshold=told.append)
    allowance.change(None, None, 10_000)
    assert allowance.take_upload("one", 100, 0.0) == 0
    allowance.on_received("one", 7000, 0.0)
    assert told == [80, 100, 80]
    allowance.change(None, None, 8000)
    assert told == [80, 100, 80, 100]


def test_months_are_those_of_the_calendar() -> None:
    assert month_of(0.0) == "1970-01"
    assert month_of(1_798_761_599.0) == "2026-12"
    assert month_of(1_798_761_600.0) == "2027-01"


@pytest.mark.parametrize(("upload", "download", "cap"), [(0, None, None), (-1, None, None), (None, 0.0, None)])
def test_limits_that_cannot_be_kept_are_refused(upload: float | None, download: float | None, cap: int | None) -> None:
    with pytest.raises(ValueError, match="cannot be kept"):
        Allowance(upload, download, cap)
    with pytest.raises(ValueError, match="cannot be kept"):
        Allowance().change(float("nan"), None, None)
    with pytest.raises(ValueError, match="cannot be kept"):
        Allowance(monthly_bytes=-1)

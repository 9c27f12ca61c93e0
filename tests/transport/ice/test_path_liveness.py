"""When a path is held to be lost, and when not: ticks without a network."""

import random
from collections.abc import Callable

import pytest

from transport.ice.liveness import MIN_PROBES, Liveness

PING_S, PROBE_S, SILENT_S = 1.0, 0.1, 1.0


def usual() -> Liveness:
    return Liveness(PING_S, PROBE_S, SILENT_S)


def seconds_until_lost(liveness: Liveness, heard: Callable[[float, bool], int], limit_s: float) -> float | None:
    """Tick on; ``heard`` is told the time and whether the last tick sent anything, and says what came since."""
    now, sent = 0.0, False
    while now < limit_s:
        now += liveness.interval
        tick = liveness.tick(heard(now, sent))
        sent = tick.ping or tick.probe
        if tick.lost:
            return now
    return None


def test_a_transfer_that_stops_is_given_up_within_a_second_and_a_half() -> None:
    lost = seconds_until_lost(usual(), lambda now, _: 50 if now < 5 else 0, 20)
    assert lost is not None
    assert 1.0 <= lost - 5 <= 1.5


def test_an_idle_path_that_is_cut_is_given_up_within_three_seconds() -> None:
    lost = seconds_until_lost(usual(), lambda now, sent: int(sent and now < 5), 20)
    assert lost is not None
    assert 1.0 <= lost - 5 <= 3


def test_an_idle_path_that_answers_lives_on_and_is_rarely_disturbed() -> None:
    liveness, sent = usual(), 0

    def answers(_: float, asked: bool) -> int:
        nonlocal sent
        sent += asked
        return int(asked)

    assert seconds_until_lost(liveness, answers, 100) is None
    assert 95 <= sent <= 101, "one greeting a second"


def test_a_path_that_answers_late_lives_on() -> None:
    asked: list[float] = []

    def answers(now: float, sent: bool) -> int:
        if sent:
            asked.append(now)
        due = [at for at in asked if at <= now - 0.8]
        asked[:] = [at for at in asked if at > now - 0.8]
        return len(due)

    assert seconds_until_lost(usual(), answers, 100) is None


@pytest.mark.parametrize("seed", range(5))
def test_losing_one_probe_in_ten_for_hours_raises_no_alarm(seed: int) -> None:
    chance = random.Random(seed)
    lost = seconds_until_lost(usual(), lambda _, sent: int(sent and chance.random() > 0.1), 5 * 3600)
    assert lost is None


def test_losing_nine_in_ten_is_a_lost_path() -> None:
    chance = random.Random(0)
    assert seconds_until_lost(usual(), lambda _, sent: int(sent and chance.random() > 0.9), 600) is not None


def test_a_hold_up_of_this_process_is_one_tick_whatever_its_length() -> None:
    liveness = usual()
    for _ in range(20):
        assert not liveness.tick(10).lost
    assert not liveness.tick(0).lost, "woken after a minute, nothing read yet"
    assert not liveness.tick(5000).lost
    assert liveness.probes == 0


def test_a_machine_that_is_out_of_breath_itself_waits_longer_but_not_for_ever() -> None:
    def silent_ticks(late: bool) -> int:
        liveness, ticks = usual(), 0
        liveness.tick(10)
        while not liveness.tick(0, late=late).lost:
            ticks += 1
        return ticks

    assert silent_ticks(late=False) < silent_ticks(late=True) <= 3 * silent_ticks(late=False)


def test_few_probes_are_never_enough_however_short_the_silence_may_be() -> None:
    liveness = Liveness(0.1, 0.1, 0.1)
    liveness.tick(10)
    ticks = 0
    while not liveness.tick(0).lost:
        ticks += 1
    assert ticks >= MIN_PROBES


def test_in_doubt_every_tick_probes_until_something_is_heard() -> None:
    liveness = usual()
    liveness.tick(10)
    assert [liveness.tick(0).probe for _ in range(5)] == [True] * 5
    assert liveness.interval == PROBE_S
    assert not liveness.tick(1).probe
    assert liveness.probes == 0

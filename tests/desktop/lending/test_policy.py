"""The table of the policy: for each cause when it stops lending, what it says, and when lending goes on."""

import datetime as dt
import math
from typing import Any

import msgspec
import pytest

from desktop.agent.lending.facts import Facts
from desktop.agent.lending.policy import GB, HOLD_S, LINGER_S, Cause, Decision, HeldCause, PolicyMemory, State, decide
from desktop.agent.lending.rules import ALWAYS, OwnerWish, Rules
from desktop.agent.lending.words import because, describe

MONDAY = 1_800_230_400.0 - 1_800_230_400.0 % 86400 + 4 * 86400  # Some midnight; made a Monday below.
MONDAY -= ((int(MONDAY // 86400) + 3) % 7) * 86400
QUIET = Facts(
    at=MONDAY,
    idle_s=3600.0,
    on_battery=False,
    fullscreen="",
    programs=frozenset({"bash"}),
    celsius=60.0,
    metered=False,
    free_disk=100 * GB,
    own_vram=GB,
    busy=True,
)
ON = OwnerWish(on=True)


def facts(**changes: Any) -> Facts:
    return msgspec.structs.replace(QUIET, **changes)


def first(rules: Rules | None = None, wish: OwnerWish = ON, **changes: Any) -> Decision:
    return decide(rules or Rules(), wish, facts(**changes), PolicyMemory())[0]


class Life:
    """A computer whose facts change as time goes on."""

    def __init__(self, rules: Rules | None = None, wish: OwnerWish = ON) -> None:
        self.rules, self.wish, self.now, self.memory = rules or Rules(), wish, MONDAY, PolicyMemory()

    def after(self, seconds: float, **changes: Any) -> Decision:
        self.now += seconds
        decision, self.memory = decide(self.rules, self.wish, facts(at=self.now, **changes), self.memory)
        return decision


@pytest.mark.parametrize(
    ("change", "cause", "detail"),
    [
        ({"fullscreen": "Baldur's Gate 3"}, Cause.GAME, "Baldur's Gate 3"),
        ({"programs": frozenset({"Blender"})}, Cause.GAME, "Blender"),
        ({"idle_s": 299.0}, Cause.IN_USE, ""),
        ({"idle_s": None}, Cause.IDLE_UNKNOWN, ""),
        ({"on_battery": True}, Cause.BATTERY, ""),
        ({"celsius": 78.0}, Cause.TEMPERATURE, "78"),
        ({"metered": True}, Cause.METERED, ""),
        ({"free_disk": 10 * GB - 1}, Cause.DISK, "10.0"),
        ({"own_vram": 2 * GB + 1}, Cause.VRAM, "2.0"),
        ({"cap_used": True}, Cause.CAP, ""),
    ],
    ids=lambda value: value.value if isinstance(value, Cause) else "",
)
def test_each_cause_stops_at_once_and_is_named(change: dict[str, Any], cause: Cause, detail: str) -> None:
    rules = Rules(programs=("blender",))
    assert first(rules).state is State.LENDING
    decision = first(rules, **change)
    assert decision.state is State.PAUSED
    assert [(reason.cause, reason.detail) for reason in decision.reasons] == [(cause, detail)]


@pytest.mark.parametrize(
    ("change"),
    [
        {"idle_s": 300.0},
        {"idle_s": math.inf},
        {"on_battery": None},
        {"fullscreen": None},
        {"programs": None},
        {"celsius": 77.9},
        {"celsius": None},
        {"metered": None},
        {"free_disk": 10 * GB},
        {"free_disk": None},
        {"own_vram": 2 * GB},
        {"own_vram": None},
    ],
    ids=str,
)
def test_the_last_value_within_the_limits_and_a_sensor_that_cannot_tell_do_not_stop(change: dict[str, Any]) -> None:
    assert first(**change).state is State.LENDING


@pytest.mark.parametrize(
    ("rules", "change"),
    [
        (Rules(for_games=False, programs=("blender",)), {"fullscreen": "Doom", "programs": frozenset({"blender"})}),
        (Rules(idle_minutes=0), {"idle_s": 0.0}),
        (Rules(idle_minutes=0), {"idle_s": None}),
        (Rules(on_battery=True), {"on_battery": True}),
        (Rules(on_metered=True), {"metered": True}),
        (Rules(max_celsius=90), {"celsius": 89.0}),
        (Rules(free_disk=0), {"free_disk": 0}),
        (Rules(own_vram=6), {"own_vram": 5 * GB}),
    ],
)
def test_what_the_owner_allows_does_not_stop(rules: Rules, change: dict[str, Any]) -> None:
    assert first(rules, **change).state is State.LENDING


def test_off_is_off_whatever_else_is_true() -> None:
    assert first(wish=OwnerWish(on=False), fullscreen="Doom") == Decision(State.OFF)


def test_finishing_takes_no_new_work_and_ends_in_off() -> None:
    finishing = first(wish=OwnerWish(on=True, finish=True))
    assert (finishing.state, finishing.works, finishing.takes_work) == (State.FINISHING, True, False)
    assert first(wish=OwnerWish(on=True, finish=True), busy=False).state is State.OFF
    assert first(wish=OwnerWish(on=True, finish=True), fullscreen="Doom").state is State.PAUSED


def test_a_pause_ends_by_itself_and_says_when() -> None:
    life = Life(wish=OwnerWish(on=True, paused_until=MONDAY + 3600))
    paused = life.after(0)
    assert (paused.state, paused.reasons[0].cause, paused.reasons[0].until) == (
        State.PAUSED,
        Cause.OWNER,
        MONDAY + 3600,
    )
    assert life.after(3599.0).state is State.AWAY
    assert life.after(1.0).state is State.LENDING


def test_a_short_interruption_freezes_the_work_and_a_long_one_hands_it_over() -> None:
    life = Life()
    paused = life.after(0, fullscreen="Doom")
    assert (paused.state, paused.works, paused.look_again) == (State.PAUSED, False, MONDAY + HOLD_S)
    assert life.after(HOLD_S - 0.1, fullscreen="Doom").state is State.PAUSED
    assert life.after(0.1, fullscreen="Doom").state is State.AWAY


def test_without_work_there_is_nothing_to_hold() -> None:
    assert first(fullscreen="Doom", busy=False).state is State.AWAY


def test_another_cause_does_not_start_the_patience_anew() -> None:
    life = Life()
    life.after(0, fullscreen="Doom")
    life.after(HOLD_S / 2, fullscreen="Doom", on_battery=True)
    assert life.after(HOLD_S / 2, on_battery=True).state is State.AWAY


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        (Cause.GAME, {"fullscreen": "Doom"}),
        (Cause.BATTERY, {"on_battery": True}),
        (Cause.METERED, {"metered": True}),
        (Cause.VRAM, {"own_vram": 3 * GB}),
        (Cause.TEMPERATURE, {"celsius": 80.0}),
        (Cause.DISK, {"free_disk": GB}),
    ],
)
def test_a_cause_must_have_been_away_for_its_time(cause: Cause, change: dict[str, Any]) -> None:
    life = Life()
    life.after(0, **change)
    for _ in range(5):  # It flickers: each time the patience begins anew.
        waiting = life.after(LINGER_S[cause] - 1)
        assert (waiting.works, waiting.reasons[0].cause) == (False, cause)
        assert waiting.look_again == life.now + 1
        life.after(0.5, **change)
    assert not life.after(LINGER_S[cause] - 0.1).works
    assert life.after(0.1).state is State.LENDING


@pytest.mark.parametrize(
    ("change", "between", "under"),
    [
        ({"celsius": 78.0}, {"celsius": 72.5}, {"celsius": 72.0}),
        ({"free_disk": 9 * GB}, {"free_disk": int(10.9 * GB)}, {"free_disk": 11 * GB}),
        ({"own_vram": 2.1 * GB}, {"own_vram": 1.9 * GB}, {"own_vram": 1.8 * GB}),
    ],
    ids=["temperature", "disk", "vram"],
)
def test_two_levels_keep_a_value_at_its_limit_from_flapping(
    change: dict[str, Any], between: dict[str, Any], under: dict[str, Any]
) -> None:
    assert first(**between).state is State.LENDING
    life = Life()
    life.after(0, **change)
    assert not life.after(1000.0, **between).works
    assert not life.after(1000.0, **between).works
    assert not life.after(1.0, **under).works
    assert life.after(60.0, **under).state is State.LENDING


def test_the_hours_of_a_week_open_and_close_by_local_time() -> None:
    nights = "".join("1" if hour >= 22 or hour < 6 else "0" for _ in range(7) for hour in range(24))
    rules, offset = Rules(hours=nights), 2 * 3600
    noon = first(rules, at=MONDAY + 12 * 3600 - offset, utc_offset=offset)
    assert (noon.state, noon.reasons[0].until) == (State.PAUSED, MONDAY + 22 * 3600 - offset)
    night = first(rules, at=MONDAY + 22 * 3600 - offset, utc_offset=offset)
    assert (night.state, night.look_again) == (State.LENDING, MONDAY + 30 * 3600 - offset)


@pytest.mark.parametrize(
    ("now", "until"),
    [
        ("2026-02-28T23:59:59", "2026-03-01"),
        ("2026-12-31T12:00:00", "2027-01-01"),
        ("2026-03-01T00:00:00", "2026-04-01"),
    ],
)
def test_a_month_that_is_used_up_ends_with_the_month(now: str, until: str) -> None:
    at = dt.datetime.fromisoformat(f"{now}+00:00").timestamp()
    decision = first(at=at, cap_used=True)
    assert decision.reasons[0].until == dt.datetime.fromisoformat(f"{until}T00:00:00+00:00").timestamp()
    month = dt.date.fromisoformat(until).strftime("%B")
    assert f"until 01 {month}: this month's data is used up" in describe(decision, Rules(), 0)


def test_sunday_night_is_followed_by_monday_morning() -> None:
    only_monday_first = Rules(hours="1" + "0" * 167)
    late_sunday = first(only_monday_first, at=MONDAY + 7 * 86400 - 1)
    assert late_sunday.reasons[0].until == MONDAY + 7 * 86400
    assert first(Rules(hours="0" * 168)).reasons[0].until is None
    assert first(Rules(hours=ALWAYS)).look_again is None


def test_people_read_the_reason_that_matters_most_first() -> None:
    decision = first(Rules(hours="0" * 168), fullscreen="Doom", on_battery=True, metered=True, celsius=99.0)
    assert [reason.cause for reason in decision.reasons] == [
        Cause.GAME,
        Cause.BATTERY,
        Cause.HOURS,
        Cause.TEMPERATURE,
        Cause.METERED,
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Ready to lend."),
        ({"fullscreen": "Doom"}, "Paused: Doom is running. The job waits a moment, nothing is lost."),
        ({"idle_s": 60.0}, "Paused until Mon 00:04: somebody is at the computer; it lends after 5 quiet minutes."),
        ({"celsius": 81.0}, "the GPU is at 81 °C; it goes on below 72 °C"),
        ({"free_disk": 3 * GB}, "only 3.0 GB are free on the disk, and 10 are to stay free"),
        ({"idle_s": None}, "--idle 0"),
        ({"no_room": "{0} nodes"}, "Paused: other workloads of the cluster come first ({0} nodes)."),
    ],
)
def test_the_sentence_says_state_reason_and_what_comes_next(change: dict[str, Any], words: str) -> None:
    assert words in describe(first(**change), Rules(), 0)


def test_a_place_that_the_cluster_wants_back_is_left_at_once_and_taken_again_without_a_wait() -> None:
    life = Life()
    assert life.after(0).state is State.LENDING
    gone = life.after(1, no_room="PreemptionByScheduler: for a higher priority pod", busy=True)
    assert gone.state is State.AWAY, "no frozen worker waits in a place that is gone"
    assert [reason.cause for reason in gone.reasons] == [Cause.ROOM]
    both = life.after(1, no_room="0/1 nodes are available", fullscreen="Doom")
    assert [reason.cause for reason in both.reasons] == [Cause.ROOM, Cause.GAME]
    assert life.after(LINGER_S[Cause.GAME] + 1).state is State.LENDING


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_words(cause: Cause) -> None:
    assert because(HeldCause(cause, "x"), Rules())


@pytest.mark.parametrize(
    "document",
    [
        b'{"idle_minutes": -1}',
        b'{"max_celsius": 20}',
        b'{"hours": "111"}',
        b'{"hours": "' + b"2" * 168 + b'"}',
        b'{"x": 1}',
    ],
)
def test_settings_out_of_their_bounds_are_refused(document: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(document, type=Rules)


def test_an_owner_who_is_there_may_have_it_lend_now_and_nothing_else_is_set_aside() -> None:
    life = Life(wish=msgspec.structs.replace(ON, here_until=MONDAY + 3600))
    assert life.after(0, idle_s=1.0).state is State.LENDING
    assert life.after(0, idle_s=None).state is State.LENDING
    game = life.after(0, idle_s=1.0, fullscreen="Baldur's Gate 3")
    assert [reason.cause for reason in game.reasons] == [Cause.GAME]
    life.after(LINGER_S[Cause.GAME] + 1, idle_s=1.0)
    over = life.after(3600, idle_s=1.0)
    assert [reason.cause for reason in over.reasons] == [Cause.IN_USE]

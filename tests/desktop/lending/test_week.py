"""A week of a household, simulated: whatever happens, it never lends outside its owner's limits, and never flaps."""

import random

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from desktop.agent.lending.facts import Facts
from desktop.agent.lending.policy import GB, HOLD_S, LINGER_S, Decision, PolicyMemory, State, decide
from desktop.agent.lending.rules import OwnerWish, Rules
from tests.support.seeds import seeds

WEEK_S = 7 * 86400
TICK_S = 5
MIDNIGHT = 20_000 * 86400.0


def violations(rules: Rules, wish: OwnerWish, facts: Facts) -> list[str]:
    """What the owner forbids and is true now, written down without the policy's code."""
    found = []
    if not wish.on or facts.at < wish.paused_until:
        found.append("the owner")
    game = facts.fullscreen or any(p.lower() in {q.lower() for q in rules.programs} for p in facts.programs or ())
    if rules.for_games and game:
        found.append("a game")
    if rules.idle_minutes and (facts.idle_s is None or facts.idle_s < 60 * rules.idle_minutes):
        found.append("in use")
    if facts.on_battery and not rules.on_battery:
        found.append("battery")
    if facts.celsius is not None and facts.celsius >= rules.max_celsius:
        found.append("temperature")
    if facts.metered and not rules.on_metered:
        found.append("metered")
    if facts.cap_used:
        found.append("month")
    if facts.free_disk is not None and facts.free_disk < rules.free_disk * GB:
        found.append("disk")
    if facts.own_vram is not None and facts.own_vram > rules.own_vram * GB:
        found.append("memory")
    local = facts.at + facts.utc_offset
    if rules.hours[(int(local // 86400) + 3) % 7 * 24 + int(local % 86400 // 3600)] == "0":
        found.append("hours")
    return found


class Household:
    """People who come and go, play, unplug and heat; every reading at random, each for a while."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.random = random.Random(seed)
        self.rules = rules
        self.wish = OwnerWish(on=True)
        self.facts = Facts(
            at=MIDNIGHT,
            utc_offset=self.random.choice([-18000, 0, 3600, 19800]),
            idle_s=0.0,
            on_battery=False,
            fullscreen="",
            programs=frozenset(),
            celsius=50.0,
            metered=False,
            free_disk=50 * GB,
            own_vram=GB,
            busy=True,
        )
        self.last_touch = MIDNIGHT

    def live(self, seconds: float) -> Facts:
        """Let time go by."""
        draw, was = self.random.random, self.facts
        at = was.at + seconds
        if draw() < (0.05 if 8 <= (at + was.utc_offset) % 86400 / 3600 < 23 else 0.001):
            self.last_touch = at
        changed: dict[str, object] = {"at": at, "idle_s": None if draw() < 0.0005 else at - self.last_touch}
        if draw() < 0.002:
            changed["fullscreen"] = self.random.choice(["", "", "Doom", None])
        if draw() < 0.002:
            changed["programs"] = self.random.choice([frozenset(), frozenset({"Blender"}), frozenset({"bash"}), None])
        if draw() < 0.002:
            changed["on_battery"] = self.random.choice([False, False, True, None])
        if draw() < 0.001:
            changed["metered"] = self.random.choice([False, False, True, None])
        changed["celsius"] = min(95.0, max(35.0, (was.celsius or 60.0) + self.random.gauss(0, 1.0)))
        if draw() < 0.01:
            changed["free_disk"] = int(self.random.uniform(5, 60) * GB)
            changed["own_vram"] = int(self.random.uniform(0, 3) * GB)
        if draw() < 0.0005:
            self.wish = OwnerWish(
                on=draw() < 0.9, finish=draw() < 0.1, paused_until=at + 3600 * draw() * (draw() < 0.5)
            )
        self.facts = msgspec.structs.replace(was, **changed)
        return self.facts


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(1, of=4))
def test_a_week_at_random_stays_within_the_limits_and_loses_no_job(seed: int) -> None:
    nights = "".join("1" if (hour >= 20 or hour < 9 or day > 4) else "0" for day in range(7) for hour in range(24))
    rules = Rules(idle_minutes=seed % 3 * 5, programs=("blender",), hours=nights if seed % 2 else "1" * 168)
    home, memory = Household(seed, rules), PolicyMemory()
    began_pause: float | None = None
    worked = turns = 0
    previous = None
    for _ in range(WEEK_S // TICK_S):
        facts = home.live(TICK_S)
        decision, memory = decide(rules, home.wish, facts, memory)
        forbidden = violations(rules, home.wish, facts)
        assert not (decision.works and forbidden), f"{decision} although {forbidden}"
        if decision.state is State.PAUSED:
            began_pause = facts.at if began_pause is None else began_pause
            assert facts.at - began_pause < HOLD_S + TICK_S, "frozen work is handed over, not kept for ever"
        else:
            began_pause = None
        assert decision.look_again is None or decision.look_again > facts.at
        worked += decision.works
        turns += previous is not None and decision.works and not previous.works
        previous = decision
    assert worked > WEEK_S // TICK_S // 50, "it lends when it may"
    assert turns < WEEK_S / 600, "it does not flap"


readings = st.builds(
    Facts,
    at=st.floats(0, 4e9),
    utc_offset=st.integers(-50_000, 50_000),
    idle_s=st.none() | st.floats(0, 1e9) | st.just(float("inf")),
    on_battery=st.none() | st.booleans(),
    fullscreen=st.none() | st.sampled_from(["", "Doom"]),
    programs=st.none() | st.frozensets(st.sampled_from(["Blender", "bash"])),
    celsius=st.none() | st.floats(0, 120),
    metered=st.none() | st.booleans(),
    free_disk=st.none() | st.integers(0, 10**14),
    own_vram=st.none() | st.integers(0, 10**11),
    cap_used=st.booleans(),
    busy=st.booleans(),
)
owners = st.builds(
    Rules,
    idle_minutes=st.integers(0, 60),
    on_battery=st.booleans(),
    for_games=st.booleans(),
    programs=st.sampled_from([(), ("blender",)]),
    max_celsius=st.integers(40, 110),
    hours=st.text("01", min_size=168, max_size=168),
    on_metered=st.booleans(),
)
wishes = st.builds(OwnerWish, on=st.booleans(), finish=st.booleans(), paused_until=st.floats(0, 4e9))


@settings(max_examples=400, deadline=None)
@given(owners, wishes, st.lists(readings, min_size=1, max_size=6).map(lambda all_: sorted(all_, key=lambda f: f.at)))
def test_no_history_leads_it_outside_the_limits(rules: Rules, wish: OwnerWish, history: list[Facts]) -> None:
    memory, decision = PolicyMemory(), Decision(State.OFF)
    for facts in history:
        decision, memory = decide(rules, wish, facts, memory)
        assert not (decision.works and violations(rules, wish, facts))
        assert (decision.state in (State.PAUSED, State.AWAY)) == bool(decision.reasons)


@settings(max_examples=200, deadline=None)
@given(owners, readings, readings)
def test_what_no_longer_holds_is_forgotten_in_the_end(rules: Rules, before: Facts, facts: Facts) -> None:
    wish = OwnerWish(on=True)
    _, memory = decide(rules, wish, before, PolicyMemory())
    later = msgspec.structs.replace(facts, at=before.at + max(LINGER_S.values()) + 1)
    fresh = decide(rules, wish, later, PolicyMemory())[0]
    after = decide(rules, wish, later, memory)[0]
    bands = {"temperature", "vram", "disk"}
    assert {r.cause for r in fresh.reasons} <= {r.cause for r in after.reasons}
    assert {r.cause.value for r in after.reasons} - {r.cause.value for r in fresh.reasons} <= bands

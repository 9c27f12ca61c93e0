"""Whether to lend now: a pure function of the owner's rules, what the sensors say, and what was decided before.

::

    OFF <--switch--> LENDING --a cause--> PAUSED --it lasts HOLD_S--> AWAY
                        ^  ^------ all causes over, long enough --------'
                        '--- FINISHING: no new work; OFF, or begun anew, once nothing runs

Paused work stays where it is, frozen, so that a short interruption costs nothing. When the cause lasts, the work is handed
over and what was done is kept: other people's training must not wait for the end of somebody's game.

A cause counts at once, and ends only after it has been away for its own time (or by its own margin), so that a charger with
a loose contact, a temperature at its limit or a window that flickers cannot make work stop and go.
"""

import datetime as dt
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from desktop.agent.lending.facts import Facts
from desktop.agent.lending.rules import HOURS, OwnerWish, Rules
from desktop.answers import LendingReason

GB = 10**9
HOUR_S = 3600.0
HOLD_S = 20.0  # A frozen worker keeps its seat as long: a round's deadline is of that order, and so is looking at a notification.
DISK_MARGIN = 1.1  # Of the bytes that must be free, before it lends again.
VRAM_MARGIN = 0.9  # Of what is kept for the owner.


class State(StrEnum):
    """What the computer does for others."""

    OFF = "off"
    LENDING = "lending"
    FINISHING = "finishing"
    PAUSED = "paused"
    AWAY = "away"


class Cause(StrEnum):
    """Why it does not lend, the one that people should read first at the top."""

    OWNER = "owner"
    ROOM = "room"
    GAME = "game"
    IN_USE = "in use"
    IDLE_UNKNOWN = "idle unknown"
    BATTERY = "battery"
    HOURS = "hours"
    TEMPERATURE = "temperature"
    VRAM = "vram"
    METERED = "metered"
    CAP = "cap"
    DISK = "disk"


LINGER_S: dict[Cause, float] = {  # How long a cause must have been away; the others end by a margin or by the clock.
    Cause.GAME: 60.0,  # Between two matches, or while a game restarts.
    Cause.BATTERY: 30.0,
    Cause.METERED: 60.0,
    Cause.VRAM: 30.0,
    Cause.TEMPERATURE: 30.0,
    Cause.DISK: 60.0,
}


class HeldCause(LendingReason, frozen=True):
    """A cause that holds."""

    cause: Cause


class PolicyMemory(msgspec.Struct, frozen=True):
    """What the next decision needs of those before.

    Attributes:
        held: causes that hold -> when they were seen last.
        details: what they said then.
        since: when the first of the present causes began, None while there is none.
    """

    held: dict[Cause, float] = {}
    details: dict[Cause, str] = {}
    since: float | None = None


class Decision(msgspec.Struct, frozen=True):
    """What to do, and why, the reason to show first. ``look_again``: Unix seconds at which time alone changes it."""

    state: State
    reasons: tuple[HeldCause, ...] = ()
    look_again: float | None = None

    @property
    def works(self) -> bool:
        """Jobs may compute."""
        return self.state in (State.LENDING, State.FINISHING)

    @property
    def takes_work(self) -> bool:
        """New jobs are welcome."""
        return self.state is State.LENDING


def decide(rules: Rules, wish: OwnerWish, facts: Facts, memory: PolicyMemory) -> tuple[Decision, PolicyMemory]:
    """Decide for the moment ``facts.at``.

    What a sensor cannot tell does not keep the computer from lending, with one exception: where lending depends on nobody being
    there and nobody can say whether somebody is, it does not lend, and says so.
    """
    ends = wish.finish or wish.renew
    if not wish.on or (ends and not facts.busy):
        return Decision(State.OFF), PolicyMemory()
    seen = {reason.cause: reason for reason in _causes(rules, wish, facts, memory)}
    held = dict.fromkeys(seen, facts.at)
    lingering = []
    for cause, last in memory.held.items():
        over = last + LINGER_S.get(cause, 0.0)
        if cause not in seen and facts.at < over:
            held[cause] = last
            lingering.append(HeldCause(cause, memory.details.get(cause, ""), over))
    reasons = tuple(sorted((*seen.values(), *lingering), key=lambda reason: list(Cause).index(reason.cause)))
    if not reasons:
        return Decision(State.FINISHING if ends else State.LENDING, (), _closing(rules, facts)), PolicyMemory()
    since = memory.since if memory.since is not None and memory.held else facts.at
    details = {reason.cause: reason.detail for reason in reasons}
    # Where the place itself is wanted back, nothing is left that could wait.
    away = facts.at >= since + HOLD_S or not facts.busy or Cause.ROOM in seen
    moments = [reason.until for reason in reasons if reason.until is not None]
    again = min(moments if away else [*moments, since + HOLD_S], default=None)
    return Decision(State.AWAY if away else State.PAUSED, reasons, again), PolicyMemory(held, details, since)


def _causes(rules: Rules, wish: OwnerWish, facts: Facts, memory: PolicyMemory) -> Iterator[HeldCause]:
    """What speaks against lending at this moment."""
    if facts.at < wish.paused_until:
        yield HeldCause(Cause.OWNER, until=wish.paused_until)
    if facts.no_room:
        yield HeldCause(Cause.ROOM, facts.no_room)
    if rules.for_games and (game := _game(rules, facts)):
        yield HeldCause(Cause.GAME, game)
    if rules.idle_minutes and facts.at >= wish.here_until:
        needed = rules.idle_minutes * 60
        if facts.idle_s is None:
            yield HeldCause(Cause.IDLE_UNKNOWN)
        elif facts.idle_s < needed:
            yield HeldCause(Cause.IN_USE, until=facts.at + needed - facts.idle_s)
    if facts.on_battery and not rules.on_battery:
        yield HeldCause(Cause.BATTERY)
    if not _open(rules, facts, 0):
        yield HeldCause(Cause.HOURS, until=_next_hour(rules, facts, wanted=True))
    if facts.metered and not rules.on_metered:
        yield HeldCause(Cause.METERED)
    if facts.cap_used:
        yield HeldCause(Cause.CAP, until=_next_month(facts.at))
    yield from _measured(rules, facts, memory)


def _measured(rules: Rules, facts: Facts, memory: PolicyMemory) -> Iterator[HeldCause]:
    """Causes with two levels: one at which it stops, one at which it goes on."""
    if facts.celsius is not None:
        limit = rules.max_celsius - (rules.band_celsius if Cause.TEMPERATURE in memory.held else 0)
        if facts.celsius > limit or (facts.celsius == limit and Cause.TEMPERATURE not in memory.held):
            yield HeldCause(Cause.TEMPERATURE, f"{facts.celsius:.0f}")
    kept = rules.own_vram * GB * (VRAM_MARGIN if Cause.VRAM in memory.held else 1)
    if facts.own_vram is not None and facts.own_vram > kept:
        yield HeldCause(Cause.VRAM, f"{facts.own_vram / GB:.1f}")
    needed = rules.free_disk * GB * (DISK_MARGIN if Cause.DISK in memory.held else 1)
    if facts.free_disk is not None and facts.free_disk < needed:
        yield HeldCause(Cause.DISK, f"{facts.free_disk / GB:.1f}")


def _game(rules: Rules, facts: Facts) -> str:
    if facts.fullscreen:
        return facts.fullscreen
    running = {name.lower(): name for name in facts.programs or ()}
    return next((running[name.lower()] for name in rules.programs if name.lower() in running), "")


def _hour(facts: Facts, later: int) -> int:
    """Index into the week's hours; the epoch was a Thursday."""
    return (int((facts.at + facts.utc_offset) // HOUR_S) + 3 * 24 + later) % HOURS


def _open(rules: Rules, facts: Facts, later: int) -> bool:
    return rules.hours[_hour(facts, later)] == "1"


def _next_hour(rules: Rules, facts: Facts, *, wanted: bool) -> float | None:
    """When the hours next turn ``wanted``; None: never."""
    begun = (facts.at + facts.utc_offset) // HOUR_S * HOUR_S - facts.utc_offset
    return next((begun + n * HOUR_S for n in range(1, HOURS + 1) if _open(rules, facts, n) is wanted), None)


def _next_month(at: float) -> float:
    """Months are counted in UTC."""
    day = dt.datetime.fromtimestamp(at, dt.UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (day + dt.timedelta(days=32)).replace(day=1).timestamp()


def _closing(rules: Rules, facts: Facts) -> float | None:
    return _next_hour(rules, facts, wanted=False)

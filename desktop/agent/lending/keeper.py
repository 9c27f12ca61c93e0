"""Keeps to the owner's rules: asks the sensors, decides, and has the agent follow."""

import asyncio
import contextlib
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from common.clock import Clock
from common.system_words import reason
from common.untrusted_text import View
from desktop.agent.base.log import LOG
from desktop.agent.errors import SettingsError
from desktop.agent.lending.facts import Facts
from desktop.agent.lending.policy import Decision, PolicyMemory, State, decide
from desktop.agent.lending.rules import ALWAYS, Celsius, Gigabytes, Hours, Minutes, OwnerWish, Rules
from desktop.agent.lending.words import describe
from protocol.codec import MessageError, convert, decode_json, encode_json

LOOK_S = 0.75  # A game is seen within a second, and two seconds are promised.
DECIDE_S = 2.0  # A look takes some milliseconds, and more where the sensors are slow.
MAX_PAUSE_S = 30 * 86400.0
# For machines that do nothing else, and for the demo.
UNBOUND = Rules(
    idle_minutes=0,
    on_battery=True,
    for_games=False,
    max_celsius=110,
    hours=ALWAYS,
    on_metered=True,
    free_disk=0,
    own_vram=10_000,
)


class Readings(Protocol):
    """Where the facts come from: ``desktop.agent.sensors``."""

    def read(self, at: float, busy: bool, jobs: Iterable[int] = ()) -> Facts:
        """The facts of Unix time ``at``; may block for some milliseconds."""


class LendingAgent(Protocol):
    """What the agent has to say and to do."""

    def workers(self) -> tuple[bool, tuple[int, ...]]:
        """Whether jobs hold this computer, and the processes of their workers."""

    def cap_used(self) -> bool:
        """Whether this month's allowance of bytes is used up: links stand still, so seats are better given to others."""

    async def follow(self, decision: Decision, sentence: str) -> None:
        """Let jobs work, freeze or go. Called once for each new state."""


class RulesChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to change of the rules; None leaves it as it is."""

    idle_minutes: Minutes | None = None
    on_battery: bool | None = None
    for_games: bool | None = None
    programs: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] | None = None
    max_celsius: Celsius | None = None
    band_celsius: Annotated[int, Meta(ge=1, le=30)] | None = None
    hours: Hours | None = None
    on_metered: bool | None = None
    free_disk: Gigabytes | None = None
    own_vram: Gigabytes | None = None

    def apply(self, rules: Rules) -> Rules:
        """The rules after the change; raises SettingsError where one is out of its bounds."""
        given = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        try:
            changed: Rules = convert(msgspec.to_builtins(rules) | msgspec.to_builtins(given), Rules)
        except MessageError as error:
            raise SettingsError(f"the rule cannot be used: {error}") from error
        return changed


class LendingChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the owner asks for now.

    ``pause_s``: 0 ends a pause; ``here_s``: lend for so long although somebody is at the computer; ``finish``: complete what
    runs, then stop; ``on``: the switch, which ``OwnerApi`` sees to.
    """

    on: bool | None = None
    pause_s: Annotated[float, Meta(ge=0, le=MAX_PAUSE_S)] | None = None
    here_s: Annotated[float, Meta(ge=0, le=MAX_PAUSE_S)] | None = None
    finish: bool | None = None
    rules: RulesChange | None = None


class LendingView(View, frozen=True):
    """State, reasons and rules, and the whole as a sentence. ``bound``: the rules are kept to; False: always lent."""

    state: State
    sentence: str
    decision: Decision
    rules: Rules
    wish: OwnerWish
    bound: bool = True


class _Kept(msgspec.Struct, frozen=True):
    rules: Rules = Rules()
    paused_until: float = 0.0


class LendingKeeper:
    """Decides about one computer. ``run`` it for ever; ``change`` it at any time."""

    def __init__(self, file: Path, readings: Readings | None, clock: Clock) -> None:
        """``file``: where rules and pauses are kept; ``readings``: None lends always, whatever the computer does.

        Raises:
            SettingsError: the file is damaged.
        """
        self._file, self._readings, self._clock = file, readings, clock
        kept = load(file)
        self._rules = kept.rules
        self._wish = OwnerWish(on=True, paused_until=kept.paused_until)
        self._memory = PolicyMemory()
        self._offset = 0
        self._changed, self._decided = asyncio.Event(), asyncio.Event()
        self.decision = Decision(State.LENDING)

    async def run(self, work: LendingAgent) -> None:
        """Look, decide, and have ``work`` follow each change; returns once it is off."""
        while self.decision.state is not State.OFF:
            await self.look(work)
            with contextlib.suppress(TimeoutError):
                async with self._clock.timeout(LOOK_S):
                    await self._changed.wait()
            self._changed.clear()

    async def look(self, work: LendingAgent) -> None:
        """Look once."""
        busy, jobs = work.workers()
        facts = msgspec.structs.replace(await self._read(busy, jobs), cap_used=work.cap_used())
        before, rules = self.decision, self._binding()
        self._offset = facts.utc_offset
        self.decision, self._memory = decide(rules, self._wish, facts, self._memory)
        self._decided.set()
        if self.decision.state is not before.state:
            sentence = self.sentence()
            LOG.info("lending: %s", sentence)
            await work.follow(self.decision, sentence)

    def change(self, change: LendingChange) -> LendingView:
        """Do what the owner asks at the next look, which is at once, and remember what lasts.

        Raises:
            SettingsError: a rule cannot be used or kept.
        """
        rules = self._rules if change.rules is None else change.rules.apply(self._rules)
        wish = self._wish
        if change.pause_s is not None:
            until = self._clock.time() + change.pause_s if change.pause_s else 0.0
            wish = msgspec.structs.replace(wish, paused_until=until)
        if change.here_s is not None:
            wish = msgspec.structs.replace(wish, here_until=self._clock.time() + change.here_s, paused_until=0.0)
        if change.finish is not None:
            wish = msgspec.structs.replace(wish, finish=change.finish)
        store(self._file, rules, wish.paused_until)
        self._rules, self._wish = rules, wish
        self._changed.set()
        return self.view()

    async def change_and_look(self, change: LendingChange) -> LendingView:
        """``change``, and say what follows from it; where no look ends within ``DECIDE_S``, what was decided before."""
        self.change(change)
        self._decided.clear()
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(DECIDE_S):
                await self._decided.wait()
        return self.view()

    def renew(self) -> None:
        """Take no new work, and be off once nothing runs, because this process makes way for another one."""
        self._wish = msgspec.structs.replace(self._wish, renew=True)
        self._changed.set()

    def view(self) -> LendingView:
        """What was decided last, and by which rules."""
        bound = self._readings is not None
        return LendingView(self.decision.state, self.sentence(), self.decision, self._rules, self._wish, bound)

    @property
    def is_paused(self) -> bool:
        """The owner asked for it, and it is not over."""
        return self._clock.time() < self._wish.paused_until

    @property
    def rules(self) -> Rules:
        """The owner's rules, kept to or not."""
        return self._rules

    def sentence(self) -> str:
        """For people."""
        if self.decision.state is State.FINISHING and not self._wish.finish:
            return "Finishing what runs, then the agent begins anew."
        return describe(self.decision, self._binding(), self._offset)

    def _binding(self) -> Rules:
        return UNBOUND if self._readings is None else self._rules

    async def _read(self, busy: bool, jobs: tuple[int, ...]) -> Facts:
        at = self._clock.time()
        if self._readings is None:
            return Facts(at, time.localtime(at).tm_gmtoff, idle_s=math.inf, busy=busy)
        return await asyncio.to_thread(self._readings.read, at, busy, jobs)


def change_kept(file: Path, change: LendingChange, now: float) -> LendingView:
    """As ``LendingKeeper.change`` where nothing is lent: for the next start; ``now``: Unix seconds. Raises SettingsError."""
    kept = load(file)
    rules = kept.rules if change.rules is None else change.rules.apply(kept.rules)
    until = kept.paused_until
    if change.pause_s is not None:
        until = now + change.pause_s if change.pause_s else 0.0
    if (rules, until) != (kept.rules, kept.paused_until):
        store(file, rules, until)
    return LendingView(State.OFF, "", Decision(State.OFF), rules, OwnerWish(paused_until=until))


def load(file: Path) -> _Kept:
    """What was kept; raises SettingsError where the file is damaged."""
    try:
        kept: _Kept = decode_json(file.read_bytes(), _Kept)
    except FileNotFoundError:
        return _Kept()
    except (OSError, MessageError) as error:
        raise SettingsError(f"{file} cannot be used: {reason(error)}. Correct it or delete it") from error
    return kept


def store(file: Path, rules: Rules, paused_until: float) -> None:
    """Keep rules and pause for the next start; raises SettingsError where they cannot be written."""
    draft = file.with_name(f"{file.name}.new")
    try:
        draft.write_bytes(encode_json(_Kept(rules, paused_until)))
        draft.replace(file)
    except OSError as error:
        raise SettingsError(f"{draft} cannot be written: {reason(error)}") from error

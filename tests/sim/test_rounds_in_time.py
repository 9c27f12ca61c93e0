"""Thousands of rounds under a virtual clock: members of any speed, uploads of any delay, deaths at any instant.

Whatever happens a round ends; contributors are fixed once; everybody who applies comes to the same parameters; nobody waits for a
late replica longer than the deadline; and a round is void only where no replica and no stage could be saved.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest

from coordinator.domain.rounds.round import Lost, Round, RoundEvent, Seat, commands, fold, look
from coordinator.domain.rounds.straggler_deadline import LATENESS
from protocol.identity import NodeKey
from protocol.task import (
    AbandonRound,
    ApplyRound,
    BeginRound,
    Layers,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    TaskCommand,
)
from tests.coordinator.fakes import digest
from tests.support.seeds import seeds

SECONDS = 60.0
LEASE = 8.0  # A dead member is noticed after so long.
TICK = 0.5
SCHEDULES = 60  # For each seed.
NODES = [NodeKey(bytes([number]) * 32).address for number in range(1, 40)]


@dataclass
class Member:
    """A member as a real one behaves, without the computing."""

    seat: Seat
    ends: float
    leaves: int
    dead: bool = False
    began: bool = False
    abandoned: bool = False
    gradient: str = ""
    held: dict[int, str] = field(default_factory=dict)
    wanted: ApplyRound | None = None
    parameters: str = ""


class Course:
    """One round from its beginning to its end."""

    def __init__(self, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        stages, replicas = chance.randint(1, 4), chance.randint(1, 6)
        layers = tuple(Layers(s, s + 1) for s in range(stages))
        places = [(s, p) for p in range(replicas) for s in range(stages)]
        seats = tuple(Seat(f"{s}/{p}", NODES[at], s, p) for at, (s, p) in enumerate(places))
        lateness = None if chance.random() < 0.2 else LATENESS
        self.round = Round(
            3, 7, 0, 50, 100, False, layers, seats, 0.0, seconds=SECONDS, lateness=lateness, store=chance.random() < 0.3
        )
        slow = {p: chance.choice((1.0, 1.0, 1.0, 1.02, 1.3, 4.0)) for p in range(replicas)}
        steps = {p: chance.randint(1, 50) for p in range(replicas)}
        torn = chance.random() < 0.05
        self.members = {}
        for seat in seats:
            leaves = max(1, steps[seat.replica] - (torn and seat.stage == 0))
            self.members[seat.lease] = Member(seat, SECONDS * slow[seat.replica] + chance.random(), leaves)
        self.upload = {p: chance.choice((0.2, 1.0, 5.0, 100.0)) for p in range(replicas)}
        self.now = 0.0
        self.decided: tuple[int, ...] | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def run(self) -> None:
        for member in self.members.values():
            if self.chance.random() < 0.15:
                self.at(self.chance.uniform(0.0, 1.5 * SECONDS), partial(self.die, member))
        self.at(0.0, self.tick)
        while self.round.phase in ("training", "applying"):
            assert self._queue, "a round that is not over has something to wait for"
            self.now, _, action = heapq.heappop(self._queue)
            assert self.now < 40 * SECONDS, f"the round is stuck in {self.round.phase}"
            action()

    def tick(self) -> None:
        self.become(look(self.round, self.now))
        for lease, member in self.members.items():
            for told in commands(self.round, lease):
                self.at(self.chance.uniform(0.01, 0.3), partial(self.obey, member, told))
        self.at(TICK, self.tick)

    def become(self, after: Round) -> None:
        self.round = after
        if self.decided is not None:
            assert after.contributors == self.decided, "contributors are fixed once"
        elif after.contributors is not None:
            self.decided = after.contributors

    def hear(self, member: Member, event: RoundEvent) -> None:
        if not member.dead or isinstance(event, Lost):
            self.become(fold(self.round, member.seat.lease, event, self.now))

    def die(self, member: Member) -> None:
        member.dead = True
        self.at(LEASE, lambda: self.hear(member, Lost()))

    def obey(self, member: Member, told: TaskCommand) -> None:
        if member.dead:
            return
        match told:
            case BeginRound() if not member.began:
                member.began = True
                self.at(max(0.0, member.ends - self.now), lambda: self.commit(member))
            case AbandonRound():
                member.abandoned = True
            case ApplyRound():
                member.wanted = told
                self.apply(member)
            case _:
                pass

    def commit(self, member: Member) -> None:
        pipeline = [m for m in self.members.values() if m.seat.replica == member.seat.replica]
        if member.dead or member.abandoned or any(m.dead and not m.gradient for m in pipeline):
            return  # A pipeline without one of its stages stands still.
        stage, replica = member.seat.stage, member.seat.replica
        member.gradient = digest("gradient", stage, replica)
        member.held[replica] = member.gradient
        self.hear(member, RoundCommit(3, 7, digest("root", stage, replica), member.leaves, member.gradient, 1, 1, 2.0))
        self.hear(member, RoundHolding(3, 7, dict(member.held)))
        for other in self.members.values():
            if other.seat.stage == stage and other is not member:
                delay = self.upload[replica] * self.chance.uniform(0.5, 2.0)
                self.at(delay, partial(self.receive, other, member))

    def receive(self, member: Member, sender: Member) -> None:
        if not (member.dead or sender.dead):
            member.held[sender.seat.replica] = sender.gradient
            self.hear(member, RoundHolding(3, 7, dict(member.held)))
            self.apply(member)

    def apply(self, member: Member) -> None:
        told = member.wanted
        if told is None or any(member.held.get(p) != d for p, d in told.contributors.items()):
            return
        member.parameters = digest(member.seat.stage, sorted(told.contributors.items()))
        stored = digest("stored", member.parameters) if told.checkpoint else None
        self.hear(member, RoundApplied(3, 7, member.parameters, stored, digest("kept", member.parameters)))

    def check(self) -> None:
        over = self.round
        for stage in range(len(over.layers)):
            digests = {m.parameters for m in self.members.values() if m.seat.stage == stage and m.parameters}
            assert len(digests) <= 1, "everybody who applies comes to the same parameters"
        if over.phase == "complete":
            assert over.contributors
            assert all(over.steps_of(replica) for replica in over.contributors)
            return
        whole = [replica for replica in over.whole() if not self.is_torn(replica)]
        assert not whole or self.decided is not None, "a replica that could go on is not given up"
        saved = {s.stage for s in over.seats if s.checkpoint or (s.alive and s.parameters)}
        assert not whole or len(saved) < len(over.layers), "what somebody alive has is not given up"

    def is_torn(self, replica: int) -> bool:
        return len({m.leaves for m in self.members.values() if m.seat.replica == replica}) > 1


@pytest.mark.parametrize("seed", seeds(2, of=40))
def test_whatever_happens_a_round_ends_and_everybody_agrees(seed: int) -> None:
    for number in range(SCHEDULES):
        course = Course(seed * 1_000 + number)
        course.run()
        course.check()


def test_a_replica_four_times_slower_holds_nobody_up() -> None:
    course = Course(5)
    course.round = msgspec.structs.replace(course.round, lateness=LATENESS, store=False)
    for member in course.members.values():
        member.ends = SECONDS if member.seat.replica else 4 * SECONDS
        member.leaves = 20
    course.upload = dict.fromkeys(course.upload, 0.5)
    course.chance.random = lambda: 0.99  # type: ignore[method-assign]
    course.run()
    replicas = {member.seat.replica for member in course.members.values()}
    assert set(course.round.contributors or ()) == replicas - {0}
    assert course.round.decided < 1.3 * SECONDS

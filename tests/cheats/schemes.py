"""What cheats plan, from round to round, as nodes that really do it."""

from dataclasses import dataclass, field

from coordinator.domain import rate as rates
from coordinator.domain.draw import WHOLE
from tests.coordinator.fakes import Lie
from tests.sim.world import Scheme, SimNode
from transport.wire.task import (
    BeginRound,
    OpenOuter,
    OpenStep,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    TaskCommand,
    TaskFailed,
)

ASKED = (ReplayStep, ReplayAcross, ReplayOuter)


@dataclass
class Forger(Scheme):
    """Works honestly for some rounds, then forges until it is found, and begins again.

    Attributes:
        honest: rounds that it works each time before it forges.
        how: what it forges of a round.
        exit_when_drawn: it leaves instead of opening what is drawn of a forged round.
        away: it leaves when it is asked to audit.
        last: it forges in so many last of the job's ``total`` rounds only.
        fresh: it comes back under a new key and wallet whenever it was found, not only where it has to.
        stage: it forges where it has a seat of this stage only; friends elsewhere have nothing to do then, and say so to nobody.
        kills: forged rounds after which it has its tasks fail, again and again, until the job is given up.
    """

    honest: int = 0
    how: Lie = "skips"
    exit_when_drawn: bool = False
    away: bool = False
    last: int = 0
    total: int = 0
    fresh: bool = False
    stage: int | None = None
    kills: int = 0
    failed: bool = False
    done: int = 0
    forged: set[tuple[int, int]] = field(default_factory=set)

    def lie(self, node: SimNode, begun: BeginRound) -> Lie | None:
        """Forge once it has worked enough."""
        self.done += 1
        if begun.steps == 0 or self.done <= self.honest or begun.round < self.total - self.last:
            return None
        if self.stage is not None and all(task.assign.stage != self.stage for task in node.tasks.values()):
            return None
        self.forged.add((begun.plan.epoch, begun.round))
        return self.how

    def leaves(self, node: SimNode, command: TaskCommand) -> bool:
        """Leave rather than be found, or rather than work for others."""
        if self.away and isinstance(command, ASKED):
            return True
        drawn = isinstance(command, OpenStep | OpenOuter) and (command.epoch, command.round) in self.forged
        if drawn and self.exit_when_drawn:
            self.found(node)
        return drawn and self.exit_when_drawn

    def found(self, node: SimNode) -> None:
        """An audit has failed by its doing, as everybody can read: its standing is gone."""
        self.done = 0
        self.forged.clear()
        node.sent_out = node.sent_out or self.fresh

    def turn(self, node: SimNode) -> None:
        """Begin anew where it is not wanted any more."""
        parts = node.world.parts
        if self.kills and len(self.forged) >= self.kills:
            for lease in list(node.tasks):
                node.say(lease, [TaskFailed("out of memory")])
                node.drop(lease)
                self.failed = True
        gone = self.failed and not node.out
        if parts is None or node.leaving or not (node.sent_out or gone or parts.nodes.is_banned(node.key.address)):
            return
        forged, self.failed = set(self.forged), False
        self.found(node)
        self.forged = forged if gone else self.forged  # It goes on until the job has failed.
        if node.session is not None:
            parts.nodes.leave(node.session)
        node.begin_anew()
        node.sent_out = False


def expected(honest: int, rounds: int) -> float:
    """Rounds that are paid for though they were forged, of ``rounds`` after so many honest ones, by the formula."""
    paid, alive = 0.0, 1.0
    for number in range(rounds):
        alive *= 1 - rates.look(rates.Standing(credit=honest + number, share=1)) / WHOLE
        paid += alive
    return paid

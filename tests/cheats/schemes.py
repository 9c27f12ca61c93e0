"""What cheats plan, from round to round, as nodes that really do it."""

from dataclasses import dataclass, field
from math import inf

import msgspec

from coordinator.domain.audits import rate as rates
from coordinator.domain.audits.sampling import WHOLE
from protocol.identity import NodeKey
from protocol.node import Goodbye
from protocol.task import (
    BeginRound,
    OpenOuter,
    OpenStep,
    Progress,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    RoundHolding,
    TaskCommand,
    TaskFailed,
)
from tests.coordinator.fake_task import digest
from tests.coordinator.fakes import Lie
from tests.sim.world import Scheme, SimNode

BETWEEN = 4  # Rounds from one stored state to the next: ``Config.store_every``.
OPENED_S = 6.0  # After which what was drawn is opened.
SAID_S = 5.0
ASKED = (ReplayStep, ReplayAcross, ReplayOuter)


@dataclass
class Forger(Scheme):
    """Works honestly for some rounds, then forges until it is found, and begins again.

    Attributes:
        honest: rounds that it works each time before it forges.
        how: what it forges of a round.
        exit_when_drawn: it leaves instead of opening what is drawn of a forged round.
        cut_when_drawn: seconds for which it cuts its line instead of opening what is drawn of a forged round, again and again.
        crash_when_drawn: seconds for which its agent is dead instead, with its folder as it was, again and again.
        restores: what it says after such a crash, that it makes a worker of its records, comes true.
        away: it leaves when it is asked to audit.
        last: it forges in so many last of the job's ``total`` rounds only.
        fresh: it comes back under a new key and wallet whenever it was found, not only where it has to.
        stage: it forges where it has a seat of this stage only; friends elsewhere have nothing to do then, and say so to nobody.
        kills: forged rounds after which it has its tasks fail, again and again, until the job is given up.
        only: it forges rounds of this place between two stored states only.
        turns_coat: it says to be of another environment class once it has worked enough.
        wallets: it is paid to another wallet whenever it comes back, which it does after each round that it has forged.
    """

    honest: int = 0
    how: Lie = "skips"
    exit_when_drawn: bool = False
    cut_when_drawn: float = 0.0
    crash_when_drawn: float = 0.0
    restores: bool = True
    away: bool = False
    last: int = 0
    total: int = 0
    fresh: bool = False
    stage: int | None = None
    kills: int = 0
    only: int | None = None
    turns_coat: bool = False
    wallets: bool = False
    failed: bool = False
    moved: int = 0
    done: int = 0
    forged: set[tuple[int, int]] = field(default_factory=set)

    def lie(self, node: SimNode, begun: BeginRound) -> Lie | None:
        """Forge once it has worked enough."""
        self.done += 1
        if begun.steps == 0 or self.done <= self.honest or begun.round < self.total - self.last:
            return None
        if self.only is not None and begun.round % BETWEEN != self.only:
            return None
        if self.stage is not None and all(task.assign.stage != self.stage for task in node.tasks.values()):
            return None
        self.forged.add((begun.plan.epoch, begun.round))
        return self.how

    def leaves(self, node: SimNode, command: TaskCommand) -> bool:
        """Leave rather than be found, or rather than work for others."""
        if self.away and isinstance(command, ASKED):
            return True
        if self.turns_coat and isinstance(command, BeginRound) and self.done == self.honest:
            self.done += 1
            node.profile = msgspec.structs.replace(node.profile, env_class="mine")
            return True
        if self.wallets and isinstance(command, BeginRound) and len(self.forged) > self.moved:
            self.moved = len(self.forged)
            node.payout = NodeKey((500 + node.world.fresh_number()).to_bytes(32, "big")).address
            return True
        drawn = self._is_found_by(command)
        if drawn and self.exit_when_drawn:
            self.found(node)
        return drawn and self.exit_when_drawn

    def cuts(self, node: SimNode, command: TaskCommand) -> float:
        """Have its line cut rather than be found."""
        return self.cut_when_drawn if self._is_found_by(command) else 0.0

    def crashes(self, node: SimNode, command: TaskCommand) -> float:
        """Have a crash rather than be found."""
        return self.crash_when_drawn if self._is_found_by(command) else 0.0

    def _is_found_by(self, command: TaskCommand) -> bool:
        return isinstance(command, OpenStep | OpenOuter) and (command.epoch, command.round) in self.forged

    def found(self, node: SimNode) -> None:
        """An audit has failed by its doing, as everybody can read: its standing is gone."""
        self.done = 0
        self.forged.clear()
        node.sent_out = node.sent_out or self.fresh

    def turn(self, node: SimNode) -> None:
        """Begin anew where it is not wanted any more."""
        if not self.restores:
            node.restored = dict.fromkeys(node.restored, inf)
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


@dataclass
class Replayer(Forger):
    """Works each round once, and sends the same again wherever the job has gone back.

    Attributes:
        leaves_before: it leaves, with its friends, before each round after which a state is stored, so often at the most, and
            comes back at once.
    """

    how: Lie = "replays"
    leaves_before: int = 0
    since: float | None = None

    def lie(self, node: SimNode, begun: BeginRound) -> Lie | None:
        """Send again what there is."""
        if self.leaves_before and begun.steps and begun.round % BETWEEN == BETWEEN - 1:
            self.since = node.world.clock.t
        if begun.steps:
            self.forged.add((begun.plan.epoch, begun.round))
        return self.how

    def turn(self, node: SimNode) -> None:
        """Leave once all that was drawn of earlier rounds is opened, so that it costs nothing."""
        super().turn(node)
        if self.since is None or not node.tasks:
            return
        for task in node.tasks.values():
            task.abandoned = True  # It does not work for what it is about to have thrown away.
        if node.world.clock.t - self.since > OPENED_S:
            self.since = None
            self.leaves_before -= 1
            node.send(Goodbye("another time"))
            node.leaving = True


@dataclass
class Idler(Scheme):
    """Begins rounds, does nothing, and says now and then that it comes on.

    Attributes:
        how: that it has come ``further`` in the round, or is where it ``was``, or ``holds`` something else by now.
    """

    how: str = "was"
    said: float = 0.0
    begun: tuple[int, int] = (0, 0)

    def lie(self, node: SimNode, begun: BeginRound) -> Lie | None:
        """Note which round it is."""
        self.begun = begun.plan.epoch, begun.round
        return None

    def turn(self, node: SimNode) -> None:
        """Say so."""
        for lease, task in node.tasks.items():
            task.abandoned = True
            if node.world.clock.t - self.said > SAID_S and node.session is not None:
                self.said = node.world.clock.t
                step = int(self.said) if self.how == "further" else 1
                if self.how == "holds":
                    held = {0: digest("something else", self.said)}
                    node.report(lease, RoundHolding(*self.begun, held))
                else:
                    node.report(lease, Progress(*self.begun, step, 1))


@dataclass
class Flapper(Scheme):
    """Takes a seat, is gone when a round begins, and back at once. ``fresh``: under another key each time."""

    how: str = "crashes"
    fresh: bool = False
    gone: bool = False

    def crashes(self, node: SimNode, command: TaskCommand) -> float:
        """Be dead for a moment."""
        return 0.5 if self.how == "crashes" and self._begins(command) else 0.0

    def cuts(self, node: SimNode, command: TaskCommand) -> float:
        """Be away until the lease has run out."""
        return 5.0 if self.how == "cuts" and self._begins(command) else 0.0

    def leaves(self, node: SimNode, command: TaskCommand) -> bool:
        """Say goodbye."""
        self.gone = self.how == "leaves" and self._begins(command)
        return self.gone

    def _begins(self, command: TaskCommand) -> bool:
        return isinstance(command, BeginRound) and command.steps > 0

    def turn(self, node: SimNode) -> None:
        """Come back as somebody else, once it has left."""
        if self.fresh and self.gone and node.session is None and not node.tasks:
            self.gone = False
            node.begin_anew()


def expected(honest: int, rounds: int) -> float:
    """Rounds that are paid for though they were forged, of ``rounds`` after so many honest ones, by the formula."""
    paid, alive = 0.0, 1.0
    for number in range(rounds):
        alive *= 1 - rates.look(rates.NodeStanding(credit=honest + number, share=1)) / WHOLE
        paid += alive
    return paid

"""A node's doubts about its neighbours: now and then it asks to re-run a step of theirs, and accuses them of what is false.

Whether the coordinator lets it is the coordinator's to say (``coordinator.domain.audits.trust.refusal``). A re-run costs
this computer as much as the step itself. Off unless the owner names the most that may stand at a time (``Settings.bond``).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from desktop.agent.jobs.routing import Plans
from protocol.task import AuditReport, BeginRound, ReplayStep, RoundApplied, StepChallenge, TaskCommand, TaskReport

DOUBTED = 8  # One round in so many is doubted, by lot: who lies in every round is asked about it soon, and work costs an eighth.
MAX_ASKED = 16  # Challenges whose end is still awaited; older ones were refused.


@dataclass(frozen=True)
class Accusation:
    """What was found false: the audit, and who did the step."""

    audit: str
    node: str


@dataclass
class PeerAudits:
    """The doubts of one lease. ``chance`` gives whole numbers below its argument."""

    plans: Plans
    seat: tuple[int, int]
    chance: Callable[[int], int]
    _rounds: dict[tuple[int, int], int] = field(default_factory=dict)
    _asked: list[StepChallenge] = field(default_factory=list)
    _replays: dict[str, str] = field(default_factory=dict)

    def told(self, command: TaskCommand) -> None:
        """The coordinator has told the worker something."""
        match command:
            case BeginRound():
                self._rounds[command.plan.epoch, command.round] = command.steps
                while len(self._rounds) > MAX_ASKED:
                    del self._rounds[next(iter(self._rounds))]
            case ReplayStep():
                place = (command.round, command.stage, command.replica, command.step)
                node = command.plan.node_of(command.stage, command.replica)
                if node is not None and any((c.round, c.stage, c.replica, c.step) == place for c in self._asked):
                    self._replays[command.audit] = node
            case _:
                pass

    def wonder(self, report: TaskReport) -> StepChallenge | None:
        """After a round that the worker has applied: which step of a neighbour to ask about, if any."""
        if not isinstance(report, RoundApplied):
            return None
        steps = self._rounds.pop((report.epoch, report.round), 0)
        near = sorted(self.plans.near(*self.seat))
        if steps == 0 or not near or self.chance(DOUBTED) != 0:
            return None
        stage, replica = near[self.chance(len(near))]
        asked = StepChallenge(report.round, stage, replica, self.chance(steps))
        self._asked = [*self._asked[1 - MAX_ASKED :], asked]
        return asked

    def accuse(self, report: TaskReport) -> Accusation | None:
        """Whom to accuse of what the worker's re-run has found, if it asked for it."""
        if not isinstance(report, AuditReport) or report.audit not in self._replays:
            return None
        node = self._replays.pop(report.audit)
        return Accusation(report.audit, node) if report.verdict in ("mismatch", "malformed") else None

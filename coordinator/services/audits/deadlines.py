"""Until when answers in audits are due: ``domain.audits.answer_time`` with what was measured of the nodes that give them."""

import msgspec

from coordinator.domain import placement
from coordinator.domain.audits import answer_time
from coordinator.domain.audits.answer_time import AnswerMeans, Effort
from coordinator.domain.audits.trust import Audit
from coordinator.domain.rounds.run import training_of
from coordinator.services.core.context import Context
from coordinator.services.core.unit_of_work import UnitOfWork
from coordinator.services.network.link_telemetry import Links
from coordinator.services.network.nodes import Nodes
from coordinator.services.training.staffing import shape_of
from protocol.audit import segment
from protocol.job.job import TrainingSpec
from protocol.network import ASSUMED_UP
from protocol.task import Layers


class Deadlines:
    """Gives answers their time."""

    def __init__(self, context: Context, nodes: Nodes, links: Links) -> None:
        self._context = context
        self._nodes = nodes
        self._links = links

    def look(self, work: UnitOfWork, audit: Audit) -> Audit:
        """The audit with the deadline that its present phase has by now: lines are measured, and openings made, meanwhile."""
        asked = audit.node if audit.unopened else audit.auditor
        means = None if asked is None else self._means(asked)
        if means is None or (audit.state != "replaying" and not audit.unopened):
            return audit
        effort = self._showing(work, audit) if audit.unopened else self._replaying(work, audit)
        return answer_time.due(audit, answer_time.seconds(means, effort, self._least))

    def answer(self, work: UnitOfWork, audit: Audit, nodes: tuple[str, ...]) -> float:
        """Until when the slower of two sides has to answer a question of a dispute."""
        effort, shape, training = self._replaying(work, audit), shape_of(work), _training(work)
        layers, last = _place(audit)
        effort = msgspec.structs.replace(
            effort,
            operations=answer_time.TRACED * effort.operations,
            hashed=answer_time.traced_bytes(shape, training, layers, last),
            sent=answer_time.input_bytes(shape, layers, last),
        )
        found = [means for node in nodes if (means := self._means(node)) is not None]
        return work.now + max((answer_time.seconds(means, effort, self._least) for means in found), default=self._least)

    def brings_short(self, work: UnitOfWork, audit: Audit, seconds: float) -> bool:
        """Whether the prover's line brings an opening without its anchor in so long, with as much again to spare."""
        means, (layers, last) = self._means(audit.node), _place(audit)
        if means is None:
            return False
        size = answer_time.short_bytes(shape_of(work), _training(work), layers, last, _steps(work, audit))
        return answer_time.SAFETY * size / (means.up or ASSUMED_UP) <= seconds

    @property
    def _least(self) -> float:
        return self._context.config.audit_seconds

    def _means(self, node: str) -> AnswerMeans | None:
        """Of a node that is here."""
        line, speed = self._links.map.line(node), self._nodes.speed(node)
        if speed is None:
            return None
        return AnswerMeans(speed) if line is None else AnswerMeans(speed, line.up, line.down)

    def _showing(self, work: UnitOfWork, audit: Audit) -> Effort:
        """What is left to do of all that the prover has yet to show; its openings share its line."""
        own = [a for a in work.audits.values() if a.node == audit.node and a.unopened and not a.canary]
        if audit.made is not None:
            return Effort(sent=sum(min(a.size, most_bytes(work, a)) for a in own if a.made is not None))
        steps = [a.leaves + 2 * _steps(work, a) for a in own if a.made is None and a.outer is None]
        return Effort(operations=self._operations(work, audit, sum(steps)))

    def _replaying(self, work: UnitOfWork, audit: Audit) -> Effort:
        """To have the opening, and the weights that the job begins with where those are asked for, and run the segment again."""
        layers, last = _place(audit)
        weights = answer_time.FLOAT32 * answer_time.parameters_of(shape_of(work), layers, last)
        size = min(audit.size, most_bytes(work, audit)) or most_bytes(work, audit)
        steps = _steps(work, audit) if audit.outer is None else 0
        return Effort(operations=self._operations(work, audit, steps), fetched=size + weights, hashed=2 * size)

    def _operations(self, work: UnitOfWork, audit: Audit, steps: int) -> float:
        training, (layers, last) = _training(work), _place(audit)
        tokens = steps * training.batch * training.sequence
        return placement.operations_of(shape_of(work), training, layers, layers.last == last, tokens)


def most_bytes(work: UnitOfWork, audit: Audit) -> int:
    """More than the opening of an audit can have."""
    layers, last = _place(audit)
    if audit.outer is not None:
        return answer_time.outer_bytes(shape_of(work), layers, last, len(audit.outer.contributors))
    return answer_time.opening_bytes(shape_of(work), _training(work), layers, last, _steps(work, audit))


def _training(work: UnitOfWork) -> TrainingSpec:
    return training_of(work.run, work.job.spec.training)


def _place(audit: Audit) -> tuple[Layers, int]:
    return audit.plan.layers[audit.stage], audit.plan.layers[-1].last


def _steps(work: UnitOfWork, audit: Audit) -> int:
    """Of the segment that the audited step lies in."""
    if audit.outer is not None:
        return 0
    first, stop = segment(audit.step, _training(work).commit_every, audit.leaves)
    return stop - first

"""A worker in memory that keeps the rules of the wire, and can be told to lie."""

from collections.abc import Callable, Iterable
from fractions import Fraction

import msgspec

from common.untrusted_text import untrusted
from protocol.audit import ProvenLeaf, StepLeaf
from protocol.boundary import crossings, position_of
from protocol.codec import decode
from protocol.node import Assign
from protocol.task import (
    AbandonRound,
    ApplyRound,
    AuditReport,
    AwaitStages,
    BeginRound,
    BisectQuery,
    ExpectPeers,
    JoinStages,
    LeafShown,
    OpeningMade,
    OpenOuter,
    OpenStep,
    OuterRecord,
    PreferenceScore,
    Progress,
    ReduceRound,
    ReplayAcross,
    ReplayOuter,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    ShardRecord,
    ShowLeaf,
    StepOpened,
    StopTask,
    TaskCommand,
    TaskFailed,
    TaskReady,
    TaskReport,
    Traffic,
    Validation,
)
from tests.coordinator.fake_shards import FakeShards
from tests.coordinator.fakes import FALSE_CONTRIBUTIONS, Lie, Peers, Tree
from tests.coordinator.rerun import Committed
from tests.coordinator.rerun import digest as digest

BLAME = untrusted(
    "model.safetensors: tensor lm_head.weight is (8, 4), the config makes it (16, 4): one of them is wrong"
)


class FakeTask:
    """A worker that keeps the rules of the wire. ``act`` takes a command; ``work`` does what has become possible since.

    ``lie``: commits to a ``root`` without leaves, contributes a ``substitute`` for what its last leaf binds, trains from
    another ``anchor``, or names another environment ``class``, or computes in an ``other class`` than it names, so that none of
    its steps comes to what it does in that class; ``skips`` all steps, or all ``but last``, or forges ``one step``; binds a false
    contribution in its last leaf (``FALSE_CONTRIBUTIONS``); is ``mute`` when it is to open a step; forges one and is ``silent``
    in the dispute; says something else of an ``outer`` step than it comes to; commits to having ``sent`` something else than its
    steps give, or to having ``received`` something else than came; says half of the held-out
    ``loss``, or ``no loss`` at all, or ``dies measuring`` it; ``poison``: skips all steps, and whoever runs one again dies of it;
    ``noughts``: skips all steps, and gives the other stages of its replica nothing to compute; ``faint``:
    the same with something that only looks like work; ``replays``: sends what it, or a
    friend in its seat, had come to before from the same samples, where there is such a round, and works where there is none;
    ``blames`` the job's files before it has read them, or is too ``small`` for its stage; or lies about a shard (``FakeShards``).

    ``accuse``: finds every step that it re-runs wrong, and shows its leaves as a proof. ``blind``: finds every step right that
    it is to re-run, of everybody or of these nodes. ``choose``: says before each round what it will lie about.
    """

    def __init__(
        self,
        assign: Assign,
        node: str,
        peers: Peers,
        lie: Lie | None = None,
        env_class: str = "cpu",
        accuse: bool = False,
        blind: bool | frozenset[str] = False,
        choose: Callable[[BeginRound], Lie | None] | None = None,
    ) -> None:
        self.assign = assign
        self.choose = choose
        self.blind = blind
        self.node = node
        self.peers = peers
        self.lie = lie
        self.accuse = accuse
        self.trained = False
        self.roots: dict[tuple[int, int], str] = {}
        self.outers: dict[tuple[int, int], tuple[OuterRecord, str, dict[int, int]]] = {}
        self.env_class = env_class
        self.anchor_round = 0
        self.anchor = digest("initial", assign.stage)
        self.begun: BeginRound | None = None
        self.abandoned = False
        self.applied: RoundApplied | None = None
        self.held: dict[int, str] = {}
        self.stopped = False
        self.shards = FakeShards(peers.shards, -1 if assign.replica is None else assign.replica)

    def start(self) -> list[TaskReport]:
        if self.lie == "blames":
            return [TaskFailed(BLAME, cause="inputs")]
        if self.lie == "small":
            return [TaskFailed("the stage does not fit", cause="memory")]
        return [TaskReady(self.env_class, 1000)]

    def act(self, command: TaskCommand) -> list[TaskReport]:  # noqa: C901 - one line for each command.
        match command:
            case BeginRound():
                return self._begin(command)
            case AbandonRound():
                self.abandoned = True
                return []
            case AwaitStages() | JoinStages():  # It holds a part of a model that answers, and is asked nothing here.
                return []
            case ReduceRound():
                self.shards.order(command)
                return self.look()
            case ApplyRound():
                return self._apply(command)
            case OpenStep() if self.lie == "mute":
                return [StepOpened(command.audit, None, "no")]
            case OpenStep():
                opening = digest("opening", command.audit)
                self.peers.openings[opening] = self.roots[command.epoch, command.round]
                self.peers.poisoned |= {opening} if self.lie == "poison" else set()
                return [OpeningMade(command.audit, opening), StepOpened(command.audit, opening)]
            case ShowLeaf():
                return [self._show_leaf(command)]
            case ReplayStep() | ReplayAcross():
                return [_with_anchor(command, self._judge(command))]
            case StopTask():
                self.stopped = True
                return []
            case BisectQuery():
                return self._dispute(command)
            case OpenOuter():
                opening = digest("outer opening", command.audit)
                self.peers.outers[opening] = self.outers[command.epoch, command.round]
                return [OpeningMade(command.audit, opening), StepOpened(command.audit, opening)]
            case ReplayOuter():
                right = self.shards.is_right(command, *self.peers.outers[command.opening])
                return [AuditReport(command.audit, "match" if right and not self.accuse else "mismatch", "seen")]
            case ExpectPeers():
                return []  # It is for the agent.

    def _show_leaf(self, command: ShowLeaf) -> LeafShown:
        if self.lie == "mute":
            return LeafShown(command.audit, None)
        work = self.peers.trees[self.roots[command.epoch, command.round]].work
        return LeafShown(command.audit, work.leaves[command.step], work.tree.proof(command.step).path)

    def _judge(self, command: ReplayStep | ReplayAcross) -> AuditReport | TaskFailed:
        env_class = self.env_class
        if isinstance(command, ReplayAcross):
            self.peers.across += 1
            env_class = command.env_class
            command = command.replay
        if command.opening in self.peers.poisoned:
            return TaskFailed("out of memory")
        tree = self.peers.trees[command.root]
        prover = command.plan.node_of(command.stage, command.replica)
        if self.blind is True or (self.blind and prover in self.blind):
            return AuditReport(command.audit, "match")
        contribution = tree.gradient == tree.honest_gradient or command.step < command.leaves - 1
        bound = tree.gradient == command.pseudo_gradient and command.anchor in (None, tree.anchor)
        proof = _shown(tree, {command.step, command.leaves - 1})
        if (not bound and not tree.forged) or self.accuse:
            return AuditReport(command.audit, "mismatch", "seen", proof=proof)
        if tree.forged or not contribution or command.step in tree.work.wrong:
            return AuditReport(command.audit, "mismatch", "seen")
        if tree.env_class != env_class:
            return AuditReport(command.audit, "incomparable", f"the prover names {tree.env_class}")
        return AuditReport(
            command.audit, "match", vain=(command.plan.epoch, command.round, command.replica) in self.peers.noughts
        )

    def _dispute(self, query: BisectQuery) -> list[TaskReport]:
        """Stand by what was said: a liar by its commitment, a false accuser by its invention."""
        work, replay = self.peers.trees[query.replay.root].work, query.replay
        if self.lie == "silent":
            return []
        is_prover = replay.plan.node_of(replay.stage, replay.replica) == self.node
        return [work.answer(query, bent=replay.step in work.wrong if is_prover else self.accuse)]

    def work(self) -> list[TaskReport]:
        """Train if the whole pipeline is there, and report what peers have sent."""
        if self.begun is None or self.assign.stage is None:
            return []
        return [*self._train(self.begun), *self.look()]

    def _train(self, begun: BeginRound) -> list[TaskReport]:
        stage, replica = self._seat()
        key = (self.assign.job, begun.plan.epoch, begun.round)
        here = self.peers.begun.get((*key, replica), set())
        if self.trained or self.abandoned or begun.steps == 0 or len(here) < len(begun.plan.layers):
            return []
        self.trained = True
        # In rounds of fixed time some are slower than others.
        steps = begun.steps if begun.seconds is None else max(1, begun.steps // (1 + replica))
        honest = digest(key, stage, replica, "gradient")
        bound = digest(self.lie, honest) if self.lie in FALSE_CONTRIBUTIONS else honest
        gradient = digest("ten times", bound) if self.lie == "substitute" else bound
        self.peers.sent.setdefault((*key, stage), {})[replica] = gradient
        last = stage == len(begun.plan.layers) - 1
        anchor = digest("false", self.anchor) if self.lie == "anchor" else self.anchor
        env_class = "of its own" if self.lie == "class" else self.env_class
        name = digest(key, stage, replica)
        wrong: frozenset[int] = frozenset()
        if self.lie in ("skips", "sent", "other class", "poison", "noughts", "faint"):
            wrong = frozenset(range(steps))
        elif self.lie == "but last":
            wrong = frozenset(range(steps - 1))
        elif self.lie in ("one step", "silent"):
            wrong = frozenset({int(name[:8], 16) % steps})
        training = self.assign.spec.training
        work = Committed(
            name,
            begun.first_step,
            steps,
            wrong,
            env_class,
            anchor,
            digest(key, "payloads"),
            position_of(begun.plan, stage, replica, training),
            crossings(training),
            self.lie or "",
            bound,
        )
        root = digest(name, "root") if self.lie == "root" else work.tree.root.hex()
        self.roots[begun.plan.epoch, begun.round] = root
        self.peers.noughts |= {(begun.plan.epoch, begun.round, replica)} if self.lie == "noughts" else set()
        unworked = len(wrong)
        if self.lie == "replays":
            kept = (self.assign.job, begun.round, begun.first_step, stage, replica)
            unworked = steps if kept in self.peers.worked else 0
            self.peers.worked.add(kept)
        self.peers.forged[*key, stage, replica] = Fraction(unworked, steps)
        self.peers.trees[root] = Tree(bound, anchor, env_class, self.lie == "root", work, honest)
        commit = RoundCommit(
            begun.plan.epoch,
            begun.round,
            root,
            steps,
            gradient,
            tokens=steps * 256,
            operations=1,
            loss=5.0 / (1 + begun.round) if last else None,
            heldout=self._heldout(begun.round, replica),
        )
        last_step = begun.first_step + steps - 1
        return [Progress(begun.plan.epoch, begun.round, last_step, steps * 256, commit.loss), commit]

    def _heldout(self, number: int, replica: int) -> float | None:
        """What an owner tells of its loss, where that is no part of a sum: its noise is its number."""
        federated = self.assign.spec.federated
        privacy = None if federated is None or federated.sum == "secure" else federated.privacy
        return None if privacy is None or privacy.heldout is None else 4.0 / (1 + number) + replica

    def look(self) -> list[TaskReport]:
        """Report pseudo-gradients that have come in since the last look."""
        if self.begun is None:
            return []
        key = (self.assign.job, self.begun.plan.epoch, self.begun.round, self._seat()[0])
        now = dict(self.peers.sent.get(key, {}))
        news: list[TaskReport] = [*self.shards.look(now)]
        if now == self.held:
            return news
        self.held = now
        return [*news, RoundHolding(key[1], key[2], now), Traffic(1, 2, 3, 30, 4)]

    def _seat(self) -> tuple[int, int]:
        assert self.assign.stage is not None
        assert self.assign.replica is not None
        return self.assign.stage, self.assign.replica

    def _begin(self, command: BeginRound) -> list[TaskReport]:
        if self.begun is not None and (command.plan.epoch, command.round) == (self.begun.plan.epoch, self.begun.round):
            return []
        stage, replica = self._seat()
        if self.choose is not None:
            self.lie = self.choose(command)
        self.begun, self.abandoned, self.applied, self.held, self.trained = command, False, None, {}, False
        self.shards.lie = self.lie or ""
        self.shards.begin((self.assign.job, command.plan.epoch, command.round, stage), command)
        self.peers.begun.setdefault((self.assign.job, command.plan.epoch, command.round, replica), set()).add(stage)
        self._check(command)
        source = command.state if command.kept is None else command.kept.manifest
        if source is not None:
            number, of_stage, self.anchor = self.peers.checkpoints[source]
            self.anchor_round = number
            if of_stage != stage:
                self.peers.violations.append("a checkpoint of another stage")
        if self.anchor_round != command.round:
            self.peers.violations.append(
                f"round {command.round} was begun from the anchor of round {self.anchor_round}"
            )
        anchors = self.peers.anchors.setdefault(
            (self.assign.job, command.plan.epoch, command.round * 1000 + stage), set()
        )
        anchors.add(self.anchor)
        if len(anchors) > 1:
            self.peers.violations.append(f"round {command.round}, stage {stage}: replicas begin from different anchors")
        if command.validate and stage == len(command.plan.layers) - 1:
            return self._measure(command)
        return []

    def _check(self, command: BeginRound) -> None:
        """That the coordinator names what there is."""
        stage, replica = self._seat()
        if command.plan.node_of(stage, replica) != self.node:
            self.peers.violations.append(f"{self.node} was begun on a seat that the plan gives to somebody else")
        if command.kept is not None and not set(command.kept.holders) & self.peers.keepers[command.kept.manifest]:
            self.peers.violations.append("a state is named that none of its holders keeps")
        if command.moments is not None:
            self.peers.resumed += command.moments.holders == (self.node,)
            if self.peers.moments[command.moments.manifest] != (stage, replica, command.round):
                self.peers.violations.append("moments of another seat or round are named")
        if command.state is not None and command.state not in self.peers.stored:
            self.peers.violations.append("a state is named that was never stored")

    def _measure(self, command: BeginRound) -> list[TaskReport]:
        loss = 5.0 / (1 + command.round)
        if self.env_class != "cpu":
            loss *= 1 + 1e-7  # It rounds in another way.
        sums = digest("sums", loss)
        if self.lie == "no loss":
            return []
        if self.lie == "dies measuring":
            return [TaskFailed("out of memory")]
        if self.lie == "loss":
            loss, sums = loss / 2, digest("sums", "invented")
        score = None
        if self.peers.compares:
            score = PreferenceScore(1.0 if self.lie == "accuracy" else 1 - loss / 5.0, command.round / 4)
        return [Validation(command.plan.epoch, command.round, loss, 100, self.anchor, sums, score)]

    def _apply(self, command: ApplyRound) -> list[TaskReport]:
        if self.begun is None or (command.epoch, command.round) != (self.begun.plan.epoch, self.begun.round):
            self.peers.violations.append(f"round {command.round} is applied but was not begun")
            return []
        stage, _ = self._seat()
        if (
            any(self.held.get(replica) != held for replica, held in command.contributors.items())
            and not command.results
            and command.total is None
        ):
            self.peers.violations.append(f"round {command.round}: a contribution that is not held is applied")
        before, reduced = self.anchor, tuple[ShardRecord, ...]()
        if self.applied is None:
            wrong, reduced = self.shards.apply(command)
            self.peers.violations += [wrong] if wrong else []
            self.anchor = digest(
                self.anchor,
                sorted(command.contributors.items()),
                sorted(command.results.items()),
                *([sorted(command.weights.items())] if command.weights else []),
                *([command.total] if command.total else []),
            )
            self.anchor_round = command.round + 1
        name = digest("checkpoint", self.assign.job, stage, self.anchor_round, self.anchor)
        self.peers.checkpoints[name] = (self.anchor_round, stage, self.anchor)
        self.peers.keepers.setdefault(name, set()).add(self.node)
        stored = name if command.checkpoint else None
        if stored:
            self.peers.stored.add(name)
        own = digest("moments", self.assign.job, self._seat(), self.anchor_round, self.anchor)
        self.peers.moments[own] = (*self._seat(), self.anchor_round)
        if self.applied is not None:
            self.applied = msgspec.structs.replace(self.applied, checkpoint=stored)
            return [self.applied]
        record, said = OuterRecord(digest("outer", before), digest("outer", self.anchor)), self.anchor
        record = msgspec.structs.replace(record, results=command.results, reduced=reduced)
        self.outers[command.epoch, command.round] = record, said, command.weights
        if self.lie == "outer":
            record = msgspec.structs.replace(record, after=digest("false", record.after))
            said = digest("false", said)
        self.applied = RoundApplied(command.epoch, command.round, said, stored, name, own, record)
        return [self.applied]


def _shown(tree: Tree, places: Iterable[int]) -> tuple[ProvenLeaf, ...]:
    """Leaves with their paths."""
    work = tree.work
    return tuple(
        ProvenLeaf(place, decode(work.leaves[place], StepLeaf), work.tree.proof(place).path) for place in sorted(places)
    )


def _with_anchor(command: ReplayStep | ReplayAcross, report: AuditReport | TaskFailed) -> AuditReport | TaskFailed:
    """What was found, with the anchor that only auditors have."""
    alone = isinstance(command, ReplayStep) and command.anchor_in == "auditor"
    if alone and isinstance(report, AuditReport) and report.verdict != "match":
        return msgspec.structs.replace(report, anchor=command.anchor)
    return report

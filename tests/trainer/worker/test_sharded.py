"""Real workers that exchange by shards, told what to do by the coordinator's own decisions."""

import contextlib
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from coordinator.domain.rounds import run as runs
from coordinator.domain.rounds.round import Lost, Round, commands, fold, look
from coordinator.domain.rounds.run import Holder, Run
from protocol.audit import step_weights
from protocol.job.sharding import sharded_from
from protocol.plan import Plan
from protocol.task import (
    AuditReport,
    BeginRound,
    OpenOuter,
    OpenStep,
    ReplayOuter,
    ReplayStep,
    RoundApplied,
    RoundCommit,
    RoundHolding,
    StepOpened,
)
from protocol.worker import PeerSend
from tests.trainer.router import NODE, MakeRouter, Place, Router, make_plan
from tests.trainer.small import job

REPLICAS = 4
CUTS = [(0, 3)]
PLAN = make_plan(CUTS, list(range(REPLICAS)))
PLACES: list[Place] = [(0, replica) for replica in range(REPLICAS)]
STEPS, TOTAL = 2, 8


class Decisions:
    """The coordinator's decisions about a run, for workers behind a router. Time passes by reports, and when a test says so."""

    def __init__(self, router: Router, plan: Plan = PLAN, steps: Mapping[int, int] | None = None) -> None:
        """``steps``: how many each replica makes in rounds of fixed time; None: all as many."""
        self.router = router
        self.steps = steps
        self.now = 0.0
        self.kept: list[Round] = []
        self._folded: dict[tuple[Any, int], int] = {}
        self._told: dict[str, list[Any]] = {}
        self.plan = plan
        replicas = plan.replicas()
        self.run = Run(
            plan.layers,
            len(replicas),
            TOTAL,
            STEPS if steps is None else max(steps.values()),
            (),
            sharded_from=sharded_from(router.spec.training),
            store_every=99,
            round_seconds=None if steps is None else 1000.0,
        )

    @property
    def round(self) -> Round:
        assert self.run.round is not None
        return self.run.round

    def begin(self) -> None:
        holders = [Holder(f"{m.stage}/{m.replica}", NODE, m.stage, m.replica) for m in self.plan.members]
        alive = [holder for holder in holders if (holder.stage, holder.replica) in self.router.workers]
        self.run = runs.begin(self.run, alive, self.now)
        self._told = {}

    async def step(self) -> None:
        """Take in all reports, and tell what follows."""
        for seat in self.round.seats:
            place = (seat.stage, seat.replica)
            handle = self.router.workers.get(place)
            reports = handle.reports if handle is not None else []
            at = self._folded.get((place, id(handle)), 0)
            for report in reports[at:]:
                if isinstance(report, RoundCommit | RoundHolding | RoundApplied):
                    if isinstance(report, RoundApplied):
                        report = msgspec.structs.replace(report, kept="5" * 64)
                    self.now += 0.01
                    self.run = msgspec.structs.replace(self.run, round=fold(self.round, seat.lease, report, self.now))
            self._folded[place, id(handle)] = len(reports)
        self.later(0.0)
        for seat in self.round.seats:
            if seat.alive and (seat.stage, seat.replica) in self.router.workers:
                for command in commands(self.round, seat.lease):
                    if command not in self._told.setdefault(seat.lease, []):
                        self._told[seat.lease].append(command)
                        if isinstance(command, BeginRound) and self.steps is not None:
                            command = msgspec.structs.replace(command, steps=self.steps[seat.replica])
                        with contextlib.suppress(ConnectionError):
                            await self.router.command((seat.stage, seat.replica), command)

    def later(self, seconds: float) -> None:
        self.now += seconds
        self.run = msgspec.structs.replace(self.run, round=look(self.round, self.now))

    async def lose(self, place: Place) -> None:
        """A member dies, and its lease with it."""
        await self.router.kill(place)
        lease = f"{place[0]}/{place[1]}"
        self.run = msgspec.structs.replace(self.run, round=fold(self.round, lease, Lost(), self.now))

    async def until(self, condition: Callable[[], Any]) -> None:
        """Pass reports and commands on until something is so."""
        while not condition():
            seen = sum(len(handle.reports) for handle in self.router.workers.values())
            await self.step()
            if not condition():
                await self.router.until(
                    lambda seen=seen: sum(len(h.reports) for h in self.router.workers.values()) > seen
                )

    async def whole(self, count: int = 1) -> None:
        """So many rounds."""
        for _ in range(count):
            self.begin()
            await self.end()

    async def end(self) -> None:
        await self.until(lambda: self.round.phase in ("complete", "void"))
        assert self.round.phase == "complete"
        for stage in range(len(self.plan.layers)):
            found = {s.parameters for s in self.round.seats if s.alive and s.stage == stage}
            assert len(found) == 1, "replicas of a stage agree bit for bit"
        self.kept.append(self.round)
        self.run = runs.close(self.run)

    def parameters(self) -> list[str | None]:
        """What stage 0 came to in each round."""
        return [next(s.parameters for s in done.seats if s.alive) for done in self.kept]


async def audit_step(router: Router, done: Round, place: Place, step: int) -> AuditReport:
    name = hashlib.sha256(f"{done.epoch} {done.number} {place} {step}".encode()).hexdigest()[:32]
    await router.command(place, OpenStep(name, done.epoch, done.number, step))
    await router.until(lambda: router.of(place, StepOpened, audit=name))
    [opened] = router.of(place, StepOpened, audit=name)
    seat = next(seat for seat in done.seats if (seat.stage, seat.replica) == place)
    assert seat.commit is not None
    command = ReplayStep(
        name,
        done.plan,
        *place,
        done.number,
        done.first_step,
        step,
        TOTAL,
        seat.commit.root,
        seat.commit.leaves,
        seat.commit.pseudo_gradient,
        None,
        opened.opening,
        carried=seat.commit.carried,
        local=seat.local,
    )
    return await replayed(router, command, router.artifacts[opened.opening])


async def outer_of(router: Router, done: Round, place: Place) -> tuple[ReplayOuter, bytes]:
    """What an audit of a member's outer step asks with, and its opening."""
    name = hashlib.sha256(f"{done.epoch} {done.number} {place}".encode()).hexdigest()[:32]
    await router.command(place, OpenOuter(name, done.epoch, done.number))
    await router.until(lambda: router.of(place, StepOpened, audit=name))
    opening = router.of(place, StepOpened, audit=name)[0].opening
    seat = next(seat for seat in done.seats if (seat.stage, seat.replica) == place)
    assert seat.outer is not None
    assert seat.parameters is not None
    given = {
        s.replica: s.commit.pseudo_gradient
        for s in done.seats
        if s.stage == place[0] and s.commit is not None and s.replica in (done.contributors or ())
    }
    weights = step_weights({replica: done.steps_of(replica) for replica in given})
    command = ReplayOuter(name, done.plan, place[0], done.number, given, seat.outer, seat.parameters, opening, weights)
    return command, router.artifacts[opening]


async def replayed(router: Router, command: ReplayStep | ReplayOuter, opening: bytes) -> AuditReport:
    name = hashlib.sha256(msgspec.msgpack.encode(command) + opening).hexdigest()[:32]
    await router.command("spare", msgspec.structs.replace(command, audit=name), opening)
    await router.until(lambda: router.of("spare", AuditReport, audit=name))
    report: AuditReport = router.of("spare", AuditReport, audit=name)[0]
    return report


def kinds(router: Router) -> set[str]:
    return {message.name.kind for _, message, _ in router.sent}


@pytest.mark.slow
async def test_of_float32_shards_give_the_bits_of_the_mesh(routed: MakeRouter) -> None:
    found: list[Sequence[str | None]] = []
    for exchange in ("mesh", "shards"):
        async with routed(job(inner_steps=STEPS, pseudo_gradient="fp32", exchange=exchange)) as router:
            await router.start(PLAN, PLACES)
            decisions = Decisions(router)
            await decisions.whole(2)
            found.append(decisions.parameters())
            assert kinds(router) == ({"pseudo_gradient"} if exchange == "mesh" else {"shard", "result"})
    assert found[0] == found[1]
    assert len({*found[0]}) == 2


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"pseudo_gradient": "coarse"},
        {"outer": "streaming", "fragments": 2, "mixing": 0.5, "overlap": 1},
        {"outer": "sparseloco", "outer_momentum": 0.0},
        {"memory": "lean", "precision": "bf16", "pseudo_gradient": "coarse"},
    ],
    ids=["coarse", "streaming", "sparse", "lean"],
)
async def test_replicas_stay_equal_and_steps_and_shards_replay(changes: dict[str, Any], routed: MakeRouter) -> None:
    async with routed(job(inner_steps=STEPS, **changes)) as router:
        await router.start(PLAN, [*PLACES, "spare"])
        decisions = Decisions(router)
        await decisions.whole(2)
        assert kinds(router) == {"shard", "result"}
        for done in decisions.kept:
            report = await audit_step(router, done, (0, 2), STEPS - 1)
            assert report.verdict == "match", report.detail
            command, opening = await outer_of(router, done, (0, 1))
            assert [record.shard for record in command.record.reduced] == [1]
            report = await replayed(router, command, opening)
            assert report.verdict == "match", report.detail
            for wrong in wrongs(command):
                assert (await replayed(router, wrong, opening)).verdict != "match"
        if changes.get("outer") != "streaming":
            before = {record.shard: record.before for record in command.record.reduced}
            assert before == {1: next(iter(decisions.kept[0].seats[1].outer.reduced)).after}  # type: ignore[union-attr]
            assert before[1] is not None, "what the codec lost goes into the next round"


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["mesh", "shards"])
async def test_updates_weigh_by_the_steps_of_their_replicas_and_replay(exchange: Any, routed: MakeRouter) -> None:
    async with routed(job(inner_steps=4, pseudo_gradient="coarse", exchange=exchange)) as router:
        await router.start(PLAN, [*PLACES, "spare"])
        decisions = Decisions(router, steps={0: 1, 1: 1, 2: 2, 3: 4})
        await decisions.whole()
        command, opening = await outer_of(router, decisions.kept[0], (0, 1))
        assert command.weights == {0: 1, 1: 1, 2: 2, 3: 4}
        report = await replayed(router, command, opening)
        assert report.verdict == "match", report.detail
        for other in ({}, command.weights | {3: 3}, {0: 1, 1: 1, 2: 2}):
            wrong = msgspec.structs.replace(command, weights=other)
            assert (await replayed(router, wrong, opening)).verdict == "mismatch"


def wrongs(command: ReplayOuter) -> list[ReplayOuter]:
    """Outer steps that are not what was agreed on."""
    [said] = command.record.reduced
    other = "7" * 64

    def with_record(**changes: Any) -> ReplayOuter:
        return msgspec.structs.replace(command, record=msgspec.structs.replace(command.record, **changes))

    return [
        with_record(reduced=(msgspec.structs.replace(said, result=other),)),
        with_record(reduced=(msgspec.structs.replace(said, before=other),)),
        with_record(reduced=(msgspec.structs.replace(said, after=other),)),
        with_record(results=command.record.results | {0: other}),
        msgspec.structs.replace(command, contributors=command.contributors | {3: other}),
        msgspec.structs.replace(command, parameters=other),
    ]


@pytest.mark.slow
async def test_a_reducer_that_lies_is_applied_and_found(routed: MakeRouter) -> None:
    async with routed(job(inner_steps=STEPS)) as router:
        await router.start(PLAN, [*PLACES, "spare"], {(0, 2): "shard"})
        decisions = Decisions(router)
        await decisions.whole()
        verdicts = []
        for place in PLACES:
            report = await replayed(router, *await outer_of(router, decisions.kept[0], place))
            verdicts.append((report.verdict, "shard 2" in report.detail))
        assert verdicts == [("match", False), ("match", False), ("mismatch", True), ("match", False)]


@pytest.mark.slow
@pytest.mark.parametrize("handed", [False, True], ids=["before its result is out", "after one has it"])
async def test_a_reducer_that_is_killed_is_replaced_within_the_round(handed: bool, routed: MakeRouter) -> None:
    async with routed(job(inner_steps=STEPS, pseudo_gradient="coarse")) as router:
        router.deliver = lambda source, to, message, payload: (
            None if message.name.kind == "result" and source == (0, 1) and not (handed and to == (0, 3)) else payload
        )
        await router.start(PLAN, [*PLACES, "spare"])
        decisions = Decisions(router)
        decisions.begin()
        await decisions.until(
            lambda: decisions.round.phase == "reducing" and (0, 3) in with_results(decisions, 4 if handed else 3)
        )
        if handed:  # Its own word of the result may come after that of who received it.
            await decisions.until(lambda: claimed(decisions, 1))
        await decisions.lose((0, 1))
        await decisions.end()
        done = decisions.kept[0]
        assert done.contributors == ((0, 1, 2, 3) if handed else (0, 2, 3))
        for place in ((0, 0), (0, 2), (0, 3)):
            report = await replayed(router, *await outer_of(router, done, place))
            assert report.verdict == "match", report.detail
        await decisions.whole()  # Three go on, in a mesh.
        assert decisions.kept[1].contributors == (0, 2, 3)
        assert not decisions.kept[1].sharded


def claimed(decisions: Decisions, shard: int) -> bool:
    """Whether the coordinator has a reducer's word of its result."""
    reduction = decisions.round.reduction
    return reduction is not None and any(t.shard == shard and t.result is not None for t in reduction.tasks)


def with_results(decisions: Decisions, count: int) -> set[Place]:
    """Members that hold so many results."""
    return {(s.stage, s.replica) for s in decisions.round.seats if len(s.results) >= count}


@pytest.mark.slow
async def test_a_reducer_whose_results_do_not_come_is_replaced_and_stays(routed: MakeRouter) -> None:
    lost: list[PeerSend] = []

    def deliver(source: Place, _to: Place, message: PeerSend, payload: bytes) -> bytes | None:
        if message.name.kind == "result" and source == (0, 2) and message.name.round == 0:
            lost.append(message)
            return None
        return payload

    async with routed(job(inner_steps=STEPS, pseudo_gradient="int4")) as router:
        router.deliver = deliver
        await router.start(PLAN, [*PLACES, "spare"])
        decisions = Decisions(router)
        decisions.begin()
        await decisions.until(
            lambda: (
                decisions.round.phase == "reducing"
                and len(with_results(decisions, 3)) == REPLICAS
                and len(lost) == REPLICAS - 1
            )
        )
        decisions.later(60.0)
        await decisions.end()
        done = decisions.kept[0]
        assert done.contributors == (0, 1, 2, 3)
        assert done.reduction is not None
        [task] = [task for task in done.reduction.tasks if task.shard == 2]
        assert task.author != 2
        report = await replayed(router, *await outer_of(router, done, (0, task.author or 0)))
        assert report.verdict == "match", report.detail
        await decisions.whole()
        assert decisions.kept[1].contributors == (0, 1, 2, 3)
        assert len({seat.residue for seat in decisions.kept[1].seats}) == REPLICAS, (
            "each has its own, and one begins without"
        )

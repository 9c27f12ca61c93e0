"""A dispute between real worker processes, over their sockets; and outer steps that are opened and run again."""

import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load, save

from protocol.audit import (
    Ask,
    AskInputs,
    AskOperation,
    AskState,
    AskTrace,
    BisectAnswer,
    BisectQuery,
    NoAnswer,
    OpenOuter,
    OuterRecord,
    ReplayOuter,
    ReplayStep,
)
from protocol.task import AuditReport, RoundApplied, RoundCommit, StepOpened
from tests.trainer.router import Place, Router, make_plan
from tests.trainer.small import job
from tests.trainer.worker.drawn import TOTAL
from tests.trainer.worker.drawn import audit as open_and_replay
from trainer.operations.judge import judge
from trainer.operations.tracer import record_of

DISPUTE = "d" * 32
TWO_STAGES = make_plan([(0, 1), (1, 3)], [0])
TWO_REPLICAS = make_plan([(0, 3)], [0, 1])

MakeRouter = Callable[..., AbstractAsyncContextManager[Router]]


@pytest.fixture
def routed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeRouter:
    sockets = tmp_path_factory.mktemp("s")

    @asynccontextmanager
    async def make(**training: Any) -> AsyncIterator[Router]:
        async with Router(sockets, job(commit_every=4, **training), folder) as router:
            yield router

    return make


async def ask(router: Router, place: Any, replay: ReplayStep, question: Ask, opening: bytes = b"") -> Any:
    await router.command(place, BisectQuery(DISPUTE, replay, question), opening)
    await router.until(lambda: router.of(place, BisectAnswer, ask=question))
    return router.of(place, BisectAnswer, ask=question)[-1].answer


async def test_a_lying_worker_is_pinned_to_the_operation_that_it_changed(routed: MakeRouter) -> None:
    async with routed() as router:
        liar: Place = (1, 0)
        await router.start(TWO_STAGES, [(0, 0), liar, "spare"], {liar: "operation"})
        await router.round(TWO_STAGES, 0, 4, TOTAL)
        report = await open_and_replay(router, liar, 0, 3, auditor="spare")
        assert report.verdict == "mismatch"
        assert (await open_and_replay(router, (0, 0), 0, 1, auditor="spare", name="e" * 32)).verdict == "match"
        commit = router.of(liar, RoundCommit)[0]
        digest = router.of(liar, StepOpened)[0].opening
        replay = ReplayStep(
            DISPUTE, TWO_STAGES, 1, 0, 0, 0, 3, TOTAL, commit.root, commit.leaves, commit.pseudo_gradient, None, digest
        )
        opening, sides = router.artifacts[digest], [liar, "spare"]
        first = [await ask(router, side, replay, AskState(3), opening) for side in sides]
        assert first[0].chain != first[1].chain
        chains = [[(await ask(router, side, replay, AskState(s))).chain for s in range(4)] for side in sides]
        step = next(s for s in range(4) if chains[0][s] != chains[1][s])
        traces = [await ask(router, side, replay, AskTrace(step)) for side in sides]
        low, high = 0, min(trace.operations for trace in traces) - 1
        while low < high:
            middle = (low + high + 1) // 2
            answers = [await ask(router, side, replay, AskOperation(step, middle)) for side in sides]
            equal = len({record_of(answer.record).before for answer in answers}) == 1
            low, high = (middle, high) if equal else (low, middle - 1)
        records = [record_of((await ask(router, side, replay, AskOperation(step, low))).record) for side in sides]
        assert records[0].name == records[1].name == "aten.mm.default"
        assert records[0].reads == records[1].reads
        shown = [await ask(router, side, replay, AskInputs(step, low)) for side in sides]
        assert [judge(router.artifacts[answer.artifact]).agrees for answer in shown] == [False, True]


async def test_a_question_without_an_opening_is_answered_with_a_reason(routed: MakeRouter) -> None:
    async with routed() as router:
        await router.start(TWO_STAGES, ["spare"])
        nobody = "0" * 64
        replay = ReplayStep(DISPUTE, TWO_STAGES, 1, 0, 0, 0, 3, TOTAL, nobody, 4, nobody, None, nobody)
        assert await ask(router, "spare", replay, AskState(3)) == NoAnswer("the opening is not here")
        refused = await ask(router, "spare", replay, AskState(2), b"no opening")
        assert "safetensors" in refused.reason


# --- outer steps ------------------------------------------------------------------------------------------------------


async def outer_of(router: Router, place: Place, round_index: int) -> tuple[ReplayOuter, bytes]:
    """What an audit of an outer step asks with, and its opening."""
    name = f"{round_index:032x}"
    await router.command(place, OpenOuter(name, 0, round_index))
    await router.until(lambda: router.of(place, StepOpened, audit=name))
    applied = router.of(place, RoundApplied, round=round_index)[0]
    contributors = {
        replica: router.of((place[0], replica), RoundCommit, round=round_index)[0].pseudo_gradient for replica in (0, 1)
    }
    opening = router.artifacts[router.of(place, StepOpened, audit=name)[0].opening]
    digest = hashlib.sha256(opening).hexdigest()
    command = ReplayOuter(
        name, TWO_REPLICAS, place[0], round_index, contributors, applied.outer, applied.parameters, digest
    )
    return command, opening


async def test_outer_steps_are_recorded_alike_chained_and_run_again(routed: MakeRouter) -> None:
    async with routed(outer_momentum=0.5) as router:
        await router.start(TWO_REPLICAS, [(0, 0), (0, 1), "spare"])
        for round_index in range(2):
            await router.round(TWO_REPLICAS, round_index, 4, TOTAL)
        records = [[router.of((0, p), RoundApplied, round=r)[0].outer for p in (0, 1)] for r in (0, 1)]
        assert all(isinstance(record, OuterRecord) and not record.left_out for pair in records for record in pair)
        assert records[0][0] == records[0][1]
        assert records[0][0].after == records[1][1].before
        command, opening = await outer_of(router, (0, 1), 1)
        assert (await replayed(router, command, opening)).verdict == "match"
        for wrong, verdict in wrongs(command, opening):
            assert (await replayed(router, *wrong)).verdict == verdict
        await router.command((0, 0), OpenOuter("f" * 32, 0, 7))
        await router.until(lambda: router.of((0, 0), StepOpened, audit="f" * 32))
        assert "not kept" in router.of((0, 0), StepOpened, audit="f" * 32)[0].reason


async def replayed(router: Router, command: ReplayOuter, opening: bytes) -> AuditReport:
    name = hashlib.sha256(msgspec.msgpack.encode(command) + opening).hexdigest()[:32]
    await router.command("spare", msgspec.structs.replace(command, audit=name), opening)
    await router.until(lambda: router.of("spare", AuditReport, audit=name))
    report: AuditReport = router.of("spare", AuditReport, audit=name)[0]
    return report


def wrongs(command: ReplayOuter, opening: bytes) -> list[tuple[tuple[ReplayOuter, bytes], str]]:
    """Outer steps that are not what was agreed on, and the verdict that each deserves."""
    other = "1" * 64
    after = msgspec.structs.replace(command.record, after=other)
    momentum = load(opening)
    momentum["momentum"] = momentum["momentum"] + 1
    missing = load(opening)
    del missing["contribution.1"]
    return [
        ((msgspec.structs.replace(command, record=after), opening), "mismatch"),
        ((msgspec.structs.replace(command, parameters=other), opening), "mismatch"),
        ((msgspec.structs.replace(command, contributors={0: other}), opening), "malformed"),
        ((command, save(momentum)), "malformed"),
        ((command, save(missing)), "malformed"),
        ((command, b"noise"), "malformed"),
    ]

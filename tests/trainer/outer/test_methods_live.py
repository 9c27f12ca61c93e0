"""Every method between replicas in real worker processes: whole rounds, equal bits, audits, members that come back."""

from typing import Any

import pytest

from protocol.task import AuditReport, OpenStep, ReplayStep, RoundApplied, RoundCommit, StepOpened
from tests.trainer.router import MakeRouter, Place, Router, make_plan, replace
from tests.trainer.small import job

CUTS = [(0, 1), (1, 3)]
PLAN = make_plan(CUTS, [0, 1])
PLACES: list[Place] = [(0, 0), (1, 0), (0, 1), (1, 1)]
STEPS, TOTAL = 2, 8

METHODS: dict[str, dict[str, Any]] = {
    "diloco in 4 bits": {"pseudo_gradient": "int4"},
    "diloco in 2 bits with error feedback": {"pseudo_gradient": "int2", "error_feedback": 0.9},
    "averaging": {"outer": "averaging"},
    "streaming": {"outer": "streaming", "fragments": 2, "mixing": 0.25},
    "streaming, sent before the round's end": {"outer": "streaming", "fragments": 2, "mixing": 0.5, "overlap": 1},
    "sparseloco": {"outer": "sparseloco", "outer_momentum": 0.0},
    "gradients": {"outer": "gradients", "clip_norm": 1.0},
    "demo": {"outer": "demo", "learning_rate": 1e-3},
    "dgc": {"outer": "dgc", "density": 0.01, "learning_rate": 0.1, "clip_norm": 1.0},
}


async def audit(router: Router, place: Place, round_index: int, step: int, **changes: Any) -> AuditReport:
    """Draw one step: the member opens it, the spare judges it with what a coordinator knows."""
    name = f"{round_index:016x}{step:08x}{place[0]:04x}{place[1]:04x}"
    await router.command(place, OpenStep(name, 0, round_index, step))
    await router.until(lambda: router.of(place, StepOpened, audit=name))
    opened = router.of(place, StepOpened, audit=name)[0]
    assert opened.opening is not None, opened.reason
    commit = router.of(place, RoundCommit, round=round_index)[0]
    before = router.of(place, RoundCommit, round=round_index - 1)
    applied = router.of(place, RoundApplied, round=round_index - 1)
    fields: dict[str, Any] = {
        "audit": name,
        "plan": PLAN,
        "stage": place[0],
        "replica": place[1],
        "round": round_index,
        "first_step": round_index * STEPS,
        "step": step,
        "total_steps": TOTAL,
        "root": commit.root,
        "leaves": commit.leaves,
        "pseudo_gradient": commit.pseudo_gradient,
        "anchor": applied[0].parameters if applied else None,
        "opening": opened.opening,
        "carried": commit.carried,
        "local": before[0].carried if before else None,
    }
    body = ReplayStep(**(fields | changes))
    await router.command("spare", body, router.artifacts[opened.opening])
    await router.until(lambda: router.of("spare", AuditReport, audit=name))
    report: AuditReport = router.of("spare", AuditReport, audit=name)[0]
    return report


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
async def test_replicas_stay_equal_to_the_bit_and_every_step_replays(method: str, routed: MakeRouter) -> None:
    async with routed(job(inner_steps=STEPS, **METHODS[method])) as router:
        await router.start(PLAN, [*PLACES, "spare"])
        for round_index in range(2):
            await router.round(PLAN, round_index, STEPS, TOTAL)  # Fails where digests of replicas differ.
        for place, round_index, step in [((0, 0), 0, 0), ((1, 1), 0, 1), ((1, 0), 1, 0), ((0, 1), 1, 1)]:
            report = await audit(router, place, round_index, step)
            assert report.verdict == "match", report.detail
        exchanges = [message for _, message, _ in router.sent if message.name.kind == "exchange"]
        assert len(exchanges) == (4 * 2 * STEPS if method in ("gradients", "demo", "dgc") else 0)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "sparseloco"])
async def test_what_was_not_committed_to_in_the_round_before_is_found(method: str, routed: MakeRouter) -> None:
    async with routed(job(inner_steps=STEPS, **METHODS[method])) as router:
        await router.start(PLAN, [*PLACES, "spare"])
        for round_index in range(2):
            await router.round(PLAN, round_index, STEPS, TOTAL)
        other = await audit(router, (0, 1), 1, 1, local="7" * 64)
        assert other.verdict == "mismatch"
        assert "the round before committed to" in other.detail
        afresh = await audit(router, (1, 1), 1, 1, local=None)
        assert afresh.verdict == "mismatch"
        assert "began afresh" in afresh.detail
        promised = await audit(router, (0, 0), 1, 0, carried="7" * 64)
        assert promised.verdict == "mismatch"
        assert "carry into the next round" in promised.detail


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "sparseloco", "gradients"])
async def test_a_replica_that_begins_again_from_the_checkpoint_learns_on_with_the_others(
    method: str, routed: MakeRouter
) -> None:
    async with routed(job(inner_steps=STEPS, **METHODS[method])) as router:
        await router.start(PLAN, PLACES)
        checkpoints = await router.round(PLAN, 0, STEPS, TOTAL)
        await router.kill((0, 1))
        await router.kill((1, 1))
        again = make_plan(CUTS, [0, 1], epoch=1)
        await router.start(again, [(0, 1), (1, 1)])
        await router.begin(again, 1, STEPS, STEPS, TOTAL, only=[(0, 0), (1, 0)])
        await router.begin(again, 1, STEPS, STEPS, TOTAL, states=checkpoints, only=[(0, 1), (1, 1)])
        await router.apply(again, 1, await router.wait_commits(again, 1))
        await router.round(again, 2, STEPS, TOTAL)


@pytest.mark.slow
async def test_exchanges_that_are_no_messages_of_this_step_or_of_somebody_else_change_nothing(
    routed: MakeRouter,
) -> None:
    async with routed(job(inner_steps=STEPS, **METHODS["gradients"])) as router:
        await router.start(PLAN, PLACES)
        bad = {"count": 0}

        def twice(source: Place, to: Place, message: Any, payload: bytes) -> bytes:
            if message.name.kind == "exchange" and bad["count"] < 3:
                bad["count"] += 1
                for stranger in (source[0], source[1] + 5), (1 - source[0], source[1]):
                    router.inject(to, stranger, message.name, b"not a tensor")
            return payload

        router.deliver = twice
        await router.round(PLAN, 0, STEPS, TOTAL)
        assert bad["count"] == 3


@pytest.mark.slow
async def test_what_is_sent_before_the_rounds_end_leaves_before_its_last_step(routed: MakeRouter) -> None:
    order = {}
    for name, overlap in (("after", 0), ("before", 1)):
        spec = job(inner_steps=STEPS, outer="streaming", fragments=2, mixing=0.5, overlap=overlap)
        async with routed(spec) as router:
            await router.start(PLAN, PLACES)
            await router.round(PLAN, 0, STEPS, TOTAL)
            order[name] = [message.name.kind for source, message, _ in router.sent if source == (0, 0)]
    assert order["after"][-1] == "pseudo_gradient"
    assert order["before"].index("pseudo_gradient") < len(order["before"]) - 1
    assert order["before"][-1] == "activation"
    assert sorted(order["before"]) == sorted(order["after"]), "the same messages, in another order"


async def test_a_validation_that_is_given_up_leaves_a_replica_its_own_parameters(routed: MakeRouter) -> None:
    """Between exchanges of its parts a replica is not at the anchor, which the held-out loss is measured with."""
    plan = make_plan([(0, 2), (2, 3)], [0])
    again = replace(plan, epoch=1)
    gradients = []
    for disturbed in (False, True):
        async with routed(job(outer="streaming")) as router:
            await router.start(plan, [(0, 0), (1, 0)])
            await router.round(plan, 0, 4, 12)
            if disturbed:
                router.deliver = lambda s, to, m, payload: None if m.name.kind == "validation" else payload
                await router.begin(plan, 1, 4, 4, 12, validate=True)
                await router.until(lambda: any(m.name.kind == "validation" for _, m, _ in router.sent))
            await router.begin(again, 1, 4, 4, 12)
            commits = await router.wait_commits(again, 1)
            gradients.append([commit.pseudo_gradient for commit in commits.values()])
    assert gradients[0] == gradients[1]

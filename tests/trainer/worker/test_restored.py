"""A worker that died, and another one that has its records: it opens every step to the same bytes, or nothing."""

from typing import Any

import pytest

from protocol.task import LeafShown, OpenOuter, OpenStep, RoundApplied, RoundCommit, ShowLeaf, StepOpened, TaskFailed
from protocol.worker import RecordPart, RestoredPart
from tests.trainer.outer.test_methods_live import CUTS, METHODS
from tests.trainer.router import MakeRouter, Place, Router, make_plan, replace
from tests.trainer.small import job

PLAN = make_plan(CUTS, [0, 1])
PLACES: list[Place] = [(0, 0), (1, 0), (0, 1), (1, 1)]
STEPS, TOTAL = 4, 12
OTHERS: dict[str, dict[str, Any]] = {"visits": {"activations": "aq4"}, "lean": {"memory": "lean", "precision": "bf16"}}


async def train(router: Router, rounds: int, place: Place) -> dict[int, tuple[bytes, bytes]]:
    """Whole rounds of all; the state and moments that each round began with at a place, as its agent keeps them."""
    starts: dict[int, tuple[bytes, bytes]] = {0: (b"", b"")}
    await router.start(PLAN, PLACES)
    for number in range(rounds):
        states = await router.round(PLAN, number, STEPS, TOTAL)
        starts[number + 1] = (states[place[0]], router.moments[place])
    return starts


def restored(router: Router, place: Place, starts: dict[int, tuple[bytes, bytes]]) -> list[tuple[RestoredPart, bytes]]:
    """What an agent gives to another worker: of the newest two rounds what they began with, and their records."""
    parts: list[tuple[RestoredPart, bytes]] = []
    newest = sorted({record.round for record, _ in router.records[place]})[-2:]
    for number in newest:
        for kind, data in zip(("state", "moments"), starts[number], strict=True):
            parts += [(RestoredPart(0, number, kind), data)] if data else []  # type: ignore[arg-type]
        for record, data in router.records[place]:
            parts += [(RestoredPart(record.epoch, number, record.kind), data)] if record.round == number else []
    return parts


async def openings(router: Router, place: Place, rounds: list[int], *, ending: bool = False) -> dict[str, Any]:
    """Every step of these rounds, every outer step and every leaf, as they are shown."""
    shown: dict[str, Any] = {}
    for number in rounds:
        names = [f"{number:016x}{step:016x}" for step in range(STEPS)]
        for step, name in enumerate(names):
            await router.command(place, OpenStep(name, 0, number, step, ending))
            await router.command(place, ShowLeaf(name, 0, number, step))
        outer = f"{number:016x}{99:016x}"
        await router.command(place, OpenOuter(outer, 0, number))
        for name in (*names, outer):
            await router.until(lambda name=name: router.of(place, StepOpened, audit=name))
            [opened] = router.of(place, StepOpened, audit=name)
            assert opened.opening is not None, opened.reason
            shown[name] = router.artifacts[opened.opening]
        await router.until(lambda name=names[-1]: router.of(place, LeafShown, audit=name))
        shown |= {f"leaf {leaf.audit}": leaf for leaf in router.of(place, LeafShown)}
    return shown


@pytest.mark.one_in(5)
@pytest.mark.slow
@pytest.mark.parametrize("every", [1, pytest.param(2, marks=pytest.mark.long), 4])
@pytest.mark.parametrize("method", [*METHODS, *OTHERS])
async def test_every_opening_is_byte_for_byte_the_one_of_the_worker_that_died(
    method: str, every: int, routed: MakeRouter
) -> None:
    changes = (METHODS | OTHERS)[method]
    place: Place = (1, 1)
    async with routed(job(inner_steps=STEPS, commit_every=every, **changes), recording=True) as router:
        starts = await train(router, 2, place)
        alive = await openings(router, place, [0, 1])
        assert len(set(alive.values())) == 2 * (STEPS // every + STEPS + 1), "a segment's steps have one opening"
        parts = restored(router, place, starts)
        await router.kill(place)
        router.artifacts.clear()
        await router.start(PLAN, [place], restored=parts)
        assert await openings(router, place, [0, 1]) == alive


@pytest.mark.slow
async def test_what_a_segment_came_to_is_shown_the_same_too(routed: MakeRouter) -> None:
    place: Place = (0, 0)
    async with routed(job(inner_steps=STEPS, commit_every=2), recording=True) as router:
        starts = await train(router, 2, place)
        alive = await openings(router, place, [1], ending=True)
        parts = restored(router, place, starts)
        await router.kill(place)
        await router.start(PLAN, [place], restored=parts)
        assert await openings(router, place, [1], ending=True) == alive


@pytest.mark.slow
async def test_a_round_whose_contribution_did_not_count_leaves_the_next_ones_record_whole(routed: MakeRouter) -> None:
    """What a replica carries is then what it carried before: the record of the round after has to say the same."""
    place: Place = (0, 1)
    async with routed(job(inner_steps=STEPS, **METHODS["sparseloco"]), recording=True) as router:
        await router.start(PLAN, PLACES)
        await router.begin(PLAN, 0, 0, STEPS, TOTAL)
        commits = await router.wait_commits(PLAN, 0)
        states = await router.apply(PLAN, 0, {at: commit for at, commit in commits.items() if at[1] == 0})
        starts = {0: (b"", b""), 1: (states[0], router.moments[place])}
        await router.round(PLAN, 1, STEPS, TOTAL)
        alive = await openings(router, place, [1])
        parts = restored(router, place, starts)
        await router.kill(place)
        await router.start(PLAN, [place], restored=parts)
        assert await openings(router, place, [1]) == alive


@pytest.mark.slow
async def test_a_round_that_was_done_again_from_a_state_of_others_is_opened_from_that(routed: MakeRouter) -> None:
    place: Place = (1, 0)
    async with routed(job(inner_steps=STEPS), recording=True) as router:
        states = (await train(router, 1, place))[1][0]
        again = replace(PLAN, epoch=1)
        both = {1: states, 0: (await train_state(router, 0))}
        await router.begin(again, 1, STEPS, STEPS, TOTAL, states=both)
        await router.wait_commits(again, 1)
        name = "ab" * 16
        await router.command(place, OpenStep(name, 1, 1, 2))
        await router.until(lambda: router.of(place, StepOpened, audit=name))
        [opened] = router.of(place, StepOpened, audit=name)
        [record] = [data for part, data in router.records[place] if part == RecordPart(1, 1, "steps")]
        await router.kill(place)
        await router.start(
            again, [place], restored=[(RestoredPart(1, 1, "state"), states), (RestoredPart(1, 1, "steps"), record)]
        )
        await router.command(place, OpenStep(name, 1, 1, 2))
        await router.until(lambda: router.of(place, StepOpened, audit=name))
        assert router.of(place, StepOpened, audit=name) == [opened]


async def train_state(router: Router, stage: int) -> bytes:
    """The state of a stage after the first round."""
    [applied] = router.of((stage, 0), RoundApplied, round=0)
    return router.artifacts[applied.checkpoint]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["cut", "longer", "another round's state", "no moments", "junk"])
async def test_a_record_that_does_not_fit_restores_nothing(spoil: str, routed: MakeRouter) -> None:
    place: Place = (0, 0)
    async with routed(job(inner_steps=STEPS), recording=True) as router:
        starts = await train(router, 2, place)
        parts = [
            (part, data) for part, data in restored(router, place, starts) if part.round == 1 and part.kind != "outer"
        ]
        spoilt = {
            "cut": lambda part, data: data[:-1] if part.kind == "steps" else data,
            "longer": lambda part, data: data + b"x" if part.kind == "steps" else data,
            "another round's state": lambda part, data: starts[2][0] if part.kind == "state" else data,
            "no moments": lambda part, data: b"" if part.kind == "moments" else data,
            "junk": lambda part, data: b"\xff" * 1000 if part.kind == "steps" else data,
        }[spoil]
        await router.kill(place)
        starting = router.start(PLAN, [place], restored=[(part, spoilt(part, data)) for part, data in parts])
        with pytest.raises(AssertionError, match="nothing could be restored"):
            await starting
        [failed] = router.of(place, TaskFailed)
        assert failed.cause == "machine"
        assert not router.of(place, StepOpened)


@pytest.mark.slow
async def test_of_two_rounds_of_which_one_is_damaged_the_other_is_shown(routed: MakeRouter) -> None:
    place: Place = (0, 0)
    async with routed(job(inner_steps=STEPS), recording=True) as router:
        starts = await train(router, 2, place)
        parts = [
            (part, data[:100] if (part.round, part.kind) == (1, "steps") else data)
            for part, data in restored(router, place, starts)
        ]
        commits = router.of(place, RoundCommit)
        assert len(commits) == 2
        await router.kill(place)
        await router.start(PLAN, [place], restored=parts)
        for number, found in ((0, True), (1, False)):
            name = f"{number:032x}"
            await router.command(place, OpenStep(name, 0, number, 0))
            await router.until(lambda name=name: router.of(place, StepOpened, audit=name))
            [opened] = router.of(place, StepOpened, audit=name)
            assert (opened.opening is not None) == found

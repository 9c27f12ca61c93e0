"""Workers of a federated job whose promise is about one example: what they read, what leaves them, and what they refuse."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.job.federated import HeldoutLoss, PrivacySpec
from protocol.job.job import DatasetSpec, JobSpec, ModelSpec
from protocol.job.privacy_sum import loss_noise
from protocol.models.model import resolve
from protocol.task import BeginRound, Progress, RoundCommit, TaskFailed, WorkerLog
from protocol.worker import OwnData
from tests.trainer.router import MakeRouter, Router
from tests.trainer.small import LLAMA
from tests.trainer.worker.test_federated import PLACES, PLAN, TOTAL, federated
from trainer.data.examples import OwnExamples
from trainer.data.owned import own_tokens
from trainer.files.inputs import InputFolder
from trainer.outer.owners_loss import owners_loss
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.worker.checkpoint import read_checkpoint

STEPS = 4  # As ``training.inner_steps`` of the job says.


def private(**more: Any) -> JobSpec:
    terms = {"noise_multiplier": 1.0, "clip": 0.01, "sampling": 0.2, "most_rounds": 2} | more
    return federated(PrivacySpec("example", **terms))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A job's folder with a model of bytes, and an owner's lines beside it."""
    (tmp_path / "config.json").write_text(json.dumps(resolve(ModelSpec(config=LLAMA), 259)))
    (tmp_path / "notes.txt").write_text(
        "".join(f"patient {number} sleeps in bed {number % 7}\n" for number in range(60))
    )
    return tmp_path


def at(router: Router, home: Path) -> None:
    router.job_folder, router.own = home, OwnData(str(home / "notes.txt"), DatasetSpec("0" * 64, "text"))


async def test_owners_steps_are_noised_and_they_come_to_one_model(routed: MakeRouter, home: Path) -> None:
    roots = []
    for _ in range(2):
        async with routed(private()) as router:
            at(router, home)
            await router.start(PLAN, PLACES)
            checkpoints = await router.round(PLAN, 0, STEPS, TOTAL)
            assert len(set(checkpoints.values() if isinstance(checkpoints, dict) else checkpoints)) == 1
            for place in PLACES:
                (commit,) = router.of(place, RoundCommit)
                assert (commit.loss, commit.unclipped) == (None, None)
                assert commit.root == commit.pseudo_gradient, "a commitment to what leaves, and to nothing of the steps"
                assert commit.tokens == STEPS * 4 * private().training.sequence, (
                    "of the document, and not of what was drawn"
                )
                assert [report.loss for report in router.of(place, Progress)] == [None] * STEPS
                lines = [line.text for log in router.of(place, WorkerLog) for line in log.lines]
                assert not any("loss" in line for line in lines), lines
            assert router.moments == {}
            roots.append({router.of(place, RoundCommit)[0].root for place in PLACES})
            await router.round(PLAN, 1, STEPS, TOTAL)
            assert not any(router.of(place, TaskFailed) for place in PLACES)
    assert len(roots[0] | roots[1]) == 6, "the same job on the same data: other draws and other noise each time"


async def test_no_longer_round_is_made_than_the_owner_agreed_to(routed: MakeRouter, home: Path) -> None:
    async with routed(private()) as router:
        at(router, home)
        await router.start(PLAN, PLACES[:1])
        await router.command((0, 0), BeginRound(PLAN, 0, 0, STEPS + 1, TOTAL))
        await router.until(lambda: router.of((0, 0), TaskFailed) or router.of((0, 0), RoundCommit))
        assert "agreed to 4" in router.of((0, 0), TaskFailed)[0].reason


async def test_no_further_round_is_made_than_the_owner_agreed_to(routed: MakeRouter, home: Path) -> None:
    """Each is counted, though none of them has counted for the others."""
    async with routed(private()) as router:
        at(router, home)
        await router.start(PLAN, PLACES[:1])
        for epoch in (0, 1, 2):
            plan = msgspec.structs.replace(PLAN, epoch=epoch)
            await router.command((0, 0), BeginRound(plan, 0, 0, STEPS, TOTAL))
            await router.until(
                lambda made=epoch: router.of((0, 0), TaskFailed) or len(router.of((0, 0), RoundCommit)) > made
            )
        assert len(router.of((0, 0), RoundCommit)) == 2
        assert "no room for another" in router.of((0, 0), TaskFailed)[0].reason


async def test_what_cannot_be_drawn_by_example_is_not_trained_on(routed: MakeRouter) -> None:
    """A worker whose agent names no data of an owner would read the folder's tokens, of which it knows no examples."""
    async with routed(private()) as router:
        await router.start(PLAN, PLACES[:1])
        await router.command((0, 0), BeginRound(PLAN, 0, 0, STEPS, TOTAL))
        await router.until(lambda: router.of((0, 0), TaskFailed) or router.of((0, 0), RoundCommit))
        assert "has no examples" in router.of((0, 0), TaskFailed)[0].reason


async def test_the_loss_of_examples_that_are_held_back_is_that_of_the_model_before_the_rounds_steps(
    routed: MakeRouter, home: Path
) -> None:
    """Two hundred of them leave so little noise that it can be compared."""
    notes = home / "notes.txt"
    notes.write_text("".join(f"patient {number} sleeps in bed {number % 7}\n" for number in range(400)))
    spec = private(heldout=HeldoutLoss(one_in=2))
    _, held = own_tokens(OwnData(str(notes), DatasetSpec("0" * 64, "text")), spec, InputFolder(home), 259)
    assert held is not None
    assert isinstance(held, OwnExamples)
    stage = Stage(json.loads((home / "config.json").read_text()), Cut(0, 3, True, True), spec.training)
    async with routed(spec) as router:
        at(router, home)
        await router.start(PLAN, PLACES)
        for number in range(2):
            due = 3.0 * (1 + owners_loss(stage, held.heldout(), 6.0).mean)
            checkpoints = await router.round(PLAN, number, STEPS, TOTAL)
            told = [router.of(place, RoundCommit, round=number)[0].heldout for place in PLACES]
            assert told == pytest.approx([due] * 3, abs=6 * 3.0 * loss_noise(spec.federated.privacy) / held.examples)  # type: ignore[union-attr, arg-type]
            state, _ = read_checkpoint(checkpoints[0], stage.slots, stage.size)
            stage.load(state.anchor)
            assert not any(router.of(place, TaskFailed) for place in PLACES)

"""Workers of a federated job: what leaves them, what does not, and what they refuse."""

import hashlib
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from protocol.audit import AuditReport, LeafShown, OpenStep, ReplayStep, ShowLeaf, StepOpened
from protocol.job.federated import AdaptiveClipping, FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.job import JobSpec, TokenizerSpec
from protocol.job.privacy_sum import loss_error
from protocol.task import BeginRound, Progress, RoundApplied, RoundCommit, TaskFailed, WorkerLog
from tests.trainer.router import MakeRouter, Router, make_plan
from tests.trainer.small import SEQUENCE, VOCABULARY, config_of, job
from trainer.codecs.envelope import unwrap
from trainer.outer import outer_method
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.worker.checkpoint import read_checkpoint

OWNERS = tuple(letter * 40 for letter in "ABC")
PLAN = make_plan([(0, 3)], [0, 1, 2])
PLACES = [(0, 0), (0, 1), (0, 2)]
AUDIT = "b" * 32
TOTAL = 12


def plain(**changes: Any) -> JobSpec:
    """The same job with a dataset."""
    tokens = 3 * 4 * len(OWNERS) * 4 * SEQUENCE
    return job(pseudo_gradient="fp32", outer="averaging", outer_momentum=0.0, tokens=tokens, **changes)


def federated(privacy: PrivacySpec | None, **changes: Any) -> JobSpec:
    spec = plain(**changes)
    asked = FederatedSpec(OWNERS, 3, 2, privacy)
    return msgspec.structs.replace(spec, dataset=None, federated=asked, tokenizer=TokenizerSpec("bytes"))


def private(noise: float = 1.0, clip: float = 0.01, **more: Any) -> JobSpec:
    return federated(PrivacySpec(noise_multiplier=noise, clip=clip, most_rounds=2, **more))


def updates(router: Router, payloads: list[bytes], spec: JobSpec) -> list[torch.Tensor]:
    """Of what left for other owners, the updates of a round, each once."""
    stage = Stage(config_of(), Cut(0, 3, True, True), spec.training)
    method = outer_method(spec.training, stage.slots, stage.size)
    return [method.decode_update(unwrap(data, method.limit(0)), 0) for data in dict.fromkeys(payloads)]


def watch(router: Router) -> list[bytes]:
    """From now on, all updates that leave."""
    left: list[bytes] = []

    def deliver(source: Any, to: Any, message: Any, payload: bytes) -> bytes:
        left.append(payload)
        return payload

    router.deliver = deliver
    return left


async def test_updates_leave_clipped_and_noised_and_all_owners_come_to_one_model(routed: MakeRouter) -> None:
    spec = private(noise=0.5, clip=0.02)
    async with routed(spec) as router:
        left = watch(router)
        await router.start(PLAN, PLACES)
        checkpoints = await router.round(PLAN, 0, 4, TOTAL)
        sent = updates(router, left, spec)
        assert len(sent) == 3
        stage = Stage(config_of(), Cut(0, 3, True, True), spec.training)
        count = stage.parameter_count
        for update in sent:  # An update of 0.02 at most, and noise of 0.01 on each of so many values.
            assert float(update.norm()) == pytest.approx(0.01 * count**0.5, rel=0.05)
        state, _ = read_checkpoint(checkpoints[0], stage.slots, stage.size)
        assert torch.allclose(state.anchor, stage.values() - torch.stack(sent).mean(0), atol=1e-6)
        await router.round(PLAN, 1, 4, TOTAL)
        assert not any(router.of(place, TaskFailed) for place in PLACES)


async def test_nothing_of_the_data_but_the_noised_update_is_said(routed: MakeRouter, folder: Path) -> None:
    """Reports, logs, states: no loss, no moments, and a commitment that is to the contribution alone."""
    async with routed(private(), recording=True) as router:
        await router.start(PLAN, PLACES)
        await router.round(PLAN, 0, 4, TOTAL)
        for place in PLACES:
            (commit,) = router.of(place, RoundCommit)
            assert commit.loss is None
            assert commit.root == commit.pseudo_gradient
            assert commit.unclipped is None
            assert [report.loss for report in router.of(place, Progress)] == [None] * 4
            lines = [line.text for log in router.of(place, WorkerLog) for line in log.lines]
            assert not any("loss" in line for line in lines), lines
        assert router.moments == {}
        assert router.records.get((0, 0), []) == [] or all(part.kind == "outer" for part, _ in router.records[0, 0])
        roots = {router.of(place, RoundCommit)[0].root for place in PLACES}
    async with routed(private()) as router:
        await router.start(PLAN, PLACES)
        await router.round(PLAN, 0, 4, TOTAL)
        again = {router.of(place, RoundCommit)[0].root for place in PLACES}
    assert not roots & again, "the same job on the same data: other noise, so other commitments"


async def test_without_privacy_updates_leave_as_they_are_and_still_nothing_is_opened(routed: MakeRouter) -> None:
    digests = []
    for spec in (plain(), federated(None)):
        async with routed(spec) as router:
            await router.start(PLAN, PLACES)
            await router.round(PLAN, 0, 4, TOTAL)
            digests.append([router.of(place, RoundCommit)[0].pseudo_gradient for place in PLACES])
            assert all(router.of(place, RoundCommit)[0].loss is not None for place in PLACES)
            if spec.federated is not None:
                await router.command((0, 0), OpenStep(AUDIT, 0, 0, 1))
                await router.until(lambda: router.of((0, 0), StepOpened))
                assert router.of((0, 0), StepOpened)[0].opening is None
    assert digests[0] == digests[1]


async def test_audits_of_an_owners_steps_and_with_an_owners_data_are_refused(routed: MakeRouter) -> None:
    """Whoever writes the opening of a re-run could ask about the data by its verdict: match or not."""
    async with routed(private()) as router:
        await router.start(PLAN, PLACES)
        await router.round(PLAN, 0, 4, TOTAL)
        commit = router.of((0, 1), RoundCommit)[0]
        await router.command((0, 0), OpenStep(AUDIT, 0, 0, 1))
        await router.command((0, 0), ShowLeaf(AUDIT, 0, 0, 1))
        asked = (
            AUDIT,
            PLAN,
            0,
            1,
            0,
            0,
            1,
            TOTAL,
            commit.root,
            4,
            commit.pseudo_gradient,
            None,
            hashlib.sha256(b"x").hexdigest(),
        )
        await router.command((0, 0), ReplayStep(*asked), b"x")
        await router.until(lambda: all(router.of((0, 0), kind) for kind in (StepOpened, LeafShown, AuditReport)))
        assert router.of((0, 0), StepOpened)[0].opening is None
        assert "stays at its owner" in router.of((0, 0), StepOpened)[0].reason
        assert router.of((0, 0), LeafShown)[0].leaf is None
        assert router.of((0, 0), AuditReport)[0].verdict == "incomparable"


async def test_no_further_update_leaves_than_the_owner_agreed_to(routed: MakeRouter) -> None:
    """A coordinator that begins rounds again and again would have the noise averaged away."""
    async with routed(private()) as router:
        await router.start(PLAN, PLACES)
        await router.round(PLAN, 0, 4, TOTAL)
        again = msgspec.structs.replace(PLAN, epoch=1)
        await router.begin(again, 1, 4, 4, TOTAL)
        await router.wait_commits(again, 1)
        third = msgspec.structs.replace(PLAN, epoch=2)
        await router.command((0, 0), BeginRound(third, 1, 4, 4, TOTAL))
        await router.until(lambda: router.of((0, 0), TaskFailed) or router.of((0, 0), RoundCommit, epoch=2))
        assert not router.of((0, 0), RoundCommit, epoch=2)


async def test_a_loss_of_an_owners_data_is_refused(routed: MakeRouter) -> None:
    async with routed(private()) as router:
        await router.start(PLAN, PLACES[:1])
        await router.command((0, 0), BeginRound(PLAN, 0, 0, 4, TOTAL, validate=True))
        await router.until(lambda: router.of((0, 0), TaskFailed) or router.of((0, 0), RoundCommit))
        assert "does not cover" in router.of((0, 0), TaskFailed)[0].reason


async def test_a_clip_that_follows_the_updates_is_told_with_noise_and_held(routed: MakeRouter) -> None:
    spec = private(noise=0.3, clip=1e6, adaptive=AdaptiveClipping(bit_noise=0.16))
    async with routed(spec) as router:
        left = watch(router)
        await router.start(PLAN, PLACES)
        for place in PLACES:
            clip = 1e-3 if place == (0, 2) else 100.0
            await router.command(place, BeginRound(PLAN, 0, 0, 4, TOTAL, clip=clip))
        commits = await router.wait_commits(PLAN, 0)
        for place, bit in zip(PLACES, (1, 1, 0), strict=True):  # Six standard deviations.
            told = commits[place].unclipped
            assert told is not None
            assert told not in (0.0, 1.0)
            assert abs(told - bit) < 0.96
        norms = sorted(float(update.norm()) for update in updates(router, left, spec))
        assert norms[0] < 1e-3 * norms[1]
        assert await router.apply(PLAN, 0, commits)
        assert router.of((0, 0), RoundApplied)


async def test_the_loss_of_what_is_held_back_is_told_with_noise_and_no_other(routed: MakeRouter) -> None:
    spec = private(noise=0.3, heldout=HeldoutLoss(share=0.9))
    assert spec.federated is not None
    error = loss_error(spec.federated)
    assert error is not None
    async with routed(spec) as router:
        await router.start(PLAN, PLACES)
        await router.round(PLAN, 0, 4, TOTAL)
        commits = [router.of(place, RoundCommit)[0] for place in PLACES]
    told = [commit.heldout for commit in commits if commit.heldout is not None]
    assert len({*told}) == 3, "of one model and one text: it is the noise that differs"
    assert all(abs(loss - math.log(VOCABULARY)) < 6 * error * 2**0.5 for loss in told)
    assert {commit.loss for commit in commits} == {None}


async def test_no_loss_is_told_where_the_document_does_not_ask_for_it(routed: MakeRouter) -> None:
    async with routed(private()) as router:
        await router.start(PLAN, PLACES)
        await router.round(PLAN, 0, 4, TOTAL)
        assert [router.of(place, RoundCommit)[0].heldout for place in PLACES] == [None] * 3

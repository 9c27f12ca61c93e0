"""Workers of a federated job with secure sums: what they hand to their agents, and how rounds end."""

import hashlib

import msgspec
import numpy as np
import pytest
import torch

from protocol.federated.sum_values import beside_of
from protocol.job.federated import AdaptiveClipping, FederatedSpec, HeldoutLoss, PrivacySpec
from protocol.job.job import JobSpec, LoraSpec, TokenizerSpec
from protocol.job.privacy_sum import loss_error
from protocol.models.model import KEEPS_EMBEDDING, inspect_config
from protocol.task import ApplyRound, BeginRound, Progress, RoundApplied, RoundCommit, RoundHolding, TaskFailed
from tests.trainer.router import MakeRouter, Router
from tests.trainer.small import VOCABULARY, config_of
from tests.trainer.worker.test_federated import OWNERS, PLACES, PLAN, TOTAL, plain
from trainer.outer import Layout, OuterState, outer_method
from trainer.outer.summed import SummedTerms, mean_of
from trainer.stage.model import Cut
from trainer.stage.stage import Stage
from trainer.worker.checkpoint import read_checkpoint


def secure(noise: float = 0.5, clip: float = 0.02, outer: str = "averaging") -> JobSpec:
    asked = FederatedSpec(OWNERS, 3, 3, PrivacySpec(noise_multiplier=noise, clip=clip, most_rounds=2), "secure")
    spec = plain()
    training = msgspec.structs.replace(spec.training, outer=outer, outer_momentum=0.0 if outer == "averaging" else 0.9)
    return msgspec.structs.replace(
        spec, dataset=None, federated=asked, tokenizer=TokenizerSpec("bytes"), training=training
    )


async def summed(router: Router, number: int, counted: list[tuple[int, int]]) -> bytes:
    """Begin a round, wait for all updates, and have their sum applied by all."""
    await router.begin(PLAN, number, number * 4, 4, TOTAL)
    await router.until(lambda: all((place, number) in router.vectors for place in counted))
    total: bytes = (
        np.sum([np.frombuffer(router.vectors[place, number], "<u4") for place in counted], axis=0, dtype=np.uint32)
    ).tobytes()
    name = hashlib.sha256(total).hexdigest()
    digests = {place[1]: router.of(place, RoundCommit, round=number)[0].pseudo_gradient for place in counted}
    for place in PLACES:
        body = ApplyRound(PLAN.epoch, number, digests, checkpoint=place == (0, 0), total=name)
        await router.command(place, body, total)
    await router.until(lambda: all(router.of(place, RoundApplied, round=number) for place in PLACES))
    assert len({router.of(place, RoundApplied, round=number)[0].parameters for place in PLACES}) == 1
    return total


@pytest.mark.parametrize("outer", ["averaging", "diloco"])
async def test_a_round_ends_with_the_mean_of_the_sum_and_all_owners_have_one_model(
    routed: MakeRouter, outer: str
) -> None:
    spec = secure(outer=outer)
    assert spec.federated is not None
    async with routed(spec) as router:
        await router.start(PLAN, PLACES)
        stage = Stage(config_of(), Cut(0, 3, True, True), spec.training)
        layout, method = Layout(tuple(stage.slots), stage.size), outer_method(spec.training, stage.slots, stage.size)
        terms = SummedTerms.of(spec.federated, None)
        before = OuterState.first(stage.values().clone(), stage.training)
        for number, counted in enumerate(
            (PLACES, PLACES[:2])
        ):  # In the second one of three has gone after it had trained.
            total = await summed(router, number, counted)
            mean = mean_of(total, hashlib.sha256(total).hexdigest(), layout, terms, len(counted))
            deviation = 0.02 * terms.privacy.noise / len(counted) ** 0.5
            assert float(mean.norm()) == pytest.approx(deviation * stage.parameter_count**0.5, rel=0.06)
            after = method.step(before, mean, (), number)
            (report,) = router.of((0, 0), RoundApplied, round=number)
            state, _ = read_checkpoint(router.artifacts[report.checkpoint], stage.slots, stage.size)
            assert torch.equal(state.anchor, after.anchor)
            assert report.outer.results == {0: hashlib.sha256(total).hexdigest()}
            before = after
        assert not any(router.of(place, TaskFailed) for place in PLACES)
        assert router.sent == [], "nothing goes from owner to owner"
        assert not any(router.of(place, RoundHolding) for place in PLACES)


async def test_what_an_update_is_committed_to_by_tells_it_to_nobody_and_no_loss_is_said(routed: MakeRouter) -> None:
    async with routed(secure()) as router:
        await router.start(PLAN, PLACES)
        await summed(router, 0, PLACES)
        for place in PLACES:
            (commit,) = router.of(place, RoundCommit)
            vector = router.vectors[place, 0]
            assert commit.root == commit.pseudo_gradient != hashlib.sha256(vector).hexdigest()
            assert commit.loss is None
            assert commit.carried is None
            assert [report.loss for report in router.of(place, Progress)] == [None] * 4
        vectors = [router.vectors[place, 0] for place in PLACES]
        assert len({*vectors}) == 3


async def test_a_sum_brings_the_loss_and_the_clip_and_owners_say_neither(routed: MakeRouter) -> None:
    """The mean loss and how many were cut stand behind the sum of updates; the second round has another clip."""
    told = {"heldout": HeldoutLoss(most=20.0, share=0.9), "adaptive": AdaptiveClipping(bit_noise=100.0)}
    privacy = PrivacySpec(noise_multiplier=0.3, clip=0.02, most_rounds=2, **told)  # type: ignore[arg-type]
    asked = FederatedSpec(OWNERS, 3, 3, privacy, "secure")
    spec = msgspec.structs.replace(secure(), federated=asked)
    async with routed(spec) as router:
        await router.start(PLAN, PLACES)
        for number, clip in enumerate((0.02, 1000.0)):
            for place in PLACES:
                await router.command(place, BeginRound(PLAN, number, number * 4, 4, TOTAL, clip=clip))
            await router.until(lambda at=number: all((place, at) in router.vectors for place in PLACES))
            vectors = [np.frombuffer(router.vectors[place, number], "<u4") for place in PLACES]
            total = np.sum(vectors, axis=0, dtype=np.uint32).tobytes()
            beside = beside_of(total, asked, clip, 3)
            error = loss_error(asked)
            assert error is not None
            assert privacy.heldout is not None
            assert abs(privacy.heldout.nats(beside["heldout"]) - np.log(VOCABULARY)) < 5 * error + 1.0
            digests = {at[1]: router.of(at, RoundCommit, round=number)[0].pseudo_gradient for at in PLACES}
            name = hashlib.sha256(total).hexdigest()
            for place in PLACES:
                commit = router.of(place, RoundCommit, round=number)[0]
                assert (commit.loss, commit.heldout, commit.unclipped) == (None, None, None)
                await router.command(place, ApplyRound(PLAN.epoch, number, digests, total=name), total)
            await router.until(lambda at=number: all(router.of(place, RoundApplied, round=at) for place in PLACES))
        assert not any(router.of(place, TaskFailed) for place in PLACES)


async def test_a_sum_that_is_not_the_one_that_was_named_is_refused(routed: MakeRouter) -> None:
    async with routed(secure()) as router:
        await router.start(PLAN, PLACES[:1])
        await router.begin(PLAN, 0, 0, 4, TOTAL, only=PLACES[:1])
        await router.until(lambda: ((0, 0), 0) in router.vectors)
        await router.command(
            (0, 0), ApplyRound(PLAN.epoch, 0, {0: "a" * 64}, total="b" * 64), router.vectors[(0, 0), 0]
        )
        await router.until(lambda: router.of((0, 0), TaskFailed) or router.of((0, 0), RoundApplied))
        assert "not the one that was named" in router.of((0, 0), TaskFailed)[0].reason


@pytest.mark.parametrize("changes", [{}, {KEEPS_EMBEDDING: True}, {"num_key_value_heads": 1}])
def test_the_coordinator_knows_how_many_values_an_update_has(changes: dict[str, object]) -> None:
    """By arithmetic, as it never holds the model; an owner refuses a sum of another length."""
    config = config_of() | changes
    shape = inspect_config(config)
    stage = Stage(config, Cut(0, shape.layers, True, True), secure().training)
    learns, _ = shape.stage_learns(0, shape.layers, True, True, None)
    assert learns == stage.parameter_count
    adapter, _ = shape.stage_learns(0, shape.layers, True, True, LoraSpec(rank=2))
    assert 0 < adapter < learns

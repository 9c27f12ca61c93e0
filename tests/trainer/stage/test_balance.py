"""Routers' auxiliary loss: transformers' own for one layer, the same bits however a stage is computed, and what it is for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from protocol.boundary import Position
from tests.trainer.small import config_of, training
from trainer.data.data import TokenFile
from trainer.stage.model import Cut
from trainer.stage.moe_balance import ROUTER, layer_loss
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate

FAMILIES = ("mixtral", "qwen3_moe")


def stage_of(family: str, layers: int, coefficient: float, **changes: Any) -> Stage:
    config = config_of(family) | {"num_hidden_layers": layers, "router_aux_loss_coef": coefficient}
    return Stage(config, Cut(0, layers, True, True), training(**changes))


def gradients(stage: Stage, tokens: TokenFile) -> Tensor:
    windows, _ = tokens.sample(1, 0, 0, stage.training.batch)
    accumulate(stage, Position(0, 1), windows, Recorded({}))
    return stage.gradients.clone()


@contextmanager
def listening(stage: Stage) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Logits and chosen experts of each router, as they come."""
    heard: list[tuple[Tensor, Tensor]] = []
    routers = [part for part in stage.module.modules() if type(part).__name__.endswith(ROUTER)]
    hooks = [router.register_forward_hook(lambda _m, _i, out: heard.append((out[0], out[2]))) for router in routers]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def test_one_layers_loss_is_the_one_of_transformers() -> None:
    logits = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    chosen = torch.topk(torch.softmax(logits, -1), 2, dim=-1).indices
    torch.testing.assert_close(layer_loss(logits, chosen), load_balancing_loss_func((logits,), 6, 2))
    even = torch.arange(12).view(6, 2) % 6
    assert layer_loss(torch.zeros(6, 6), even).item() == pytest.approx(2.0), "k where all are used alike"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_added_to_the_gradients_is_that_of_the_mean_over_layers(family: str, tokens: TokenFile) -> None:
    plain, pulled = (gradients(stage_of(family, 2, c, micro_batches=1), tokens) for c in (0.0, 0.5))
    stage = stage_of(family, 2, 0.0, micro_batches=1)
    windows, _ = tokens.sample(1, 0, 0, stage.training.batch)
    with listening(stage) as heard:
        stage.forward(torch.from_numpy(windows[:, :-1]))
        stage.backward(0.5 * torch.stack([layer_loss(*each) for each in heard]).mean())
    assert len(heard) == 2
    assert float(stage.gradients.abs().max()) > 0
    torch.testing.assert_close(pulled - plain, stage.gradients, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("changes", [{"recompute": True}, {"schedule": "zero-bubble"}])
def test_however_a_stage_is_computed_the_bits_are_the_same(changes: dict[str, Any], tokens: TokenFile) -> None:
    plain = gradients(stage_of("mixtral", 2, 0.5), tokens)
    assert torch.equal(plain, gradients(stage_of("mixtral", 2, 0.5, **changes), tokens))


def test_parts_of_a_batch_weigh_what_their_tokens_are_of_it(tokens: TokenFile) -> None:
    """Four micro-batches that are each the whole batch pull as the whole batch does."""
    windows, _ = tokens.sample(1, 0, 0, 1)
    pulls = []
    for rows, micros in ((1, 1), (4, 4)):
        found = []
        for coefficient in (0.0, 0.5):
            stage = stage_of("mixtral", 1, coefficient, batch=rows, micro_batches=micros)
            accumulate(stage, Position(0, 1), windows.repeat(rows, axis=0), Recorded({}))
            found.append(stage.gradients.clone())
        pulls.append(found[1] - found[0])
    torch.testing.assert_close(pulls[1], pulls[0], rtol=1e-3, atol=1e-6)


def test_the_reported_loss_is_that_of_the_tokens_alone(tokens: TokenFile) -> None:
    losses = []
    for coefficient in (0.0, 0.5):
        stage = stage_of("mixtral", 2, coefficient)
        windows, _ = tokens.sample(1, 0, 0, stage.training.batch)
        losses.append(accumulate(stage, Position(0, 1), windows, Recorded({})))
    assert losses[0] == losses[1]


def test_experts_that_nobody_chose_are_chosen_again(tokens: TokenFile) -> None:
    after = {}
    for coefficient in (0.0, 0.2):
        stage = stage_of("mixtral", 1, coefficient)
        router: Any = next(part for part in stage.module.modules() if type(part).__name__.endswith(ROUTER))
        for step in range(40):
            windows, _ = tokens.sample(1, step, 0, stage.training.batch)
            if step == 0:  # One expert is all but out of the choice.
                with torch.no_grad():
                    router.weight[0].copy_(router.weight[1]).mul_(0.01)
            accumulate(stage, Position(0, 1), windows, Recorded({}))
            stage.adam_step(3e-3)
        with listening(stage) as heard:
            stage.forward(torch.from_numpy(windows[:, :-1]))
        after[coefficient] = float(layer_loss(*heard[0]).detach())
    assert after[0.2] < after[0.0]
    assert after[0.2] == pytest.approx(2.0, abs=0.05)

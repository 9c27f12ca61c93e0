"""A stage on a device that is not main memory: nothing of two devices meets, and the processor waits as seldom as can be."""

from typing import Any

import pytest
import torch

from protocol.boundary import Position
from tests.trainer.card import NAME, OnCard, card
from tests.trainer.small import FAMILY_CONFIGS, config_of, training
from trainer.data.data import TokenFile
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import outer_step
from trainer.outer.inner_update import update
from trainer.stage.model import Cut
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, Recorder, accumulate, heldout_loss

WHOLE = Cut(0, 3, True, True)
KINDS: list[dict[str, Any]] = [
    {"clip_norm": 0.5},
    {"optimizer": "muon"},
    {"recompute": True},
    {"schedule": "zero-bubble"},
    {"subspace": 8},
]


def test_two_devices_do_not_meet() -> None:
    with card() as counted:
        here, there = torch.ones(3), torch.ones(3, device=NAME)
        assert isinstance(there, OnCard)
        with pytest.raises(RuntimeError, match="main memory"):
            there.add_(here)
        assert float((there + 1).sum()) == 6
        assert there.add_(here.to(NAME)).cpu().tolist() == [2, 2, 2]
        assert dict(counted) == {"copied": 2, "waited": 1}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("family", FAMILY_CONFIGS)
def test_every_family_computes_there_what_it_computes_here(family: str, tokens: TokenFile) -> None:
    same(family, {}, tokens)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_step_does(kind: dict[str, Any], tokens: TokenFile) -> None:
    same("llama", kind, tokens)


def same(family: str, kind: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    here = Stage(config_of(family), WHOLE, spec)
    begun = here.values().clone()
    losses = [step(here, windows, number) for number in range(2)]
    with card():
        there = Stage(config_of(family), WHOLE, spec, device=NAME)
        assert isinstance(there.gradients, OnCard)
        assert all(isinstance(value, OnCard) for value in there.module.parameters())
        assert [step(there, windows, number) for number in range(2)] == pytest.approx(losses, rel=1e-6)
        moved, due = there.values().cpu() - begun, here.values() - begun
        assert float(torch.linalg.vector_norm(moved - due) / torch.linalg.vector_norm(due)) < 1e-3


def step(stage: Stage, windows: Any, number: int) -> float:
    loss = accumulate(stage, Position(0, 1), windows, Recorded({}))
    update(stage, Position(0, 1), Recorded({}), number, 10)
    assert loss is not None
    return loss


@pytest.mark.parametrize("kind", [{}, {"clip_norm": 0.5}], ids=str)
def test_the_processor_waits_once_a_micro_batch_and_at_the_end_of_a_step(
    kind: dict[str, Any], tokens: TokenFile
) -> None:
    """For the losses, all when the passes are over; for the check of the gradients; and for their norm."""
    spec = training(micro_batches=4, **kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    with card() as counted:
        stage = Stage(config_of(), WHOLE, spec, device=NAME)
        counted.clear()
        step(stage, windows, 0)
        assert counted["waited"] == 4 + 1 + (1 if kind else 0)
        assert counted["copied"] <= 2 * 4 + 3, "token ids there, twice; single numbers back"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_lean_stage_steps_there_as_here_to_the_last_bit(optimizer: str) -> None:
    spec = training(memory="lean", precision="bf16", optimizer=optimizer)
    values = torch.randn(40_000, generator=torch.Generator().manual_seed(1))

    def stepped(device: str) -> Stage:
        stage = Stage(config_of(), Cut(0, 1, True, False), spec, device=device)
        for number in range(3):
            stage.gradients.copy_(values[number : number + stage.size] * 1e-3)
            stage.adam_step(1e-3)
        return stage

    here = stepped("cpu")
    with card():
        there = stepped(NAME)
        for own, other in zip(here.decoded(here.state()), there.decoded(there.state()), strict=True):
            assert float((own - other).abs().max()) < 1e-6
        assert there.state_digest() == there.state().digest()
        with there.away():
            assert there.gradients.numel() == 0
        assert there.state_digest() == there.state().digest()


@pytest.mark.parametrize("outer", ["diloco", "streaming", "sparseloco"])
def test_rounds_between_replicas_and_looks_at_them(outer: str, tokens: TokenFile) -> None:
    extra = {"sparseloco": {"outer_momentum": 0.0}}.get(outer, {})
    spec = training(outer=outer, **extra)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    with card():
        stage = Stage(config_of(), WHOLE, spec, device=NAME)
        keeper = SnapshotKeeper()
        state = OuterState.first(stage.values().to("cpu", copy=True), stage.training)
        method = outer_method(spec, stage.slots, stage.size)
        local = method.fresh(state)
        kept = keeper.keep(stage)
        assert keeper.digest(kept).result() == stage.state_digest()
        step(stage, windows, 0)
        given = method.contribution(state.anchor, stage.values(), local, 0)
        after, _ = outer_step(method, stage, state, {0: given.data}, 0)
        stage.load(method.start(after, given.local, 1))
        assert torch.equal(stage.values().cpu()[:100], method.start(after, given.local, 1)[:100])
        assert heldout_loss(stage, [windows], Recorder(Recorded({}))) is not None
        stage.restore(kept)
        assert stage.state_digest() == kept.digest()

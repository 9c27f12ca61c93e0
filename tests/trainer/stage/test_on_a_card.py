"""A stage on a device that is not main memory: nothing of two devices meets, and the processor waits as seldom as can be."""

from typing import Any

import pytest
import torch

from protocol.boundary import Position
from tests.trainer.card import NAME, OnCard, asked, card
from tests.trainer.small import FAMILY_CONFIGS, config_of, pipeline, training
from trainer import transfer
from trainer.data.data import TokenFile
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import outer_step
from trainer.outer.inner_update import update
from trainer.stage import model
from trainer.stage.model import Cut
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage, vector_digest
from trainer.stage.steps import Recorded, Recorder, accumulate, heldout_loss
from trainer.transfer import HostCopy, arriving, fetched, fill

WHOLE = Cut(0, 3, True, True)
KINDS: list[dict[str, Any]] = [
    {"clip_norm": 0.5},
    {"optimizer": "muon"},
    {"recompute": True},
    {"schedule": "zero-bubble"},
    {"subspace": 8},
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"memory": "lean", "precision": "bf16", "clip_norm": 0.5},
    {"memory": "lean", "precision": "bf16", "optimizer": "muon"},
]


def test_two_devices_do_not_meet() -> None:
    with card() as counted:
        here, there = torch.ones(3), torch.ones(3, device=NAME)
        assert isinstance(there, OnCard)
        with pytest.raises(RuntimeError, match="main memory"):
            there.add_(here)
        with pytest.raises(RuntimeError, match="deterministic"):
            there.cumsum(0)
        assert float((there + 1).sum()) == 6
        assert there.add_(here.to(NAME)).cpu().tolist() == [2, 2, 2]
        assert dict(counted) == {"copied": 2, "waited": 3}
        assert there[there > 0].tolist() == [2, 2, 2]
        assert counted["waited"] == 5, "a mask has to be counted, too"


def test_what_leaves_is_rubbish_until_somebody_has_waited_for_it() -> None:
    with card() as counted:
        there = torch.ones(3, device=NAME)
        careless = there.to("cpu", non_blocking=True)
        assert careless.isnan().all()
        leaving = HostCopy(there)
        assert leaving._there.isnan().all()
        assert leaving.arrived().tolist() == [1, 1, 1]
        changed = HostCopy(there)
        there.add_(1)
        assert changed.arrived().tolist() == [2, 2, 2], "who changes what leaves beside computing is found out"
        assert fetched(there).tolist() == [2, 2, 2]
        fill(there, torch.full((3,), 7.0))
        assert fetched(there).tolist() == [7, 7, 7]
        assert counted["waited"] == 0


def test_long_vectors_travel_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_PART", 40)
    given = torch.arange(95.0)
    with card() as counted:
        there = torch.zeros(95, device=NAME)
        fill(there, given)
        assert torch.equal(fetched(there), given)
        assert [span.stop - span.start for span, _ in arriving(there)] == [10] * 9 + [5]
        assert vector_digest(there) == vector_digest(given)
        assert counted["waited"] == 0


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
        near = 1e-6 if spec.precision == "float32" else 1e-3
        assert [step(there, windows, number) for number in range(2)] == pytest.approx(losses, rel=near)
        moved, due = there.values().cpu() - begun, here.values() - begun
        apart = float(torch.linalg.vector_norm(moved - due) / torch.linalg.vector_norm(due))
        assert apart < (1e-3 if spec.precision == "float32" else 0.2)


def step(stage: Stage, windows: Any, number: int) -> float:
    loss = accumulate(stage, Position(0, 1), windows, Recorded({}))
    update(stage, Position(0, 1), Recorded({}), number, 10)
    assert loss is not None
    return loss


@pytest.mark.parametrize("kind", [{}, *KINDS], ids=str)
def test_the_processor_waits_two_or_three_times_a_step_however_many_micro_batches_it_has(
    kind: dict[str, Any], tokens: TokenFile
) -> None:
    """For the losses, all when the passes are over; for the check of the gradients; and for their norm, where it is asked for."""
    spec = training(**(kind | {"micro_batches": 4}))
    norm = spec.clip_norm is not None or spec.precision == "fp16"
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    with card() as counted:
        stage = Stage(config_of(), WHOLE, spec, device=NAME)
        counted.clear()
        step(stage, windows, 0)
        assert asked(counted) == {"trainer/stage/stage.py:adam_step": 1, "trainer/transfer.py:numbers": 1 + norm}
        assert counted["copied"] <= 2 * 4 + 2, "token ids there, twice; losses and a norm back"


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_a_layer_of_experts_waits_once_and_has_the_bits_of_the_librarys_own(
    family: str, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = training()
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    with card() as counted:
        stage = Stage(config_of(family), WHOLE, spec, device=NAME)
        counted.clear()
        step(stage, windows, 0)
        layers = {"trainer/stage/model.py:_through_experts": 3 * 2}
        assert asked(counted) == {"trainer/stage/stage.py:adam_step": 1, "trainer/transfer.py:numbers": 1} | layers
    ours = Stage(config_of(family), WHOLE, spec)
    monkeypatch.setattr(model, "_EXPERTS", "eager")
    theirs = Stage(config_of(family), WHOLE, spec)
    for one in (ours, theirs):
        step(one, windows, 0)
    assert ours.state_digest() == theirs.state_digest()


@pytest.mark.parametrize("kind", [{}, *KINDS, {"activations": "int4", "boundary_gradients": "int4"}], ids=str)
def test_neighbours_of_a_pipeline_wait_for_what_leaves_alone(kind: dict[str, Any], tokens: TokenFile) -> None:
    """Each payload is waited for by itself, and nothing else but losses, gradients and norm."""
    spec = training(**(kind | {"micro_batches": 4}))
    norm = spec.clip_norm is not None or spec.precision == "fp16"
    with card() as counted:
        line = pipeline("llama", 3, tokens, spec, device=NAME)
        counted.clear()
        loss = line.step(0, 10)
        waited = {"trainer/stage/stage.py:adam_step": 3, "trainer/transfer.py:numbers": 1 + 3 * norm}
        assert asked(counted) == waited
        assert counted["awaited"] == 4 * 4, "activations over two boundaries, and gradients"
    assert loss == pytest.approx(pipeline("llama", 3, tokens, spec).step(0, 10), rel=1e-3)


@pytest.mark.parametrize("kind", [{}, {"memory": "lean", "precision": "bf16"}], ids=str)
def test_states_come_and_go_and_are_hashed_without_a_halt(kind: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    with card() as counted:
        stage = Stage(config_of(), WHOLE, spec, device=NAME)
        anchor = fetched(stage.values())
        stage.load(anchor)
        step(stage, windows, 0)
        counted.clear()
        stage.shorten(anchor)
        kept = stage.state()
        assert stage.state(stage.state()).digest() == kept.digest() == stage.own_state().digest()
        stage.restore(kept)
        stage.load(anchor)
        stage.restore(kept)
        copied = counted["copied"]
        assert stage.state_digest() == kept.digest()
        moments = 2 if spec.memory == "lean" else 3
        assert counted["copied"] - copied == moments, "of what is said in short, moments alone leave for a digest"
        assert counted["waited"] == 0


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

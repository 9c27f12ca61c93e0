"""A stage on a graphics card that is one: the same training as on the processor, and the same bits each time.

Skipped where no card is. Workers of all other tests compute on it with ``COTTAGE_TEST_DEVICE=cuda`` (docs/benchmarks/testing.md).
"""

import subprocess
import sys
from itertools import product
from typing import Any

import pytest
import torch

from desktop.agent.base.gpu import detect
from desktop.agent.hardware.meters import gpus
from protocol.boundary import Position
from protocol.models.boundary_bytes import SUBSPACE_FAMILIES
from tests.trainer.small import FAMILY_CONFIGS, config_of, training
from trainer.audit.environment import bench, configure, env_class
from trainer.data.data import TokenFile
from trainer.outer import OuterState, outer_method
from trainer.outer.audit import outer_step
from trainer.outer.inner_update import update
from trainer.stage import adamw
from trainer.stage.model import Cut
from trainer.stage.snapshots import SnapshotKeeper
from trainer.stage.stage import Stage
from trainer.stage.steps import Recorded, accumulate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no graphics card that CUDA drives is here")

WHOLE = Cut(0, 3, True, True)
KINDS: list[dict[str, Any]] = [
    {"clip_norm": 0.5},
    {"optimizer": "muon"},
    {"recompute": True},
    {"schedule": "zero-bubble"},
    {"subspace": 8},
]
LEAN: list[dict[str, Any]] = [
    {"memory": "lean", "precision": "bf16"},
    {"memory": "lean", "precision": "bf16", "optimizer": "muon", "clip_norm": 0.5},
]


def fits(family: str, kind: dict[str, Any]) -> bool:
    """Whether there is such a job."""
    return "subspace" not in kind or FAMILY_CONFIGS[family]["model_type"] in SUBSPACE_FAMILIES


@pytest.fixture(autouse=True)
def repeatable() -> None:
    configure(1, "cuda")


def step(stage: Stage, windows: Any, number: int) -> float:
    loss = accumulate(stage, Position(0, 1), windows, Recorded({}))
    update(stage, Position(0, 1), Recorded({}), number, 10)
    assert loss is not None
    return loss


def trained(family: str, kind: dict[str, Any], tokens: TokenFile) -> str:
    """The state's digest after four steps from the beginning."""
    spec = training(**kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    stage = Stage(config_of(family), WHOLE, spec, device="cuda")
    for number in range(4):
        step(stage, windows, number)
    return stage.state_digest()


@pytest.mark.parametrize(("family", "kind"), [each for each in product(FAMILY_CONFIGS, KINDS) if fits(*each)], ids=str)
def test_trains_as_on_the_processor(family: str, kind: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    here, there = (Stage(config_of(family), WHOLE, spec, device=device) for device in ("cpu", "cuda"))
    begun = here.values().clone()
    losses = [step(here, windows, number) for number in range(2)]
    assert [step(there, windows, number) for number in range(2)] == pytest.approx(losses, rel=1e-4)
    moved, due = there.values().cpu() - begun, here.values() - begun
    assert float(torch.linalg.vector_norm(moved - due) / torch.linalg.vector_norm(due)) < 0.02


@pytest.mark.parametrize(
    ("family", "kind"),
    [each for each in product(FAMILY_CONFIGS, [*KINDS, {"precision": "bf16"}, *LEAN]) if fits(*each)],
    ids=str,
)
def test_the_same_bits_twice(family: str, kind: dict[str, Any], tokens: TokenFile) -> None:
    assert trained(family, kind, tokens) == trained(family, kind, tokens)


@pytest.mark.parametrize("kind", LEAN, ids=str)
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_one_kernel_has_the_bits_of_all_operations(
    family: str, kind: dict[str, Any], tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adamw.kernel(torch.device("cuda")) is not None, "it compiles here, and its bits are right"
    fused = trained(family, kind, tokens)
    monkeypatch.setattr(adamw, "kernel", lambda device: None)
    assert trained(family, kind, tokens) == fused


@pytest.mark.parametrize("kind", LEAN, ids=str)
def test_a_lean_stage_makes_room_and_comes_back(kind: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    stage = Stage(config_of(), WHOLE, spec, device="cuda")
    step(stage, windows, 0)
    digest, held = stage.state_digest(), torch.cuda.memory_allocated()
    with stage.away():
        assert stage.gradients.numel() == 0
        assert torch.cuda.memory_allocated() < held
    assert stage.state_digest() == digest == stage.state().digest()


@pytest.mark.parametrize("kind", [{}, *LEAN], ids=str)
def test_what_is_kept_of_a_round_comes_back(kind: dict[str, Any], tokens: TokenFile) -> None:
    spec = training(**kind)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    stage, keeper = Stage(config_of(), WHOLE, spec, device="cuda"), SnapshotKeeper()
    anchor = stage.values().to("cpu", copy=True)
    step(stage, windows, 0)
    stage.shorten(anchor)
    kept = keeper.keep(stage)
    assert keeper.digest(kept).result() == stage.state_digest()
    step(stage, windows, 1)
    assert stage.state_digest() != kept.digest()
    stage.restore(kept)
    assert stage.state_digest() == kept.digest()


@pytest.mark.parametrize("outer", ["diloco", "streaming", "sparseloco"])
def test_rounds_between_replicas(outer: str, tokens: TokenFile) -> None:
    extra = {"sparseloco": {"outer_momentum": 0.0}}.get(outer, {})
    spec = training(outer=outer, **extra)
    windows, _ = tokens.sample(spec.seed, 0, 0, spec.batch)
    stage = Stage(config_of(), WHOLE, spec, device="cuda")
    state = OuterState.first(stage.values().to("cpu", copy=True), stage.training)
    method = outer_method(spec, stage.slots, stage.size)
    local = method.fresh(state)
    step(stage, windows, 0)
    given = method.contribution(state.anchor, stage.values(), local, 0)
    after, _ = outer_step(method, stage, state, {0: given.data}, 0)
    begins = method.start(after, given.local, 1)
    stage.load(begins)
    assert torch.equal(stage.values().cpu(), begins)


def test_the_card_is_found_named_and_measured() -> None:
    found = detect()
    assert found.kind == "cuda"
    assert found.name == torch.cuda.get_device_name()
    assert [card.uuid for card in gpus()][:1] == [found.gpu]
    measured = bench(1, "cuda")
    assert measured["flops"] > 1e12, "a card of the last ten years does more in float32"
    assert measured["env_class"].startswith(f"{found.name}|cuda-")
    assert measured["env_class"] == env_class(1, "cuda")


def test_another_process_computes_the_same_bits() -> None:
    """As an auditor's worker does on the same card."""
    program = "from tests.trainer.stage.test_on_a_gpu import of_this_process; print(of_this_process())"
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(2)
    ]
    assert said[0] == said[1] == of_this_process()
    assert len(said[0]) == 64


def of_this_process() -> str:
    """The state's digest after three lean steps on samples that are always the same."""
    configure(1, "cuda")
    spec = training(**LEAN[1])
    stage = Stage(config_of(), WHOLE, spec, device="cuda")
    windows = torch.arange(spec.batch * (spec.sequence + 1)).remainder(200).view(spec.batch, -1).numpy()
    for number in range(3):
        step(stage, windows, number)
    return stage.state_digest()

"""The recipe for an outer method (docs/how-to/extend/outer-method.md): its example takes outer steps in a mesh and by shards."""

import re
import runpy
from pathlib import Path

import pytest
import torch

from tests.test_banned_calls import ROOT
from tests.trainer.outer.test_outer_methods import SIZE, SLOTS, shared, vector
from trainer.outer import Layout, OuterMethod, OuterState
from trainer.outer.checks import PLAIN
from trainer.outer.shards import reduce_shard

PAGE = ROOT / "docs/how-to/extend/outer-method.md"
RATE, DECAY = 0.7, 0.9


@pytest.fixture
def method(tmp_path: Path) -> OuterMethod:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    module = tmp_path / "heavy_ball.py"
    module.write_text(block)
    made: OuterMethod = runpy.run_path(str(module))["HeavyBall"]("heavy", Layout(SLOTS, SIZE), "fp32", RATE, DECAY)
    return made


def polyak(state: OuterState, mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    momentum = DECAY * state.momentum + mean
    return state.anchor - RATE * momentum, momentum


def test_its_outer_step_is_the_same_in_a_mesh_and_by_shards(method: OuterMethod) -> None:
    state, ways, count = shared(), [vector(7 + replica, 0.01) for replica in range(4)], 4
    anchor, momentum = polyak(state, torch.stack(ways).mean(0))
    whole = {p: method.contribution(state.anchor, state.anchor - way, {}, 0).data for p, way in enumerate(ways)}
    mesh = method.apply(state, whole, 0, dict.fromkeys(whole, 50))
    pieces = [method.contribution(state.anchor, state.anchor - way, {}, 0, count).pieces for way in ways]
    shards, results = method.shards(0, count), {}
    for shard in range(count):
        parts = {replica: made[shard] for replica, made in enumerate(pieces)}
        results[shard] = reduce_shard(shards, shard, parts, PLAIN, shards.take(method.free(0), shard), None).data
    for after in (mesh, method.apply_results(state, results, 0, alone=False)):
        assert torch.allclose(after.anchor, anchor, atol=1e-6)
        assert torch.allclose(after.momentum, momentum, atol=1e-6)
        assert not torch.equal(after.anchor, state.anchor)


def test_a_replica_alone_goes_where_it_went(method: OuterMethod) -> None:
    state, way = shared(), vector(7, 0.01)
    after = method.apply(state, {0: method.contribution(state.anchor, state.anchor - way, {}, 0).data}, 0, {0: 50})
    assert torch.allclose(after.anchor, state.anchor - way, atol=1e-6)
    assert torch.equal(after.momentum, state.momentum)

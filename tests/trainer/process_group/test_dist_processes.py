"""The process group as users have it: a process for each rank, gloo beside it as the reference."""

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.addresses import free_port

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "assets" / "examples" / "ddp.py"
LIMIT_S = 300.0  # Of processes that hang; a busy machine takes a while to import torch.

pytestmark = pytest.mark.slow


def run(size: int, *arguments: str) -> list[tuple[int, str]]:
    """Exit status and output of every rank."""
    shared = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(size),
        "COTTAGE_LOOPBACK": "1",
        "COTTAGE_REACH_S": "5",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, *arguments], env=shared | {"RANK": str(rank)}, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [(rank.returncode, output) for rank, output in zip(ranks, outputs, strict=True)]


def scenario(size: int, name: str) -> list[Any]:
    ended = run(size, "-m", "tests.trainer.dist_program", name)
    assert [status for status, _ in ended] == [0] * size, ended
    return [json.loads(output) for _, output in ended]


@pytest.mark.long
def test_every_collective_gives_what_gloo_gives() -> None:
    for found in scenario(3, "collectives"):
        assert all(found.values()), found


@pytest.mark.long
def test_a_ddp_script_ends_with_gloo_s_parameters_to_the_last_bit(tmp_path: Path) -> None:
    saved = {}
    for backend in ("cottage", "gloo"):
        ended = run(2, str(EXAMPLE), "--backend", backend, "--save", str(tmp_path / backend))
        assert [status for status, _ in ended] == [0, 0], ended
        assert ended[0][1].count("loss") == 20
        saved[backend] = [torch.load(tmp_path / f"{backend}.{rank}", weights_only=True) for rank in range(2)]
    reference = saved["gloo"][0]
    for state in saved["cottage"]:
        assert all(torch.equal(state[name], reference[name]) for name in reference)


@pytest.mark.long
def test_ddp_learns_as_with_gloo_and_nearly_so_with_gradients_in_4_bits() -> None:
    first, second = scenario(2, "gradients")
    assert first["plain"] == first["gloo"]
    assert second["plain"] == second["gloo"]
    parameters = slice(60, None)
    assert first["four bits"][parameters] == second["four bits"][parameters]
    assert first["four bits"][parameters] != first["plain"][parameters]
    last = slice(50, 60)
    assert sum(first["four bits"][last]) == pytest.approx(sum(first["plain"][last]), rel=0.1)
    assert sum(first["four bits"][last]) < 0.5 * sum(first["four bits"][:10])


@pytest.mark.long
def test_torch_s_pipelines_give_the_same_losses_and_parameters_as_over_gloo() -> None:
    for found in scenario(2, "pipeline"):
        for schedule, (ours, gloos) in found.items():
            assert ours == gloos, schedule


@pytest.mark.long
def test_a_killed_rank_is_named_to_all_others_long_before_the_timeout() -> None:
    ended = run(3, "-m", "tests.trainer.dist_program", "killed")
    assert [status for status, _ in ended] == [0, 0, -signal.SIGKILL]
    for _, output in ended[:2]:
        said = json.loads(output)
        assert said["ranks"] == [2]
        assert "rank 2 is lost: no link to" in said["said"]


@pytest.mark.long
def test_a_script_that_ends_early_is_missed_at_once() -> None:
    ended = run(2, "-m", "tests.trainer.dist_program", "unfinished")
    assert [status for status, _ in ended] == [0, 0]
    assert json.loads(ended[0][1])["said"] == "rank 1 is lost: it left the group"


@pytest.mark.long
@pytest.mark.skipif(find_spec("torchft") is None, reason="torchft is not installed: pip install torchft")
def test_torchft_s_manager_commits_the_means_of_its_replicas() -> None:
    for found in scenario(2, "torchft"):
        assert found == [[0.5, 0.5, 1.0], [1.5, 1.5, 1.0], [2.5, 2.5, 1.0]]

"""The programs of ``examples/`` on this machine, as a container would run them: what they leave, and that it is so again."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.smollm2 import smollm2  # noqa: F401 - a fixture

EXAMPLES = Path(__file__).parents[2] / "examples"


def ran(folder: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that starts in an empty folder."""
    folder.mkdir(exist_ok=True)
    command = [str(word) for word in words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, **environment})


def test_a_sweep_has_points_and_each_has_a_score(tmp_path: Path) -> None:
    if find_spec("sklearn") is None:
        pytest.skip("no scikit-learn: pip install -c constraints.txt scikit-learn")
    assert ran(tmp_path, sys.executable, EXAMPLES / "sweep/grid.py", "points").returncode == 0
    points = sorted((tmp_path / "points").iterdir())
    assert len(points) == 12
    done = ran(tmp_path / "out", sys.executable, EXAMPLES / "sweep/sweep.py", tmp_path / "points/trees5-depth4.json")
    assert done.returncode == 0, done.stderr
    score = json.loads((tmp_path / "out/score.json").read_text())
    assert (score["trees"], score["depth"]) == (5, 4)
    assert 0.5 < score["score"] < 1.0


def test_frames_are_the_same_bytes_again_and_differ_from_each_other(tmp_path: Path) -> None:
    renderer = shutil.which("povray")
    if renderer is None:
        pytest.skip("no POV-Ray: apt-get install povray")
    assert ran(tmp_path, sys.executable, EXAMPLES / "frames/frames.py", "frames", "2").returncode == 0
    shutil.copy(EXAMPLES / "frames/scene.pov", tmp_path)
    frames = []
    for name, out in (("000", "a"), ("000", "b"), ("001", "c")):
        words = ["+I../scene.pov", "+Oframe.bmp", "+FB", "+W80", "+H60", "-D"]
        done = ran(tmp_path / out, renderer, f"../frames/frame-{name}.ini", *words, HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        frames.append((tmp_path / out / "frame.bmp").read_bytes())
    assert frames[0] == frames[1] != frames[2]


@pytest.mark.long
def test_a_checker_takes_vectors_of_the_text_and_no_others(tmp_path: Path, smollm2: Path) -> None:  # noqa: F811
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"line {number} says something" for number in range(6)))
    embed, look = EXAMPLES / "embeddings/embed.py", EXAMPLES / "embeddings/look.py"
    assert ran(tmp_path, sys.executable, embed, text, smollm2).returncode == 0
    vectors = np.load(tmp_path / "vectors.npy")
    assert vectors.shape == (6, 576)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)

    def looked(changed: np.ndarray) -> subprocess.CompletedProcess[str]:
        np.save(tmp_path / "given.npy", changed)
        given = tmp_path / "given.npy"
        return ran(tmp_path / "look", sys.executable, look, text, given, smollm2, COTTAGE_SEED="7" * 32)

    assert looked(vectors).returncode == 0
    assert (tmp_path / "look/looked.txt").read_text() == "lines [0, 1, 2, 3, 4, 5] are right\n"
    assert looked(vectors + np.float32(1e-4)).returncode == 0, "another processor sums a little otherwise"
    for made_up in (vectors[::-1], vectors * 2, vectors[:5], np.zeros_like(vectors), vectors.astype(np.float64)):
        refused = looked(made_up)
        assert refused.returncode == 1
        assert "has another vector" in refused.stderr or "the vectors are" in refused.stderr

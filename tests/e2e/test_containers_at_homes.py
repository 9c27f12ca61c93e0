"""The worked examples in containers at homes, as submitters type them: an image is pushed, its key accepted, a command mapped.

Homes with a real engine run each element. Images are made of this machine's own packages, as the examples' Dockerfiles do it
elsewhere; what is not installed here is named.
"""

import importlib.util
import io
import json
import os
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from coordinator.client import Client
from cottage.demo.processes import output_of
from installer.image import host
from tests.e2e.mapped_homes import ENV, EXAMPLES, below, built, mapped_homes
from tests.e2e.smollm2 import smollm2  # noqa: F401 - a fixture
from tests.support.arrays.images import files, saved

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.docker, pytest.mark.long, pytest.mark.timeout(900)]

# Paid by time: a machine that others keep busy takes minutes, and the budget follows from the estimate.
BOUNDS = ["--seconds", "300", "--estimate", "90", "--disk", "16"]
CORPUS = [
    f"Sentence {number} of a small corpus is about the {thing}." for number in range(8) for thing in ("sea", "moon")
]


def needs(*packages: str) -> None:
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"no {name}: pip install -c constraints.txt {name}")


async def test_a_sweep_runs_in_containers_at_two_homes_that_agree(
    tmp_path: Path, docker_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("sklearn")
    image = built(tmp_path / "sweep.tar", [EXAMPLES / "sweep/sweep.py"], ["scikit-learn"])
    await output_of([str(EXAMPLES / "sweep/grid.py"), "points"], tmp_path)
    async with mapped_homes(tmp_path, 2, monkeypatch) as homes:
        await homes.push(image, "sweep:1")
        over = ["--over", "points/trees5-*.json", "--memory", "512"]
        results = await homes.map("sweep:1", "python3 /app/sweep.py {input}", *over, *BOUNDS)
        scores = [json.loads(path.read_text()) for path in sorted(results.glob("*/score.json"))]
        assert sorted((one["trees"], one["depth"]) for one in scores) == [(5, 2), (5, 4), (5, 8), (5, 16)]
        assert 0.5 < min(one["score"] for one in scores) < max(one["score"] for one in scores) < 1.0
        listed = await homes.cottage("node", "images", "list", "--home", str(homes.run.network.providers[0].home))
        assert "Ada's lab" in listed
        assert "512 MB of memory" in listed


async def test_frames_are_rendered_at_two_homes_to_the_same_pixels(
    tmp_path: Path, docker_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renderer = shutil.which("povray")
    if renderer is None:
        pytest.skip("no POV-Ray: apt-get install povray")
    beside = {"usr/bin/povray": renderer} | below("/etc/povray") | below("/usr/share/povray-3.7/include")
    image = built(tmp_path / "frames.tar", [], [], beside)
    await output_of([str(EXAMPLES / "frames/frames.py"), "frames", "6"], tmp_path)
    async with mapped_homes(tmp_path, 2, monkeypatch) as homes:
        await homes.push(image, "frames:1")
        words = ["--over", "frames/*.ini", "--input", f"scene.pov={EXAMPLES / 'frames/scene.pov'}", "--env", "HOME=/in"]
        command = "povray {input} +I/in/scene.pov +Oframe.bmp +FB +W320 +H180 +A -D"
        results = await homes.map("frames:1", command, *words, "--memory", "512", *BOUNDS)
        frames = [path.read_bytes() for path in sorted(results.glob("*/frame.bmp"))]
        assert len(frames) == len(set(frames)) == 6
        assert all(frame[:2] == b"BM" and len(frame) > 320 * 180 * 3 for frame in frames)


async def test_a_corpus_is_embedded_and_a_checker_decides_on_the_vectors(
    tmp_path: Path,
    docker_engine: str,
    smollm2: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = [EXAMPLES / "embeddings/embed.py", EXAMPLES / "embeddings/look.py"]
    image = built(tmp_path / "embed.tar", programs, ["torch", "transformers", "numpy"])
    (tmp_path / "corpus").mkdir()
    for number in range(2):
        (tmp_path / f"corpus/part{number}.txt").write_text("\n".join(CORPUS[8 * number : 8 * number + 8]))
    model = [word for path in sorted(smollm2.iterdir()) for word in ("--input", f"model/{path.name}={path}")]
    async with mapped_homes(tmp_path, 3, monkeypatch) as homes:
        await homes.push(image, "embed:1")
        check = ["--check", "python3 /app/look.py {input}", "--check-estimate", "60"]
        words = ["--over", "corpus/*.txt", *model, *check, "--memory", "2048", *BOUNDS]
        results = await homes.map("embed:1", "python3 /app/embed.py {input}", *words)
        vectors = np.concatenate([np.load(path) for path in sorted(results.glob("*/vectors.npy"))])
        assert vectors.shape == (16, 576)
        sea, moon = vectors[0::2], vectors[1::2]
        alike = (sea @ sea.T)[np.triu_indices(8, 1)].mean()
        assert alike > (sea @ moon.T).mean(), "lines about one thing lie nearer to each other"


FLOWER = EXAMPLES / "flower"
LOADED = (
    "import json, sys, client, flwr.common.serde; print(json.dumps([name for name in sys.modules if '.' not in name]))"
)


async def with_flower(path: Path) -> Path:
    """What ``docker save`` would write of the Dockerfile's image: the packages that the app loads, and the app."""
    names = json.loads((await output_of(["-c", LOADED], FLOWER)).strip().splitlines()[-1])
    owners = metadata.packages_distributions()
    wanted = sorted({owner for name in names for owner in owners.get(name, []) if owner != "cottage"})
    tree = io.BytesIO()
    host.write_tree(tree, {name: metadata.distribution(name) for name in wanted})
    app = files({"app/client.py": (FLOWER / "client.py").read_bytes()})
    return saved(path, [tree.getvalue(), app], {"Env": ENV})


async def test_a_server_app_trains_over_two_homes_and_its_rounds_are_paid(
    tmp_path: Path, docker_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("flwr") is None:
        pytest.skip("flwr is not installed: pip install flwr==1.42.0")  # Not with our constraints: it has others.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(str(Path(one).absolute()) for one in sys.path))
    image = await with_flower(tmp_path / "flower.tar")
    await output_of([str(FLOWER / "points.py"), "parts", "2"], tmp_path)
    async with mapped_homes(tmp_path, 2, monkeypatch) as homes:
        await homes.push(image, "flower:1")
        async with Client(homes.run.network.web) as client:
            (pushed,) = await client.images()
            words = [homes.run.network.web, pushed.artifact, "parts/part0.csv", "parts/part1.csv"]
            said = await output_of([str(FLOWER / "server.py"), *words], tmp_path)
            jobs = await client.jobs()
            nodes = [await client.nodes(job.id) for job in jobs]
    assert len(jobs) == 4
    assert {job.state for job in jobs} == {"settled"}
    assert all(node.paid > 0 for own in nodes for node in own), "both homes had a part in each round"
    (cost,) = re.findall(r"It cost ([0-9.]+)\.", said)
    assert round(float(cost) * 1e6) == sum(job.paid for job in jobs)
    with np.load(tmp_path / "model.npz") as model:
        assert model["weights"].shape == (3,)
        assert model["right"][-1] > 0.8

"""A parameter sweep in containers at homes, as its submitter types it: an image is pushed, its key accepted, a command mapped.

Two homes with a real engine run each element, and their results agree byte for byte. The image is made of this machine's own
Python and scikit-learn where that is installed, and of Python alone elsewhere; no registry is asked.
"""

import asyncio
import importlib.util
import io
import json
import re
from pathlib import Path

import docker
import pytest

from coordinator.client import Client
from cottage.demo.options import parse
from cottage.demo.processes import output_of
from cottage.demo.run import DemoRun
from cottage.demo.screen import LineScreen
from desktop.agent.sandbox.docker import owner_of
from installer.image import host
from tests.support.arrays.images import files, saved

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.docker]

WORDS = ["--stages", "1", "--no-reference", "--json", "--nodes", "2", "--sandbox", "docker", "--image-from-host"]
ENV = ["PATH=/usr/local/bin", "LD_LIBRARY_PATH=/usr/local/lib", "PYTHONHOME=/usr/local", "PYTHONPATH=/opt/site"]
PACKAGES = ["scikit-learn"] if importlib.util.find_spec("sklearn") else []
WITH_PACKAGES = """
import json, sys
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import cross_val_score

wanted = json.load(open(sys.argv[1]))
x, y = make_classification(300, 12, random_state=0)
model = RandomForestClassifier(n_estimators=wanted["trees"], max_depth=wanted["depth"], random_state=0)
score = cross_val_score(model, x, y, cv=3).mean()
json.dump({**wanted, "score": float(score)}, open("/out/score.json", "w"))
"""
ALONE = """
import json, sys

wanted = json.load(open(sys.argv[1]))
x = 0.0
for _ in range(wanted["trees"]):
    x += (2.0 - x * x) / wanted["depth"]
json.dump({**wanted, "score": x}, open("/out/score.json", "w"))
"""


def built(path: Path) -> Path:
    """What ``docker save`` would write of an image with a program in it."""
    tree = io.BytesIO()
    host.write_tree(tree, host.distributions(PACKAGES))
    program = (WITH_PACKAGES if PACKAGES else ALONE).encode()
    return saved(path, [tree.getvalue(), files({"app/sweep.py": program})], {"Env": ENV, "User": "root"})


async def cottage(folder: Path, *words: str) -> str:
    return await output_of(["-m", "cottage", *words], folder)


async def offered(client: Client) -> None:
    """Return once both homes have told that they take containers now."""
    spec = {
        "name": "asked",
        "budget": 1_000_000,
        "array": {"image": "0" * 64, "command": ["x"], "elements": "0" * 64, "count": 1, "memory_mb": 512},
    }
    async with asyncio.timeout(120):
        while any("runs containers" in one or "owners" in one for one in (await client.quote(spec)).problems):
            await asyncio.sleep(0.5)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_sweep_runs_in_containers_at_two_homes_that_agree(
    tmp_path: Path, docker_engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTTAGE_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr("cottage.demo.run.READY_S", 600.0)  # Each home measures this machine in its engine first.
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    grid = [{"trees": trees, "depth": depth} for trees in (5, 20) for depth in (2, 4)]
    for wanted in grid:
        (inputs / f"t{wanted['trees']}d{wanted['depth']}.json").write_text(json.dumps(wanted))
    async with DemoRun(parse([*WORDS, "--dir", str(tmp_path / "network")]), LineScreen()) as run:
        await run._start()
        server = ["--server", run.network.web]
        said = await cottage(
            tmp_path, "image", "push", str(built(tmp_path / "sweep.tar")), "--name", "sweep:1", *server
        )
        (key,) = re.findall(r"cottage node images accept (\S+)", said)
        for provider in run.network.providers:
            home = ["--home", str(provider.home)]
            await cottage(tmp_path, "node", "images", "accept", key, "--name", "Ada's lab", *home)
        mapped = ["map", "sweep:1", "python3 /app/sweep.py {input}", "--over", f"{inputs}/*.json", "--out", "results"]
        # Paid by time: a machine that others keep busy takes minutes, and the budget follows from the estimate.
        bounds = ["--seconds", "300", "--estimate", "90", "--memory", "512", "--disk", "16", "--yes"]
        async with Client(run.network.web) as client:
            await offered(client)
        said = await cottage(tmp_path, *mapped, *bounds, *server)
        scores = [json.loads(path.read_text()) for path in sorted((tmp_path / "results").glob("*/score.json"))]
        assert sorted((one["trees"], one["depth"]) for one in scores) == [(5, 2), (5, 4), (20, 2), (20, 4)]
        assert len({one["score"] for one in scores}) > 1
        async with Client(run.network.web) as client:
            (job,) = await client.jobs()
            nodes = await client.nodes(job.id)
        assert job.state == "settled"
        assert 0 < job.paid <= job.escrow
        assert job.paid + job.refunded == job.escrow
        assert all(node.paid > 0 for node in nodes), "both homes ran each element, and were paid for it"
        listed = await cottage(tmp_path, "node", "images", "list", "--home", str(run.network.providers[0].home))
        assert "Ada's lab" in listed
        assert "512 MB of memory" in listed
        homes = [provider.home for provider in run.network.providers]
    client = docker.from_env()
    for home in homes:
        mine = {"label": f"network.cottage.home={owner_of(home.resolve())}"}
        assert not client.containers.list(all=True, filters=mine)
        assert not client.volumes.list(filters=mine)
        for image in client.images.list(f"cottage-element-{owner_of(home.resolve())[:12]}"):
            client.images.remove(image.id, force=True)
    client.close()

"""Homes with a real engine that run a pushed image, and images of the examples, made of packages of this machine."""

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

MAX_OWNERS = 7  # That a document may ask for.
EXAMPLES = Path(__file__).parents[2] / "examples"
WORDS = ["--stages", "1", "--no-reference", "--json", "--sandbox", "docker", "--image-from-host"]
ENV = [
    "PATH=/usr/local/bin:/usr/bin",
    "LD_LIBRARY_PATH=/usr/local/lib",
    "PYTHONHOME=/usr/local",
    "PYTHONPATH=/opt/site",
]


def built(
    path: Path, programs: Sequence[Path], packages: Sequence[str] = (), beside: Mapping[str, str] | None = None
) -> Path:
    """What ``docker save`` would write of an image with these programs in ``/app``, and packages of Python that they need.

    Args:
        beside: path in the image -> a file of this machine, programs with the libraries that they need.
    """
    tree = io.BytesIO()
    host.write_tree(tree, host.distributions(packages), beside)
    own = files({f"app/{program.name}": program.read_bytes() for program in programs})
    return saved(path, [tree.getvalue(), own], {"Env": ENV, "User": "root"})


def below(folder: str) -> dict[str, str]:
    """All files of a folder of this machine, at the same paths of an image."""
    found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
    return {path.lstrip("/"): path for path in found if os.path.isfile(path)}


@dataclass
class MappedHomes:
    """A network whose homes accept whoever pushed."""

    folder: Path
    run: DemoRun

    async def cottage(self, *words: str) -> str:
        return await output_of(["-m", "cottage", *words], self.folder)

    @property
    def server(self) -> list[str]:
        return ["--server", self.run.network.web]

    async def push(self, archive: Path, name: str) -> None:
        """Push an image, have every home accept its key, and wait until they have told so."""
        said = await self.cottage("image", "push", str(archive), "--name", name, *self.server)
        (key,) = re.findall(r"cottage node images accept (\S+)", said)
        for provider in self.run.network.providers:
            home = ["--home", str(provider.home)]
            await self.cottage("node", "images", "accept", key, "--name", "Ada's lab", *home)
        array: dict[str, Any] = {
            "image": "0" * 64,
            "command": ["x"],
            "elements": "0" * 64,
            "count": 1,
            "memory_mb": 512,
        }
        array |= {"owners": min(MAX_OWNERS, len(self.run.network.providers))}
        spec = {"name": "asked", "budget": 1_000_000, "array": array}
        async with Client(self.run.network.web) as client, asyncio.timeout(120):
            while any("runs containers" in one or "owners" in one for one in (await client.quote(spec)).problems):
                await asyncio.sleep(0.5)

    async def map(self, image: str, command: str, *words: str) -> Path:
        """``cottage map`` into a folder of its own; it must end well, and the books must hold."""
        out = self.folder / f"results of {image.replace(':', '-')}"
        await self.cottage("map", image, command, "--out", str(out), "--yes", *words, *self.server)
        async with Client(self.run.network.web) as client:
            (job,) = await client.jobs()
            nodes = await client.nodes(job.id)
        assert job.state == "settled"
        assert 0 < job.paid <= job.escrow
        assert job.paid + job.refunded == job.escrow
        assert all(node.paid > 0 for node in nodes), "every home had a part in it, and was paid for it"
        return out


@asynccontextmanager
async def mapped_homes(folder: Path, count: int, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MappedHomes]:
    """So many homes; nothing of theirs is left at the engine afterwards."""
    monkeypatch.setenv("COTTAGE_CONFIG", str(folder / "config"))
    monkeypatch.setattr("cottage.demo.run.READY_S", 600.0)  # Each home measures this machine in its engine first.
    words = [*WORDS, "--nodes", str(count), "--dir", str(folder / "network")]
    async with DemoRun(parse(words), LineScreen()) as run:
        await run._start()
        yield MappedHomes(folder, run)
        homes = [provider.home for provider in run.network.providers]
    client = docker.from_env()
    for home in homes:
        mine = {"label": f"network.cottage.home={owner_of(home.resolve())}"}
        assert not client.containers.list(all=True, filters=mine)
        assert not client.volumes.list(filters=mine)
        for image in client.images.list(f"cottage-element-{owner_of(home.resolve())[:12]}"):
            client.images.remove(image.id, force=True)
    client.close()

"""A server whose network answers with models, and jobs of it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import Client
from tests.coordinator.web.conftest import House
from tests.coordinator.web.deployments.serving_cluster import ServingCluster

ENOUGH = 5_000_000


class ServingHouse(House):
    """As ``House``, and its cluster serves."""

    kind = ServingCluster


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    built = ServingHouse(tmp_path)
    await built.start()
    yield built
    await built.stop()
    assert not built.ears.undocumented(built.document)


async def finished(house: House, settings: dict[str, Any] | None = None) -> str:
    """A job that has a model."""
    data = await house.dataset()
    spec: dict[str, Any] = {"name": "moo", "model": {"preset": "tiny-llama"}, "dataset": {"artifact": data}}
    if settings is not None:
        spec["tokenizer"] = {"kind": "file", "file": data, "settings": settings}
    async with Client(house.url) as client:
        job = (await client.create_job(spec | {"budget": 9_000_000})).id
        await client.fund(job)
    house.cluster.run(job)
    await house.cluster.finish(job, b"PK\5\6" + b"\0" * 18)
    return job


async def deployed(house: House, periods: int = 0, replicas: int = 2, of: str = "") -> str:
    """A deployment that is funded; with ``periods`` it answers, and was paid so often."""
    async with Client(house.url) as client:
        made = await client.deploy(of or await finished(house), replicas, 8.0, ENOUGH)
    for _ in range(2 + periods if periods else 0):
        house.cluster.step(made.id)
    return made.id
